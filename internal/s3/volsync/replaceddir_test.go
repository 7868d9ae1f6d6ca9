package volsync

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// TestDirectoryReplacedByFile replaces a directory by a file, or by a link, on one machine. Nothing changed on the
// other one, so this is no conflict: the file takes the directory's place there, too. If the other machine changed
// something beneath the directory, the directory stays, and the file becomes a copy.
// mission: D1, D2
func TestDirectoryReplacedByFile(t *testing.T) {
	t.Parallel()
	places := map[string]func(t *testing.T) []*machine{
		"embedded": func(t *testing.T) []*machine { all, _, _ := machines(t, 2); return all },
		"strict": func(t *testing.T) []*machine {
			one, two := twoAt(t, strictBucket(t))
			return []*machine{one, two}
		},
	}
	changes := map[string]struct {
		other func(t *testing.T, dir string)
		want  map[string][]string
	}{
		"unchanged": {func(*testing.T, string) {}, map[string][]string{"n": {"a file"}, "n-between": {"x"}}},
		"edited": {func(t *testing.T, dir string) { write(t, dir, "n/x", "edited by the other") },
			map[string][]string{"n copy": {"a file"}, "n/x": {"edited by the other"}, "n-between": {"x"}}},
		"added": {func(t *testing.T, dir string) { write(t, dir, "n/d/new", "new") },
			map[string][]string{"n copy": {"a file"}, "n/d/new": {"new"}, "n-between": {"x"}}},
	}
	for place, make := range places {
		for name, c := range changes {
			for _, list := range []bool{false, true} {
				t.Run(place+", "+name+map[bool]string{true: ", listed"}[list], func(t *testing.T) {
					t.Parallel()
					all := make(t)
					one, two := all[0], all[1]
					write(t, one.dir, "n/x", "zero")
					write(t, one.dir, "n/d/y", "zero")
					write(t, one.dir, "n-between", "x")
					must(t, os.Mkdir(filepath.Join(one.dir, "n/empty"), 0o755))
					settle(t, one, two)
					must(t, os.RemoveAll(filepath.Join(one.dir, "n")))
					write(t, one.dir, "n", "a file")
					one.both(t)
					c.other(t, two.dir)
					dry := Options{Direction: plan.Both, State: two.state, Owners: true, List: list, DryRun: true}
					dry.Plan = func(a plan.Action) {
						if a.Path == "n" && a.Kind == tree.File && (a.Op != plan.Download || a.Conflict != "") {
							t.Errorf("a dry run: %s %s", a.Op, a.Conflict)
						}
					}
					mustSync(t, two.dir, two.b, dry)
					s := mustSync(t, two.dir, two.b,
						Options{Direction: plan.Both, State: two.state, Owners: true, List: list})
					if conflict := len(s.Decided) > 0; conflict == (name == "unchanged") {
						t.Errorf("conflicts: %+v", s.Decided)
					}
					settle(t, one, two)
					for i, m := range all {
						if got := filesOf(t, m.dir); !maps.EqualFunc(got, c.want, slices.Equal) {
							t.Errorf("machine %d has %q, want %q", i, got, c.want)
						}
					}
				})
			}
		}
	}
}

// TestEmptyDirectoryReplaced replaces an empty directory by a file: one sync is enough on either machine, also on a
// server that cannot have both objects.
// mission: D1, D2
func TestEmptyDirectoryReplaced(t *testing.T) {
	t.Parallel()
	all, _, _ := machines(t, 2)
	one, two := all[0], all[1]
	must(t, os.Mkdir(filepath.Join(one.dir, "n"), 0o755))
	write(t, one.dir, "other", "other")
	settle(t, one, two)
	must(t, os.Remove(filepath.Join(one.dir, "n")))
	must(t, os.Symlink("other", filepath.Join(one.dir, "n")))
	one.both(t)
	two.both(t)
	settle(t, one, two)
	if to, err := os.Readlink(filepath.Join(two.dir, "n")); err != nil || to != "other" {
		t.Errorf("the link: %q, %v", to, err)
	}
}

// TestMirrorUpReplacesDirectory mirrors a file up that replaced a directory: one sync is enough, also on a server that
// cannot have the objects of both.
// mission: D1, D2
func TestMirrorUpReplacesDirectory(t *testing.T) {
	t.Parallel()
	all, b, _ := machines(t, 1)
	m := all[0]
	write(t, m.dir, "n/x", "zero")
	o := Options{Direction: plan.Up, Mirror: true, State: m.state, DeleteMany: true}
	mustSync(t, m.dir, b, o)
	must(t, os.RemoveAll(filepath.Join(m.dir, "n")))
	write(t, m.dir, "n", "a file")
	mustSync(t, m.dir, b, o)
	if e, err := b.Stat(t.Context(), "n"); err != nil || e.Size != int64(len("a file")) {
		t.Errorf("the bucket has %+v, %v", e, err)
	}
}

// TestFileReplacedByDirectoryBehindManifest replaces a file by a directory, after another program has stored another
// object at the file's key. Both stay, and no sync fails, with a list or without.
// mission: A8, D1, D2
func TestFileReplacedByDirectoryBehindManifest(t *testing.T) {
	t.Parallel()
	for place, machines := range places {
		for _, list := range []bool{false, true} {
			for _, direction := range []plan.Direction{plan.Both, plan.Up} {
				t.Run(fmt.Sprintf("%s, list=%v, %s", place, list, direction), func(t *testing.T) {
					t.Parallel()
					one, two := machines(t)
					write(t, one.dir, "n", "zero")
					write(t, one.dir, "other", "other")
					settle(t, one, two)
					must(t, os.Remove(filepath.Join(one.dir, "n")))
					write(t, one.dir, "n/x", "beneath")
					body := []byte("of another program")
					_, err := one.b.Put(t.Context(), "n", body, crc64nvme.Checksum(body), nil)
					must(t, err)
					o := Options{Direction: direction, State: one.state, Owners: true, List: list}
					mustSync(t, one.dir, one.b, o)
					if direction == plan.Up && list {
						return // it saw the object, and its side wins
					}
					for range 2 {
						mustSync(t, two.dir, two.b, Options{Direction: plan.Both, State: two.state, Owners: true,
							List: true})
					}
					got := slices.Sorted(maps.Keys(filesOf(t, two.dir)))
					if want := []string{"n copy", "n/x", "other"}; !slices.Equal(got, want) {
						t.Errorf("the other machine has %q, want %q", got, want)
					}
				})
			}
		}
	}
}
