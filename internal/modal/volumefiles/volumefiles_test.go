package volumefiles_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/modal/volumefiles"
)

// volume returns an empty volume, the directory of its files, and one beside it.
func volume(t *testing.T) (root *os.Root, dir, staging string) {
	t.Helper()
	base := t.TempDir()
	dir, staging = filepath.Join(base, "data"), filepath.Join(base, "notes", "put")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root, dir, staging
}

func file(name, text string, mode uint32) volumefiles.File {
	return volumefiles.File{Path: name, Mode: mode, Size: int64(len(text)),
		Write: func(f *os.File) error { return second(io.WriteString(f, text)) }}
}

func second[T any](_ T, err error) error { return err }

func put(t *testing.T, root *os.Root, staging string, overwrite bool, files ...volumefiles.File) error {
	t.Helper()
	b, err := volumefiles.Stage(t.Context(), staging, files)
	if err != nil {
		return err
	}
	defer func() {
		if err := b.Discard(); err != nil {
			t.Error(err)
		}
	}()
	return b.Commit(t.Context(), nil, root, overwrite)
}

// TestPutIsAllOrNothing checks modes, owners and zeros at the end of new files, that a batch with one bad file changes
// nothing, and that nothing is left beside the volume.
func TestPutIsAllOrNothing(t *testing.T) {
	t.Parallel()
	root, dir, staging := volume(t)
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, 1234, 5678); err != nil {
			t.Fatal(err)
		}
	}
	padded := file("/x/y/padded", "abc", 0)
	padded.Size = 10
	if err := put(t, root, staging, false, file("a", "one", 0o6755), padded); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		text string
		mode os.FileMode
	}{"a": {"one", 0o755}, "x/y/padded": {"abc" + strings.Repeat("\x00", 7), 0o644}} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		info, _ := os.Stat(filepath.Join(dir, name))
		if err != nil || string(text) != want.text || info.Mode() != want.mode {
			t.Errorf("%s is %q with mode %v, %v", name, text, info.Mode(), err)
		}
	}
	if os.Geteuid() == 0 {
		for _, name := range []string{"a", "x", "x/y", "x/y/padded"} {
			if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Sys().(*syscall.Stat_t).Uid != 1234 {
				t.Errorf("%s is not its volume's owner's, %v", name, err)
			}
		}
	}
	broken := file("z", "", 0)
	broken.Write = func(*os.File) error { return errors.Newf(errors.Unavailable, "broken") }
	for what, c := range map[string]struct {
		files []volumefiles.File
		kind  errors.Kind
	}{
		"a file that exists":      {[]volumefiles.File{file("new", "n", 0), file("a", "two", 0)}, errors.Conflict},
		"a directory that exists": {[]volumefiles.File{file("new", "n", 0), file("x", "two", 0)}, errors.Conflict},
		"a file twice":            {[]volumefiles.File{file("new", "n", 0), file("./new", "two", 0)}, errors.Invalid},
		"no name":                 {[]volumefiles.File{file("new", "n", 0), file("", "two", 0)}, errors.Invalid},
		"a directory's name":      {[]volumefiles.File{file("new", "n", 0), file("d/..", "two", 0)}, errors.Invalid},
		"a path that leads out":   {[]volumefiles.File{file("new", "n", 0), file("../b", "two", 0)}, errors.Invalid},
		"content that is missing": {[]volumefiles.File{file("new", "n", 0), broken}, errors.Unavailable},
	} {
		if err := put(t, root, staging, false, c.files...); errors.KindOf(err) != c.kind {
			t.Errorf("%s: %v, want %s", what, err, c.kind)
		}
	}
	if err := put(t, root, staging, true, file("a/b", "n", 0)); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a file as directory: %v", err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := volumefiles.Stage(canceled, staging, []volumefiles.File{file("new", "n", 0)}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("a canceled batch: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "new")); !os.IsNotExist(err) {
		t.Errorf("a refused batch left a file, %v", err)
	}
	if left, err := os.ReadDir(staging); err != nil || len(left) != 0 {
		t.Errorf("beside the volume are left %v, %v", left, err)
	}
}

// TestLinksLeadNowhereElse checks that symbolic links, which sandboxes make, cannot lead reads and writes out.
//
// mission: C1
func TestLinksLeadNowhereElse(t *testing.T) {
	t.Parallel()
	root, dir, staging := volume(t)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"dir": outside, "file": filepath.Join(outside, "secret"),
		"up": "../.."} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for what, err := range map[string]error{
		"a read":                second(volumefiles.Read(root, "file", "", 0, 1)),
		"a read in a directory": second(volumefiles.Read(root, "dir/secret", "", 0, 1)),
		"a list": volumefiles.List(t.Context(), root, "dir", true, 0,
			func(volumefiles.Entry) error { return nil }),
		"a list above": volumefiles.List(t.Context(), root, "up", false, 0,
			func(volumefiles.Entry) error { return nil }),
		"a copy":                volumefiles.Copy(t.Context(), nil, root, staging, []string{"file"}, "copied", false),
		"a copy of a directory": volumefiles.Copy(t.Context(), nil, root, staging, []string{"dir"}, "copied", true),
		"a removal":             volumefiles.Remove(root, "dir/secret", false),
		"a file":                put(t, root, staging, true, file("dir/new", "n", 0)),
	} {
		if errors.KindOf(err) != errors.Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := put(t, root, staging, true, file("file", "mine", 0)); err != nil { // replaces the link itself
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(outside, "secret")); err != nil || string(text) != "s" {
		t.Errorf("the file outside is %q, %v", text, err)
	}
	left, err := os.ReadDir(outside)
	if err != nil || len(left) != 1 {
		t.Errorf("outside are %v, %v", left, err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := volumefiles.Read(root, "pipe", "", 0, 1); errors.KindOf(err) != errors.Conflict {
		t.Errorf("a pipe: %v", err) // and it does not block
	}
}
