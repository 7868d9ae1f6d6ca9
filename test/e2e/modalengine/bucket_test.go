package modalengine

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	modalengine "github.com/RelevanceAI/harvest/internal/engine/modal"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/host/modalhost"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

// newModalHost is a server whose sandboxes are at Modal. Another server of our own stands in for Modal.
func newModalHost(t *testing.T, at *modalhost.Host) *host.Host {
	t.Helper()
	bin := t.TempDir()
	if err := os.Symlink(at.Program, filepath.Join(bin, "harvest")); err != nil {
		t.Fatal(err)
	}
	return host.New(t, "modal", func(env *testscript.Env) error {
		env.Setenv("PATH", bin+":"+env.Getenv("PATH"))
		env.Setenv("MODAL_CONFIG_PATH", filepath.Join(bin, "none.toml"))
		env.Setenv("HARVEST_MODAL_IMAGE", "base")
		for _, pair := range at.Modal {
			name, value, _ := strings.Cut(pair, "=")
			env.Setenv(name, value)
		}
		return nil
	})
}

// TestModalEngineBucket checks that Modal mounts a bucket for the engine modal: commands read and write it, copies of
// the sandbox mount it too, and errors are reported before anything is created.
//
// mission: D5, F4
func TestModalEngineBucket(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	at := modalhost.WithBase(t)
	s3 := host.NewS3(t)
	s3.Put("work/a/b.txt", "one")
	h := newModalHost(t, at)
	h.Env.Setenv("HARVEST_S3_ENDPOINT", "http://"+s3.Address)
	h.Env.Setenv("HARVEST_S3_PATH_STYLE", "true")
	h.Must("secret", "set", "aws", "AWS_ACCESS_KEY_ID="+s3test.AccessKey, "AWS_SECRET_ACCESS_KEY="+s3test.SecretKey,
		"AWS_REGION=us-east-1")
	place := "s3://" + s3.Bucket + "/work:/data:mount"
	h.Must("sandbox", "create", "--name", "one", "--s3", place)
	in := func(name, script string) string {
		t.Helper()
		return h.Must("sandbox", "exec", name, "--", "sh", "-ec", script)
	}
	if got := in("one", "cat /data/a/b.txt; printf two > /data/c.txt; sync; ls /data"); got != "onea\nc.txt" ||
		s3.Get("work/c.txt") != "two" {
		t.Errorf("it sees %q, and the bucket has %q", got, s3.Get("work/c.txt"))
	}
	if got := in("one", "env; cat /proc/*/environ /proc/mounts | tr '\\0' '\\n'"); strings.Contains(got,
		s3test.SecretKey) || strings.Contains(got, s3test.AccessKey) {
		t.Error("the sandbox has the credentials")
	}
	h.Must("sandbox", "fork", "one", "--name", "two")
	if got := in("two", "cat /data/c.txt"); got != "two" {
		t.Errorf("a copy sees %q", got)
	}
	if sb := h.Sandbox("two"); sb.S3 == nil || !sb.S3.Mount || sb.S3.MountPath != "/data" {
		t.Errorf("a copy is %+v", sb)
	}
	h.Must("sandbox", "rm", "one", "two")
	out, stderr, code := h.Run("run", "--s3", place+":ro", "--", "sh", "-c", "cat /data/c.txt; echo x > /data/x")
	if code == 0 || out != "two" || !strings.Contains(stderr, "Read-only file system") || s3.Get("work/x") != "" {
		t.Errorf("read-only: %d, %q, %q", code, out, stderr)
	}
	h.Must("secret", "set", "wrong", "AWS_ACCESS_KEY_ID=AKIAWRONGWRONGWRONGW",
		"AWS_SECRET_ACCESS_KEY="+s3test.SecretKey)
	for text, args := range map[string][]string{
		"there is no bucket nowhere":         {"--s3", "s3://nowhere/x:/data:mount"},
		"there is no secret \"other\"":       {"--s3", place, "--s3-secret", "other"},
		"S3 does not know the access key":    {"--s3", place, "--s3-secret", "wrong"},
		"nothing can be mounted at /.harves": {"--s3", "s3://" + s3.Bucket + ":/.harvest-inside:mount"},
	} {
		_, stderr, code := h.Run(append([]string{"run"}, append(args, "--", "true")...)...)
		if code == 0 || !strings.Contains(stderr, text) || strings.Contains(stderr, s3test.SecretKey) {
			t.Errorf("%q: %d, %s; want %q", args, code, stderr, text)
		}
	}
	for _, where := range append(host.InFiles(t, h.Data, s3test.SecretKey),
		host.InFiles(t, at.Data(), s3test.SecretKey)...) {
		t.Errorf("the secret key is in %s", where)
	}
	if strings.Contains(at.Log.All(), s3test.SecretKey) {
		t.Error("the secret key is in the log at Modal")
	}
	own := newModalHost(t, at)
	own.Env.Setenv("HARVEST_S3_ENDPOINT", "embedded")
	if _, stderr, code := own.Run("run", "--s3", "s3://mine:/data:mount", "--", "true"); code == 0 ||
		!strings.Contains(stderr, "Modal cannot reach the S3 of this machine") ||
		!strings.Contains(stderr, "--s3-secret") {
		t.Errorf("the embedded S3: %d, %s", code, stderr)
	}
}

// TestModalBucketCarriedOver checks that a sandbox keeps its bucket when it is carried over, also by a server that has
// not created it.
//
// mission: A5, D5
func TestModalBucketCarriedOver(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	program, inside := inModalProcess(t)
	if !inside {
		return
	}
	ctx, s3, dir := t.Context(), host.NewS3(t), t.TempDir()
	open := func() *modalengine.Engine {
		return openModal(t, modalengine.Options{Dir: dir, Executable: program,
			Locate: func(_ context.Context, account string, b places.Place) (modalengine.Place, error) {
				if account != "acme" || b.Secret != "keys" {
					return modalengine.Place{}, errors.Newf(errors.NotFound, "%s has no secret %q", account, b.Secret)
				}
				return modalengine.Place{Endpoint: "http://" + s3.Address, PathStyle: true, Region: "us-east-1",
					AccessKeyID: s3test.AccessKey, SecretAccessKey: s3test.SecretKey}, nil
			}})
	}
	e := open()
	img, err := e.Images().Build(ctx, image.Spec{Base: "base"}, image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first, err := e.Create(ctx, engine.Spec{ID: "box", Account: "acme", Image: img.ID,
		Mounts: []engine.Mount{{Place: places.Place{Bucket: s3.Bucket, Prefix: "work", Secret: "keys"},
			Path: "/data"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := first.Destroy(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	})
	sh := func(sb engine.Sandbox, script string) string {
		t.Helper()
		var out bytes.Buffer
		p, err := sb.Start(ctx, engine.Command{Args: []string{"sh", "-ec", script}, Stdout: &out, Stderr: &out})
		if err != nil {
			t.Fatal(err)
		}
		if exit, err := p.Wait(ctx); err != nil || exit.Code != 0 {
			t.Fatalf("%q ended with %+v, %v: %s", script, exit, err, out.String())
		}
		return out.String()
	}
	sh(first, "printf stored > /data/f; sync; echo kept > /srv/f")
	found, err := open().Open(ctx, first.Handle())
	if err != nil {
		t.Fatal(err)
	}
	next, err := found.(engine.Carrier).Carry(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := next.Destroy(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	})
	if got := sh(next, "cat /srv/f /data/f; printf more > /data/g; sync"); got != "kept\nstored" ||
		s3.Get("work/g") != "more" {
		t.Errorf("it has %q, and the bucket %q", got, s3.Get("work/g"))
	}
}
