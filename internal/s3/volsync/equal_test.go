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
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/buffer"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/state"
)

// TestEqualContentOutlivesADeletion stores the content that an object has on its path again, after the manifest of the
// machine that deletes it and before its deletion of the object. Equal contents have equal ETags.
// mission: A8, D1
func TestEqualContentOutlivesADeletion(t *testing.T) {
	t.Parallel()
	again := func(content string) func(*machine) {
		return func(second *machine) {
			must(t, os.Remove(filepath.Join(second.dir, "f")))
			write(t, second.dir, "f", content)
			must(t, os.Remove(filepath.Join(second.dir, "link")))
			must(t, os.Symlink("other", filepath.Join(second.dir, "link")))
		}
	}
	t.Run("unremembered", func(t *testing.T) {
		t.Parallel()
		testEqualContent(t, false, "content", func(second *machine) { second.state = t.TempDir() })
	})
	t.Run("unremembered, written again", func(t *testing.T) { // with another time
		t.Parallel()
		testEqualContent(t, false, "content", func(second *machine) {
			second.state = t.TempDir()
			again("content")(second)
		})
	})
	for _, list := range []bool{false, true} {
		for name, content := range map[string]string{"small": "content", "empty": "",
			"large": strings.Repeat("content.", buffer.PartSize/8+1)} {
			t.Run(name+map[bool]string{true: ", listed"}[list], func(t *testing.T) {
				t.Parallel()
				testEqualContent(t, list, content, again(content))
			})
		}
	}
}

// testEqualContent calls again for the second machine after the first one has deleted its files, to make it store
// them again.
func testEqualContent(t *testing.T, list bool, content string, again func(second *machine)) {
	loc := location(t)
	direct := openBucket(t, loc)
	a := between(t, &loc)
	through := openBucket(t, loc)
	first, second := &machine{t.TempDir(), t.TempDir(), nil}, &machine{t.TempDir(), t.TempDir(), nil}
	write(t, first.dir, "f", content)
	write(t, first.dir, "other", "other")
	must(t, os.Symlink("other", filepath.Join(first.dir, "link")))
	run := func(m *machine) (kept []string) {
		t.Helper()
		b := direct
		if m == first {
			b = through
		}
		sum, err := Sync(t.Context(), openTree(t, m.dir), b, Options{Direction: plan.Both, State: m.state, List: list})
		if err != nil { // not Fatal: a handler calls it, too
			t.Errorf("sync: %v", err)
		}
		for _, f := range sum.Failures {
			kept = append(kept, f.Path)
		}
		slices.Sort(kept)
		return kept
	}
	kept := slices.Concat(run(first), run(second))
	must(t, os.Remove(filepath.Join(first.dir, "f")))
	must(t, os.Remove(filepath.Join(first.dir, "link")))
	again(second)
	var meanwhile sync.Once
	a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		if isDeletion(r) && (strings.HasSuffix(r.URL.Path, "/f") || strings.HasSuffix(r.URL.Path, "/link")) {
			meanwhile.Do(func() { kept = slices.Concat(kept, run(second)) })
		}
		return false
	})
	if refused := run(first); !slices.Equal(refused, []string{"f", "link"}) {
		t.Errorf("deletions refused: %q", refused)
	}
	a.reset(nil)
	for range 2 {
		kept = slices.Concat(kept, run(first), run(second))
	}
	if len(kept) > 0 {
		t.Errorf("failures of %q", kept)
	}
	for i, m := range []*machine{first, second} {
		if raw, err := os.ReadFile(filepath.Join(m.dir, "f")); err != nil || string(raw) != content {
			t.Errorf("machine %d has %d bytes, %v; want %d", i+1, len(raw), err, len(content))
		}
		if to, err := os.Readlink(filepath.Join(m.dir, "link")); err != nil || to != "other" {
			t.Errorf("machine %d has a link to %q, %v", i+1, to, err)
		}
	}
	for _, key := range []string{"f", "link"} {
		if _, err := direct.Stat(t.Context(), key); err != nil {
			t.Errorf("%s in the bucket: %v", key, err)
		}
	}
}

// TestEqualContentOutlivesAnInterruptedDeletion ends a sync right after it has deleted an object, and before it has
// forgotten the deletion. Then another machine stores the same content at the path, with the same ETag. Before it has
// stored its manifest, a machine that knows the unfinished deletion syncs: the new object is not the one to delete.
// mission: A8, D1
func TestEqualContentOutlivesAnInterruptedDeletion(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]struct{ others, list bool }{
		"its own": {}, "its own, listed": {list: true}, "another machine's": {others: true, list: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testEqualAfterInterruption(t, how.others, how.list)
		})
	}
}

// testEqualAfterInterruption lets the first machine finish its own deletion, or a third one, which is another's.
func testEqualAfterInterruption(t *testing.T, others, list bool) {
	server := &strictServer{}
	loc := strictLocation(t, server)
	direct := openBucket(t, loc)
	a := between(t, &loc)
	through := openBucket(t, loc)
	newMachine := func() *machine { return &machine{t.TempDir(), t.TempDir(), through} }
	first, second, third := newMachine(), newMachine(), newMachine()
	options := func(m *machine) Options {
		return Options{Direction: plan.Both, State: m.state, Owners: true, List: list}
	}
	write(t, first.dir, "d/f", "content")
	write(t, first.dir, "other", "other")
	for _, m := range []*machine{first, second, third} {
		mustSync(t, m.dir, m.b, options(m))
	}
	server.later(time.Second)
	must(t, os.Remove(filepath.Join(first.dir, "d/f")))
	interruptedAfterDeletion(t, a, first, options(first))
	if _, err := direct.Stat(t.Context(), "d/f"); errors.KindOf(err) != errors.NotFound {
		t.Fatalf("the object was not deleted: %v", err)
	}
	second.both(t)
	write(t, second.dir, "d/f", "content")
	finisher := first
	if others {
		finisher = third
	}
	asks(a, http.MethodPut, manifest.Key, func() { mustSync(t, finisher.dir, through, options(finisher)) })
	second.both(t)
	a.reset(nil)
	for range 2 {
		for _, m := range []*machine{first, second, third} {
			mustSync(t, m.dir, m.b, options(m))
		}
	}
	for i, m := range []*machine{first, second, third} {
		if raw, err := os.ReadFile(filepath.Join(m.dir, "d/f")); err != nil || string(raw) != "content" {
			t.Errorf("machine %d has %q, %v", i+1, raw, err)
		}
	}
	for o, err := range direct.Below(direct.Prefix()+state.TombstonesDir).All(t.Context(), object.AnyOrder) {
		if must(t, err); o.Key != "" {
			t.Errorf("the tombstones %s are left", o.Key)
		}
	}
}

// TestEqualContentOutlivesAReplacement ends a sync right after it has deleted the object of a file that a directory
// replaces, so before it has stored its manifest. Then another machine stores the file again, with the same content and
// so the same ETag. Before that machine has stored its manifest, the first one syncs again: the new object is not the
// one that the user replaced, although the manifest says so. A mirror up deletes it as any other.
// mission: A8, D1
func TestEqualContentOutlivesAReplacement(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]struct{ stays, list, mirror bool }{
		"directory": {stays: true}, "directory, listed": {stays: true, list: true}, "removed": {},
		"removed, listed": {list: true}, "removed, mirrored": {mirror: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testEqualAfterReplacement(t, how.stays, how.list, how.mirror)
		})
	}
}

// testEqualAfterReplacement removes the directory before the first machine syncs again, unless it stays.
func testEqualAfterReplacement(t *testing.T, stays, list, mirror bool) {
	server := &strictServer{}
	loc := strictLocation(t, server)
	direct := openBucket(t, loc)
	a := between(t, &loc)
	b := openBucket(t, loc)
	first, second := twoAt(t, b)
	write(t, first.dir, "path", "content")
	write(t, first.dir, "other", "other")
	settle(t, first, second)
	must(t, os.Remove(filepath.Join(first.dir, "path")))
	write(t, first.dir, "path/beneath", "it")
	o := Options{Direction: plan.Both, State: first.state, Owners: true, List: list}
	interruptedAfterDeletion(t, a, first, o)
	if _, err := direct.Stat(t.Context(), "path"); errors.KindOf(err) != errors.NotFound {
		t.Fatalf("the object was not deleted: %v", err)
	}
	want := map[string][]string{"path copy": {"content"}, "path/beneath": {"it"}, "other": {"other"}}
	if !stays {
		must(t, os.RemoveAll(filepath.Join(first.dir, "path")))
		want = map[string][]string{"path": {"content"}, "other": {"other"}}
	}
	next := o
	if mirror {
		next.Direction, next.Mirror = plan.Up, true
		delete(want, "path")
	}
	server.later(2 * time.Second)
	must(t, os.Remove(filepath.Join(second.dir, "path")))
	write(t, second.dir, "path", "content")
	asks(a, http.MethodPut, manifest.Key, func() {
		if s, err := Sync(t.Context(), openTree(t, first.dir), b, next); err != nil || s.Failed > 0 {
			t.Errorf("sync: %v; %+v", err, s.Failures)
		}
	})
	listed := Options{Direction: plan.Both, State: second.state, Owners: true, List: true}
	mustSync(t, second.dir, b, listed)
	a.reset(nil)
	for range 2 {
		mustSync(t, first.dir, b, o)
		mustSync(t, second.dir, b, listed)
	}
	for i, m := range []*machine{first, second} {
		if got := filesOf(t, m.dir); !maps.EqualFunc(got, want, slices.Equal) {
			t.Errorf("machine %d has %q, want %q", i+1, got, want)
		}
	}
}

// interruptedAfterDeletion runs a sync that ends after its first deletion of an object was served.
func interruptedAfterDeletion(t *testing.T, a *asked, m *machine, o Options) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
		if !isDeletion(r) {
			return false
		}
		answer := httptest.NewRecorder()
		proxyOf(r).ServeHTTP(answer, r)
		if answer.Code == http.StatusPreconditionFailed { // it was to find out what the server does
			maps.Copy(w.Header(), answer.Header())
			w.WriteHeader(answer.Code)
			_, _ = w.Write(answer.Body.Bytes())
			return true
		}
		cancel()
		panic(http.ErrAbortHandler)
	})
	if stats, err := Sync(ctx, openTree(t, m.dir), m.b, o); err == nil {
		t.Fatalf("the sync was not cut short: %s %+v %q", stats, stats.Failures, a.seen())
	}
	a.reset(nil)
}

// later moves the server's clock.
func (s *strictServer) later(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead += by
}
