package state

import (
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// TestRenounced checks which records of an interrupted sync make this machine's record of a path void. A file that was
// to be deleted here and still is as it was then counts as one that others deleted; a file or directory that was made
// since does not. A record of another object, or of a file that was fetched since, is not that of the interrupted sync.
// mission: A8, D1, D2
func TestRenounced(t *testing.T) {
	t.Parallel()
	file := tree.Entry{Path: "p", Kind: tree.File, ETag: "e", Inode: 5, Change: 7}
	dir := file
	dir.Kind = tree.Dir
	as := func(e tree.Entry, etag string, inode uint64, change int64) *tree.Entry {
		e.ETag, e.Inode, e.Change = etag, inode, change
		return &e
	}
	deletion := func(etag string) Tombstone { return Tombstone{Doomed: object.Doomed{Key: "p", ETag: etag}} }
	others := deletion("e")
	others.Until = time.Unix(1, 0)
	for _, c := range []struct {
		name        string
		base, local *tree.Entry
		left        Tombstone // "" as its ETag: none
		removed     bool      // there is a record of the file or directory with its ETag, inode and ctime
		want        bool
	}{
		{"file removed", &file, nil, Tombstone{}, true, true},
		{"file not removed yet", &file, &file, Tombstone{}, true, false},
		{"made with the same inode", &file, as(file, "", 5, 8), Tombstone{}, true, true},
		{"made with another inode", &file, as(file, "", 6, 7), Tombstone{}, true, true},
		{"record of another object", as(file, "x", 5, 7), nil, Tombstone{}, true, false},
		{"fetched since", as(file, "e", 6, 7), nil, Tombstone{}, true, false},
		{"fetched since, with the same inode", as(file, "e", 5, 8), nil, Tombstone{}, true, false},
		{"directory removed", &dir, nil, Tombstone{}, true, true},
		{"directory emptied and not removed yet", &dir, as(dir, "", 5, 8), Tombstone{}, true, false},
		{"directory made", &dir, as(dir, "", 6, 8), Tombstone{}, true, true},
		{"object deleted, file there", &file, &file, deletion("e"), false, true},
		{"object deleted, file gone", &file, nil, deletion("e"), false, false},
		{"another object deleted", &file, &file, deletion("x"), false, false},
		{"deleted by another machine", &file, &file, others, false, false},
		{"without a deletion", &file, &file, Tombstone{}, false, false},
		{"without an object", as(file, "", 5, 7), &file, Tombstone{}, false, false},
	} {
		s := &State{Left: map[string]Tombstone{"unrelated": deletion("e")}, removed: map[string]Removed{}}
		key := c.base.KeyUnder("")
		if c.left.ETag != "" {
			s.Left[key] = c.left
		}
		if c.removed {
			s.removed[key] = Removed{Key: key, ETag: "e", Inode: 5, Change: 7}
		}
		if got := s.Renounced(c.base, c.local); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
