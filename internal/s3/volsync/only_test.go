package volsync

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// TestOnlyForgetsNothing checks that a sync of one path leaves the state of other paths as it was: changes by others
// there are not overwritten, and local changes are sent later.
func TestOnlyForgetsNothing(t *testing.T) {
	t.Parallel()
	b := openBucket(t, location(t))
	here, there, state, other := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	write(t, here, "f", "one")
	write(t, here, "gone", "one")
	write(t, here, "mode", "one")
	write(t, here, "part/g", "one")
	both := Options{Direction: plan.Both, State: state}
	mustSync(t, here, b, both)
	mustSync(t, there, b, Options{Direction: plan.Both, State: other, Owners: true})

	write(t, there, "f", "two, by another machine")
	mustSync(t, there, b, Options{Direction: plan.Both, State: other})
	must(t, os.Remove(filepath.Join(here, "gone")))
	must(t, unix.Setxattr(filepath.Join(here, "mode"), "user.colour", []byte("blue"), 0))
	write(t, here, "part/g", "two")
	part := both
	part.Only = "part"
	if stats := mustSync(t, here, b, part); stats.Files != 1 || stats.Deleted != 0 || stats.Conflicts != 0 {
		t.Errorf("of the one path: %s", stats)
	}
	mustSync(t, here, b, both)
	texts := map[string]bool{}
	for path := range snapshot(t, here) {
		if path == "f" || strings.HasPrefix(path, "f.conflict-") {
			content, err := os.ReadFile(filepath.Join(here, path))
			must(t, err)
			texts[string(content)] = true
		}
	}
	if !texts["two, by another machine"] {
		t.Errorf("what the other machine wrote is lost; there is %v", slices.Sorted(maps.Keys(texts)))
	}
	mustSync(t, here, b, both) // the copies of the conflicts are removed, too
	mustSync(t, there, b, Options{Direction: plan.Both, State: other, Owners: true})
	sameTrees(t, here, there)
	if got := snapshot(t, there); got["gone"] != "" || !strings.Contains(got["mode"], "blue") {
		t.Errorf("what was changed here outside of the path did not go: %s", got["mode"])
	}
}

// TestOnlyDeletesBeneath checks that deletions and reports stay below the path, in each direction.
func TestOnlyDeletesBeneath(t *testing.T) {
	t.Parallel()
	dir, loc := t.TempDir(), location(t)
	b := openBucket(t, loc)
	for _, path := range []string{"keep/a", "keep/b", "part/a", "part/b", "deep/er/a"} {
		write(t, dir, path, path)
	}
	mustSync(t, dir, b, Options{Direction: plan.Up})
	for _, path := range []string{"keep", "part/a", "deep"} {
		must(t, os.RemoveAll(filepath.Join(dir, path)))
	}
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	for only, want := range map[string]int64{"part": 1, "deep/er": 2} { // the directory deep/er, and the file
		if stats := mustSync(t, dir, b, Options{Direction: plan.Up, Mirror: true, Only: only,
			DeleteMany: true}); stats.Deleted != want {
			t.Errorf("%s: %s", only, stats)
		}
	}
	back := t.TempDir()
	mustSync(t, back, b, Options{Direction: plan.Down})
	if got, want := slices.Sorted(maps.Keys(snapshot(t, back))), []string{"deep", "keep", "keep/a", "keep/b", "part",
		"part/b"}; !slices.Equal(got, want) {
		t.Errorf("the bucket has %q, want %q", got, want)
	}
	// Down: the directories above the path stay, and so do their other files.
	write(t, back, "mine/too", "stays")
	write(t, back, "mine/part/x", "goes")
	mustSync(t, back, b, Options{Direction: plan.Down, Mirror: true, Only: "mine/part", DeleteMany: true})
	if got := snapshot(t, back); got["mine/too"] == "" || got["mine/part/x"] != "" {
		t.Errorf("there is %q", slices.Sorted(maps.Keys(got)))
	}
}
