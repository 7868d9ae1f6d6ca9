package volsync

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// metaTree has metadata that a list of its objects does not show, or shows only in the objects of directories.
func metaTree(t *testing.T, dir string) {
	t.Helper()
	write(t, dir, "a/x", "content")
	write(t, dir, "b/c/y", "content")
	write(t, dir, "d/f", "content")
	must(t, os.Mkdir(filepath.Join(dir, "e"), 0o755))
	must(t, os.Chmod(filepath.Join(dir, "a"), 0o705))
	must(t, os.Chmod(filepath.Join(dir, "d"), 0o770))
	must(t, os.Chmod(filepath.Join(dir, "d/f"), 0o600))
	must(t, os.Chmod(filepath.Join(dir, "e"), 0o711))
	if os.Geteuid() == 0 {
		for _, path := range []string{"a", "a/x", "b", "b/c", "d/f", "e"} {
			must(t, os.Chown(filepath.Join(dir, path), 1234, 4321))
		}
	}
	must(t, unix.Setxattr(filepath.Join(dir, "d/f"), "user.colour", []byte("blue"), 0))
	age(t, dir)
}

// moments are moments of the first sync of metaTree: the other machine then sees a list of what is stored.
var moments = map[string]func(t *testing.T, a *asked, seen func()){
	// The object of a directory is on its way, and all files have arrived.
	"before the object of a directory": func(_ *testing.T, a *asked, seen func()) {
		var files sync.WaitGroup
		files.Add(3)
		var once sync.Once
		var stored atomic.Int32
		a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
			switch {
			case r.Method != http.MethodPut:
			case strings.HasSuffix(r.URL.Path, "work/a/"):
				once.Do(func() { files.Wait(); seen() })
			case !strings.HasSuffix(r.URL.Path, "/") && stored.Add(1) <= 3:
				proxyOf(r).ServeHTTP(w, r)
				files.Done()
				return true
			}
			return false
		})
	},
	"before the manifest": func(_ *testing.T, a *asked, seen func()) { asks(a, http.MethodPut, manifest.Key, seen) },
}

// TestMetadataOfOverlappingFirstSyncs makes a second machine, or a plain sync up, list a place while the first sync of
// a volume fills it. The list shows neither the metadata of all directories nor the attributes of files. What the
// second machine assumes does not replace the metadata that the first one has.
// mission: A8, D1, D2
func TestMetadataOfOverlappingFirstSyncs(t *testing.T) {
	t.Parallel()
	second := map[string]func(t *testing.T, m *machine){
		"both": func(t *testing.T, m *machine) { m.both(t) },
		"both, then a new entry in a directory": func(t *testing.T, m *machine) {
			m.both(t)
			write(t, m.dir, "a/new", "of the second machine")
			write(t, m.dir, "b/c/new", "of the second machine")
			m.both(t)
		},
		"up": func(t *testing.T, m *machine) {
			write(t, m.dir, "z", "of the second machine")
			mustSync(t, m.dir, m.b, Options{Direction: plan.Up, State: m.state})
		},
	}
	for place, machines := range places {
		for when, at := range moments {
			for what, does := range second {
				t.Run(place+", "+when+", "+what, func(t *testing.T) {
					t.Parallel()
					overlapFirst(t, machines, at, does)
				})
			}
		}
	}
}

func overlapFirst(t *testing.T, machines func(*testing.T) (x, y *machine), at func(*testing.T, *asked, func()),
	does func(*testing.T, *machine)) {
	x, y := machines(t)
	metaTree(t, x.dir)
	want := snapshot(t, x.dir)
	loc := y.b.Location()
	a := between(t, &loc)
	slow := &machine{x.dir, x.state, openBucket(t, loc)}
	done := false
	at(t, a, func() { done = true; does(t, y) })
	slow.both(t)
	a.reset(nil)
	if !done {
		t.Fatal("the syncs did not overlap")
	}
	settle(t, x, y)
	got := snapshot(t, y.dir)
	for path, line := range want {
		if _, err := os.Lstat(filepath.Join(y.dir, path, "new")); err == nil { // its time changed with its entries
			line, _, _ = strings.Cut(line, " mtime")
			got[path], _, _ = strings.Cut(got[path], " mtime")
		}
		if got[path] != line {
			t.Errorf("%s:\n  have %s\n  want %s", path, got[path], line)
		}
	}
}
