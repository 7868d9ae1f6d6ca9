package modal

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	modal "github.com/modal-labs/modal-client/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/host/modalhost"
	"github.com/RelevanceAI/harvest/test/stubs/modaltest"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

// bucketClient is Modal's SDK with a bucket of a real S3 server.
type bucketClient struct {
	*modalClient
	s3       *host.S3
	endpoint string
}

// mounted is the bucket at /mnt/bucket.
func (b *bucketClient) mounted(t *testing.T, bucket, prefix string, secret *modal.Secret,
	readOnly bool) map[string]*modal.CloudBucketMount {
	t.Helper()
	params := &modal.CloudBucketMountParams{Secret: secret, ReadOnly: readOnly}
	if b.endpoint != "" {
		params.BucketEndpointURL = &b.endpoint
	}
	if prefix != "" {
		params.KeyPrefix = &prefix
	}
	m, err := b.sdk.CloudBucketMounts.New(bucket, params)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]*modal.CloudBucketMount{"/mnt/bucket": m}
}

// keys is a secret without a name.
func (b *bucketClient) keys(t *testing.T, id, key string) *modal.Secret {
	t.Helper()
	s, err := b.sdk.Secrets.FromMap(t.Context(), map[string]string{"AWS_ACCESS_KEY_ID": id,
		"AWS_SECRET_ACCESS_KEY": key, "AWS_REGION": "us-east-1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// own returns the number of secrets that sandboxes have of their own.
func (b *bucketClient) own(t *testing.T) int {
	t.Helper()
	out, err := b.h.Run("secret", "ls")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.Count(out, "modal-bucket-")
}

// TestModalBucket checks that Modal's own SDK mounts a bucket of a real S3 server in one of our sandboxes, which reads
// and writes it there.
//
// mission: D5, F4
func TestModalBucket(t *testing.T) {
	testenv.Long(t)
	testenv.Root(t)
	h := modalhost.WithBase(t)
	m := newModalClient(t, h, "buckets")
	s3 := host.NewS3(t)
	b := &bucketClient{m, s3, "http://" + s3.Address}
	t.Run("written", b.written)
	t.Run("named", b.named)
	t.Run("sidecar", b.sidecar)
	t.Run("refused", b.refused)
	testenv.Try(t, func() error {
		left, err := filepath.Glob(h.Data() + "/mounts/*")
		if n := b.own(t); n > 0 || len(left) > 0 || err != nil {
			return fmt.Errorf("left are %d secrets of mounts, and %s, %v", n, left, err)
		}
		return nil
	})
	for _, where := range host.InFiles(t, h.Data(), s3test.SecretKey) {
		t.Errorf("the secret key is in %s", where)
	}
	if strings.Contains(h.Log.All(), s3test.SecretKey) {
		t.Error("the secret key is in the server's log")
	}
}

func (b *bucketClient) written(t *testing.T) {
	b.s3.Put("work/a/b.txt", "one")
	b.s3.Put("other/x", "not mine")
	sb := b.create(t, "base", &modal.SandboxCreateParams{CloudBucketMounts: b.mounted(t, b.s3.Bucket, "work/",
		b.keys(t, s3test.AccessKey, s3test.SecretKey), false)})
	if out, code := b.run(t, sb,
		"ls /mnt/bucket; cat /mnt/bucket/a/b.txt; printf two >/mnt/bucket/c.txt; mkdir /mnt/bucket/d; printf three "+
			">>/mnt/bucket/d/e; mv /mnt/bucket/d/e /mnt/bucket/f; sync"); code != 0 || out != "a\none" {
		t.Errorf("it ended with %d and said %q", code, out)
	}
	if c, f := b.s3.Get("work/c.txt"), b.s3.Get("work/f"); c != "two" || f != "three" {
		t.Errorf("the bucket has %q and %q", c, f)
	}
	if out, _ := b.run(t, sb, "env; cat /proc/*/environ /proc/mounts"); strings.Contains(out, s3test.SecretKey) ||
		strings.Contains(out, s3test.AccessKey) {
		t.Error("the sandbox has the credentials")
	}
	if n := b.own(t); n != 1 {
		t.Errorf("there are %d secrets of mounts", n)
	}
	// The next server has the mount, and its secret.
	if err := b.h.Up.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-b.h.Ended
	b.h.Environ = append(b.h.Environ, "HARVEST_MODAL_LISTEN="+strings.TrimPrefix(os.Getenv("MODAL_SERVER_URL"),
		"http://")) // where its clients look for it
	b.h.Start()
	sb, err := b.sdk.Sandboxes.FromID(t.Context(), sb.SandboxID, nil)
	if err != nil {
		t.Fatal(err)
	}
	if out, code := b.run(t, sb, "cat /mnt/bucket/c.txt; printf after >/mnt/bucket/after; sync"); code != 0 ||
		out != "two" || b.s3.Get("work/after") != "after" {
		t.Errorf("after a restart it ended with %d and said %q", code, out)
	}
	only := b.create(t, "base", &modal.SandboxCreateParams{CloudBucketMounts: b.mounted(t, b.s3.Bucket, "work/",
		b.keys(t, s3test.AccessKey, s3test.SecretKey), true)})
	if out, code := b.run(t, only, "{ cat /mnt/bucket/c.txt && echo x >/mnt/bucket/x; }"); code == 0 ||
		!strings.HasPrefix(out, "two") || !strings.Contains(out, "Read-only file system") || b.s3.Get("work/x") != "" {
		t.Errorf("read-only, it ended with %d and said %q", code, out)
	}
}

// named uses a secret of Harvest's that has the keys and all settings of the place.
func (b *bucketClient) named(t *testing.T) {
	b.s3.Put("whole", "all of it")
	file := filepath.Join(t.TempDir(), "pairs")
	if err := os.WriteFile(file,
		[]byte("AWS_ACCESS_KEY_ID="+s3test.AccessKey+"\nAWS_SECRET_ACCESS_KEY="+s3test.SecretKey+"\nAWS_ENDPOINT_URL="+
			b.endpoint+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := b.h.Run("secret", "set", "bucket-keys", "--env-file", file); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	secret, err := b.sdk.Secrets.FromName(t.Context(), "bucket-keys", nil)
	if err != nil {
		t.Fatal(err)
	}
	plain := *b
	plain.endpoint = ""
	before := b.own(t)
	sb := b.create(t, "base", &modal.SandboxCreateParams{CloudBucketMounts: plain.mounted(t, b.s3.Bucket, "",
		secret, false)})
	if out, code := b.run(t, sb, "cat /mnt/bucket/whole"); code != 0 || out != "all of it" {
		t.Errorf("it ended with %d and said %q", code, out)
	}
	if n := b.own(t); n > before {
		t.Errorf("there are %d secrets of mounts, and were %d", n, before)
	}
}

func (b *bucketClient) sidecar(t *testing.T) {
	b.s3.Put("beside/f", "beside")
	img, err := b.sdk.Images.FromRegistry("base", nil).Build(t.Context(), b.app, nil)
	if err != nil {
		t.Fatal(err)
	}
	sb := b.create(t, "base", nil)
	side, err := sb.ExperimentalSidecars.Create(t.Context(), "side", img, &modal.SidecarCreateParams{
		Command: []string{"sleep", "600"}, CloudBucketMounts: b.mounted(t, b.s3.Bucket, "beside/",
			b.keys(t, s3test.AccessKey, s3test.SecretKey), true),
	})
	if err != nil {
		t.Fatal(err)
	}
	if out, said, _ := modaltest.Run(t, side, nil, "cat", "/mnt/bucket/f"); out != "beside" {
		t.Errorf("it said %q, %s", out, said)
	}
}

func (b *bucketClient) refused(t *testing.T) {
	good, wrong, none := b.keys(t, s3test.AccessKey, s3test.SecretKey),
		b.keys(t, "AKIAWRONGWRONGWRONGW", s3test.SecretKey), b.keys(t, s3test.AccessKey, "not-the-secret-key")
	for words, c := range map[string]struct {
		mounts map[string]*modal.CloudBucketMount
		code   codes.Code
	}{
		"there is no bucket nowhere":      {b.mounted(t, "nowhere", "", good, false), codes.NotFound},
		"S3 does not know the access key": {b.mounted(t, b.s3.Bucket, "", wrong, false), codes.InvalidArgument},
		"the secret access key is wrong":  {b.mounted(t, b.s3.Bucket, "", none, false), codes.InvalidArgument},
		"invalid prefix":                  {b.mounted(t, b.s3.Bucket, "a/../b/", good, false), codes.InvalidArgument},
		"needs a secret":                  {b.mounted(t, b.s3.Bucket, "", nil, false), codes.InvalidArgument},
	} {
		_, err := b.sdk.Sandboxes.Create(t.Context(), b.app, b.sdk.Images.FromRegistry("base", nil),
			&modal.SandboxCreateParams{CloudBucketMounts: c.mounts})
		if status.Code(err) != c.code || !strings.Contains(err.Error(), words) ||
			strings.Contains(err.Error(), s3test.SecretKey) {
			t.Errorf("%v, want %s %q", err, c.code, words)
		}
	}
}
