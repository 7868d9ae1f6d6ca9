package state

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// TestRecordsAreReplaced checks that a record is replaced at once when it changes: a process that is killed meanwhile
// leaves the earlier record or the next one. An unsettled record of which a part is missing would mean that the disk
// failed, and the next sync would restore over recent files. A file that is rewritten in place changes under all of its
// names; one that is replaced does not.
// mission: A8
func TestRecordsAreReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &State{dir: dir}
	u := &Unsettled{file: filepath.Join(dir, UnsettledDir, "tree")}
	up := Uploads{Dir: filepath.Join(dir, "uploads")}
	for name, r := range map[string]struct {
		file          string
		first, second func() error
	}{
		"unsettled": {u.file, func() error { return u.Begin(time.Now()) }, u.Fail},
		"doomed": {s.File(DoomedFile), func() error {
			return s.Doom([]object.Doomed{{Key: "a", ETag: "1"}, {Key: "b",
				ETag: "2"}})
		},
			func() error { return s.Doom([]object.Doomed{{Key: "c", ETag: "3"}}) }},
		"upload": {up.file("key"), func() error { up.Note("key", &tree.Entry{Size: 1}, "the first"); return nil },
			func() error { up.Note("key", &tree.Entry{Size: 2}, "second"); return nil }},
	} {
		must(t, r.first())
		before, err := os.ReadFile(r.file)
		must(t, err)
		other := filepath.Join(dir, "other name of "+name)
		must(t, os.Link(r.file, other))
		must(t, r.second())
		after, err := os.ReadFile(r.file)
		must(t, err)
		kept, err := os.ReadFile(other)
		must(t, err)
		if string(kept) != string(before) || string(after) == string(before) {
			t.Errorf("%s: %q became %q, and the earlier file %q", name, before, after, kept)
		}
	}
}

// TestUploadsAreForgotten checks that unfinished uploads are forgotten when S3 has forgotten them, and that an
// unreadable record is ignored.
func TestUploadsAreForgotten(t *testing.T) {
	u := Uploads{Dir: t.TempDir()}
	e := &tree.Entry{Kind: tree.File, Size: 1}
	u.Note("old", e, "1")
	u.Note("new", e, "2")
	must(t, os.Chtimes(u.file("old"), time.Now(), time.Now().Add(-2*object.Stale)))
	u.Sweep(object.Stale)
	if id, _ := u.Find("old", e); id != "" {
		t.Errorf("it remembers %q", id)
	}
	if id, other := u.Find("new", e); id != "2" || other != "" {
		t.Errorf("found %q and %q", id, other)
	}
	if id, other := u.Find("new", &tree.Entry{Kind: tree.File, Size: 2}); id != "" || other != "2" {
		t.Errorf("found %q and %q for another file", id, other)
	}
	must(t, os.WriteFile(u.file("new"), []byte("{"), 0o600))
	if id, other := u.Find("new", e); id != "" || other != "" {
		t.Errorf("found %q and %q in what is no record", id, other)
	}
	none := Uploads{}
	none.Note("x", e, "1")
	none.Sweep(0)
	if id, other := none.Find("x", e); id != "" || other != "" {
		t.Errorf("without a place it remembers %q, %q", id, other)
	}
}
