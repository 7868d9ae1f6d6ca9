package volsync

import (
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// overlapping is a change of metadata on one machine, and a change on the other, whose sync comes between.
type overlapping struct {
	change func(t *testing.T, dir string)
	other  func(t *testing.T, dir string)
	kept   func(t *testing.T, dir string) bool // the change is in a volume
}

func chmodded(path string, mode fs.FileMode) (change func(*testing.T, string), kept func(*testing.T, string) bool) {
	return func(t *testing.T, dir string) { must(t, os.Chmod(filepath.Join(dir, path), mode)) },
		func(_ *testing.T, dir string) bool {
			info, err := os.Stat(filepath.Join(dir, path))
			return err == nil && info.Mode().Perm() == mode
		}
}

func overlaps() map[string]overlapping {
	edit := func(path string) func(*testing.T, string) {
		return func(t *testing.T, dir string) { write(t, dir, path, "edited") }
	}
	remove := func(path string) func(*testing.T, string) {
		return func(t *testing.T, dir string) { must(t, os.RemoveAll(filepath.Join(dir, path))) }
	}
	directory, keptDir := chmodded("d", 0o700)
	empty, keptEmpty := chmodded("empty", 0o700)
	file, keptFile := chmodded("d/f", 0o600)
	return map[string]overlapping{
		"directory and a file elsewhere": {directory, edit("other"), keptDir},
		"directory and a file in it":     {directory, edit("d/g"), keptDir},
		"empty directory and its end":    {empty, remove("empty"), keptEmpty},
		"file and a file elsewhere":      {file, edit("other"), keptFile},
		"file and its end":               {file, remove("d/f"), keptFile},
		"time of a file and its end": {
			func(t *testing.T, dir string) { must(t, os.Chtimes(filepath.Join(dir, "d/f"), someTime, someTime)) },
			remove("d/f"),
			func(_ *testing.T, dir string) bool {
				info, err := os.Stat(filepath.Join(dir, "d/f"))
				return err == nil && info.ModTime().Equal(someTime)
			}},
		"attribute and a file elsewhere": {
			func(t *testing.T, dir string) {
				must(t, unix.Setxattr(filepath.Join(dir, "d/f"), "user.color", []byte("blue"), 0))
			},
			edit("other"),
			func(_ *testing.T, dir string) bool {
				value := make([]byte, 8)
				n, err := unix.Getxattr(filepath.Join(dir, "d/f"), "user.color", value)
				return err == nil && string(value[:n]) == "blue"
			}},
	}
}

// TestMetadataOutlivesAnOverlap changes metadata on one machine. Its sync stores no content, so only the manifest has
// the change. Before the manifest is stored, the other machine's sync comes between, or the process is killed and the
// other machine syncs. The next sync still knows that the change is this machine's, and keeps it.
// mission: A8, D1, D2
func TestMetadataOutlivesAnOverlap(t *testing.T) {
	t.Parallel()
	for name, o := range overlaps() {
		for _, list := range []bool{false, true} {
			for _, killed := range []bool{false, true} {
				if list && killed {
					continue // the process does not list
				}
				t.Run(fmt.Sprintf("%s, listed %v, killed %v", name, list, killed), func(t *testing.T) {
					t.Parallel()
					n := 1
					for testMetadata(t, o, list, killed, n) {
						n++
					}
					if n < 2 {
						t.Errorf("a sync has %d requests", n-1)
					}
				})
			}
		}
	}
}

// testMetadata lets the other machine come at the nth request, and reports whether the sync had so many. A process is
// killed at the latest when it stores the manifest.
func testMetadata(t *testing.T, o overlapping, list, killed bool, n int) (had bool) {
	t.Helper()
	loc := strictLocation(t, &strictServer{})
	a := between(t, &loc)
	b := openBucket(t, loc)
	slow, other := twoAt(t, b)
	write(t, slow.dir, "d/f", "content")
	write(t, slow.dir, "other", "other")
	must(t, os.Mkdir(filepath.Join(slow.dir, "empty"), 0o755))
	settle(t, slow, other)
	o.change(t, slow.dir)
	o.other(t, other.dir)
	if killed {
		spec := childSpec{Location: loc, Dir: slow.dir, State: slow.state, Direction: plan.Both}
		var seen atomic.Int64
		var early atomic.Bool
		killedWhen(t, a, spec, func(r *http.Request) bool {
			if seen.Add(1) != int64(n) {
				return false
			}
			early.Store(!strings.HasSuffix(r.URL.Path, manifest.Key) || r.Method != http.MethodPut)
			return true
		})
		had = early.Load()
		other.both(t)
	} else {
		var came atomic.Bool
		a.reset(func(i int, _ http.ResponseWriter, _ *http.Request) bool {
			if i == n && came.CompareAndSwap(false, true) {
				other.both(t)
			}
			return false
		})
		mustSync(t, slow.dir, b, Options{Direction: plan.Both, State: slow.state, Owners: true, List: list})
		a.reset(nil)
		had = came.Load()
	}
	settle(t, slow, other)
	for i, m := range []*machine{slow, other} {
		if !o.kept(t, m.dir) {
			t.Errorf("request %d: machine %d lost the change", n, i)
		}
	}
	return had
}
