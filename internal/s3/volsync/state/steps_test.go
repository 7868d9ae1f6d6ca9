package state

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// TestJournal checks that a journal has only the operations in progress, and that a damaged one is valid up to the
// damage.
func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := newJournal(path)
	must(t, j.compact()) // nothing yet
	for _, name := range []string{"a", "b", "c"} {
		must(t, j.NoteSending(&tree.Entry{Path: name, Kind: tree.File, Inode: 7, Size: 3}))
	}
	inode := noteFetching(t, j, &tree.Entry{Path: "a", Kind: tree.File})
	if got := readJournal(path); got["a"].Step != Fetching {
		t.Errorf("before its arrival, a is %v", got["a"])
	}
	must(t, j.NoteArrived(&tree.Entry{Path: "a", Change: 5}))
	must(t, j.NoteArrived(&tree.Entry{Path: "unknown", Change: 5}))
	j.done("b")
	if got := readJournal(path); len(got) != 3 || got["a"].Step != Arrived || got["a"].Entry.Inode != inode ||
		got["a"].Entry.Change != 5 || got["c"].Step != Sending {
		t.Errorf("it has %v", got)
	}
	must(t, j.compact())
	must(t, j.NoteSending(&tree.Entry{Path: "d", Kind: tree.File}))
	if got := readJournal(path); len(got) != 3 || got["b"] != nil || got["d"] == nil {
		t.Errorf("then it has %v", got)
	}
	j.close()
	raw, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, raw[:len(raw)-1], 0o600))
	if got := readJournal(path); len(got) != 2 || got["d"] != nil {
		t.Errorf("cut off it has %v", got)
	}
	if got := readJournal(path + ".none"); len(got) != 0 {
		t.Errorf("none has %v", got)
	}
	missing := newJournal(filepath.Join(path, "no", "directory"))
	if err := missing.NoteSending(&tree.Entry{Path: "a", Kind: tree.File}); err == nil {
		t.Error("it notes where it cannot")
	}
	var none *Journal
	none.done("a")
	none.close()
	if err := errors.Join(none.NoteSending(&tree.Entry{}), none.compact()); err != nil {
		t.Error(err)
	}
}

// noteFetching notes that a new file is about to get its name, and returns its inode.
func noteFetching(t *testing.T, j *Journal, e *tree.Entry) uint64 {
	t.Helper()
	at, err := tree.Open(t.TempDir())
	must(t, err)
	defer at.Close()
	w, err := at.Create(e.Path)
	must(t, err)
	defer w.Discard()
	must(t, j.NoteFetching(w, e))
	var st unix.Stat_t
	must(t, unix.Fstat(int(w.Fd()), &st))
	return st.Ino
}
