package tree

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"golang.org/x/sys/unix"
)

// TestRefusedByFiles checks that the file system's errors are reported as they are, and that no partial file remains.
func TestRefusedByFiles(t *testing.T) {
	dir := t.TempDir()
	tree := openTree(t, dir)
	write(t, dir, "file", "x")
	write(t, dir, "dir/sub/f", "x")
	must(t, os.Symlink("file", filepath.Join(dir, "link")))
	name := strings.Repeat("n", 300)
	want := func(what string, err error, kind errors.Kind) {
		t.Helper()
		if errors.KindOf(err) != kind || err != nil && errors.Message(err) == "" {
			t.Errorf("%s: %v (%s), want %s", what, err, errors.KindOf(err), kind)
		}
	}
	_, err := tree.Mkdir("file")
	want("a directory over a file", err, errors.Conflict)
	_, err = tree.Mkdir("link")
	want("a directory over a link", err, errors.Conflict)
	_, err = tree.Mkdir(name)
	want("a long name", err, errors.Unsupported)
	_, err = tree.Create("none/f")
	want("a file in no directory", err, errors.NotFound)
	_, err = tree.Lstat(name)
	want("lstat of a long name", err, errors.Unsupported)
	_, err = tree.Link("link", "other")
	want("a hard link to a symbolic one", err, errors.Conflict)
	_, err = tree.Link("none", "other")
	want("a hard link to nothing", err, errors.NotFound)
	_, err = tree.Link("file", "dir")
	want("a hard link over a directory", err, errors.Conflict)
	_, err = tree.Symlink(&Entry{Path: "dir", Kind: Symlink, Target: "x"}, Restoring{}, false)
	want("a link over a directory", err, errors.Conflict)
	_, err = tree.Symlink(&Entry{Path: "s", Kind: Symlink, Target: strings.Repeat("x", 5000)}, Restoring{}, false)
	want("a link with a long target", err, errors.Unsupported)
	_, err = tree.SetMeta(&Entry{Path: "none", Kind: File}, Restoring{})
	want("metadata of nothing", err, errors.NotFound)
	_, err = tree.SetMeta(&Entry{Path: "dir", Kind: File}, Restoring{})
	want("metadata of another kind", err, errors.Conflict)
	_, err = tree.SetMeta(&Entry{Path: "link", Kind: File}, Restoring{})
	want("metadata through a link", err, errors.Conflict)
	_, err = tree.SetMeta(&Entry{Path: "file", Kind: File, Xattrs: map[string]string{"user.": "x"}}, Restoring{})
	if err == nil {
		t.Error("an attribute without a name was set")
	}
	want("remove a full directory", tree.Remove("dir", Dir), errors.Conflict)
	want("remove a directory as a file", tree.Remove("dir", File), errors.Conflict)
	want("remove a long name", tree.Remove(name, File), errors.Unsupported)
	want("remove what is beneath a link", tree.Remove("link/x", File), errors.Conflict)
	want("remove what is not there", tree.Remove("none/x", File), "")
	_, err = tree.Symlink(&Entry{Path: "file", Kind: Symlink, Target: "x"}, Restoring{}, true)
	want("a new link over a file", err, errors.Conflict)
	_, err = tree.Symlink(&Entry{Path: "link", Kind: Symlink, Target: "x"}, Restoring{}, true)
	want("a new link over another", err, errors.Conflict)
	want("rename over a link", tree.Rename("file", "link"), errors.Conflict)
	must(t, os.RemoveAll(filepath.Join(dir, "dir")))
	_, _, err = tree.Open("link")
	want("open a link", err, errors.Conflict)
	w, err := tree.Create("new")
	must(t, err)
	if _, err = w.Commit(&Entry{Path: "new", Xattrs: map[string]string{"user.": "x"}}, Restoring{}, false,
		nil); err == nil {
		t.Error("an attribute without a name was written")
	}
	w.Discard()
	must(t, os.Mkdir(filepath.Join(dir, "new"), 0o755))
	w, err = tree.Create("new")
	must(t, err)
	_, err = w.Commit(&Entry{Path: "new"}, Restoring{}, false, nil)
	want("a file over a directory", err, errors.Conflict)
	w.Discard()
	// A file that another program creates during a download stays, unless it may be replaced.
	w, err = tree.Create("file")
	must(t, err)
	_, err = w.Commit(&Entry{Path: "file"}, Restoring{}, true,
		func(now *Entry) error { return InTheWay(now.TypeBits()) })
	want("a new file over another", err, errors.Conflict)
	if raw, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || len(raw) == 0 {
		t.Errorf("what was there: %q, %v", raw, err)
	}
	_, err = w.Commit(&Entry{Path: "file", Mode: 0o644}, Restoring{}, true, func(*Entry) error { return nil })
	want("a new file over one that may go", err, "")
	w.Discard()
	left, err := os.ReadDir(dir)
	must(t, err)
	if names := fmt.Sprint(left); len(left) != 3 || left[0].Name() != "file" || left[1].Name() != "link" ||
		left[2].Name() != "new" {
		t.Errorf("left: %s", names)
	}
}

// TestAttributes checks that attributes are synchronised: many, large, those of other programs, and none.
func TestAttributes(t *testing.T) {
	dir := t.TempDir()
	tree := openTree(t, dir)
	write(t, dir, "f", "x")
	path := filepath.Join(dir, "f")
	want := map[string]string{}
	for i := range 40 {
		name := fmt.Sprintf("user.a-rather-long-name-%02d", i)
		want[name] = fmt.Sprint(i)
		must(t, unix.Setxattr(path, name, []byte(want[name]), 0))
	}
	if os.Geteuid() == 0 {
		must(t, unix.Setxattr(path, "trusted.own", []byte("x"), 0))
	}
	f, _, err := tree.Open("f")
	must(t, err)
	defer f.Close()
	if got, err := xattrs(f); err != nil || !maps.Equal(got, want) {
		t.Errorf("attributes are %v, %v", got, err)
	}
	must(t, setXattrs(f, map[string]string{"user.one": "1"}))
	if got, err := xattrs(f); err != nil || !maps.Equal(got, map[string]string{"user.one": "1"}) {
		t.Errorf("afterwards %v, %v", got, err)
	}
	if err := setXattrs(f, map[string]string{"user.": ""}); err == nil {
		t.Error("a bad name was set")
	}
	f.Close()
	if _, err := xattrs(f); err == nil {
		t.Error("a closed file has attributes")
	}
	if err := setXattrs(f, nil); err == nil {
		t.Error("a closed file got attributes")
	}
	if err := Details(f, &Entry{Kind: File, Size: 1 << 30}); err == nil {
		t.Error("a closed file has details")
	}
	if _, err := extents(f, 1); err == nil {
		t.Error("a closed file has extents")
	}
}

func TestDirectoriesByParts(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a/b/c/file", "x")
	must(t, os.Symlink("b", filepath.Join(dir, "a/l")))
	tree := openTree(t, dir)
	for path, want := range map[string]errors.Kind{"a/b/c": "", ".": "", "a/x": errors.NotFound,
		"a/l/c": errors.Conflict, "a/b/c/file": errors.Conflict} {
		f, err := tree.openByParts(path)
		if errors.KindOf(err) != want {
			t.Errorf("%s: %v", path, err)
		}
		if err == nil {
			f.Close()
		}
	}
	if _, err := Open(filepath.Join(dir, "none")); err == nil {
		t.Error("a tree that is not there was opened")
	}
}

func TestExplainedFiles(t *testing.T) {
	for err, want := range map[error]errors.Kind{unix.ENOENT: errors.NotFound, unix.EACCES: errors.Denied,
		unix.ENOSPC: errors.Exhausted, unix.ENOTDIR: errors.Conflict,
		unix.ENAMETOOLONG: errors.Unsupported, unix.EIO: errors.Internal, unix.ELOOP: errors.Conflict,
		ErrChanged: errors.Conflict} {
		got := explainOpen(err)
		if errors.KindOf(got) != want || errors.Message(got) == "" {
			t.Errorf("%v: %v", err, got)
		}
	}
	for mode, want := range map[uint32]string{unix.S_IFIFO: "FIFO", unix.S_IFDIR: "directory", unix.S_IFLNK: "link",
		unix.S_IFREG: "file", unix.S_IFBLK: "device", unix.S_IFSOCK: "socket", 0: "unknown"} {
		if got := InTheWay(mode); !strings.Contains(got.Error(), want) {
			t.Errorf("%o: %v", mode, got)
		}
	}
	if Kind(9).String() != "unknown" {
		t.Error("a kind that is none has a name")
	}
}

// openTree opens a directory until the test ends.
func openTree(t *testing.T, dir string) *Tree {
	t.Helper()
	tree, err := Open(dir)
	must(t, err)
	t.Cleanup(func() { tree.Close() })
	return tree
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write writes a file, and makes its directory.
func write(t *testing.T, dir, path, content string) {
	t.Helper()
	path = filepath.Join(dir, path)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), 0o644))
}

// TestKeyProblems checks that each key which is not a path is refused with its own reason, and that the key in the
// remedy is one that has this very path.
// mission: 3.2
func TestKeyProblems(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{"a\x00b": "NUL", "a//b": "empty name", "/a": "empty name",
		"a/":  "empty name",
		"./a": "the name .,", "a/../b": "the name ..,", strings.Repeat("w", 256): "256 bytes"} {
		if err := KeyProblem(key); !strings.Contains(errors.Message(err), want) || errors.RemedyOf(err) == "" {
			t.Errorf("%.20q: %v; %s", key, err, errors.RemedyOf(err))
		}
	}
	for key, want := range map[string]string{"new\tline": "U+0009", "d\n/f": "U+000A", "\x1b[0m": "U+001B",
		"del\x7f": "U+007F",
		"\ufffe":  "U+FFFE", "\uffff": "U+FFFF", "latin\xe9": "0xE9", "%~41": "escape", "%~zz": "escape"} {
		if _, ok := DecodeKey(key); ok {
			t.Errorf("%q is accepted", key)
		}
		err := KeyProblem(key)
		quoted := strconv.Quote(EncodePath(key))
		if !strings.Contains(errors.Message(err), want) || !strings.Contains(errors.RemedyOf(err), quoted) {
			t.Errorf("%q: %v; %s", key, err, errors.RemedyOf(err))
		}
		if path, ok := DecodeKey(EncodePath(key)); !ok || path != key {
			t.Errorf("the key in the remedy has the path %q, not %q", path, key)
		}
	}
}
