package volsync

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

// TestObjects checks that single objects are stored, described, listed, read, copied and deleted consistently.
func TestObjects(t *testing.T) {
	t.Parallel()
	loc := location(t)
	b := openBucket(t, loc)
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	is := func(err error, want errors.Kind) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	data := bytes.Repeat([]byte("0123456789abcdef"), 3<<20/2) // more than one part
	large := &tree.Entry{Path: "d/large", Kind: tree.File, Mode: 0o640, UID: 7, GID: 8, ModTime: tree.Nano(1e18 + 1),
		Size: int64(len(data))}
	must(b.WriteObject(ctx, large, bytes.NewReader(data)))
	link := &tree.Entry{Path: "d/ünï\nlink", Kind: tree.Symlink, Mode: 0o777, Target: "../x"}
	must(b.WriteObject(ctx, link, nil))
	must(b.WriteObject(ctx, &tree.Entry{Path: "d/sub", Kind: tree.Dir, Mode: 0o700, ModTime: tree.Nano(5e18)}, nil))
	got, err := b.Describe(ctx, "d/large")
	must(err)
	if got.Mode != 0o640 || got.UID != 7 || got.GID != 8 || got.ModTime != tree.Nano(1e18+1) ||
		got.Size != large.Size || got.ETag != large.ETag || got.Kind != tree.File {
		t.Errorf("described as %+v", got)
	}
	if got, err := b.Describe(ctx, link.Path); err != nil || got.Kind != tree.Symlink || got.Target != "../x" {
		t.Errorf("a link: %+v, %v", got, err)
	}
	if got, err := b.Describe(ctx, "d/sub"); err != nil || got.Kind != tree.Dir || got.Mode != 0o700 ||
		got.ModTime != tree.Nano(5e18) || got.ETag == "" {
		t.Errorf("a directory: %+v, %v", got, err)
	}
	if got, err := b.Describe(ctx, "d"); err != nil || got.Kind != tree.Dir || got.ETag != "" {
		t.Errorf("a directory without an object: %+v, %v", got, err)
	}
	for _, path := range []string{"nothing", "d/large/x", "", "../x", strings.Repeat("long/", 300) + "x"} {
		_, err := b.Describe(ctx, path)
		is(err, errors.NotFound)
	}
	var names []string
	list := func(path string) string {
		names = nil
		must(b.ReadDir(ctx, path, func(e *tree.Entry) error {
			names = append(names,
				e.Kind.String()+" "+e.Path)
			return nil
		}))
		return strings.Join(names, ",")
	}
	if got := list("d"); got != "file d/ünï\nlink,file d/large,directory d/sub" &&
		got != "file d/large,file d/ünï\nlink,directory d/sub" {
		t.Errorf("listed %q", got)
	}
	if got := list(""); got != "directory d" {
		t.Errorf("listed %q", got)
	}
	stop := errors.Newf(errors.Exhausted, "enough")
	for _, path := range []string{"", "d"} {
		is(b.ReadDir(ctx, path, func(*tree.Entry) error { return stop }), errors.Exhausted)
	}
	is(b.ReadDir(ctx, "../x", nil), errors.Invalid)
	buf := make([]byte, 1000)
	must(b.ReadObject(ctx, large, buf, 17<<20))
	if !bytes.Equal(buf, data[17<<20:17<<20+1000]) {
		t.Error("it reads something else")
	}
	must(b.ReadObject(ctx, large, nil, 0))
	old := *large
	old.ETag = "0123456789abcdef0123456789abcdef"
	is(b.ReadObject(ctx, &old, buf, 0), errors.Conflict)
	moved := *large
	moved.Path, moved.Mode = "moved", 0o600
	must(b.CopyObject(ctx, large, &moved))
	if got, err := b.Describe(ctx, "moved"); err != nil || got.Mode != 0o600 || got.Size != large.Size ||
		got.ETag != moved.ETag {
		t.Errorf("a copy: %+v, %v", got, err)
	}
	is(b.CopyObject(ctx, &old, &moved), errors.Conflict)
	huge := *large
	huge.Size = 6 << 30
	is(b.CopyObject(ctx, &huge, &moved), errors.Unsupported)
	must(b.DeleteObject(ctx, "moved", tree.File))
	must(b.DeleteObject(ctx, "moved", tree.File))
	_, err = b.Describe(ctx, "moved")
	is(err, errors.NotFound)
	bad := &tree.Entry{Path: "../x", Kind: tree.File}
	is(b.WriteObject(ctx, bad, nil), errors.Invalid)
	is(b.CopyObject(ctx, bad, large), errors.Invalid)
	is(b.CopyObject(ctx, large, bad), errors.Invalid)
	is(b.DeleteObject(ctx, bad.Path, tree.File), errors.Invalid)
	is(b.ReadObject(ctx, bad, buf, 0), errors.Invalid)
	if b.Fits("../x") || b.Fits(strings.Repeat("x", 1020)) || !b.Fits("a/b") {
		t.Error("Fits is wrong")
	}
}

// TestObjectsFail checks that content that cannot be read while it is stored, and a server that is down or blocked,
// cause an error and leave no upload behind.
func TestObjectsFail(t *testing.T) {
	t.Parallel()
	loc := location(t)
	b := openBucket(t, loc)
	short := bytes.NewReader(make([]byte, 10))
	for _, size := range []int64{11, 40 << 20} {
		if err := b.WriteObject(t.Context(), &tree.Entry{Path: "f", Kind: tree.File, Size: size}, short); err == nil {
			t.Errorf("%d bytes of 10 are stored", size)
		}
	}
	if n, err := b.Sweep(t.Context(), 0); err != nil || n != 0 {
		t.Errorf("%d uploads are left, %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	large := &tree.Entry{Path: "f", Kind: tree.File, Size: 40 << 20}
	for what, err := range map[string]error{
		"write": b.WriteObject(ctx, large, short), "copy": b.CopyObject(ctx, large, large),
		"delete": b.DeleteObject(ctx, "f", tree.File),
		"list":   b.ReadDir(ctx, "", func(*tree.Entry) error { return nil }),
		"read":   b.ReadObject(ctx, large, make([]byte, 1), 0),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := b.Describe(ctx, "f"); !errors.Is(err, context.Canceled) {
		t.Errorf("describe: %v", err)
	}
	// An object whose metadata marks it as a link, with an empty body.
	dir := filepath.Join(s3test.Dir(loc.Bucket), "work")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"", "a\x00b"} {
		link := &tree.Entry{Path: "link", Kind: tree.Symlink, Target: target}
		if err := b.WriteObject(t.Context(), link, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Describe(t.Context(), "link"); !errors.Is(err, errors.Invalid) {
			t.Errorf("a link to %q: %v", target, err)
		}
	}
}
