package atomicfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// TestWrite replaces files, also where a crash has left a part of a new one.
func TestWrite(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(string, []byte, fs.FileMode) error{
		"write": Write, "durable": WriteDurable,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "record")
			for _, content := range []string{"the first content", "2", ""} {
				if err := os.WriteFile(path+suffix, []byte("a part that a crash has left"), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := write(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
				got, err := os.ReadFile(path)
				if err != nil || string(got) != content {
					t.Errorf("the file has %q, want %q: %v", got, content, err)
				}
			}
			if names, err := os.ReadDir(filepath.Dir(path)); err != nil || len(names) != 1 {
				t.Errorf("the directory has %v: %v", names, err)
			}
		})
	}
}

// TestReserve checks that a file is replaced once on a full disk, and again after space was reserved again.
func TestReserve(t *testing.T) {
	t.Parallel()
	dir := testenv.SmallDisk(t, "size=256k")
	path, filler := filepath.Join(dir, "record"), filepath.Join(dir, "filler")
	if err := errors.Join(Write(path, []byte("first and longer"), 0o640), Reserve(path), Reserve(path)); err != nil {
		t.Fatal(err)
	}
	fill := func() {
		t.Helper()
		f, err := os.OpenFile(filler, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Write(make([]byte, 512<<10)); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("the disk is not full: %v", err)
		}
	}
	for _, step := range []struct {
		content, want string
		ok            bool
	}{{"second", "second", true}, {"third", "second", false}} {
		fill() // also the space of the file that was replaced
		if err := WriteDurable(path, []byte(step.content), 0o640); (err == nil) != step.ok ||
			err != nil && !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("write %q: %v", step.content, err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != step.want {
			t.Errorf("the file has %q, want %q: %v", got, step.want, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := Reserve(path); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("reserve on a full disk: %v", err)
	}
	if err := errors.Join(os.Remove(filler), Reserve(path)); err != nil {
		t.Fatal(err)
	}
	ReleaseReserve(path)
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("left: %v, %v", names, err)
	}
}

// TestReadersSeeWholeFiles reads a file again and again while it is replaced.
func TestReadersSeeWholeFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "record")
	contents := map[string]bool{string(make([]byte, 100_000)): true, "short": true}
	if err := Write(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		for range 200 {
			for content := range contents {
				if err := Write(path, []byte(content), 0o600); err != nil {
					done <- err
					return
				}
			}
		}
		done <- nil
	}()
	for {
		got, err := os.ReadFile(path)
		if err != nil || !contents[string(got)] {
			t.Errorf("a reader sees %d bytes: %v", len(got), err)
		}
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
	}
}

// TestWriteFails checks that an error leaves the old content and nothing beside it, and keeps its cause.
func TestWriteFails(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "directory")
	if err := os.MkdirAll(filepath.Join(dir, "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(dir, []byte("x"), 0o600); !errors.Is(err, syscall.EEXIST) && !errors.Is(err, syscall.EISDIR) {
		t.Errorf("a directory was replaced: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "below")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir + suffix); !errors.IsNotExist(err) {
		t.Errorf("a file is left: %v", err)
	}
	for name, err := range map[string]error{
		"Write":   WriteDurable(filepath.Join(dir, "missing", "record"), nil, 0o600),
		"SyncDir": SyncDir(filepath.Join(dir, "missing")),
	} {
		if !errors.IsNotExist(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
