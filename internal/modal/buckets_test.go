package modal

import (
	"context"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/fleet/storage"
	"github.com/RelevanceAI/harvest/internal/fleet/transfer"
	"github.com/RelevanceAI/harvest/internal/modal/anonymous"
	"github.com/RelevanceAI/harvest/internal/store"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// dirEngine is the fake, whose sandboxes seem to have directories of this machine.
type dirEngine struct{ *fake.Engine }

func (e dirEngine) Capabilities() engine.Capabilities {
	c := e.Engine.Capabilities()
	c.Dirs = true
	return c
}

func (e dirEngine) Create(ctx context.Context, spec engine.Spec) (engine.Sandbox, error) {
	spec.Mounts = nil
	return e.Engine.Create(ctx, spec)
}

// someS3 is an S3 that mounts everything.
type someS3 struct {
	transfer.Syncer
	transfer.Mounter
}

func (someS3) Check(context.Context, storage.Job) error { return nil }
func (someS3) Watch(func(sandbox, reason string))       {}
func (someS3) Mount(context.Context, storage.Job, bool, int64) (string, error) {
	return "/mounts/x", nil
}
func (someS3) Quiet(context.Context, string)                    {}
func (someS3) Finish(context.Context, string) error             { return nil }
func (someS3) Recover(context.Context, func(string) bool) error { return nil }

// bucketWorld is as much of a Server as mounts of buckets need.
func bucketWorld(t *testing.T) (s *Server, records store.Sandboxes, secrets store.Secrets) {
	t.Helper()
	dir := t.TempDir()
	eng, err := fake.Open(filepath.Join(dir, "fake"), fake.Options{})
	if err != nil {
		t.Fatal(err)
	}
	db := testdb.Open(t)
	records, secrets = db.Sandboxes(), db.Secrets()
	vault, err := secret.Open(t.Context(), secret.Options{Store: secrets, KeyFile: filepath.Join(dir, "key")})
	if err != nil {
		t.Fatal(err)
	}
	fleet, err := fleet.Open(t.Context(), fleet.Options{Engine: dirEngine{eng}, Store: records, Secrets: vault,
		S3: someS3{}, Mounts: someS3{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(fleet.Close(context.WithoutCancel(t.Context())), eng.Close()); err != nil {
			t.Error(err)
		}
	})
	server := &Server{opts: Options{Fleet: fleet, Secrets: vault}, ctx: t.Context()}
	if server.secrets, err = anonymous.Open(t.Context(), db.Records(), []byte("key")); err != nil {
		t.Fatal(err)
	}
	return server, records, secrets
}

func (s *Server) setSecret(t *testing.T, acc, name string, pairs secret.Pairs) {
	t.Helper()
	if _, err := s.opts.Secrets.Set(t.Context(), acc, name, pairs, secret.Replace); err != nil {
		t.Fatal(err)
	}
}

func mounting(m pb.CloudBucketMount_builder) *pb.Sandbox {
	return pb.Sandbox_builder{CloudBucketMounts: []*pb.CloudBucketMount{m.Build()}}.Build()
}

// TestBucketsOfAClient checks that a client's mount becomes a mount of the Fleet, whose secret has all of the client's
// settings.
//
// mission: D5
func TestBucketsOfAClient(t *testing.T) {
	t.Parallel()
	s, _, _ := bucketWorld(t)
	keys := secret.Pairs{"AWS_ACCESS_KEY_ID": "AKIANAMED", "AWS_SECRET_ACCESS_KEY": "the-secret-key",
		"AWS_SESSION_TOKEN": "the-token", "AWS_REGION": "eu-west-1"}
	with := func(more secret.Pairs) secret.Pairs {
		all := maps.Clone(keys)
		maps.Copy(all, more)
		return all
	}
	s.setSecret(t, "personal", "keys", with(secret.Pairs{"OTHER": "is-not-for-s3"}))
	s.setSecret(t, "acme", "keys", keys)
	s.setSecret(t, "personal", "google", secret.Pairs{"GOOGLE_ACCESS_KEY_ID": "GOOG1",
		"GOOGLE_ACCESS_KEY_SECRET": "the-google-key"})
	s.setSecret(t, "personal", "empty", secret.Pairs{"OTHER": "x"})
	loose, err := s.addSecret("personal", keys)
	if err != nil {
		t.Fatal(err)
	}
	prefix, endpoint, there := "work/", "https://s3.example.org/", "https://s3.example.com"
	for name, c := range map[string]struct {
		acc  string
		at   string // the server's endpoint
		m    pb.CloudBucketMount_builder
		own  secret.Pairs // the sandbox's own secret
		name string       // otherwise the secret's name
		kind errors.Kind
	}{
		"a secret with a name": {m: pb.CloudBucketMount_builder{KeyPrefix: &prefix, ReadOnly: true,
			CredentialsSecretId: named(secretID, "keys")}, name: "keys"},
		"none":               {m: pb.CloudBucketMount_builder{ForcePathStyle: true}},
		"one without a name": {m: pb.CloudBucketMount_builder{CredentialsSecretId: loose}, own: keys},
		"an endpoint": {m: pb.CloudBucketMount_builder{CredentialsSecretId: named(secretID, "keys"),
			BucketEndpointUrl: &endpoint}, own: with(secret.Pairs{"AWS_ENDPOINT_URL_S3": "https://s3.example.org"})},
		"the path": {m: pb.CloudBucketMount_builder{CredentialsSecretId: loose,
			BucketEndpointUrl: &endpoint, ForcePathStyle: true},
			own: with(secret.Pairs{"AWS_ENDPOINT_URL_S3": "https://s3.example.org", secret.PathStyle: "true"})},
		"the server's endpoint": {acc: "acme", at: "https://s3.example.org",
			m:    pb.CloudBucketMount_builder{CredentialsSecretId: named(secretID, "keys"), BucketEndpointUrl: &endpoint},
			name: "keys"},
		"Google's names": {m: pb.CloudBucketMount_builder{CredentialsSecretId: named(secretID, "google")},
			own: secret.Pairs{"AWS_ACCESS_KEY_ID": "GOOG1", "AWS_SECRET_ACCESS_KEY": "the-google-key"}},
		"another account's": {acc: "acme", m: pb.CloudBucketMount_builder{CredentialsSecretId: loose},
			kind: errors.NotFound},
		"none of that name": {m: pb.CloudBucketMount_builder{CredentialsSecretId: named(secretID, "none")},
			kind: errors.NotFound},
		"no keys": {m: pb.CloudBucketMount_builder{CredentialsSecretId: named(secretID, "empty")},
			kind: errors.Invalid},
		"an endpoint and no secret": {m: pb.CloudBucketMount_builder{BucketEndpointUrl: &endpoint},
			kind: errors.Invalid},
		"another account and place": {acc: "acme",
			m:    pb.CloudBucketMount_builder{CredentialsSecretId: named(secretID, "keys"), BucketEndpointUrl: &endpoint},
			kind: errors.Denied},
		"another place": {at: there, m: pb.CloudBucketMount_builder{CredentialsSecretId: loose,
			BucketEndpointUrl: &endpoint}, kind: errors.Unsupported},
	} {
		if c.acc == "" {
			c.acc = "personal"
		}
		s.opts.S3Endpoint, c.m.BucketName, c.m.MountPath = c.at, "files", "/data"
		got, err := s.bucket(t.Context(), c.acc, mounting(c.m))
		if c.kind != "" {
			if errors.KindOf(err) != c.kind || strings.Contains(err.Error(), "the-") {
				t.Errorf("%s: %v, want %s", name, err, c.kind)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := spec.S3{Place: places.Place{Bucket: "files", Secret: c.name}, MountPath: "/data", Mount: true,
			ReadOnly: c.m.ReadOnly}
		if c.m.KeyPrefix != nil {
			want.Prefix = prefix
		}
		if c.own != nil {
			want.Secret = got.Secret
			pairs, release, err := s.opts.Secrets.Reveal(t.Context(), c.acc, got.Secret)
			if err != nil || !maps.Equal(pairs, c.own) || !ownSecret().MatchString(got.Secret) {
				t.Errorf("%s: the secret %s has %v, %v", name, got.Secret, pairs, err)
			} else {
				release()
			}
		}
		if *got != want {
			t.Errorf("%s: %+v, want %+v", name, *got, want)
		}
		s.dropBucket(t.Context(), c.acc, got)
	}
	if got, err := s.bucket(t.Context(), "personal", &pb.Sandbox{}); got != nil || err != nil {
		t.Errorf("no bucket: %+v, %v", got, err)
	}
	left, err := s.opts.Secrets.List(t.Context(), "personal")
	if err != nil || len(left) != 3 {
		t.Errorf("left are %+v, %v", left, err)
	}
	s.opts.Secrets = nil
	if _, err := s.bucket(t.Context(), "personal",
		mounting(pb.CloudBucketMount_builder{CredentialsSecretId: loose})); errors.KindOf(err) != errors.Unsupported {
		t.Errorf("a server without secrets: %v", err)
	}
	s.sweepBuckets(t.Context())
}

func TestBucketsThatAreRefused(t *testing.T) {
	t.Parallel()
	text := func(s string) *string { return &s }
	for words, def := range map[string]*pb.Sandbox{
		"the requester pays":     mounting(pb.CloudBucketMount_builder{RequesterPays: true}),
		"no role is assumed":     mounting(pb.CloudBucketMount_builder{OidcAuthRoleArn: text("arn:aws:iam::1:role/x")}),
		"must end with a '/'":    mounting(pb.CloudBucketMount_builder{KeyPrefix: text("a")}),
		"no address of a server": mounting(pb.CloudBucketMount_builder{BucketEndpointUrl: text("https://user:a-password@example.org")}),
		"more than one bucket":   pb.Sandbox_builder{CloudBucketMounts: []*pb.CloudBucketMount{{}, {}}}.Build(),
		"too old":                pb.Sandbox_builder{S3Mounts: []*pb.S3Mount{{}}}.Build(),
	} {
		_, err := request(def)
		if k := errors.KindOf(err); k != errors.Unsupported && k != errors.Invalid ||
			!strings.Contains(err.Error(), words) || errors.RemedyOf(err) == "" ||
			strings.Contains(err.Error(), "a-password") {
			t.Errorf("%v, want %q", err, words)
		}
	}
	denied := bucketError(&spec.S3{}, errors.Newf(errors.Unauthenticated, "S3 does not know the access key"))
	if st := answer(t.Context(), "m", denied); !strings.Contains(st.Error(), "InvalidArgument") {
		t.Errorf("what S3 refuses is %v", st)
	}
	if err := errors.Newf(errors.Unauthenticated, "x"); bucketError(nil, err) != err {
		t.Error("what has nothing to do with S3 is another error")
	}
}

// TestSecretsOfBucketsEnd checks that a sandbox's own secret is deleted with its last use, and no earlier, and that
// other secrets are never deleted.
//
// mission: D5, F4
func TestSecretsOfBucketsEnd(t *testing.T) {
	t.Parallel()
	s, records, secrets := bucketWorld(t)
	ctx := t.Context()
	own := func(letter string) string {
		name := bucketSecret + strings.Repeat(letter, 26)
		s.setSecret(t, "personal", name, secret.Pairs{"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "x"})
		r, err := secrets.Get(ctx, "personal", name)
		if err != nil {
			t.Fatal(err)
		}
		r.Created = time.Now().Add(-time.Hour)
		if err := secrets.Put(ctx, r); err != nil {
			t.Fatal(err)
		}
		return name
	}
	have := func(when string, want ...string) {
		t.Helper()
		all, err := s.opts.Secrets.List(ctx, "personal")
		var names []string
		for _, one := range all {
			names = append(names, one.Name[len(bucketSecret):][:1])
		}
		if got := strings.Join(names, ""); err != nil || got != strings.Join(want, "") {
			t.Errorf("%s there are %q, %v, want %q", when, got, err, want)
		}
	}
	mounts := func(name string) *spec.S3 {
		return &spec.S3{Place: places.Place{Bucket: "files", Secret: name}, MountPath: "/data", Mount: true}
	}
	lives := own("b")
	sb, err := s.opts.Fleet.Create(ctx, "personal", spec.Request{S3: mounts(lives)})
	if err != nil {
		t.Fatal(err)
	}
	past := func(id, name, unsent string, ago time.Duration) record.Sandbox {
		at := time.Now().Add(-ago)
		r := record.Sandbox{ID: id, Account: "personal", Status: record.Terminated, Created: at, Ended: at,
			S3: &record.S3Volume{S3: *mounts(name), SyncError: unsent}}
		if err := records.Put(ctx, r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	copied := past("sbx_copied", lives, "", time.Hour)
	unsent := past("sbx_unsent", own("c"), "S3 is away", time.Hour)
	past("sbx_late", own("d"), "S3 is away", 30*24*time.Hour)
	past("sbx_just", own("e"), "", time.Minute)
	done := past("sbx_done", own("f"), "", time.Minute)
	own("g") // of no sandbox
	s.setSecret(t, "personal", bucketSecret+"z", secret.Pairs{"A": "the client's own"})
	s.setSecret(t, "personal", bucketSecret+strings.Repeat("h", 26),
		secret.Pairs{"A": "of one that is about to be made"})
	have("at first", "b", "c", "d", "e", "f", "g", "h", "z")
	s.endBucket(ctx, copied)
	s.endBucket(ctx, unsent)
	s.endBucket(ctx, done)
	s.endBucket(ctx, record.Sandbox{Status: record.Terminated})
	have("at the end", "b", "c", "d", "e", "g", "h", "z")
	s.sweepBuckets(ctx)
	have("after a while", "b", "c", "e", "h", "z")
	if err := s.opts.Fleet.Destroy(ctx, "personal", sb.ID); err != nil {
		t.Fatal(err)
	}
	if sb, err = s.opts.Fleet.Get(ctx, "personal", sb.ID); err != nil {
		t.Fatal(err)
	}
	s.endBucket(ctx, sb)
	have("without the last one", "c", "e", "h", "z")
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	s.dropBucket(cancelled, "personal", mounts(bucketSecret+strings.Repeat("h", 26)))
	have("by a client that is gone", "c", "e", "z")
}
