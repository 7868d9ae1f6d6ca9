package state

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// TestAppendedGrows checks that records are in the file as soon as they are added, before it is closed, whatever their
// size, and that only zeros follow.
// mission: A8
func TestAppendedGrows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var a appended
	must(t, a.start(path))
	defer a.close()
	var want []byte
	for i, n := range []int{1, 100, 4096, appendBytes - 1, appendBytes, 3, 3*appendBytes + 5, 1, appendBytes / 2} {
		record := bytes.Repeat([]byte{byte(i + 1)}, n)
		want = append(want, record...)
		must(t, a.add(record))
		got, err := os.ReadFile(path)
		must(t, err)
		if !bytes.Equal(bytes.TrimRight(got, "\x00"), want) {
			t.Fatalf("after record %d of %d bytes, the file differs from the records", i, n)
		}
	}
	a.close()
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("closed, the file has %d bytes, want %d: %v", len(got), len(want), err)
	}
}

// TestAppendedOnFaultyDisk checks that a disk that fails is an error, and does not end the process.
// mission: A8
func TestAppendedOnFaultyDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var a appended
	must(t, a.start(path))
	defer a.close()
	must(t, a.add([]byte("one")))
	must(t, os.Truncate(path, 0)) // pages beyond the end fault, as those that the disk refuses
	if err := a.add([]byte("two")); err == nil {
		t.Error("a record was added to a page that the file does not have")
	}
}

// TestTornRecord checks that a record that was not complete when the process was killed is not read, nor anything of
// an earlier journal behind it.
// mission: A8
func TestTornRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := newJournal(path)
	must(t, j.NoteSending(&tree.Entry{Path: "a", Kind: tree.File, Inode: 7}))
	at := j.out.size
	must(t, j.NoteSending(&tree.Entry{Path: "b", Kind: tree.File, Inode: 8}))
	j.out.mem[at] = 0 // the first byte is written last
	if got := readJournal(path); len(got) != 1 || got["a"] == nil {
		t.Errorf("it has %v", got)
	}
	// The process is killed without closing it, and the next one records something else.
	next := newJournal(path)
	must(t, next.NoteSending(&tree.Entry{Path: "c", Kind: tree.File}))
	if got := readJournal(path); len(got) != 1 || got["c"] == nil {
		t.Errorf("the next has %v", got)
	}
	next.close()
}

// TestJournalKeepsArrivals checks that compacting keeps the record of a file in progress, also of one that has more
// attributes than the file grows by at once, and that a record is changed wherever it is in the journal.
// mission: A8
func TestJournalKeepsArrivals(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := newJournal(path)
	defer j.close()
	large := &tree.Entry{Path: "large", Kind: tree.File, Size: 9, ETag: "e", Change: 1,
		Xattrs: map[string]string{"user.x": strings.Repeat("x", 60<<10), "user.y": strings.Repeat("y", 60<<10)}}
	for i, change := range []int64{3, -5, 1 << 60} {
		inode := noteFetching(t, j, large)
		for n := range i * 2000 { // the mapping moves on
			must(t, j.NoteSending(&tree.Entry{Path: fmt.Sprint("small", n), Kind: tree.File}))
		}
		must(t, j.NoteArrived(&tree.Entry{Path: "large", Change: change}))
		must(t, j.NoteSending(&tree.Entry{Path: "small", Kind: tree.File}))
		for range 2 {
			got := readJournal(path)
			n := got["large"]
			if len(got) < 2 || n == nil || n.Step != Arrived || n.Entry.Inode != inode ||
				n.Entry.Change != max(change, 0) || n.Entry.Size != 9 || n.Entry.ETag != "e" ||
				len(n.Entry.Xattrs["user.y"]) != 60<<10 || got["small"] == nil {
				t.Fatalf("it has %d entries, large is %v", len(got), n != nil)
			}
			must(t, j.compact())
		}
	}
	j.done("large")
	must(t, j.compact())
	if got := readJournal(path); len(got) != 4001 || got["small"] == nil {
		t.Errorf("then it has %d entries", len(got))
	}
}

// TestJournalOfEarlierVersion checks that the record of an arrival without its entry is ignored.
func TestJournalOfEarlierVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := newJournal(path)
	noteFetching(t, j, &tree.Entry{Path: "a", Kind: tree.File})
	must(t, j.note(&Journey{Arrived, manifest.Record{Path: []byte("a"), Inode: 1, Change: 2}}))
	j.close()
	if got := readJournal(path); len(got) != 1 || got["a"].Step != Fetching || got["a"].Entry.Kind != tree.File {
		t.Errorf("it has %v", got["a"])
	}
}
