package sync

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

	"github.com/RelevanceAI/harvest/s3/manifest"
	"github.com/RelevanceAI/harvest/s3/sync/plan"
)

// TestPathsThatComeBackAfterAnInterruptionStay moves files away, lets a sync store that and end before it has recorded
// it on the machine, and moves the files back. The sync itself has deleted them in the bucket: that is no deletion by
// others, although the machine's record says that both sides had the files.
// mission: 3.1, A8, D1
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
// mission: 3.1, A8, D1
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
	options := func(m *machine) Options {
		return Options{Direction: plan.Both, State: m.state, Owners: true, List: list, DeleteMany: true}
	}
	for _, m := range []*machine{first, second} {
		mustSync(t, m.dir, m.b, options(m))
	}
	undo := away(second.dir)
	mustSync(t, second.dir, second.b, options(second))
	write(t, first.dir, "mine", "so that there is a manifest to store")
	for range 2 { // the record outlives another interruption
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
			if isManifestPut(r) {
				cancel()
				panic(http.ErrAbortHandler)
			}
			return false
		})
		if _, err := Sync(ctx, openTree(t, first.dir), first.b, options(first)); err == nil {
			t.Fatal("the sync was not cut short")
		}
	}
	if raw, err := os.ReadFile(filepath.Join(first.dir, "d/file")); err == nil {
		t.Fatalf("it was to delete the file, and did not: %q", raw)
	}
	a.reset(nil)
	undo()
	for range 3 {
		for _, m := range []*machine{second, first} {
			mustSync(t, m.dir, m.b, options(m))
		}
	}
	for i, m := range []*machine{first, second} {
		got := filesOf(t, m.dir)
		if !slices.Contains(slices.Concat(got["d/file"], got["d/file copy"]), "the only one") {
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
