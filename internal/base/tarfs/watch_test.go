//go:build linux

package tarfs

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// write writes a file below a directory, and makes the directories above it.
func write(t *testing.T, dir, name, text string) {
	t.Helper()
	full := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, dir, from, to string) {
	t.Helper()
	if err := syscall.Rename(filepath.Join(dir, from),
		filepath.Join(dir, to)); err != nil { // os.Rename does not replace directories
		t.Fatal(err)
	}
}

// only returns the changes of one name.
func only(all []string, name string) []string {
	var kept []string
	for _, c := range all {
		if c = strings.TrimSuffix(c, " moved"); strings.HasSuffix(c, " "+name) {
			kept = append(kept, c)
		}
	}
	return kept
}

// A file that is replaced by a rename, as editors, git and Harvest's own API write files, has changed.
//
// mission: E10
func TestWatchReportsReplacedFilesAsChanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "old", "1")
	write(t, dir, "sub/old", "1")
	all := watching(t, dir, func() {
		for _, sub := range []string{"", "sub/"} {
			temp := sub + TemporaryName()
			write(t, dir, temp, "2")
			rename(t, dir, temp, sub+"old")
		}
		write(t, dir, "draft", "3")
		rename(t, dir, "draft", "old")
		write(t, dir, "draft", "4")
		rename(t, dir, "draft", "new")
		write(t, dir, "draft", "5")
		rename(t, dir, "draft", "new")
		if err := os.Remove(filepath.Join(dir, "new")); err != nil {
			t.Fatal(err)
		}
		write(t, dir, "draft", "6")
		rename(t, dir, "draft", "new")
	})
	for name, want := range map[string][]string{
		"old":     {"changed old", "changed old"},
		"sub/old": {"changed sub/old"},
		"new":     {"created new", "changed new", "removed new", "created new"},
	} {
		if got := only(all, name); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q; of %q", name, got, want, all)
		}
	}
}

// TestWatchReportsReplacedFilesInNewDirectories checks that a replaced file in a new directory is reported: the first
// report of the directory's files does not hide it.
//
// mission: E10
func TestWatchReportsReplacedFilesInNewDirectories(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	outside := t.TempDir()
	write(t, outside, "ready/sub/file", "1")
	w := startWatch(t, dir)
	rename(t, dir, filepath.Join("..", filepath.Base(outside), "ready"),
		"ready") // its files have no events of their own
	w.until("created ready/sub/file")
	write(t, dir, "ready/sub/draft", "2")
	rename(t, dir, "ready/sub/draft", "ready/sub/file")
	w.until("changed ready/sub/file moved")
	if err := os.Remove(filepath.Join(dir, "ready/sub/file")); err != nil {
		t.Fatal(err)
	}
	w.until("removed ready/sub/file")
	write(t, dir, "ready/sub/file", "3")
	w.until("created ready/sub/file")
}

// TestWatchFollowsMovedDirectories checks that a moved directory is reported with its files under its new name, and no
// longer under the old one.
//
// mission: E10
func TestWatchFollowsMovedDirectories(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	write(t, dir, "a/sub/file", "1")
	w := startWatch(t, dir)
	rename(t, dir, "a", "b")
	w.until("removed a moved")
	w.until("created b moved")
	w.until("created b/sub/file")
	write(t, dir, "b/sub/file", "2")
	w.until("changed b/sub/file")
	rename(t, dir, "b", filepath.Join("..", filepath.Base(outside), "gone"))
	w.until("removed b moved")
	write(t, outside, "gone/sub/file", "3")
	write(t, outside, "gone/sub/other", "3")
	write(t, dir, "end", "")
	for _, c := range w.until("created end") {
		if strings.Contains(c, "sub") {
			t.Errorf("reported of a directory that has left: %q", c)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.until("created empty")
	write(t, outside, "full/file", "4")
	rename(t, dir, filepath.Join("..", filepath.Base(outside), "full"), "empty")
	w.until("changed empty moved")
	w.until("created empty/file")
}

// TestWatchRemembersABoundedNumberOfNames checks that a watch remembers a bounded number of names. The replacement of a
// file beyond that number is reported as a creation.
func TestWatchRemembersABoundedNumberOfNames(t *testing.T) {
	t.Parallel()
	k := known{max: 2}
	for _, name := range []string{"d/a", "d/b", "d/c", "d/a"} {
		k.add(name)
	}
	if !k.has("d/a") || !k.has("d/b") || k.has("d/c") {
		t.Errorf("got %v", k.dirs)
	}
	k.remove("d/a")
	k.remove("d/never")
	k.add("e/sub/c")
	if k.has("d/a") || !k.has("e/sub/c") || k.count != 2 {
		t.Errorf("got %v", k.dirs)
	}
	k.forget("e/sub")
	k.forget("none")
	if k.has("e/sub/c") || k.count != 1 {
		t.Errorf("got %v", k.dirs)
	}
}

// liveWatch collects the changes below a directory while the test makes them.
type liveWatch struct {
	t   *testing.T
	all chan string
}

// startWatch watches a directory with all below it, and returns when changes are seen.
func startWatch(t *testing.T, dir string) *liveWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, pipe := io.Pipe()
	go func() { pipe.CloseWithError(Do(ctx, Host{}, Request{Op: OpWatch, Path: dir, Recursive: true}, pipe)) }()
	w := &liveWatch{t: t, all: make(chan string)}
	t.Cleanup(func() { cancel(); r.Close() })
	go func() {
		defer close(w.all)
		for changes := json.NewDecoder(r); ; {
			var c Change
			if changes.Decode(&c) != nil {
				return
			}
			text := string(c.Kind)
			if rel, err := filepath.Rel(dir, c.Path); err == nil {
				text += " " + rel
			}
			if c.Cookie != 0 {
				text += " moved"
			}
			select {
			case w.all <- text:
			case <-ctx.Done():
				return
			}
		}
	}()
	w.until("ready")
	return w
}

// until waits for a change, and returns the changes before it.
func (w *liveWatch) until(want string) []string {
	w.t.Helper()
	var before []string
	limit := time.After(2 * time.Minute)
	for {
		select {
		case c, ok := <-w.all:
			if !ok {
				w.t.Fatalf("the watch ended without %q, after %q", want, before)
			}
			if c == want {
				return before
			}
			before = append(before, c)
		case <-limit:
			w.t.Fatalf("no %q came, after %q", want, before)
		}
	}
}
