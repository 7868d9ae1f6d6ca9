package mounts

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// ownNamespace gives the test's thread a mount namespace. The thread ends with the test.
func ownNamespace(t *testing.T) {
	t.Helper()
	testenv.Root(t)
	runtime.LockOSThread()
	err := unix.Unshare(unix.CLONE_NEWNS)
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, "")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// call runs the program and returns its output.
func call(t *testing.T, operation string, about any, files ...string) (string, error) {
	t.Helper()
	text, err := json.Marshal(about)
	if err != nil {
		t.Fatal(err)
	}
	if s, plain := about.(string); plain {
		text = []byte(s)
	}
	var out bytes.Buffer
	err = run(append([]string{operation, string(text)}, files...), &out)
	return out.String(), err
}

func put(t *testing.T, name, data string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

// tree returns the content of the files below dir, and "dir" for directories.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	err := filepath.Walk(dir, func(name string, info os.FileInfo, err error) error {
		if err != nil || name == dir {
			return err
		}
		what := "dir"
		if !info.IsDir() {
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			what = string(data)
		}
		all = append(all, strings.TrimPrefix(name, dir+"/")+"="+what)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

// TestMounts checks that mounts hide the files at their targets, obey their options, and leave nothing at their end.
//
// mission: B2
func TestMounts(t *testing.T) {
	dir := t.TempDir()
	ownNamespace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	put(t, at("own/dir/x"), "X")
	put(t, at("own/file"), "F")
	put(t, at("from/d/a"), "A")
	put(t, at("own3/x"), "X")
	old := time.Unix(1e9, 0)
	for _, dir := range []string{"own", "own3"} {
		if err := os.Chtimes(at(dir), old, old); err != nil {
			t.Fatal(err)
		}
	}
	state, err := call(t, "mount", []Mount{{Path: at("own/dir"), From: at("from/d")},
		{Path: at("own/file"), From: at("from/d/a"), ReadOnly: true}, {Path: at("own/deep/er"), Size: 1 << 20},
		{Path: at("own/new"), From: at("from/d/a")}, {Path: at("own2/tmp")}, {Path: at("own2/tmp/below")},
		{Path: at("own3/made/tmp")}, {Path: at("own4"), From: at("from/d/a")}})
	if err != nil {
		t.Fatal(err)
	}
	if got := tree(t, at("own")); got != "deep=dir deep/er=dir dir=dir dir/a=A file=A new=A" {
		t.Errorf("mounted: %s", got)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(at("own/deep/er"), &fs); err != nil || fs.Flags&unix.ST_NOSUID == 0 ||
		fs.Flags&unix.ST_NODEV == 0 {
		t.Errorf("a tmpfs has the flags %x, %v", fs.Flags, err)
	}
	for name, want := range map[string]os.FileMode{"own/deep/er": 0o777 | os.ModeDir | os.ModeSticky,
		"own/deep": 0o755 | os.ModeDir} {
		if info, err := os.Stat(at(name)); err != nil || info.Mode() != want {
			t.Errorf("%s: got %v, %v, want %v", name, info.Mode(), err, want)
		}
	}
	if err := os.WriteFile(at("own/file"), []byte("no"), 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("a write to a read-only mount: %v", err)
	}
	if err := os.WriteFile(at("own/deep/er/f"), make([]byte, 2<<20), 0o644); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a write beyond the size: %v", err)
	}
	put(t, at("own/dir/b"), "B")
	put(t, at("own2/tmp/f"), "T")
	put(t, at("own2/kept"), "K")
	put(t, at("own3/made/kept"), "K")
	// A command may also replace a mount.
	if err := unix.Unmount(at("own4"), 0); err != nil {
		t.Fatal(err)
	}
	put(t, at("own4"), "K")
	if err := unix.Mount(at("from/d/a"), at("own4"), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	busy, err := os.Open(at("own2/tmp/f")) // as by a process that the command left behind
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	if _, err := call(t, "unmount", state, at("from"), at("nothing")); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, dir); got != "own=dir own/dir=dir own/dir/x=X own/file=F own2=dir own2/kept=K own3=dir "+
		"own3/made=dir own3/made/kept=K own3/x=X own4=K" {
		t.Errorf("afterwards: %s", got)
	}
	if info, err := os.Stat(at("own4")); err != nil || info.Mode() != 0o644 {
		t.Errorf("a file that replaced a mount has the mode %v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(at("own3")); err != nil || info.ModTime().Equal(old) {
		t.Errorf("a directory with a new file has its old time: %v", err)
	}
	if info, err := os.Stat(at("own")); err != nil || !info.ModTime().Equal(old) {
		t.Errorf("the directory above mount points has changed: %v, %v", info.ModTime(), err)
	}
}

// TestMountThatFails checks that mounts before one that fails are undone.
func TestMountThatFails(t *testing.T) {
	dir := t.TempDir()
	ownNamespace(t)
	put(t, filepath.Join(dir, "own"), "F")
	put(t, filepath.Join(dir, "from"), "A")
	_, err := call(t, "mount", []Mount{{Path: filepath.Join(dir, "own"), From: filepath.Join(dir, "from")},
		{Path: filepath.Join(dir, "new/tmp")}, {Path: filepath.Join(dir, "x"), From: filepath.Join(dir, "none")}})
	if !errors.Is(err, unix.ENOENT) {
		t.Errorf("got %v", err)
	}
	if got := tree(t, dir); got != "from=A own=F" {
		t.Errorf("afterwards: %s", got)
	}
	if err := os.Mkdir(filepath.Join(dir, "point"), 0o755); err != nil {
		t.Fatal(err)
	}
	// A mount that cannot end may be over one of the mount points.
	_, err = call(t, "unmount", State{Steps: []Step{{Mounted: filepath.Join(dir, "gone"),
		Made: []string{filepath.Join(dir, "point")}}}})
	if !errors.Is(err, unix.ENOENT) {
		t.Errorf("an unmount of nothing: %v", err)
	}
	if got := tree(t, dir); got != "from=A own=F point=dir" {
		t.Errorf("after an unmount that failed: %s", got)
	}
	for _, args := range [][]string{nil, {"mount"}, {"mount", "["}, {"unmount", "["}, {"move", "{}"}} {
		if err := run(args, new(bytes.Buffer)); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
}

// TestMountsInMounts checks that mount points within a mount are removed from its files, and that the files below it
// are not touched.
func TestMountsInMounts(t *testing.T) {
	dir := t.TempDir()
	ownNamespace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	old := time.Unix(1e9, 0)
	put(t, at("from/kept"), "K")
	put(t, at("own/below"), "B")
	for _, name := range []string{"from", "own"} {
		if err := os.Chtimes(at(name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	state, err := call(t, "mount", []Mount{{Path: at("own"), From: at("from")}, {Path: at("own/deep/er")},
		{Path: at("own/deep/two")}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := call(t, "unmount", state); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, dir); got != "from=dir from/kept=K own=dir own/below=B" {
		t.Errorf("afterwards: %s", got)
	}
	for _, name := range []string{"from", "own"} {
		if info, err := os.Stat(at(name)); err != nil || !info.ModTime().Equal(old) {
			t.Errorf("%s has changed: %v, %v", name, info.ModTime(), err)
		}
	}
}

// TestClear checks that the file systems of the sandbox go with their directories, unless these have files.
func TestClear(t *testing.T) {
	dir := t.TempDir()
	ownNamespace(t)
	old := time.Unix(1e9, 0)
	for _, name := range []string{"tmp", "used"} {
		if err := os.MkdirAll(filepath.Join(dir, name, "own"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", filepath.Join(dir, name, "own"), "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
	}
	put(t, filepath.Join(dir, "used/file"), "F")
	if err := os.Chtimes(filepath.Join(dir, "used"), old, old); err != nil {
		t.Fatal(err)
	}
	args := []string{"clear"}
	for _, name := range []string{"tmp/own", "tmp", "used/own", "used", "none/own"} {
		args = append(args, filepath.Join(dir, name))
	}
	if err := run(args, new(bytes.Buffer)); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, dir); got != "used=dir used/file=F" {
		t.Errorf("afterwards: %s", got)
	}
	if info, err := os.Stat(filepath.Join(dir, "used")); err != nil || !info.ModTime().Equal(old) {
		t.Errorf("the directory above has changed: %v, %v", info.ModTime(), err)
	}
}
