package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLogsAreBounded checks that a log takes at most twice its limit while the server runs, and that no kept line is
// split.
// mission: F6
func TestLogsAreBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	begun := 0
	r, err := openRolling(path, 1000, func(*os.File) error { begun++; return nil })
	if err != nil {
		t.Fatal(err)
	}
	line := strings.Repeat("x", 99) + "\n"
	for range 95 {
		if n, err := r.Write([]byte(line)); n != 100 || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{path: 5, path + ".1": 10} {
		text, err := os.ReadFile(name)
		if err != nil || string(text) != strings.Repeat(line, want) {
			t.Errorf("%s has %d bytes, want %d lines; %v", name, len(text), want, err)
		}
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if begun != 10 {
		t.Errorf("%d files were begun", begun)
	}
	// Existing content counts, and a log that cannot be rotated continues.
	if r, err = openRolling(path, 600, nil); err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := os.Remove(path + ".1"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path+".1", 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := r.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(path); err != nil || len(text) != 700 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	if _, err := openRolling(filepath.Join(path, "none"), 1, nil); err == nil {
		t.Error("a log below a file was opened")
	}
}
