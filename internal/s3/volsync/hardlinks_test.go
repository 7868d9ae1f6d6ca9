package volsync

import (
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
)

// linked makes a file with several names.
func linked(t *testing.T, dir, content string, names ...string) {
	t.Helper()
	write(t, dir, names[0], content)
	for _, name := range names[1:] {
		must(t, os.Link(filepath.Join(dir, names[0]), filepath.Join(dir, name)))
	}
}

// TestEditOfHardLinks edits a file with several names on one machine. The other machine gets the edit at all of the
// names, without a conflict, although the replacement of each name changes the ctime of the others.
// mission: 2.2, D1, D2
func TestEditOfHardLinks(t *testing.T) {
	t.Parallel()
	all, _, _ := machines(t, 2)
	linked(t, all[0].dir, "old", "a", "b", "c")
	settle(t, all...)
	write(t, all[1].dir, "a", "edited")
	all[1].both(t)
	if s := all[0].both(t); s.Conflicts > 0 {
		t.Errorf("conflicts: %+v", s.Decided)
	}
	settle(t, all...)
	want := map[string][]string{"a": {"edited"}, "b": {"edited"}, "c": {"edited"}}
	for i, m := range all {
		if got := filesOf(t, m.dir); !maps.EqualFunc(got, want, slices.Equal) {
			t.Errorf("machine %d has %q", i, got)
		}
	}
}

// TestHardLinkMadeLater makes two existing files with the same content one file with two names, and later gives it a
// third name. The other machine has the same names of one file, and fetches nothing.
// mission: 2.2, D2
func TestHardLinkMadeLater(t *testing.T) {
	t.Parallel()
	b := strictBucket(t)
	x, y := twoAt(t, b)
	for _, name := range []string{"a", "b"} {
		write(t, x.dir, name, "content")
		must(t, os.Chtimes(filepath.Join(x.dir, name), someTime, someTime))
	}
	settle(t, x, y)
	must(t, os.Remove(filepath.Join(x.dir, "b")))
	must(t, os.Link(filepath.Join(x.dir, "a"), filepath.Join(x.dir, "b")))
	settle(t, x, y)
	must(t, os.Link(filepath.Join(x.dir, "a"), filepath.Join(x.dir, "0")))
	settle(t, x, y)
}

// TestDeletionOfHardLinks deletes all names of a file on one machine. The other machine deletes them in one sync.
// mission: 2.2, D2
func TestDeletionOfHardLinks(t *testing.T) {
	t.Parallel()
	all, _, _ := machines(t, 2)
	linked(t, all[0].dir, "old", "a", "b", "c")
	write(t, all[0].dir, "stays", "content")
	settle(t, all...)
	for _, name := range []string{"a", "b", "c"} {
		must(t, os.Remove(filepath.Join(all[1].dir, name)))
	}
	all[1].both(t)
	all[0].both(t)
	if got := filesOf(t, all[0].dir); len(got) != 1 {
		t.Errorf("the other machine still has %q", got)
	}
}

// TestConflictOfHardLinks edits one name of a file by a replacement on one machine, and all names on the other. Both
// contents stay.
// mission: D1, D2
func TestConflictOfHardLinks(t *testing.T) {
	t.Parallel()
	all, _, _ := machines(t, 2)
	linked(t, all[0].dir, "old", "a", "b")
	settle(t, all...)
	write(t, all[1].dir, "a", "of the second")
	must(t, os.Remove(filepath.Join(all[0].dir, "b")))
	write(t, all[0].dir, "b", "of the first")
	all[1].both(t)
	settle(t, all...)
	got := filesOf(t, all[1].dir)
	want := map[string][]string{"a": {"of the second"}, "b": {"of the first"}, "b copy": {"of the second"}}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("the machines have %q", got)
	}
}

// TestUnchangedInode checks that a file counts as unchanged after a change of its ctime only if the sync itself removed
// another name of it, and never after a change of its content or mode.
// mission: D1, D2
func TestUnchangedInode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	linked(t, dir, "old", "a", "b")
	r := newRun(openTree(t, dir), nil, Options{})
	was, err := r.t.Lstat("a")
	must(t, err)
	f, err := os.OpenFile(filepath.Join(dir, "a"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	for now := was; now.Change == was.Change; { // the clock of ctimes is coarse
		must(t, os.Remove(filepath.Join(dir, "b")))
		must(t, os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")))
		now, err = r.t.Lstat("a")
		must(t, err)
	}
	if r.unchanged(f, was) == nil {
		t.Error("another program removed a name: the file counts as unchanged")
	}
	r.relinked.Store(was.Inode, true)
	must(t, r.unchanged(f, was))
	must(t, f.Chmod(0o600))
	if r.unchanged(f, was) == nil {
		t.Error("its mode changed: the file counts as unchanged")
	}
	must(t, f.Chmod(0o644))
	must(t, r.unchanged(f, was))
	_, err = f.WriteAt([]byte("new"), 0)
	must(t, err)
	later := was.ModTime.Std().Add(time.Second)
	must(t, os.Chtimes(f.Name(), later, later))
	if r.unchanged(f, was) == nil {
		t.Error("its content changed: the file counts as unchanged")
	}
}

// TestDeletionBesideNewLink deletes a name of a file on one machine that gives it other names, while the other machine
// gives it one of these, too. The deletion arrives, although the sync itself changes the file's ctime with a new name.
// mission: 2.2, D2
func TestDeletionBesideNewLink(t *testing.T) {
	t.Parallel()
	all, direct, _ := machines(t, 2)
	one, two := all[0], all[1]
	write(t, one.dir, "n", "content")
	settle(t, one, two)
	for _, name := range []string{"a", "z"} {
		must(t, os.Link(filepath.Join(two.dir, "n"), filepath.Join(two.dir, name)))
	}
	must(t, os.Remove(filepath.Join(two.dir, "n")))
	two.both(t)
	must(t, os.Link(filepath.Join(one.dir, "n"), filepath.Join(one.dir, "a")))
	one.both(t)
	settle(t, one, two)
	gone(t, direct, "n", one, two)
}

// TestDeletionBesideNewMode deletes a name of a file and changes the file's mode on one machine. The deletion arrives
// on the other one, which changes the mode through another name first or last.
// mission: 2.2, D2
func TestDeletionBesideNewMode(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "z"} {
		all, direct, _ := machines(t, 2)
		one, two := all[0], all[1]
		linked(t, one.dir, "content", name, "n")
		settle(t, one, two)
		must(t, os.Remove(filepath.Join(two.dir, "n")))
		must(t, os.Chmod(filepath.Join(two.dir, name), 0o600))
		two.both(t)
		one.both(t)
		settle(t, one, two)
		gone(t, direct, "n", one, two)
	}
}

// TestDeletionBesideOtherDeletion deletes the first name of a file on one machine, so that the manifest has other links
// for the names that stay. The deletion of one of these on the other machine arrives.
// mission: 2.2, 3.1
func TestDeletionBesideOtherDeletion(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"b", "c"} {
		all, direct, _ := machines(t, 2)
		one, two := all[0], all[1]
		linked(t, one.dir, "content", "a", "b", "c")
		settle(t, one, two)
		must(t, os.Remove(filepath.Join(one.dir, "a")))
		one.both(t)
		must(t, os.Remove(filepath.Join(two.dir, name)))
		if s := two.both(t); s.Conflicts > 0 {
			t.Errorf("decisions: %+v", s.Decided)
		}
		settle(t, one, two)
		gone(t, direct, "a", one, two)
		gone(t, direct, name, one, two)
		if got := filesOf(t, one.dir); len(got) != 1 {
			t.Errorf("the machines have %q", got)
		}
	}
}

// TestDeletionOfReceivedLink deletes a name of a file on a machine that got the name as a link in its last sync. The
// deletion arrives: the name was on this machine.
// mission: 2.2, D2
func TestDeletionOfReceivedLink(t *testing.T) {
	t.Parallel()
	for _, both := range []bool{false, true} {
		all, direct, _ := machines(t, 2)
		one, two := all[0], all[1]
		write(t, one.dir, "a", "content")
		write(t, one.dir, "other", "content")
		if settle(t, one, two); both {
			write(t, one.dir, "a", "another content") // both names are new contents
		}
		must(t, os.Link(filepath.Join(one.dir, "a"), filepath.Join(one.dir, "b")))
		one.both(t)
		two.both(t)
		must(t, os.Remove(filepath.Join(two.dir, "b")))
		two.both(t)
		settle(t, one, two)
		gone(t, direct, "b", one, two)
	}
}

// TestDeletedLinkOfOvertakenSync deletes a name of a file while the sync of another machine has made it and has not
// stored its manifest: the name does not come back.
// mission: A8, D1
func TestDeletedLinkOfOvertakenSync(t *testing.T) {
	t.Parallel()
	loc := strictLocation(t, &strictServer{})
	a := between(t, &loc)
	x, y := twoAt(t, openBucket(t, loc))
	write(t, x.dir, "f", "content")
	must(t, os.Link(filepath.Join(x.dir, "f"), filepath.Join(x.dir, "g")))
	x.both(t)
	write(t, y.dir, "new", "of the other machine")
	asks(a, http.MethodPut, manifest.Key, func() {
		must(t, os.Remove(filepath.Join(x.dir, "g")))
		x.both(t)
	})
	y.both(t)
	a.reset(nil)
	settle(t, x, y)
	if _, err := os.Lstat(filepath.Join(y.dir, "g")); !errors.IsNotExist(err) {
		t.Errorf("the name came back: %v", err)
	}
}
