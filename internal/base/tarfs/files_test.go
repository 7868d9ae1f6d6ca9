//go:build linux

package tarfs

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
)

// eachTree runs test on a directory as seen from outside, and as seen by a process inside. at turns a name in it into a
// path.
func eachTree(t *testing.T, test func(t *testing.T, tree Tree, at func(string) string)) {
	t.Run("root", func(t *testing.T) {
		t.Parallel()
		root, err := os.OpenRoot(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { root.Close() })
		test(t, root, func(name string) string { return name })
	})
	t.Run("host", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		test(t, Host{}, func(name string) string { return filepath.Join(dir, name) })
	})
}

func do(t *testing.T, tree Tree, req Request) (string, error) {
	t.Helper()
	var b bytes.Buffer
	err := Do(t.Context(), tree, req, &b)
	return b.String(), err
}

func TestFiles(t *testing.T) {
	t.Parallel()
	eachTree(t, func(t *testing.T, tree Tree, at func(string) string) {
		must := func(req Request) string {
			t.Helper()
			out, err := do(t, tree, req)
			if err != nil {
				t.Fatalf("%+v: %v", req, err)
			}
			return out
		}
		refuse := func(kind errors.Kind, req Request) {
			t.Helper()
			if _, err := do(t, tree, req); errors.KindOf(err) != kind {
				t.Errorf("%+v: %v, want %s", req, err, kind)
			}
		}
		must(Request{Op: OpMkdir, Path: at("a/b/c"), Parents: true})
		must(Request{Op: OpMkdir, Path: at("a/b/c"), Parents: true})
		must(Request{Op: OpMkdir, Path: at("a/d")})
		refuse(errors.Conflict, Request{Op: OpMkdir, Path: at("a/d")})
		refuse(errors.NotFound, Request{Op: OpMkdir, Path: at("x/y")})
		out := must(Request{Op: OpList, Path: at("a")})
		var first Entry
		if err := json.Unmarshal([]byte(strings.SplitN(out, "\n", 2)[0]), &first); err != nil || first.Name != "b" ||
			first.Mode&0o170000 != 0o040000 || strings.Count(out, "\n") != 2 {
			t.Errorf("list: %s %v", out, err)
		}
		refuse(errors.NotFound, Request{Op: OpList, Path: at("none")})
		refuse(errors.NotFound, Request{Op: OpStat, Path: at("none")})
		refuse(errors.NotFound, Request{Op: OpStat, Path: at("none"), Follow: true})
		var found Entry
		if err := json.Unmarshal([]byte(must(Request{Op: OpStat, Path: at("a/b"), Follow: true})),
			&found); err != nil || found.Path == "" || found.UID != os.Getuid() {
			t.Errorf("stat: %+v, %v", found, err)
		}
		must(Request{Op: OpMove, Path: at("a/d"), To: at("a/e")})
		refuse(errors.NotFound, Request{Op: OpMove, Path: at("a/d"), To: at("a/f")})
		refuse(errors.Conflict, Request{Op: OpMove, Path: at("a/e"), To: at("a/b")})
		refuse(errors.Conflict, Request{Op: OpMove, Path: at("a/e"), To: at("a/b"), Overwrite: true})
		refuse(errors.Conflict, Request{Op: OpRemove, Path: at("a")})
		must(Request{Op: OpRemove, Path: at("a/e")})
		must(Request{Op: OpRemove, Path: at("a"), Recursive: true})
		refuse(errors.NotFound, Request{Op: OpRemove, Path: at("a"), Recursive: true})
		refuse(errors.NotFound, Request{Op: OpRemove, Path: at("a")})
		refuse(errors.Internal, Request{Op: "burn", Path: at("a")})
	})
	for _, root := range []string{"", "/", ".", "//", "/.."} {
		if err := Do(t.Context(), Host{}, Request{Op: OpRemove, Path: root, Recursive: true},
			io.Discard); root != "/.." && errors.KindOf(err) != errors.Invalid {
			t.Errorf("remove %q: %v", root, err)
		}
	}
}

func TestLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("file", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	stat := func(follow bool) Entry {
		out, err := do(t, Host{}, Request{Op: OpStat, Path: filepath.Join(dir, "link"), Follow: follow})
		var e Entry
		if err := errors.Join(err, json.Unmarshal([]byte(out), &e)); err != nil {
			t.Fatal(err)
		}
		return e
	}
	if e := stat(false); e.Link != "file" || e.Mode&0o170000 != 0o120000 {
		t.Errorf("the link: %+v", e)
	}
	if e := stat(true); e.Path != filepath.Join(dir, "file") || e.Mode&0o7777 != 0o640 || e.Size != 1 {
		t.Errorf("what it leads to: %+v", e)
	}
	if _, err := do(t, Host{}, Request{Op: OpList,
		Path: filepath.Join(dir, "file")}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("list a file: %v", err)
	}
	if _, err := do(t, Host{}, Request{Op: OpMove, Path: filepath.Join(dir, "file"), To: "/proc/self/x"}); err == nil {
		t.Error("moved into /proc")
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	if _, err := do(t, root, Request{Op: OpStat, Path: "out", Follow: true}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a link that leads out: %v", err)
	}
}

func TestWatching(t *testing.T) {
	t.Parallel()
	eachTree(t, func(t *testing.T, tree Tree, at func(string) string) {
		for _, dir := range []string{"top", "top/sub"} {
			if _, err := do(t, tree, Request{Op: OpMkdir, Path: at(dir)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := Do(t.Context(), tree, Request{Op: OpWatch, Path: at("none")},
			io.Discard); errors.KindOf(err) != errors.NotFound {
			t.Errorf("watch nothing: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		r, w := io.Pipe()
		ended := make(chan error, 1)
		go func() {
			err := Do(ctx, tree, Request{Op: OpWatch, Path: at("top"), Recursive: true}, w)
			w.Close()
			ended <- err
		}()
		changes := json.NewDecoder(r)
		expect := func(want Change) {
			t.Helper()
			for {
				var c Change
				if err := changes.Decode(&c); err != nil {
					t.Fatalf("%+v did not come: %v", want, err)
				}
				c.Cookie = 0 // that both halves of a rename have
				if c == want {
					return
				}
			}
		}
		host := func(name string) string { return (&watcher{tree: tree}).host(at(name)) }
		expect(Change{Kind: Ready})
		if err := os.WriteFile(host("top/sub/f"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		expect(Change{Kind: Created, Path: at("top/sub/f")})
		expect(Change{Kind: Changed, Path: at("top/sub/f")})
		if err := os.Mkdir(host("top/new"), 0o700); err != nil {
			t.Fatal(err)
		}
		expect(Change{Kind: Created, Path: at("top/new")})
		if err := os.Rename(host("top/sub/f"), host("top/g")); err != nil {
			t.Fatal(err)
		}
		expect(Change{Kind: Created, Path: at("top/g")})
		if err := os.RemoveAll(host("top/sub")); err != nil {
			t.Fatal(err)
		}
		expect(Change{Kind: Removed, Path: at("top/sub")})
		cancel()
		go io.Copy(io.Discard, r)
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})
}
