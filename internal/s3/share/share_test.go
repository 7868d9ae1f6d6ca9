package share_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/s3/embedded"
	"github.com/RelevanceAI/harvest/internal/s3/share"
)

func hub(t *testing.T) *share.Hub {
	t.Helper()
	opts := embedded.Options{Dir: filepath.Join(testenv.DataDir(t), "s3"), Executable: testenv.EmbeddedS3(t)}
	h := share.NewHub(func(ctx context.Context) (*embedded.Server, error) { return embedded.Start(ctx, opts) })
	t.Cleanup(h.Close)
	return h
}

func bucket(t *testing.T, h *share.Hub) string {
	t.Helper()
	name, err := h.Bucket(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// machine is another machine with a directory.
type machine struct {
	share.Directory
	access  share.Access
	connect func(context.Context) (net.Conn, error)
}

// join serves a bucket to another machine.
func join(t *testing.T, h *share.Hub, name string) *machine {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx, name, l) }()
	t.Cleanup(func() { cancel(); <-served })
	access, err := h.Access(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return &machine{Directory: share.Directory{Path: t.TempDir(), State: filepath.Join(t.TempDir(), "state")},
		access: access, connect: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		}}
}

func (m *machine) sync(t *testing.T) {
	t.Helper()
	if stats, err := share.Sync(t.Context(), m.access, m.connect, m.Directory); err != nil || stats.Failed > 0 {
		t.Fatalf("sync: %v, %+v", err, stats)
	}
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func want(t *testing.T, dir, name, content string) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(dir, name))
	if content == "" && errors.IsNotExist(err) {
		return
	}
	if err != nil || string(got) != content {
		t.Errorf("%s: %q, %v; want %q", name, got, err, content)
	}
}

// TestShare has the hub's directory and those of two other machines, one of which only reads.
func TestShare(t *testing.T) {
	t.Parallel()
	h := hub(t)
	name := bucket(t, h)
	here := share.Directory{Path: t.TempDir(), State: filepath.Join(t.TempDir(), "state")}
	sync := func() {
		t.Helper()
		if stats, err := h.Sync(t.Context(), name, here); err != nil || stats.Failed > 0 {
			t.Fatalf("sync: %v, %+v", err, stats)
		}
	}
	write(t, here.Path, "from hub", "1")
	sync()
	writer, reader := join(t, h, name), join(t, h, name)
	reader.ReadOnly = true
	writer.sync(t)
	reader.sync(t)
	want(t, writer.Path, "from hub", "1")
	want(t, reader.Path, "from hub", "1")

	write(t, writer.Path, "sub/from writer", "2")
	write(t, reader.Path, "from reader", "3")
	if err := os.Remove(filepath.Join(writer.Path, "from hub")); err != nil {
		t.Fatal(err)
	}
	writer.sync(t)
	reader.sync(t)
	sync()
	for _, dir := range []string{here.Path, writer.Path, reader.Path} {
		want(t, dir, "sub/from writer", "2")
		want(t, dir, "from hub", "") // deleted everywhere
		want(t, dir, "from reader", "")
	}

	// What was written last stays, whoever syncs first.
	write(t, here.Path, "sub/from writer", "older")
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(here.Path, "sub/from writer"), old, old); err != nil {
		t.Fatal(err)
	}
	write(t, writer.Path, "sub/from writer", "newer")
	sync()
	writer.sync(t)
	sync()
	want(t, here.Path, "sub/from writer", "newer")
	want(t, writer.Path, "sub/from writer", "newer")
}

// A bucket that is gone, such as after a restore of the data directory without it, gets another name: with the old one,
// all files would count as deleted.
func TestBucketIsGone(t *testing.T) {
	t.Parallel()
	h := hub(t)
	name := bucket(t, h)
	here := share.Directory{Path: t.TempDir(), State: filepath.Join(t.TempDir(), "state")}
	write(t, here.Path, "file", "content")
	if _, err := h.Sync(t.Context(), name, here); err != nil {
		t.Fatal(err)
	}
	if same, err := h.Bucket(t.Context(), name); err != nil || same != name {
		t.Errorf("a bucket that exists: %q, %v", same, err)
	}
	if err := h.Drop(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	other, err := h.Bucket(t.Context(), name)
	if err != nil || other == name {
		t.Fatalf("a bucket that is gone: %q, %v", other, err)
	}
	if _, err := h.Sync(t.Context(), other, here); err != nil {
		t.Fatal(err)
	}
	want(t, here.Path, "file", "content")
	m := join(t, h, other)
	m.sync(t)
	want(t, m.Path, "file", "content")
}

// TestOtherBuckets asks for other buckets than the one that is served.
func TestOtherBuckets(t *testing.T) {
	t.Parallel()
	h := hub(t)
	name, other := bucket(t, h), bucket(t, h)
	m := join(t, h, name)
	m.access.Bucket = other
	write(t, m.Path, "file", "content")
	if stats, err := share.Sync(t.Context(), m.access, m.connect, m.Directory); err == nil {
		t.Errorf("a sync with another bucket: %+v", stats)
	}
	for _, ask := range []func(*http.Request){
		func(r *http.Request) { r.URL.Path = "/" },
		func(r *http.Request) { r.URL.Path = "/" + other + "/file" },
		func(r *http.Request) { r.URL.Path = "/" + name + "/../" + other + "/file" },
		func(r *http.Request) { r.Header.Set("X-Amz-Copy-Source", "/"+other+"/file") },
		func(r *http.Request) { r.Header.Set("X-Amz-Copy-Source", other+"%2Ffile") },
		func(r *http.Request) { r.Header.Set("X-Amz-Copy-Source", "%zz") },
	} {
		r := httptest.NewRequest(http.MethodPut, "http://localhost/"+name+"/file", strings.NewReader(""))
		r.RequestURI = ""
		ask(r)
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return m.connect(ctx) }}}
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusForbidden {
			t.Errorf("%s %s %s: %s", r.Method, r.URL, r.Header, answer.Status)
		}
	}
}

// TestNoServer has a server that does not start, and starts at the second use.
func TestNoServer(t *testing.T) {
	t.Parallel()
	opts := embedded.Options{Dir: filepath.Join(testenv.DataDir(t), "s3"), Executable: testenv.EmbeddedS3(t)}
	works := false
	h := share.NewHub(func(ctx context.Context) (*embedded.Server, error) {
		if !works {
			return nil, errors.Newf(errors.Unsupported, "no attributes")
		}
		return embedded.Start(ctx, opts)
	})
	t.Cleanup(h.Close)
	_, bucketErr := h.Bucket(t.Context(), "")
	_, accessErr := h.Access(t.Context(), "x")
	_, syncErr := h.Sync(t.Context(), "x", share.Directory{Path: t.TempDir()})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"Bucket": bucketErr, "Access": accessErr, "Sync": syncErr,
		"Drop": h.Drop(t.Context(), "x"), "Serve": h.Serve(t.Context(), "x", l)} {
		if errors.KindOf(err) != errors.Unsupported {
			t.Errorf("%s: %v", what, err)
		}
	}
	works = true
	bucket(t, h)
}
