package volsync

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// TestEmptySource checks that a sync never deletes all files of a side because the other side is empty, however few
// they are, unless the deletion is allowed. This holds for a part of the volume, too.
// mission: D1, D2
func TestEmptySource(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		o     Options
		there bool // the bucket's files are the ones that go
	}{
		"up":             {Options{Direction: plan.Up, Mirror: true}, true},
		"up, a path":     {Options{Direction: plan.Up, Mirror: true, Only: "d"}, true},
		"down":           {Options{Direction: plan.Down, Mirror: true}, false},
		"down, a path":   {Options{Direction: plan.Down, Mirror: true, Only: "d"}, false},
		"both, here":     {Options{Direction: plan.Both}, false},
		"both, there":    {Options{Direction: plan.Both}, true},
		"up, with lists": {Options{Direction: plan.Up, Mirror: true, List: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all, direct, _ := machines(t, 2)
			one, two := all[0], all[1]
			names := []string{"d/a", "d/b", "d/sub/c"}
			if c.o.Only != "" {
				names = append(names, "other")
			}
			for _, name := range names {
				write(t, one.dir, name, "x")
			}
			settle(t, one, two)
			if c.there {
				must(t, os.RemoveAll(filepath.Join(one.dir, "d")))
			} else {
				must(t, os.RemoveAll(filepath.Join(two.dir, "d")))
				mustSync(t, two.dir, direct, Options{Direction: plan.Up, Mirror: true, State: two.state,
					DeleteMany: true})
			}
			o := c.o
			o.State, o.Owners = one.state, true
			left := func() int {
				if !c.there {
					return len(filesOf(t, one.dir))
				}
				n := 0
				for key := range keysOf(t, direct) {
					for _, name := range names {
						if key == name {
							n++
						}
					}
				}
				return n
			}
			for range 2 {
				_, err := Sync(t.Context(), openTree(t, one.dir), one.b, o)
				refusedMass(t, err, "has no files, so the sync would delete 3 of the 3 files")
				if n := left(); n != len(names) {
					t.Errorf("%d files are left after a refusal", n)
				}
			}
			dry := o
			dry.DryRun = true
			if s := mustSync(t, one.dir, one.b, dry); s.Refusal == "" {
				t.Error("a dry run does not name the refusal")
			}
			o.DeleteMany = true
			mustSync(t, one.dir, one.b, o)
			if n := left(); n != len(names)-3 {
				t.Errorf("%d files are left although the deletion is allowed", n)
			}
		})
	}
}
