package state

import (
	"slices"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/s3/object"
)

// TestTombstonesCover checks which objects a tombstone means: by HEAD, those with its ETag and its time, or not later
// than the tombstone if it has none; by a list, those that may be a second later.
// mission: A8, D1
func TestTombstonesCover(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0)
	seconds := func(n int) int64 { return at.Unix() + int64(n) }
	known := Tombstone{Doomed: object.Doomed{Key: "f", ETag: "e", Stored: seconds(0)}}
	others := known
	others.Until = at.Add(5 * time.Second)
	old := Tombstone{Doomed: object.Doomed{Key: "f", ETag: "e"}}
	oldOthers := Tombstone{Doomed: old.Doomed, Until: at}
	for _, c := range []struct {
		name         string
		t            Tombstone
		etag         string
		after        int
		covers, list bool
	}{
		{"the object", known, "e", 0, true, true},
		{"another content", known, "x", 0, false, false},
		{"a second later", known, "e", 1, false, true},
		{"two seconds later", known, "e", 2, false, false},
		{"earlier", known, "e", -1, false, true},
		{"another machine's", others, "e", 0, true, true},
		{"another machine's, later", others, "e", 2, false, false},
		{"without a time", old, "e", 100, true, true},
		{"without a time, another content", old, "x", 0, false, false},
		{"another machine's without a time", oldOthers, "e", 0, true, true},
		{"another machine's without a time, later", oldOthers, "e", 1, false, false},
	} {
		if got := c.t.Covers(object.Doomed{Key: "f", ETag: c.etag, Stored: seconds(c.after)}); got != c.covers {
			t.Errorf("%s: covered by HEAD: %v", c.name, got)
		}
		listed := at.Add(time.Duration(c.after)*time.Second + 999*time.Millisecond)
		if got := c.t.MayCover(c.etag, listed); got != c.list {
			t.Errorf("%s: covered by a list: %v", c.name, got)
		}
	}
	if unknown := (object.Doomed{Key: "f", ETag: "e"}); known.Covers(unknown) || oldOthers.Covers(unknown) ||
		!old.Covers(unknown) {
		t.Error("an object without a time counts as old")
	}
}

// TestSecondDeletionReplacesTheFirst checks that a deletion at the key of an unfinished one is recorded with the object
// that is there now, once.
// mission: A8, D1
func TestSecondDeletionReplacesTheFirst(t *testing.T) {
	t.Parallel()
	first, second := object.Doomed{Key: "f", ETag: "e", Stored: 1}, object.Doomed{Key: "f", ETag: "e", Stored: 9}
	other := object.Doomed{Key: "g", ETag: "g", Stored: 1}
	s := &State{Left: map[string]Tombstone{"f": {Doomed: first}, "g": {Doomed: other}, "kept": {}},
		Kept: map[string]bool{"kept": true}}
	if got := s.ToDelete([]object.Doomed{second}); !slices.Equal(got, []object.Doomed{second, other}) {
		t.Errorf("to delete: %+v", got)
	}
}
