package volsync

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// refusal of a sync that would delete much: the reason names both sides' numbers, and the remedy the option.
func refusedMass(t *testing.T, err error, reason string) {
	t.Helper()
	if errors.KindOf(err) != errors.Conflict || !strings.Contains(errors.Message(err), reason) ||
		!strings.Contains(errors.RemedyOf(err), "--delete-many") {
		t.Errorf("refused with %v, %s; want %q", err, errors.RemedyOf(err), reason)
	}
}

// TestMassDeletion checks that a sync that would delete most files of one side deletes none of them and reports this,
// unless the deletion is allowed.
// mission: D1, D2
func TestMassDeletion(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		o     Options
		there bool // the bucket's files are the ones that go
	}{
		"up":         {Options{Direction: plan.Up, Mirror: true}, true},
		"down":       {Options{Direction: plan.Down, Mirror: true}, false},
		"both, here": {Options{Direction: plan.Both}, false},
		"both":       {Options{Direction: plan.Both}, true},
	} {
		t.Run(name, func(t *testing.T) {
			all, direct, _ := machines(t, 2)
			one, two := all[0], all[1]
			for i := range 40 {
				write(t, one.dir, fmt.Sprintf("d/f%02d", i), "x")
			}
			settle(t, one, two)
			from := two
			if c.there {
				from = one
			}
			deleteTo := func(n int) {
				for i := range n {
					must(t, os.RemoveAll(filepath.Join(from.dir, fmt.Sprintf("d/f%02d", i))))
				}
				if from == two {
					o := Options{Direction: plan.Up, Mirror: true, State: two.state, DeleteMany: true}
					mustSync(t, two.dir, direct, o)
				}
			}
			o := c.o
			o.State, o.Owners = one.state, true
			files := func() (int, int) {
				n := 0
				for key := range keysOf(t, direct) {
					if strings.HasPrefix(key, "d/f") {
						n++
					}
				}
				return len(filesOf(t, one.dir)), n
			}
			deleteTo(20)
			mustSync(t, one.dir, one.b, o) // not more than half
			deleteTo(39)
			mustSync(t, one.dir, one.b, o) // nineteen are few
			for i := range 30 {
				write(t, one.dir, fmt.Sprintf("d/f%02d", i), "again")
			}
			settle(t, one, two)
			deleteTo(20)
			for range 2 {
				_, err := Sync(t.Context(), openTree(t, one.dir), one.b, o)
				refusedMass(t, err, "20 of the 31 files")
				if here, there := files(); c.there && there != 31 || !c.there && here != 31 {
					t.Errorf("%d files are here and %d there after a refusal", here, there)
				}
			}
			lax := o
			lax.MaxDeletePercent = 90
			if c.o.Direction == plan.Down {
				lax.MaxDeletePercent, lax.MaxDeleteFiles = 0, 21
			}
			mustSync(t, one.dir, one.b, lax)
			if here, there := files(); here != 11 || there != 11 {
				t.Errorf("%d files are here and %d there after the limit was raised", here, there)
			}
			for i := range 40 {
				write(t, one.dir, fmt.Sprintf("d/f%02d", i), "once more")
			}
			settle(t, one, two)
			deleteTo(40)
			_, err := Sync(t.Context(), openTree(t, one.dir), one.b, o)
			refusedMass(t, err, "40 of the 40 files")
			o.DeleteMany = true
			mustSync(t, one.dir, one.b, o)
			if here, there := files(); here+there != 0 {
				t.Errorf("%d files are here and %d there although deletions were allowed", here, there)
			}
		})
	}
}

// TestEmptiedPlace checks that a place without any object, not even a manifest, does not empty a volume: the place was
// emptied, or another server answers.
// mission: 3.6, D1, D2
func TestEmptiedPlace(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{"both": {Direction: plan.Both}, "down": {Direction: plan.Down,
		Mirror: true}} {
		t.Run(name, func(t *testing.T) {
			all, direct, _ := machines(t, 1)
			one := all[0]
			for _, name := range []string{"a", "b", "d/c"} { // too few for the guard's numbers
				write(t, one.dir, name, "the only copy")
			}
			one.both(t)
			var keys []string
			for key := range keysOf(t, direct) {
				keys = append(keys, key)
			}
			must(t, direct.Delete(t.Context(), keys, func(key string, err error) { t.Error(key, err) }))
			o.State, o.Owners = one.state, true
			for _, list := range []bool{false, true} {
				o.List = list
				_, err := Sync(t.Context(), openTree(t, one.dir), one.b, o)
				refusedMass(t, err, "without even a manifest")
			}
			if got := filesOf(t, one.dir); len(got) != 3 {
				t.Errorf("the volume has %q", got)
			}
			// Filled again, it is a place like any other.
			mustSync(t, one.dir, one.b, Options{Direction: plan.Up, State: one.state})
			if s := mustSync(t, one.dir, one.b, o); s.Files+s.Deleted > 0 {
				t.Errorf("after it was filled again: %s", s)
			}
			keys = keys[:0]
			for key := range keysOf(t, direct) {
				keys = append(keys, key)
			}
			must(t, direct.Delete(t.Context(), keys, func(key string, err error) { t.Error(key, err) }))
			o.DeleteMany = true
			mustSync(t, one.dir, one.b, o)
			if got := filesOf(t, one.dir); len(got) != 0 {
				t.Errorf("the volume has %q although deletions were allowed", got)
			}
		})
	}
}

// foreignWrites checks that objects that another program stored after the manifest are not overwritten unread, be they
// new or not.
func foreignWrites(t *testing.T, one, two *machine) {
	t.Helper()
	write(t, one.dir, "q", "zero")
	link := filepath.Join(one.dir, "link")
	must(t, os.Symlink("zero", link))
	settle(t, one, two)
	for _, key := range []string{"q", "new"} {
		body := []byte("of another program")
		_, err := one.b.Put(t.Context(), key, body, crc64nvme.Checksum(body), nil)
		must(t, err)
		write(t, one.dir, key, "made here")
	}
	theirs := &tree.Entry{Path: "link", Kind: tree.Symlink, Target: "theirs", Size: 6, Mode: 0o777}
	must(t, one.b.WriteObject(t.Context(), theirs, nil))
	must(t, os.Remove(link))
	must(t, os.Symlink("ours", link))
	stats := one.both(t)
	settle(t, one, two)
	for _, key := range []string{"q", "new"} {
		named(t, key, stats)
		bothContents(t, two, key, "made here", "of another program")
	}
	links := map[string]bool{}
	all, err := filepath.Glob(filepath.Join(two.dir, "link*"))
	must(t, err)
	for _, path := range all {
		target, err := os.Readlink(path)
		must(t, err)
		links[target] = true
	}
	if want := map[string]bool{"ours": true, "theirs": true}; !maps.Equal(links, want) {
		t.Errorf("the links %v, want %v", links, want)
	}
}

// TestServerWithoutConditions checks that a server that ignores conditions is detected after one write, which leaves
// nothing, and that a read then precedes each write.
func TestServerWithoutConditions(t *testing.T) {
	t.Parallel()
	server := &strictServer{lax: true}
	loc := strictLocation(t, server)
	b := openBucket(t, loc)
	one, two := twoAt(t, b)
	write(t, one.dir, "p", "zero")
	if s := one.both(t); !s.Unconditional {
		t.Errorf("the server was not found out: %+v", s)
	}
	two.both(t)
	write(t, one.dir, "p", "edit of one")
	write(t, two.dir, "p", "the edit of two")
	two.both(t)
	one.both(t)
	settle(t, one, two)
	bothContents(t, one, "p", "edit of one", "the edit of two")
	foreignWrites(t, one, two)
	if _, err := b.Stat(t.Context(), object.ProbeKey); errors.KindOf(err) != errors.NotFound {
		t.Errorf("the probe is left: %v", err)
	}
	if s := mustSync(t, one.dir, strictBucket(t), Options{Direction: plan.Up}); s.Unconditional {
		t.Error("a server that heeds conditions counts as one that does not")
	}
}

// TestDryRunNamesRefusal checks that a dry run reports that the guard would refuse the sync, and that it does not if
// the deletion is allowed or small.
// mission: D1, D2
func TestDryRunNamesRefusal(t *testing.T) {
	t.Parallel()
	all, _, _ := machines(t, 1)
	m := all[0]
	for i := range 40 {
		write(t, m.dir, fmt.Sprintf("f%02d", i), "x")
	}
	m.both(t)
	dry := func(o Options) string {
		t.Helper()
		o.Direction, o.State, o.Owners, o.DryRun = plan.Both, m.state, true, true
		return mustSync(t, m.dir, m.b, o).Refusal
	}
	must(t, os.Remove(filepath.Join(m.dir, "f00")))
	if got := dry(Options{}); got != "" {
		t.Errorf("one deletion is refused: %s", got)
	}
	for i := 1; i < 30; i++ {
		must(t, os.Remove(filepath.Join(m.dir, fmt.Sprintf("f%02d", i))))
	}
	got := dry(Options{})
	if !strings.Contains(got, "30 of the 40 files") || !strings.Contains(got, "--delete-many") {
		t.Errorf("the refusal is %q", got)
	}
	if got := dry(Options{DeleteMany: true}); got != "" {
		t.Errorf("an allowed deletion is refused: %s", got)
	}
}
