package tarfs_test

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

func TestWholeFileSystemFollowsAbsoluteLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	real := filepath.Join(dir, "real")
	if err := os.Mkdir(real, 0o755); err != nil {
		t.Fatal(err)
	}
	symlink(t, real, filepath.Join(dir, "abs"))
	symlink(t, "./abs/../real", filepath.Join(dir, "rel"))
	symlink(t, filepath.Join(dir, "loop"), filepath.Join(dir, "loop"))
	symlink(t, "/", filepath.Join(dir, "top"))
	root := openRoot(t, "/")
	if err := tarfs.Unpack(root, filepath.Join(dir, "abs/sub"), bytes.NewReader(archive(t, entry{name: "f",
		content: "1"})), tarfs.Options{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"abs/sub/f", "rel/sub/f", "top/" + dir + "/rel/sub/f"} {
		var out bytes.Buffer
		if err := tarfs.Pack(root, filepath.Join(dir, name), &out); err != nil {
			t.Fatal(err)
		}
		if hdr, err := tar.NewReader(&out).Next(); err != nil || hdr.Name != "f" {
			t.Errorf("%s: got %v, %v", name, hdr, err)
		}
	}
	if err := tarfs.Pack(root, filepath.Join(dir, "loop/x"), io.Discard); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a loop: got %v", err)
	}
	if err := tarfs.Unpack(root, filepath.Join(dir, "loop/x"), bytes.NewReader(nil),
		tarfs.Options{}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a loop: got %v", err)
	}
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := testenv.SmallDisk(t, "size=64k,nr_inodes=8")
	root := openRoot(t, dir)
	many := make([]entry, 20)
	for i := range many {
		many[i] = entry{name: string(rune('a' + i)), kind: tar.TypeDir, mode: 0o755}
	}
	for name, entries := range map[string][]entry{"bytes": {{name: "big", content: strings.Repeat("x", 1<<20)}},
		"files": many} {
		err := tarfs.Unpack(root, "", bytes.NewReader(archive(t, entries...)), tarfs.Options{})
		if errors.KindOf(err) != errors.Exhausted || !strings.Contains(errors.Message(err), "no space left") {
			t.Errorf("%s: got %v", name, err)
		}
		if errors.RemedyOf(err) == "" {
			t.Errorf("%s: no remedy", name)
		}
	}
	for _, c := range []struct {
		errno      syscall.Errno
		name, want string
		kind       errors.Kind
	}{{syscall.EDQUOT, "a/b", `there is no space left to write "a/b"`, errors.Exhausted},
		{syscall.ENOSPC, "a/.harvest-X", "there is no space left to write the file", errors.Exhausted},
		{syscall.EIO, "a/b", `the disk failed at "a/b" (input/output error)`, errors.Unavailable}} {
		err := tarfs.Explain(&fs.PathError{Op: "write", Path: c.name, Err: c.errno}, c.name)
		if errors.Message(err) != c.want || errors.KindOf(err) != c.kind || errors.RemedyOf(err) == "" {
			t.Errorf("%v: %q, %s, want %q", c.errno, errors.Message(err), errors.KindOf(err), c.want)
		}
	}
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := tarfs.Unpack(root, "new", bytes.NewReader(archive(t)),
		tarfs.Options{}); errors.KindOf(err) != errors.Denied {
		t.Errorf("a read-only file system: got %v", err)
	}
}

// TestLayersWithoutAnEnd checks that a layer may lack the end marker that other archives must have, or be empty, and
// that it is never cut within an entry.
func TestLayersWithoutAnEnd(t *testing.T) {
	t.Parallel()
	whole := archive(t, entry{name: "a", content: "content"}, entry{name: "b"})
	whole = whole[:len(whole)-2*512] // the end marker follows
	read := func(r *tarfs.Reader) (n int, err error) {
		for ; err == nil; n++ {
			_, err = r.Next()
		}
		return n - 1, err
	}
	if n, err := read(tarfs.NewLayerReader(bytes.NewReader(whole))); n != 2 || err != io.EOF {
		t.Errorf("without an end: %d entries, %v", n, err)
	}
	if n, err := read(tarfs.NewLayerReader(bytes.NewReader(nil))); n != 0 || err != io.EOF {
		t.Errorf("an empty layer: %d entries, %v", n, err)
	}
	if _, err := read(tarfs.NewReader(bytes.NewReader(whole))); errors.KindOf(err) != errors.Invalid {
		t.Errorf("another archive without an end: %v", err)
	}
	for _, size := range []int{100, 600, len(whole) - 100, len(whole) - 600} {
		if _, err := read(tarfs.NewLayerReader(bytes.NewReader(whole[:size]))); errors.KindOf(err) != errors.Invalid {
			t.Errorf("the first %d bytes: %v", size, err)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	for _, tc := range hostile {
		f.Add(archive(f, tc.entries...))
	}
	good := archive(f, entry{name: "a", content: "x"}, entry{name: "d/", kind: tar.TypeDir}, entry{name: "d/l",
		kind: tar.TypeSymlink, link: "../../outside"})
	f.Add(good)
	f.Add(good[:700])
	f.Fuzz(func(t *testing.T, data []byte) {
		top := guarded(t)
		root := openRoot(t, top)
		err := tarfs.Unpack(root, "in", bytes.NewReader(data), tarfs.Options{SetID: true, MaxBytes: 1 << 20,
			MaxEntries: 100})
		if errors.KindOf(err) == errors.Internal {
			t.Errorf("an archive became an internal error: %v", err)
		}
		checkGuarded(t, top)
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := tarfs.Pack(root, "in", &out); err != nil {
			t.Fatalf("what was unpacked cannot be packed: %v", err)
		}
		if err := tarfs.Unpack(root, "again", &out, tarfs.Options{SetID: true}); err != nil {
			t.Fatalf("what was packed cannot be unpacked: %v", err)
		}
		if err := os.RemoveAll(filepath.Join(top, "again")); err != nil {
			t.Fatal(err)
		}
		checkGuarded(t, top)
	})
}

func TestOpenStreams(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "big"), strings.Repeat("x", 8<<20))
	for _, top := range []string{dir, "/"} {
		root, err := os.OpenRoot(top)
		if err != nil {
			t.Fatal(err)
		}
		name := map[string]string{dir: "big", "/": dir + "/big"}[top]
		s, err := tarfs.Open(t.Context(), root, name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tarfs.Open(t.Context(), root, name+"/none"); errors.KindOf(err) != errors.Invalid {
			t.Errorf("below a file: got %v", err)
		}
		if _, err := tarfs.Open(t.Context(), root, name+"none"); errors.KindOf(err) != errors.NotFound {
			t.Errorf("got %v, want NotFound at once", err)
		}
		root.Close()
		tr := tar.NewReader(s)
		if hdr, err := tr.Next(); err != nil || hdr.Name != "big" {
			t.Fatalf("got %v, %v", hdr, err)
		}
		if n, err := io.Copy(io.Discard, tr); n != 8<<20 || err != nil {
			t.Errorf("got %d bytes, %v", n, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := tarfs.Open(t.Context(), root, name); top != "/" && err == nil {
			t.Error("a closed root can be opened")
		}
	}
}

func TestOpenEndsWithItsContext(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "big"), strings.Repeat("x", 8<<20))
	ctx, cancel := context.WithCancel(t.Context())
	s, err := tarfs.Open(ctx, openRoot(t, dir), "")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.Copy(io.Discard, s); errors.KindOf(err) != errors.Canceled {
		t.Errorf("got %v, want Canceled", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	half, err := tarfs.Open(t.Context(), openRoot(t, dir), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := half.Close(); err != nil { // and does not wait for the rest
		t.Error(err)
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	top := guarded(t)
	symlink(t, "../outside", filepath.Join(top, "in/out"))
	if err := os.MkdirAll(filepath.Join(top, "in/d/locked"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(top, "in/d/locked/f"), "x")
	if err := os.Chmod(filepath.Join(top, "in/d/locked"), 0o500); err != nil {
		t.Fatal(err)
	}
	root := openRoot(t, filepath.Join(top, "in"))
	for _, c := range []struct {
		name string
		want errors.Kind
	}{{"", errors.Invalid}, {"/", errors.Invalid}, {"../outside", errors.Invalid}, {"out/secret",
		errors.Invalid}, {"none", errors.NotFound}, {"d", ""}, {"out", ""}} {
		if err := tarfs.Remove(root, c.name); errors.KindOf(err) != c.want {
			t.Errorf("%q: got %v, want %q", c.name, err, c.want)
		}
	}
	checkGuarded(t, top)
	if got := tree(t, filepath.Join(top, "in")); len(got) != 1 {
		t.Errorf("left: %v", got)
	}
}

// TestRemoveAsOrdinaryUser runs in a child process, since root may do everything.
func TestRemoveAsOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("TestRemove is this test for an ordinary user")
	}
	if os.Getenv("TARFS_TEST_CHILD") != "" {
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run", "^TestRemove$")
	cmd.Env = append(os.Environ(), "TARFS_TEST_CHILD=1")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
