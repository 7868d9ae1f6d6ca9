package volsync

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/state"
)

// gone fails if a file is on one of the machines or in the bucket.
func gone(t *testing.T, b *object.Bucket, path string, all ...*machine) {
	t.Helper()
	for i, m := range all {
		if _, err := os.Lstat(filepath.Join(m.dir, path)); !errors.IsNotExist(err) {
			t.Errorf("%s came back on machine %d: %v", path, i, err)
		}
	}
	if _, err := b.Stat(t.Context(), path); errors.KindOf(err) != errors.NotFound {
		t.Errorf("%s came back in the bucket: %v", path, err)
	}
}

// TestDeletedAfterKilledUpload checks that a file does not come back if a sync was killed after it had stored the file
// and before that was recorded, and a person then deletes the file.
// mission: A8, D1
func TestDeletedAfterKilledUpload(t *testing.T) {
	t.Parallel()
	all, direct, a := machines(t, 2)
	one, two := all[0], all[1]
	loc := direct.Location()
	loc.Endpoint = a.URL
	write(t, one.dir, "deleted", "content")
	write(t, one.dir, "edited", "content too")
	must(t, os.Symlink("content", filepath.Join(one.dir, "link")))
	write(t, one.dir, "zz", "the last")
	stored := func() bool {
		for _, path := range []string{"deleted", "edited", "link"} {
			if _, err := direct.Stat(t.Context(), path); err != nil {
				return false
			}
		}
		return true
	}
	killedWhen(t, a, childSpec{Dir: one.dir, State: one.state, Direction: plan.Both, Location: loc},
		func(r *http.Request) bool {
			if r.Method != http.MethodPut || filepath.Base(r.URL.Path) != "zz" {
				return false
			}
			testenv.Eventually(t, "the files are stored", stored)
			return true
		})
	a.reset(nil)
	must(t, os.Remove(filepath.Join(one.dir, "deleted")))
	must(t, os.Remove(filepath.Join(one.dir, "link")))
	write(t, one.dir, "edited", "another")
	if s := one.both(t); s.Conflicts > 0 {
		t.Errorf("there is a conflict: %+v", s.Decided)
	}
	settle(t, one, two)
	gone(t, direct, "deleted", one, two)
	gone(t, direct, "link", one, two)
	if raw, err := os.ReadFile(filepath.Join(two.dir, "edited")); string(raw) != "another" {
		t.Errorf("the edited file is %q, %v", raw, err)
	}
}

// TestDeletedAfterKilledDownload checks that a file does not come back if a sync was killed after it had put the file
// into the volume and before that was recorded, and another machine then deletes the file. The same holds if a person
// deletes such a file.
// mission: A8, D1
func TestDeletedAfterKilledDownload(t *testing.T) {
	t.Parallel()
	all, direct, a := machines(t, 2)
	one, two := all[1], all[0]
	loc := direct.Location()
	loc.Endpoint = a.URL
	for _, path := range []string{"deleted there", "deleted here", "edited"} {
		write(t, one.dir, path, "content of "+path)
	}
	one.both(t)
	write(t, two.dir, "zz", "the last")
	there := func() bool {
		for _, path := range []string{"deleted there", "deleted here", "edited"} {
			if _, err := os.Lstat(filepath.Join(two.dir, path)); err != nil {
				return false
			}
		}
		return true
	}
	killedWhen(t, a, childSpec{Dir: two.dir, State: two.state, Direction: plan.Both, Location: loc},
		func(r *http.Request) bool {
			if r.Method != http.MethodPut || filepath.Base(r.URL.Path) != "zz" {
				return false
			}
			testenv.Eventually(t, "the files have come", there)
			return true
		})
	a.reset(nil)
	must(t, os.Remove(filepath.Join(one.dir, "deleted there")))
	one.both(t)
	must(t, os.Remove(filepath.Join(two.dir, "deleted here")))
	disguise(t, two.dir, "edited", "CONTENT OF EDITED!"[:len("content of edited")])
	two.both(t)
	settle(t, two, one)
	gone(t, direct, "deleted there", one, two)
	gone(t, direct, "deleted here", one, two)
	if raw, err := os.ReadFile(filepath.Join(one.dir, "edited")); string(raw) != "CONTENT OF EDITED" {
		t.Errorf("the edited file is %q, %v", raw, err)
	}
}

// TestKilledBeforeArrival checks that a file does not come back if a sync was killed right after it had given the file
// its name, before it could record that, and another machine then deletes the file.
// mission: A8, D1
func TestKilledBeforeArrival(t *testing.T) {
	t.Parallel()
	all, direct, _ := machines(t, 2)
	one, two := all[0], all[1]
	write(t, one.dir, "deleted", "content")
	write(t, one.dir, "stays", "content")
	one.both(t)
	e, err := direct.Stat(t.Context(), "deleted")
	must(t, err)
	e.Path = "deleted"
	at := openTree(t, two.dir)
	st, err := state.Open(two.state, newRun(at, direct, Options{}).home(), plan.Both)
	must(t, err)
	st.OpenJournal()
	w, err := at.Create("deleted")
	must(t, err)
	must(t, tree.WriteContent(w, e, []byte("content"), 0))
	must(t, st.Journal.NoteFetching(w, e))
	_, err = w.Commit(e, tree.Restoring{}, true, nil)
	must(t, err)
	w.Discard()
	st.Close() // as far as it got
	must(t, os.Remove(filepath.Join(one.dir, "deleted")))
	one.both(t)
	settle(t, two, one)
	gone(t, direct, "deleted", one, two)
}
