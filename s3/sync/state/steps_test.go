package state

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/s3/tree"
)

// TestJournal checks that a journal has only the operations in progress, and that a damaged one is valid up to the
// damage.
func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := newJournal(path)
	must(t, j.compact()) // nothing yet
	for _, name := range []string{"a", "b", "c"} {
		must(t, j.Note(Sending, &tree.Entry{Path: name, Kind: tree.File, Inode: 7, Size: 3}))
	}
	must(t, j.NoteArrived(&tree.Entry{Path: "a", Kind: tree.File, Inode: 8, Change: 5}))
	j.done("b")
	if got := readJournal(path); len(got) != 3 || got["a"].Step != Arrived || got["a"].Entry.Inode != 8 ||
		got["c"].Step != Sending {
		t.Errorf("it has %v", got)
	}
	must(t, j.compact())
	must(t, j.Note(Sending, &tree.Entry{Path: "d", Kind: tree.File}))
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
	if err := missing.Note(Sending, &tree.Entry{Path: "a", Kind: tree.File}); err == nil {
		t.Error("it notes where it cannot")
	}
	var none *Journal
	none.done("a")
	none.close()
	if err := errors.Join(none.Note(Sending, &tree.Entry{}), none.compact()); err != nil {
		t.Error(err)
	}
}
