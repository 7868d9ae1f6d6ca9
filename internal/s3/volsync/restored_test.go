package volsync

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/state"
)

// TestPathsThatComeBackAfterAnInterruptionStay moves files away, lets a sync store that and end before it has recorded
// it on the machine, and moves the files back. The sync itself has deleted them in the bucket: that is no deletion by
// others, although the machine's record says that both sides had the files.
// mission: A8, D1, D2
func TestPathsThatComeBackAfterAnInterruptionStay(t *testing.T) {
	t.Parallel()
	away := map[string]func(dir string) (undo func()){
		"a file": func(dir string) func() {
			return moved(t, filepath.Join(dir, "d/file"), filepath.Join(dir, "other"))
		},
		"a directory": func(dir string) func() { // neither the inodes nor the times of its files change
			return moved(t, filepath.Join(dir, "d"), filepath.Join(dir, "other"))
		},
		"all files": func(dir string) func() {
			return moved(t, filepath.Join(dir, "d"), filepath.Join(t.TempDir(), "other"))
		},
		"for a directory": func(dir string) func() {
			undo := moved(t, filepath.Join(dir, "d/file"), filepath.Join(dir, "other"))
			must(t, os.Mkdir(filepath.Join(dir, "d/file"), 0o755))
			return func() {
				must(t, os.Remove(filepath.Join(dir, "d/file")))
				undo()
			}
		},
		"for a directory, and another is deleted": func(dir string) func() {
			must(t, os.Remove(filepath.Join(dir, "another")))
			undo := moved(t, filepath.Join(dir, "d/file"), filepath.Join(dir, "other"))
			must(t, os.Mkdir(filepath.Join(dir, "d/file"), 0o755))
			return func() {
				must(t, os.Remove(filepath.Join(dir, "d/file")))
				undo()
			}
		},
	}
	for what, away := range away {
		for when, last := range map[string]func(*http.Request) bool{"manifest": isManifestPut, "deletion": isDeletion} {
			for how, list := range map[string]bool{"": false, ", listed": true} {
				t.Run(what+", "+when+how, func(t *testing.T) {
					t.Parallel()
					testRestored(t, away, last, list)
				})
			}
		}
	}
}

func isManifestPut(r *http.Request) bool {
	return r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, manifest.Key)
}

// moved renames a file or directory, and returns how to undo that.
func moved(t *testing.T, from, to string) (undo func()) {
	t.Helper()
	must(t, os.Rename(from, to))
	return func() { must(t, os.Rename(to, from)) }
}

// TestFilesStoredAgainAfterAnInterruptionStay ends a sync after it has deleted files of the volume that another machine
// deleted, and before it has recorded that. Then the other machine moves the files back: with equal contents, they have
// the same ETags. This machine did not delete them, although its record says that both sides had them.
// mission: A8, D1, D2
func TestFilesStoredAgainAfterAnInterruptionStay(t *testing.T) {
	t.Parallel()
	for what, away := range map[string]func(dir string) (undo func()){
		"a directory": func(dir string) func() {
			return moved(t, filepath.Join(dir, "d"), filepath.Join(t.TempDir(), "other"))
		},
		"for a directory": func(dir string) func() {
			undo := moved(t, filepath.Join(dir, "d/file"), filepath.Join(t.TempDir(), "other"))
			write(t, dir, "d/file/beneath", "it")
			return func() {
				must(t, os.RemoveAll(filepath.Join(dir, "d/file")))
				undo()
			}
		},
	} {
		for how, list := range map[string]bool{"": false, ", listed": true} {
			t.Run(what+how, func(t *testing.T) {
				t.Parallel()
				testStoredAgain(t, away, list)
			})
		}
	}
}

func testStoredAgain(t *testing.T, away func(dir string) (undo func()), list bool) {
	loc := strictLocation(t, &strictServer{})
	direct := openBucket(t, loc)
	a := between(t, &loc)
	first, second := &machine{t.TempDir(), t.TempDir(), openBucket(t, loc)}, &machine{t.TempDir(), t.TempDir(), direct}
	write(t, first.dir, "d/file", "the only one")
	write(t, first.dir, "another", "to be deleted after it")
	options := func(m *machine) Options {
		return Options{Direction: plan.Both, State: m.state, Owners: true, List: list, DeleteMany: true}
	}
	for _, m := range []*machine{first, second} {
		mustSync(t, m.dir, m.b, options(m))
	}
	undo := away(second.dir)
	must(t, os.Remove(filepath.Join(second.dir, "another")))
	mustSync(t, second.dir, second.b, options(second))
	write(t, first.dir, "mine", "so that there is a manifest to store")
	for range 2 { // the record outlives another interruption
		interruptedAtManifest(t, a, first, options(first))
	}
	if raw, err := os.ReadFile(filepath.Join(first.dir, "d/file")); err == nil {
		t.Fatalf("it was to delete the file, and did not: %q", raw)
	}
	undo()
	for range 3 {
		for _, m := range []*machine{second, first} {
			mustSync(t, m.dir, m.b, options(m))
		}
	}
	if left := glob(t, first.state, "*", state.RemovedFile); len(left) > 0 {
		t.Errorf("its record is left: %q", left)
	}
	for i, m := range []*machine{first, second} {
		got := filesOf(t, m.dir)
		if !slices.Contains(slices.Concat(got["d/file"], got["d/file copy"]), "the only one") {
			t.Errorf("machine %d has %q", i+1, got)
		}
	}
}

// TestFilesThatComeBackAreNotSentAgain moves a file away and back, with a sync in between that ends before it has
// stored its deletion. The bucket still has the content: it is neither a conflict, nor sent a second time.
// mission: D2
func TestFilesThatComeBackAreNotSentAgain(t *testing.T) {
	t.Parallel()
	for how, list := range map[string]bool{"unlisted": false, "listed": true} {
		for _, policy := range []plan.Conflicts{plan.KeepBoth, plan.KeepLocal} {
			t.Run(how+", "+string(policy), func(t *testing.T) {
				t.Parallel()
				all, _, a := machines(t, 2)
				first := all[0]
				write(t, first.dir, "file", "content")
				write(t, first.dir, "stays", "content")
				settle(t, all...)
				undo := moved(t, filepath.Join(first.dir, "file"), filepath.Join(t.TempDir(), "other"))
				o := Options{Direction: plan.Both, State: first.state, Owners: true, List: list, Conflicts: policy}
				interruptedAtManifest(t, a, first, o)
				undo()
				if s := mustSync(t, first.dir, first.b, o); s.Conflicts+s.Files > 0 {
					t.Errorf("%s; %+v", s, s.Decided)
				}
				for _, call := range a.seen() {
					if strings.HasPrefix(call, http.MethodPut) && strings.HasSuffix(call, "/file") {
						t.Errorf("the content was sent again: %q", a.seen())
					}
				}
				settle(t, all...)
				if got := filesOf(t, all[1].dir); len(got["file"]) != 1 {
					t.Errorf("the other machine has %q", got)
				}
			})
		}
	}
}

// TestEditedFilesThatComeBackAreNoConflict checks that a file whose object a directory replaced, before the sync was
// interrupted, can come back with other content: the bucket has no object that the edit could conflict with, although
// its manifest has one.
// mission: D2
func TestEditedFilesThatComeBackAreNoConflict(t *testing.T) {
	t.Parallel()
	for server, strict := range map[string]bool{"strict": true, "embedded": false} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			testEdited(t, strict)
		})
	}
}

// testEdited repeats the sync on the embedded server: there the first one fails, since the object of the directory is
// in the way until its end.
func testEdited(t *testing.T, strict bool) {
	loc := strictLocation(t, &strictServer{})
	if !strict {
		loc = location(t)
	}
	a := between(t, &loc)
	first, second := &machine{t.TempDir(), t.TempDir(), openBucket(t, loc)}, &machine{t.TempDir(), t.TempDir(), nil}
	second.b = first.b
	write(t, first.dir, "path", "a file")
	settle(t, first, second)
	must(t, os.Remove(filepath.Join(first.dir, "path")))
	must(t, os.Mkdir(filepath.Join(first.dir, "path"), 0o755))
	o := Options{Direction: plan.Both, State: first.state, Owners: true}
	interruptedAtManifest(t, a, first, o)
	must(t, os.Remove(filepath.Join(first.dir, "path")))
	write(t, first.dir, "path", "the edited file")
	for pass := range 2 {
		s, err := Sync(t.Context(), openTree(t, first.dir), first.b, o)
		must(t, err)
		if s.Conflicts > 0 || s.Failed > 0 && (strict || pass > 0) {
			t.Errorf("sync %d: %s; %+v; %+v", pass+1, s, s.Decided, s.Failures)
		}
	}
	settle(t, first, second)
	want := map[string][]string{"path": {"the edited file"}}
	if got := filesOf(t, second.dir); !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("the other machine has %q", got)
	}
}

// interruptedAtManifest runs a sync that ends when it is about to store the manifest.
func interruptedAtManifest(t *testing.T, a *asked, m *machine, o Options) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		if isManifestPut(r) {
			cancel()
			panic(http.ErrAbortHandler)
		}
		return false
	})
	if _, err := Sync(ctx, openTree(t, m.dir), m.b, o); err == nil {
		t.Fatal("the sync was not cut short")
	}
	a.reset(nil)
}

// TestDeletionsAfterInterruptionsCount checks that a file that a sync deleted in the volume before it was interrupted,
// and that the next sync, interrupted too, fetched again, is deleted everywhere if the user deletes it: it is no longer
// the file that the first sync deleted.
// mission: D1, D2
func TestDeletionsAfterInterruptionsCount(t *testing.T) {
	t.Parallel()
	all, direct, a := machines(t, 2)
	first, second := all[0], all[1]
	write(t, first.dir, "d/file", "content")
	write(t, first.dir, "stays", "content")
	settle(t, all...)
	undo := moved(t, filepath.Join(second.dir, "d/file"), filepath.Join(t.TempDir(), "other"))
	second.both(t)
	write(t, first.dir, "mine", "so that there is a manifest to store")
	o := Options{Direction: plan.Both, State: first.state, Owners: true}
	interruptedAtManifest(t, a, first, o)
	undo()
	second.both(t)
	interruptedAtManifest(t, a, first, o)
	must(t, os.Remove(filepath.Join(first.dir, "d/file")))
	settle(t, all...)
	for i, m := range all {
		if got := filesOf(t, m.dir); len(got["d/file"]) > 0 || len(got["stays"]) != 1 {
			t.Errorf("machine %d has %q", i+1, got)
		}
	}
	if _, err := direct.Stat(t.Context(), "d/file"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("in the bucket: %v", err)
	}
}

// TestDeletionsOfOthersCount checks that another machine's deletion of a file is one, although a sync of this machine
// that was interrupted was to delete an earlier object of the path.
// mission: D1, D2
func TestDeletionsOfOthersCount(t *testing.T) {
	t.Parallel()
	all, _, a := machines(t, 2)
	first, second := all[0], all[1]
	write(t, first.dir, "file", "one")
	write(t, first.dir, "stays", "content")
	settle(t, all...)
	must(t, os.Remove(filepath.Join(first.dir, "file")))
	up := Options{Direction: plan.Up, Mirror: true, State: first.state, Owners: true}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		if isDeletion(r) {
			cancel()
			panic(http.ErrAbortHandler)
		}
		return false
	})
	if _, err := Sync(ctx, openTree(t, first.dir), first.b, up); err == nil {
		t.Fatal("the sync was not cut short")
	}
	a.reset(nil)
	write(t, first.dir, "file", "another content")
	up.Mirror = false // a sync that does not delete keeps the record
	mustSync(t, first.dir, first.b, up)
	second.both(t)
	must(t, os.Remove(filepath.Join(second.dir, "file")))
	second.both(t)
	settle(t, all...)
	for i, m := range all {
		if got := filesOf(t, m.dir); len(got["file"]) > 0 || len(got["stays"]) != 1 {
			t.Errorf("machine %d has %q", i+1, got)
		}
	}
}

// testRestored ends the sync of the change right after the request that last chooses was served.
func testRestored(t *testing.T, away func(dir string) (undo func()), last func(*http.Request) bool, list bool) {
	loc := location(t)
	direct := openBucket(t, loc)
	a := between(t, &loc)
	through := openBucket(t, loc)
	first, second := &machine{t.TempDir(), t.TempDir(), through}, &machine{t.TempDir(), t.TempDir(), direct}
	write(t, first.dir, "d/file", "the only one")
	write(t, first.dir, "another", "another")
	options := func(m *machine) Options {
		return Options{Direction: plan.Both, State: m.state, Owners: true, List: list, DeleteMany: true}
	}
	mustSync(t, first.dir, first.b, options(first))
	mustSync(t, second.dir, second.b, options(second))
	undo := away(first.dir)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
		if !last(r) {
			return false
		}
		answer := httptest.NewRecorder()
		proxyOf(r).ServeHTTP(answer, r)
		if _, err := direct.Stat(t.Context(), "d/file"); isDeletion(r) && err == nil {
			maps.Copy(w.Header(), answer.Header()) // it was to find out what the server does
			w.WriteHeader(answer.Code)
			_, _ = w.Write(answer.Body.Bytes())
			return true
		}
		cancel()
		panic(http.ErrAbortHandler)
	})
	if _, err := Sync(ctx, openTree(t, first.dir), first.b, options(first)); err == nil {
		t.Fatal("the sync was not cut short")
	}
	a.reset(nil)
	undo()
	var failures []Failure
	for range 3 {
		failures = nil
		for _, m := range []*machine{second, first} {
			stats, err := Sync(t.Context(), openTree(t, m.dir), m.b, options(m))
			must(t, err)
			failures = append(failures, stats.Failures...)
		}
	}
	if len(failures) > 0 {
		t.Errorf("at the end fail %+v", failures)
	}
	for i, m := range []*machine{first, second} {
		if raw, err := os.ReadFile(filepath.Join(m.dir, "d/file")); err != nil || string(raw) != "the only one" {
			t.Errorf("machine %d has %q, %v", i+1, raw, err)
		}
	}
	if _, err := direct.Stat(t.Context(), "d/file"); err != nil {
		t.Errorf("in the bucket: %v", err)
	}
}
