package storage

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	s3sync "github.com/RelevanceAI/harvest/internal/s3/volsync"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

func TestMain(m *testing.M) {
	logf.Setup(io.Discard, 0, false)
	os.Exit(s3test.M{M: m}.Run())
}

// home is a Manager with its volumes, secrets and options.
type home struct {
	*Manager
	vault   *secret.Vault
	volumes *volume.Local
	bucket  string
}

func newHome(t *testing.T, change func(*Options)) *home {
	t.Helper()
	url, bucket := s3test.Bucket(t)
	vault, err := secret.Open(t.Context(), secret.Options{Store: &secretStore{all: map[[2]string]secret.Record{}},
		KeyFile: filepath.Join(t.TempDir(), "secret.key")})
	must(t, err)
	volumes, err := volume.OpenDir(t.TempDir())
	must(t, err)
	t.Cleanup(func() { volumes.Close() })
	o := Options{Rules: func(account string) netguard.Rules { return netguard.Rules{Loopback: account == "operator"} },
		Secrets: vault, Store: &unsentStore{all: map[string]Unsent{}},
		Server: Server{Place: places.Place{Bucket: bucket,
			Prefix: "harvest"},
			Endpoint: url, PathStyle: true, Account: "operator"}}
	if change != nil {
		change(&o)
	}
	h := &home{New(o), vault, volumes, bucket}
	h.set(t, "operator", DefaultSecret, s3test.SecretKey)
	return h
}

func (h *home) set(t *testing.T, account, name, key string) {
	t.Helper()
	_, err := h.vault.Set(t.Context(), account, name, secret.Pairs{"AWS_ACCESS_KEY_ID": s3test.AccessKey,
		"AWS_SECRET_ACCESS_KEY": key, "AWS_REGION": "us-east-1"}, secret.Replace)
	must(t, err)
}

// volume makes one with files.
func (h *home) volume(t *testing.T, name string, files ...string) volume.Volume {
	t.Helper()
	v, err := h.volumes.Create(t.Context(), name)
	must(t, err)
	for _, f := range files {
		must(t, os.WriteFile(filepath.Join(dirOf(v), f), []byte(f), 0o644))
	}
	return v
}

func dirOf(v volume.Volume) string { return v.(volume.Directory).Dir() }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (h *home) sync(t *testing.T, account string, v volume.Volume, r Request) Result {
	t.Helper()
	res, err := h.Sync(t.Context(), account, v, r)
	must(t, err)
	if res.Stats.Failed != 0 {
		t.Errorf("failed: %+v", res.Stats.Failures)
	}
	return res
}

var up, down = s3sync.Options{Direction: plan.Up}, s3sync.Options{Direction: plan.Down}

// TestServersPlace checks that the server's place has a prefix for each volume of each account, and that no account
// reaches another's prefix.
// mission: 2.1, 2.3, 3.1, D1
func TestServersPlace(t *testing.T) {
	h := newHome(t, nil)
	v := h.volume(t, "data", "a", "b")
	res := h.sync(t, "acme", v, Request{Sync: up})
	if res.Place != "s3://"+h.bucket+"/harvest/acme/data/" || res.Stats.Files != 2 {
		t.Errorf("up: %s, %s", res.Place, res.Stats)
	}
	if res := h.sync(t, "acme", v, Request{Sync: up}); res.Stats.Files != 0 || res.Stats.Skipped != 2 {
		t.Errorf("up again: %s", res.Stats)
	}
	if res := h.sync(t, "rival", v, Request{Sync: down}); res.Stats.Files != 0 {
		t.Errorf("another account got %s", res.Stats)
	}
	must(t, os.Remove(filepath.Join(dirOf(v), "a")))
	if res := h.sync(t, "acme", v, Request{Sync: down}); res.Stats.Files != 1 {
		t.Errorf("down: %s", res.Stats)
	}
}

// TestOwnBucket checks that an account's own bucket needs the account's own secret.
// mission: D1
func TestOwnBucket(t *testing.T) {
	h := newHome(t, func(o *Options) { o.Server.Region = "us-east-1" })
	v := h.volume(t, "data", "a")
	where := places.Place{Bucket: h.bucket, Prefix: "mine"}
	if _, err := h.Sync(t.Context(), "acme", v,
		Request{Place: where, Sync: up}); errors.KindOf(err) != errors.NotFound || errors.RemedyOf(err) == "" {
		t.Errorf("without a secret: %v", err)
	}
	h.set(t, "acme", "mine", s3test.SecretKey)
	h.set(t, "acme", "wrong", "not-the-key-of-anybody")
	where.Secret = "mine"
	if res := h.sync(t, "acme", v, Request{Place: where, Sync: up}); res.Place != "s3://"+h.bucket+"/mine/" ||
		res.Stats.Files != 1 {
		t.Errorf("%s: %s", res.Place, res.Stats)
	}
	if res := h.sync(t, "acme", v, Request{Place: where, Versioned: true,
		Sync: up}); res.Place != "s3://"+h.bucket+"/mine/acme/" {
		t.Errorf("versions are at %s", res.Place)
	}
	where.Secret = "wrong"
	_, err := h.Sync(t.Context(), "acme", v, Request{Place: where, Sync: up})
	if errors.KindOf(err) != errors.Unauthenticated || strings.Contains(errors.Message(err), "not-the-key") {
		t.Errorf("the wrong secret: %v", err)
	}
	if _, err := h.vault.Set(t.Context(), "acme", "other", secret.Pairs{"TOKEN": "a-token-of-something"},
		secret.Replace); err != nil {
		t.Fatal(err)
	}
	where.Secret = "other"
	if _, err := h.Sync(t.Context(), "acme", v, Request{Place: where, Sync: up}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a secret of something else: %v", err)
	}
}

// TestHiddenWhileOpen checks that the secret values that a sync uses are hidden from the log while it runs, and no
// longer after the secret is gone.
// mission: 9.3
func TestHiddenWhileOpen(t *testing.T) {
	h := newHome(t, nil)
	v := h.volume(t, "data", "a")
	const token = "a-session-token-that-nobody-knows"
	_, err := h.vault.Set(t.Context(), "acme", "brief", secret.Pairs{"AWS_ACCESS_KEY_ID": s3test.AccessKey,
		"AWS_SECRET_ACCESS_KEY": token}, secret.Replace)
	must(t, err)
	where := places.Place{Bucket: h.bucket, Secret: "brief"}
	b, err := h.Manager.bucket(t.Context(), "acme", "data", where, false, patience)
	must(t, err)
	if _, err := h.Sync(t.Context(), "acme", v,
		Request{Place: where, Sync: up}); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("with a wrong key: %v", err)
	}
	_, _, _ = h.Versions(t.Context(), "acme", "data", where)
	_, _ = h.Prune(t.Context(), "acme", "data", where, 1)
	bad := where
	bad.Bucket = "a/b"
	if _, err := h.Manager.bucket(t.Context(), "acme", "data", bad, false,
		patience); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a bad bucket: %v", err)
	}
	must(t, h.vault.Delete(t.Context(), "acme", "brief"))
	if logf.Redacted(token) == token {
		t.Error("what an open bucket has is not hidden")
	}
	b.close()
	if logf.Redacted(token) != token {
		t.Error("what nobody has is hidden for ever")
	}
}

// Versions are saved, listed, restored and pruned, and a mirror of the volume itself leaves them alone.
// mission: D4
func TestVersions(t *testing.T) {
	h := newHome(t, nil)
	v := h.volume(t, "data", "a", "b")
	first := h.sync(t, "acme", v, Request{Versioned: true, Sync: up})
	must(t, os.Remove(filepath.Join(dirOf(v), "a")))
	second := h.sync(t, "acme", v, Request{Versioned: true, Sync: up})
	if first.Version == "" || second.Version <= first.Version {
		t.Fatalf("versions %q and %q", first.Version, second.Version)
	}
	mirror := up
	mirror.Mirror, mirror.List = true, true
	if res := h.sync(t, "acme", v, Request{Sync: mirror}); res.Stats.Deleted != 0 || res.Stats.Files != 1 {
		t.Errorf("a mirror did %s", res.Stats)
	}
	place, all, err := h.Versions(t.Context(), "acme", "data", places.Place{})
	if err != nil || place != "s3://"+h.bucket+"/harvest/acme/.versions/data/" || len(all) != 2 ||
		all[0].Name() != second.Version || !all[1].Whole {
		t.Errorf("versions at %s: %+v, %v", place, all, err)
	}
	if res := h.sync(t, "acme", v, Request{Versioned: true, Version: first.Version,
		Sync: down}); res.Stats.Files != 1 || res.Version != first.Version {
		t.Errorf("the first: %s, %s", res.Version, res.Stats)
	}
	if res := h.sync(t, "acme", v, Request{Versioned: true, Sync: down}); res.Version != second.Version {
		t.Errorf("the latest is %s", res.Version)
	}
	deleted, err := h.Prune(t.Context(), "acme", "data", places.Place{}, 1)
	if err != nil || len(deleted) != 1 || deleted[0].Name() != first.Version {
		t.Errorf("pruned %+v, %v", deleted, err)
	}
	if _, err := h.Prune(t.Context(), "acme", "data", places.Place{}, 0); errors.KindOf(err) != errors.Invalid {
		t.Errorf("keep none: %v", err)
	}
	for name, r := range map[string]Request{
		"both ways":     {Versioned: true, Sync: s3sync.Options{Direction: plan.Both}},
		"no version":    {Versioned: true, Version: "x", Sync: down},
		"no direction":  {},
		"a prefix":      {Place: places.Place{Prefix: "x"}, Sync: up},
		"a secret":      {Place: places.Place{Secret: "x"}, Sync: up},
		"a bad bucket":  {Place: places.Place{Bucket: "a/b", Secret: "mine"}, Sync: up},
		"a bad version": {Versioned: true, Version: "-1", Sync: down},
	} {
		h.set(t, "acme", "mine", s3test.SecretKey)
		if _, err := h.Sync(t.Context(), "acme", v, r); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRememberedOfAVolume checks that the recorded state of a place belongs to the volume that was synchronised, and
// not to another, empty one: that one receives the files, and deletes nothing. A volume that was deleted and created
// again is another volume.
// mission: D1
func TestRememberedOfAVolume(t *testing.T) {
	h := newHome(t, nil)
	h.set(t, "acme", DefaultSecret, s3test.SecretKey)
	both := Request{Place: places.Place{Bucket: h.bucket, Prefix: "shared"}, Sync: s3sync.Options{Direction: plan.Both}}
	there := func() []string {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(s3test.Dir(h.bucket), "shared", "[a-z]*"))
		must(t, err)
		for i, f := range files {
			files[i] = filepath.Base(f)
		}
		return files
	}
	first := h.volume(t, "first", "a", "b")
	h.sync(t, "acme", first, both)
	whole := []string{"a", "b"}
	if got := there(); !slices.Equal(got, whole) {
		t.Fatalf("the place has %q", got)
	}
	gets := func(what string, v volume.Volume) {
		t.Helper()
		if res := h.sync(t, "acme", v, both); res.Stats.Files != 2 || res.Stats.Deleted != 0 {
			t.Errorf("%s: %s", what, res.Stats)
		}
		if got := there(); !slices.Equal(got, whole) {
			t.Errorf("%s: the place has %q", what, got)
		}
		if data, err := os.ReadFile(filepath.Join(dirOf(v), "b")); string(data) != "b" {
			t.Errorf("%s: it has %q, %v", what, data, err)
		}
	}
	gets("another volume", h.volume(t, "second"))
	notes := first.(volume.Directory).Notes()
	if _, err := os.Stat(notes); err != nil {
		t.Error(err)
	}
	must(t, h.volumes.Delete(t.Context(), "first"))
	if _, err := os.Stat(notes); !os.IsNotExist(err) {
		t.Errorf("what is remembered of a volume that is gone: %v", err)
	}
	gets("a volume made anew", h.volume(t, "first"))
	// A file that is removed from a volume is still removed from the place.
	whole = whole[:1]
	must(t, os.Remove(filepath.Join(dirOf(first), "b")))
	if res := h.sync(t, "acme", first, both); res.Stats.Deleted != 1 || !slices.Equal(there(), whole) {
		t.Errorf("a file was removed: %s; the place has %q", res.Stats, there())
	}
}

func TestNoPlace(t *testing.T) {
	h := newHome(t, func(o *Options) { o.Server.Bucket = "" })
	v := h.volume(t, "data")
	_, err := h.Sync(t.Context(), "acme", v, Request{Sync: up})
	_, _, versions := h.Versions(t.Context(), "acme", "data", places.Place{})
	_, prune := h.Prune(t.Context(), "acme", "data", places.Place{}, 1)
	for what, err := range map[string]error{"sync": err, "versions": versions, "prune": prune} {
		if errors.KindOf(err) != errors.Invalid || errors.RemedyOf(err) == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestAuthorities(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.pem")
	h := newHome(t, func(o *Options) { o.Server.CAFile = file })
	v := h.volume(t, "data")
	if _, err := h.Sync(t.Context(), "acme", v, Request{Sync: up}); errors.KindOf(err) != errors.Invalid ||
		!strings.Contains(errors.Message(err), "ca_file") {
		t.Errorf("no such file: %v", err)
	}
	must(t, os.WriteFile(file, []byte("nothing"), 0o600))
	if _, err := h.Sync(t.Context(), "acme", v, Request{Sync: up}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("no certificate: %v", err)
	}
}

// elsewhere is a volume without a directory on this machine.
type elsewhere struct{ volume.Volume }

// placed is one whose directory the test chooses.
type placed struct {
	volume.Volume
	dir string
	use error
}

func (p placed) Dir() string                { return p.dir }
func (p placed) Notes() string              { return p.dir }
func (p placed) Use(string) (func(), error) { return func() {}, p.use }

// One sync of a volume at a time, and only of volumes that are here.
func TestHold(t *testing.T) {
	h := newHome(t, nil)
	v := h.volume(t, "data", "a")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := up
	o.Progress = func(s3sync.Stats) {
		if _, err := h.Sync(ctx, "acme", v, Request{Sync: up}); errors.KindOf(err) != errors.Conflict ||
			errors.RemedyOf(err) == "" {
			t.Errorf("a second sync: %v", err)
		}
		if err := h.volumes.Delete(ctx, "data"); err == nil {
			t.Error("a volume was deleted while it is synchronised")
		}
	}
	h.sync(t, "acme", v, Request{Sync: o})
	h.sync(t, "acme", v, Request{Sync: up})
	for what, c := range map[string]struct {
		v    volume.Volume
		kind errors.Kind
	}{
		"elsewhere":      {elsewhere{v}, errors.Unsupported},
		"no directory":   {placed{Volume: v}, errors.Unsupported},
		"gone":           {placed{v, "/x", errors.Newf(errors.NotFound, "it is gone")}, errors.NotFound},
		"directory gone": {placed{Volume: v, dir: "/nonexistent"}, errors.Internal},
	} {
		if _, err := h.Sync(t.Context(), "acme", c.v, Request{Sync: up}); errors.KindOf(err) != c.kind {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestSecretsEndpoint checks that the secret's endpoint is used if the configuration has none.
func TestSecretsEndpoint(t *testing.T) {
	url := ""
	h := newHome(t, func(o *Options) { url, o.Server.Endpoint = o.Server.Endpoint, "" })
	_, err := h.vault.Set(t.Context(), "operator", DefaultSecret, secret.Pairs{"AWS_ACCESS_KEY_ID": s3test.AccessKey,
		"AWS_SECRET_ACCESS_KEY": s3test.SecretKey, "AWS_ENDPOINT_URL": url}, secret.Replace)
	must(t, err)
	if res := h.sync(t, "acme", h.volume(t, "data", "a"), Request{Sync: up}); res.Stats.Files != 1 {
		t.Errorf("%s", res.Stats)
	}
	// Other accounts cannot make the server send requests to any address.
	_, err = h.vault.Set(t.Context(), "acme", "mine", secret.Pairs{"AWS_ACCESS_KEY_ID": s3test.AccessKey,
		"AWS_SECRET_ACCESS_KEY": s3test.SecretKey, "AWS_ENDPOINT_URL": url}, secret.Replace)
	must(t, err)
	_, err = h.Sync(t.Context(), "acme", h.volume(t, "other", "a"),
		Request{Place: places.Place{Bucket: "files", Secret: "mine"}, Sync: up})
	if errors.KindOf(err) != errors.Denied || errors.RemedyOf(err) == "" {
		t.Errorf("an endpoint of one's own: %v", err)
	}
}

// TestEndpointsFollowTheRules checks that the rules of an account decide which addresses an endpoint of its secret may
// have.
func TestEndpointsFollowTheRules(t *testing.T) {
	url := ""
	h := newHome(t, func(o *Options) { url, o.Server.Endpoint, o.Rules = o.Server.Endpoint, "", nil })
	_, err := h.vault.Set(t.Context(), "operator", DefaultSecret, secret.Pairs{"AWS_ACCESS_KEY_ID": s3test.AccessKey,
		"AWS_SECRET_ACCESS_KEY": s3test.SecretKey, "AWS_ENDPOINT_URL": url}, secret.Replace)
	must(t, err)
	_, err = h.Sync(t.Context(), "operator", h.volume(t, "data", "a"), Request{Sync: up})
	if errors.KindOf(err) != errors.Denied || !strings.Contains(errors.RemedyOf(err), "connect.allow") {
		t.Errorf("%v, %q", err, errors.RemedyOf(err))
	}
}

// The endpoint of the configuration is the operator's choice, with or without a port.
func TestRulesOfTheConfiguredEndpoint(t *testing.T) {
	for endpoint, want := range map[string]string{"": "", "http://minio": "minio:80 b.minio:80",
		"https://minio/": "minio:443 b.minio:443", "http://10.0.0.1:9000": "10.0.0.1:9000 b.10.0.0.1:9000"} {
		r := New(Options{Server: Server{Endpoint: endpoint}}).rules("acme", "b")
		if got := strings.Join(r.Hosts, " "); got != want || r.Any || r.Loopback {
			t.Errorf("%q: %+v", endpoint, r)
		}
	}
}

// TestLocation checks that Location returns the place of a job's files, and no credentials without a secret.
func TestLocation(t *testing.T) {
	t.Parallel()
	h := newHome(t, func(o *Options) { o.Server.Bucket = "" })
	_, err := h.vault.Set(t.Context(), "acme", DefaultSecret,
		secret.Pairs{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_SESSION_TOKEN": "token",
			"AWS_REGION": "us-east-1"}, secret.Replace)
	must(t, err)
	loc, err := h.Location(t.Context(), Job{Account: "acme", Place: places.Place{Bucket: "b", Prefix: "p"}})
	must(t, err)
	if loc.Bucket != "b" || loc.Prefix != "p" || loc.AccessKeyID != "id" || loc.SecretAccessKey != "key" ||
		loc.SessionToken != "token" || loc.Region != "us-east-1" || !loc.PathStyle {
		t.Errorf("it is at %s/%s in %s", loc.Bucket, loc.Prefix, loc.Region)
	}
	for words, where := range map[string]places.Place{"no bucket": {}, "no secret": {Bucket: "b", Secret: "none"}} {
		_, err := h.Location(t.Context(), Job{Account: "acme", Place: where})
		if err == nil || !strings.Contains(errors.Message(err), words) {
			t.Errorf("%v, want %q", err, words)
		}
	}
}

// TestRoles checks that a secret may name a role, which its keys assume. For the operator, the machine's own
// credentials may assume it.
// mission: 2.7, 9.3
func TestRoles(t *testing.T) {
	var asked []string
	sts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		action := r.Form.Get("Action")
		asked = append(asked,
			strings.TrimSpace(action+" "+r.Form.Get("RoleArn")+" "+r.Form.Get("ExternalId")+
				r.Form.Get("WebIdentityToken")))
		w.Header().Set("Content-Type", "text/xml")
		if strings.HasSuffix(r.Form.Get("RoleArn"), "/closed") {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w,
				`<ErrorResponse><Error><Code>AccessDenied</Code><Message>no</Message></Error></ErrorResponse>`)
			return
		}
		_, _ = fmt.Fprintf(w,
			`<%[1]sResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/`+
				`"><%[1]sResult><Credentials><AccessKeyId>%s</AccessKeyId><SecretAccessKey>%s</`+
				`SecretAccessKey><SessionToken></SessionToken><Expiration>2199-01-01T00:00:00Z</Expiration></`+
				`Credentials></%[1]sResult></%[1]sResponse>`,
			action, s3test.AccessKey, s3test.SecretKey)
	}))
	t.Cleanup(sts.Close)
	token := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(token, []byte("the-token"), 0o600))
	t.Setenv("AWS_ACCESS_KEY_ID", s3test.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3test.SecretKey)
	t.Setenv("AWS_CONFIG_FILE", "/nonexistent")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
	h := newHome(t, func(o *Options) { o.Server.Region = "us-east-1" })
	v := h.volume(t, "data", "a")
	keys := secret.Pairs{"AWS_ACCESS_KEY_ID": "AKIAOTHER", "AWS_SECRET_ACCESS_KEY": "another-key"}
	const role = "arn:aws:iam::123456789012:role/"
	for name, c := range map[string]struct {
		account string
		pairs   secret.Pairs
		asked   string // of the service that assumes roles
		kind    errors.Kind
		text    string // in the error
	}{
		"role": {"operator", secret.Pairs{"AWS_ROLE_ARN": role + "sync", "AWS_EXTERNAL_ID": "outside",
			"AWS_ENDPOINT_URL_STS": sts.URL}, "AssumeRole " + role + "sync outside", "", ""},
		"closed": {"operator", secret.Pairs{"AWS_ROLE_ARN": role + "closed", "AWS_ENDPOINT_URL_STS": sts.URL},
			"AssumeRole " + role + "closed", errors.Unauthenticated, "cannot be assumed (AccessDenied)"},
		"web identity": {"operator", secret.Pairs{"AWS_ACCESS_KEY_ID": "", "AWS_ROLE_ARN": role + "web",
			"AWS_WEB_IDENTITY_TOKEN_FILE": token, "AWS_ENDPOINT_URL_STS": sts.URL},
			"AssumeRoleWithWebIdentity " + role + "web the-token", "", ""},
		"machine": {"operator", secret.Pairs{"AWS_ACCESS_KEY_ID": "", secret.FromMachine: "true"}, "", "", ""},
		"others' file": {"acme", secret.Pairs{"AWS_ACCESS_KEY_ID": "", "AWS_ROLE_ARN": role + "web",
			"AWS_WEB_IDENTITY_TOKEN_FILE": token}, "", errors.Denied, "belong to its operator"},
		"others' server": {"acme", secret.Pairs{"AWS_ROLE_ARN": role + "sync", "AWS_ENDPOINT_URL_STS": sts.URL}, "",
			errors.Denied, "only the server's operator"},
		"others' own": {"acme", secret.Pairs{"AWS_ACCESS_KEY_ID": "", secret.FromMachine: "true"}, "", errors.Denied,
			"belong to its operator"},
	} {
		t.Run(name, func(t *testing.T) {
			asked = nil
			pairs := maps.Clone(keys)
			maps.Copy(pairs, c.pairs)
			if pairs["AWS_ACCESS_KEY_ID"] == "" {
				delete(pairs, "AWS_ACCESS_KEY_ID")
				delete(pairs, "AWS_SECRET_ACCESS_KEY")
			}
			_, err := h.vault.Set(t.Context(), c.account, "roles", pairs, secret.Replace)
			must(t, err)
			_, err = h.Sync(t.Context(), c.account, v,
				Request{Place: places.Place{Bucket: h.bucket, Prefix: "roles", Secret: "roles"}, Sync: up})
			if errors.KindOf(err) != c.kind || err != nil && (!strings.Contains(errors.Message(err), c.text) ||
				errors.RemedyOf(err) == "") {
				t.Errorf("%v; remedy %q", err, errors.RemedyOf(err))
			}
			if c.asked != "" && !slices.Equal(asked, []string{c.asked}) || c.kind == errors.Denied && len(asked) > 0 {
				t.Errorf("asked %q, want %q", asked, c.asked)
			}
		})
	}
	// Without an endpoint, a region in a secret is part of a host's name: it must not lead to another host, not even
	// with a bucket in the path.
	h.opts.Server.Region = ""
	odd := secret.Pairs{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "another-key",
		"AWS_ROLE_ARN": role + "sync", "AWS_REGION": "x.example.org/#"}
	for _, endpoint := range []string{h.opts.Server.Endpoint, ""} {
		h.opts.Server.Endpoint, h.opts.Server.PathStyle = endpoint, true
		_, err := h.vault.Set(t.Context(), "acme", "odd", odd, secret.Replace)
		must(t, err)
		if _, err := h.Sync(t.Context(), "acme", v, Request{Place: places.Place{Bucket: h.bucket, Secret: "odd"},
			Sync: up}); errors.KindOf(err) != errors.Invalid || !strings.Contains(errors.Message(err), "region") {
			t.Errorf("a region that is a host: %v", err)
		}
		odd = secret.Pairs{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "another-key",
			"AWS_REGION": "x@127.0.0.1:1/"}
	}
}

// A proxy of the configuration is on the way to S3.
func TestProxy(t *testing.T) {
	var asked atomic.Int32
	h := newHome(t, func(o *Options) {
		at, err := url.Parse(o.Server.Endpoint)
		must(t, err)
		onwards := httputil.NewSingleHostReverseProxy(at)
		proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Host == "s3.invalid" {
				asked.Add(1)
			}
			onwards.ServeHTTP(w, r)
		}))
		t.Cleanup(proxy.Close)
		o.Server.Proxy, o.Server.Endpoint = proxy.URL, "http://s3.invalid"
	})
	if res := h.sync(t, "operator", h.volume(t, "data", "a"), Request{Sync: up}); res.Stats.Files != 1 ||
		asked.Load() == 0 {
		t.Errorf("%s, %d requests through the proxy", res.Stats, asked.Load())
	}
}

// secretStore keeps secrets in memory. The other methods of secret.Store are not needed here.
type secretStore struct {
	secret.Store
	mu  sync.Mutex
	all map[[2]string]secret.Record // guarded by mu; by account and name
}

func (s *secretStore) Put(_ context.Context, records ...secret.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range records {
		s.all[[2]string{r.Account, r.Name}] = r
	}
	return nil
}

func (s *secretStore) Get(_ context.Context, account, name string) (secret.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.all[[2]string{account, name}]
	if !ok {
		return r, errors.Newf(errors.NotFound, "no secret %q", name)
	}
	return r, nil
}

func (s *secretStore) List(_ context.Context, account string) ([]secret.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []secret.Record
	for at, r := range s.all {
		if account == "" || at[0] == account {
			all = append(all, r)
		}
	}
	return all, nil
}

func (s *secretStore) Used(context.Context, string, string, time.Time) error { return nil }
func (s *secretStore) Loans(context.Context) ([]secret.Loan, error)          { return nil, nil }

func (s *secretStore) Delete(_ context.Context, account, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, [2]string{account, name})
	return nil
}
