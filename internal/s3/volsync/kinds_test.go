package volsync

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/internal/s3/buffer"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// TestMirrorDownKeepsWhatBothSidesHave mirrors a bucket with the keys a and a/b, which no directory can have, down over
// a volume that has one of them. Then a sync in both directions finds both contents: nobody deleted either.
// mission: 3.2, D1, D2
func TestMirrorDownKeepsWhatBothSidesHave(t *testing.T) {
	t.Parallel()
	contents := map[string]string{"a": "of the file", "a/b": "beneath it"}
	for path, other := range map[string]string{"a": "a/b", "a/b": "a"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			b := strictBucket(t)
			m := &machine{t.TempDir(), t.TempDir(), b}
			write(t, m.dir, path, contents[path])
			m.both(t)
			put(t, b, other, contents[other])
			o := Options{Direction: plan.Down, Mirror: true, List: true, Owners: true, State: m.state}
			s, err := Sync(t.Context(), openTree(t, m.dir), b, o)
			must(t, err)
			if s.Failed == 0 {
				t.Error("no failure is reported")
			}
			if got := filesOf(t, m.dir); len(got[path]) != 1 || got[path][0] != contents[path] {
				t.Errorf("the volume has %q", got)
			}
			o.Direction, o.Mirror = plan.Both, false
			for range 3 {
				_, err := Sync(t.Context(), openTree(t, m.dir), b, o)
				must(t, err)
			}
			want := map[string][]string{"a copy": {contents["a"]}, "a/b": {contents["a/b"]}}
			if got := filesOf(t, m.dir); !maps.EqualFunc(got, want, slices.Equal) {
				t.Errorf("then the volume has %q", got)
			}
		})
	}
}

// TestMirrorDownOverDirectories mirrors a file down over a directory: its files are deleted as any others are, so after
// the guard has counted them, and files that the sync has not seen stay.
// mission: D1, D2
func TestMirrorDownOverDirectories(t *testing.T) {
	t.Parallel()
	for _, large := range []bool{false, true} {
		t.Run(fmt.Sprintf("large %v", large), func(t *testing.T) {
			t.Parallel()
			content := "a file"
			if large {
				content = strings.Repeat(content, 4<<20)
			}
			loc := strictLocation(t, &strictServer{})
			a := between(t, &loc)
			b := openBucket(t, loc)
			m := &machine{t.TempDir(), t.TempDir(), b}
			for i := range 30 {
				write(t, m.dir, fmt.Sprintf("d/e/f%02d", i), "content")
			}
			m.both(t)
			other := &machine{t.TempDir(), t.TempDir(), b}
			other.both(t)
			must(t, os.RemoveAll(filepath.Join(other.dir, "d")))
			mustSync(t, other.dir, b, Options{Direction: plan.Up, Mirror: true, State: other.state, DeleteMany: true})
			write(t, other.dir, "d", content)
			mustSync(t, other.dir, b, Options{Direction: plan.Up, State: other.state})
			o := Options{Direction: plan.Down, Mirror: true, Owners: true, State: m.state}
			_, err := Sync(t.Context(), openTree(t, m.dir), b, o)
			refusedMass(t, err, "30 of the 30 files")
			if got := filesOf(t, m.dir); len(got) != 30 {
				t.Fatalf("%d of 30 files are left after a refusal", len(got))
			}
			o.DeleteMany = true
			o.Plan = func(a plan.Action) {
				if a.Path == "d/e/f29" && a.Op == plan.DeleteLocal { // the directory was listed
					write(t, m.dir, "d/e/unseen", "made meanwhile")
				}
			}
			s, err := Sync(t.Context(), openTree(t, m.dir), b, o)
			must(t, err)
			if s.Failed == 0 || s.Files != 0 {
				t.Errorf("no failure is reported: %s", s)
			}
			want := map[string][]string{"d/e/unseen": {"made meanwhile"}}
			if got := filesOf(t, m.dir); !maps.EqualFunc(got, want, slices.Equal) {
				t.Errorf("the volume has %d files: %.100q", len(got), slices.Sorted(maps.Keys(got)))
			}
			o.Plan = nil
			a.reset(nil)
			mustSync(t, m.dir, b, o)
			fetched := 0
			for _, request := range a.seen() {
				if strings.HasPrefix(request, "GET ") && strings.HasSuffix(request, "/d") {
					fetched++
				}
			}
			if parts := len(object.CutUp(int64(len(content)), buffer.PartSize)); large && fetched != parts {
				t.Errorf("%d requests for a file of %d parts", fetched, parts)
			}
			if got := filesOf(t, m.dir); len(got) != 1 || len(got["d"]) != 1 || got["d"][0] != content {
				t.Errorf("at the end the volume has %q", slices.Sorted(maps.Keys(got)))
			}
			if s := m.both(t); s.Files+s.Deleted+s.Conflicts > 0 {
				t.Errorf("the next sync is not quiet: %s", s)
			}
		})
	}
}

// TestNothingLeftToKeep replaces a file that another machine edited by a directory, after another program has deleted
// the object. No copy is made, and no conflict is reported.
// mission: D1
func TestNothingLeftToKeep(t *testing.T) {
	t.Parallel()
	b := strictBucket(t)
	first, second := twoAt(t, b)
	write(t, first.dir, "f", "content")
	write(t, first.dir, "other", "other")
	settle(t, first, second)
	write(t, first.dir, "f", "edited by the first")
	first.both(t)
	must(t, os.Remove(filepath.Join(second.dir, "f")))
	write(t, second.dir, "f/beneath", "it")
	must(t, b.Delete(t.Context(), []string{"f"}, func(_ string, err error) { must(t, err) }))
	if s := second.both(t); s.Conflicts > 0 || len(s.Decided) > 0 {
		t.Errorf("conflicts: %+v", s.Decided)
	}
	want := map[string][]string{"f/beneath": {"it"}, "other": {"other"}}
	if got := filesOf(t, second.dir); !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("the volume has %q", got)
	}
}

// TestMirrorDownKeepsLaterChanges checks that a mirror down removes neither a file that changed since the sync saw it,
// and that is in the way of a directory, nor one in a directory that is in the way of a file. The file that fails then
// does not count as deleted here.
// mission: D1, D2
func TestMirrorDownKeepsLaterChanges(t *testing.T) {
	t.Parallel()
	b := strictBucket(t)
	m, other := twoAt(t, b)
	write(t, m.dir, "file", "a file")
	write(t, m.dir, "way", "a file")
	settle(t, m, other)
	must(t, os.Remove(filepath.Join(other.dir, "way")))
	write(t, other.dir, "way/beneath", "it")
	other.both(t)
	must(t, os.Remove(filepath.Join(m.dir, "file")))
	write(t, m.dir, "file/old", "to be deleted")
	down := Options{Direction: plan.Down, Mirror: true, Owners: true, State: m.state, Plan: func(a plan.Action) {
		switch {
		case a.Op != plan.DeleteLocal:
		case a.Path == "way":
			write(t, m.dir, "way", "changed meanwhile")
		case a.Path == "file/old":
			write(t, m.dir, "file/new", "made meanwhile")
		}
	}}
	s, err := Sync(t.Context(), openTree(t, m.dir), b, down)
	must(t, err)
	if s.Failed == 0 {
		t.Error("no failure is reported")
	}
	want := map[string][]string{"way": {"changed meanwhile"}, "file/new": {"made meanwhile"}}
	if got := filesOf(t, m.dir); !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("the volume has %q", got)
	}
	settle(t, m, other)
	want = map[string][]string{"way copy": {"changed meanwhile"}, "way/beneath": {"it"}, "file copy": {"a file"},
		"file/new": {"made meanwhile"}}
	if got := filesOf(t, other.dir); !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("at the end the other machine has %q", got)
	}
}

// TestMirrorDownDeletesNothingThere checks that a file that a mirror down could not put in place of a directory does
// not count as deleted here, if the manifest is this machine's own, with the inode that the file had.
// mission: D1, D2
func TestMirrorDownDeletesNothingThere(t *testing.T) {
	t.Parallel()
	b := strictBucket(t)
	m := &machine{t.TempDir(), t.TempDir(), b}
	write(t, m.dir, "file", "a file")
	write(t, m.dir, "stays", "another")
	settle(t, m)
	must(t, os.Remove(filepath.Join(m.dir, "file")))
	write(t, m.dir, "file/old", "to be deleted")
	down := Options{Direction: plan.Down, Mirror: true, Owners: true, State: m.state, Plan: func(a plan.Action) {
		if a.Path == "file/old" && a.Op == plan.DeleteLocal {
			write(t, m.dir, "file/new", "made meanwhile")
		}
	}}
	s, err := Sync(t.Context(), openTree(t, m.dir), b, down)
	must(t, err)
	if s.Failed == 0 {
		t.Error("no failure is reported")
	}
	settle(t, m)
	want := map[string][]string{"file copy": {"a file"}, "file/new": {"made meanwhile"}, "stays": {"another"}}
	if got := filesOf(t, m.dir); !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("the volume has %q", got)
	}
}

// TestDirectoriesReplaceAbsentObjects checks that a directory replaces a file whose object another program has deleted
// already.
// mission: D2
func TestDirectoriesReplaceAbsentObjects(t *testing.T) {
	t.Parallel()
	all, direct, _ := machines(t, 2)
	write(t, all[0].dir, "path", "a file")
	settle(t, all...)
	must(t, os.Remove(filepath.Join(all[0].dir, "path")))
	write(t, all[0].dir, "path/beneath", "it")
	must(t, direct.Delete(t.Context(), []string{"path"}, func(_ string, err error) { t.Error(err) }))
	settle(t, all...)
	want := map[string][]string{"path/beneath": {"it"}}
	if got := filesOf(t, all[1].dir); !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("the other machine has %q", got)
	}
}

// TestDirectoriesReplaceFilesUnguarded checks that files that directories replace are not part of a
// mass deletion, in the volume and in the bucket.
// mission: D1, D2
func TestDirectoriesReplaceFilesUnguarded(t *testing.T) {
	t.Parallel()
	b := strictBucket(t)
	one, two := twoAt(t, b)
	for i := range 30 {
		write(t, one.dir, fmt.Sprintf("f%02d", i), "content")
	}
	settle(t, one, two)
	for i := range 30 {
		must(t, os.Remove(filepath.Join(one.dir, fmt.Sprintf("f%02d", i))))
		write(t, one.dir, fmt.Sprintf("f%02d/beneath", i), "content")
	}
	settle(t, one, two)
	if got := filesOf(t, two.dir); len(got) != 30 || len(got["f00/beneath"]) != 1 {
		t.Errorf("the other machine has %d files: %q", len(got), got)
	}
}

// TestConflictNamesOfTheBucket checks that a conflict copy whose name the bucket has already, with another content,
// replaces nothing: all contents are on all machines.
// mission: D1, D2
func TestConflictNamesOfTheBucket(t *testing.T) {
	t.Parallel()
	for name, list := range map[string]bool{"unlisted": false, "listed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := strictBucket(t)
			one, two := twoAt(t, b)
			write(t, one.dir, "f", "zero")
			must(t, os.Symlink("zero", filepath.Join(one.dir, "link")))
			settle(t, one, two)
			for i, m := range []*machine{one, two} {
				write(t, m.dir, "f", fmt.Sprint("edit of ", i))
				must(t, os.Remove(filepath.Join(m.dir, "link")))
				must(t, os.Symlink(fmt.Sprint("edit of ", i), filepath.Join(m.dir, "link")))
			}
			one.both(t)
			now, taken := time.Now(), []string{"edit of 0", "edit of 1"} // all contents
			for i := range 60 {                                          // whichever second it is
				for _, path := range []string{"f", "link"} {
					key := plan.ConflictName(path, now.Add(time.Duration(i)*time.Second))
					put(t, b, key, "at "+key)
					taken = append(taken, "at "+key)
				}
			}
			slices.Sort(taken)
			o := Options{Direction: plan.Both, State: two.state, Owners: true, List: list}
			mustSync(t, two.dir, b, o)
			for range 2 {
				for _, m := range []*machine{one, two} {
					mustSync(t, m.dir, b, Options{Direction: plan.Both, State: m.state, Owners: true, List: true})
				}
			}
			for _, m := range []*machine{one, two} {
				var contents, links []string
				for path := range snapshot(t, m.dir) {
					full := filepath.Join(m.dir, path)
					if to, err := os.Readlink(full); err == nil {
						links = append(links, to)
					} else if raw, err := os.ReadFile(full); err == nil {
						contents = append(contents, string(raw))
					}
				}
				if slices.Sort(contents); !slices.Equal(contents, taken) {
					t.Errorf("the contents are %q", contents)
				}
				if slices.Sort(links); !slices.Equal(links, []string{"edit of 0", "edit of 1"}) {
					t.Errorf("the links lead to %q", links)
				}
			}
		})
	}
}

// TestConflictCopiesReplaceNothing checks that a link that is kept as a conflict copy does not replace a file that gets
// the name of the copy meanwhile.
// mission: D1, D2
func TestConflictCopiesReplaceNothing(t *testing.T) {
	t.Parallel()
	loc := strictLocation(t, &strictServer{})
	a := between(t, &loc)
	b := openBucket(t, loc)
	m := &machine{t.TempDir(), t.TempDir(), b}
	must(t, os.Symlink("zero", filepath.Join(m.dir, "link")))
	m.both(t)
	must(t, os.Remove(filepath.Join(m.dir, "link")))
	must(t, os.Symlink("edit here", filepath.Join(m.dir, "link")))
	there := []byte("edit there")
	_, err := b.Put(t.Context(), "link", there, crc64nvme.Checksum(there),
		object.MetaHeader(&tree.Entry{Kind: tree.Symlink, Mode: 0o777, Target: string(there)}))
	must(t, err)
	o := Options{Direction: plan.Both, State: m.state, Owners: true, List: true}
	copied := make(chan string, 9)
	o.Plan = func(action plan.Action) {
		if action.CopyTo != "" {
			copied <- action.CopyTo
		}
	}
	asks(a, http.MethodGet, "/link", func() { write(t, m.dir, <-copied, "made meanwhile") })
	_, err = Sync(t.Context(), openTree(t, m.dir), b, o)
	must(t, err)
	a.reset(nil)
	o.Plan = nil
	for range 2 {
		_, err = Sync(t.Context(), openTree(t, m.dir), b, o)
		must(t, err)
	}
	var all []string
	for path := range snapshot(t, m.dir) {
		if to, err := os.Readlink(filepath.Join(m.dir, path)); err == nil {
			all = append(all, to)
		} else if raw, err := os.ReadFile(filepath.Join(m.dir, path)); err == nil {
			all = append(all, string(raw))
		}
	}
	if slices.Sort(all); !slices.Equal(all, []string{"edit here", "edit there", "made meanwhile"}) {
		t.Errorf("the volume has %q", all)
	}
}

// TestDirectoryKeepsModeBesideFile makes a directory with an unusual mode on one machine, and a file of the same name
// on the other, whose sync runs before the manifest has the directory. Both stay, and the directory keeps its mode:
// the other machine does not know it, and makes no directory of its own.
// mission: A8, D1, D2
func TestDirectoryKeepsModeBesideFile(t *testing.T) {
	t.Parallel()
	all, _, a := machines(t, 2)
	one, two := all[0], all[1]
	write(t, one.dir, "other", "other")
	settle(t, one, two)
	write(t, one.dir, "d/n/f", "beneath")
	must(t, os.Chmod(filepath.Join(one.dir, "d/n"), 0o750))
	write(t, two.dir, "d/n", "a file")
	asks(a, http.MethodPut, manifest.Key, func() { two.both(t) })
	one.both(t)
	a.reset(nil)
	settle(t, one, two)
	for i, m := range all {
		if info, err := os.Stat(filepath.Join(m.dir, "d/n")); err != nil || info.Mode().Perm() != 0o750 {
			t.Errorf("machine %d has %v, %v", i, info, err)
		}
		if got := filesOf(t, m.dir); len(got["d/n copy"]) != 1 || len(got["d/n/f"]) != 1 {
			t.Errorf("machine %d has %q", i, got)
		}
	}
}
