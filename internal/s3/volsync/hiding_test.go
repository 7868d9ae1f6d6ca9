package volsync

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// TestFileHidesDirectory checks that a file in place of a directory deletes nothing that another machine changed
// beneath it, on a server whose lists leave out the keys beneath an object, as MinIO's do.
//
// mission: D2
func TestFileHidesDirectory(t *testing.T) {
	t.Parallel()
	loc := strictLocation(t, &strictServer{hiding: true})
	var all []*machine
	for range 2 {
		all = append(all, &machine{dir: t.TempDir(), state: t.TempDir(), b: openBucket(t, loc)})
	}
	one, two := all[0], all[1]
	write(t, one.dir, "a/x/y", "zero")
	settle(t, one, two)
	write(t, one.dir, "a/x/y", "changed by one")
	one.both(t)
	must(t, os.RemoveAll(filepath.Join(two.dir, "a")))
	write(t, two.dir, "a", "a file of two")
	_, err := Sync(t.Context(), openTree(t, two.dir), two.b, Options{Direction: plan.Both, State: two.state,
		Owners: true, List: true})
	must(t, err)
	if got := filesOf(t, two.dir); len(got["a/x/y"]) != 1 {
		t.Errorf("the file of the other machine is gone here: %q", got)
	}
	must(t, os.RemoveAll(filepath.Join(one.dir, "a")))
	settle(t, one, two)
	for _, m := range all {
		if got := filesOf(t, m.dir); len(got["a/x/y"]) != 0 {
			t.Errorf("a deleted file came back: %q", got)
		}
	}
}
