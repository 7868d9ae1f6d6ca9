package volsync

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// TestDirectoryOfChangedFileStays removes or renames a directory on one machine, while the other one changes something
// beneath it. A change wins over a deletion, so the directory comes back too, with its own mode and time. Each machine
// needs one sync, whichever comes first.
// mission: D1, D2
func TestDirectoryOfChangedFileStays(t *testing.T) {
	t.Parallel()
	changes := map[string]func(t *testing.T, dir string){
		"edited": func(t *testing.T, dir string) { editInPlace(t, filepath.Join(dir, "q/r/in"), "2-edited") },
		"chmod":  func(t *testing.T, dir string) { must(t, os.Chmod(filepath.Join(dir, "q/r/in"), 0o600)) },
		"touched": func(t *testing.T, dir string) {
			must(t, os.Chtimes(filepath.Join(dir, "q/r/in"), someTime, someTime))
		},
		"added":  func(t *testing.T, dir string) { write(t, dir, "q/r/new", "new") },
		"linked": func(t *testing.T, dir string) { must(t, os.Symlink("in", filepath.Join(dir, "q/r/link"))) },
		"mkdir":  func(t *testing.T, dir string) { must(t, os.MkdirAll(filepath.Join(dir, "q/r/d/e"), 0o700)) },
		"hard link": func(t *testing.T, dir string) {
			must(t, os.Link(filepath.Join(dir, "other"), filepath.Join(dir, "q/r/zz")))
		},
	}
	removals := map[string]func(dir string) error{
		"removed": func(dir string) error { return os.RemoveAll(filepath.Join(dir, "q")) },
		"renamed": func(dir string) error { return os.Rename(filepath.Join(dir, "q"), filepath.Join(dir, "s")) },
	}
	for place, machines := range places {
		for changed, change := range changes {
			for removed, remove := range removals {
				for _, list := range []bool{false, true} {
					for _, removesFirst := range []bool{false, true} {
						name := place + ", " + changed + ", " + removed
						if list {
							name += ", listed"
						}
						if removesFirst {
							name += ", removal first"
						}
						t.Run(name, func(t *testing.T) {
							t.Parallel()
							x, y := machines(t)
							write(t, y.dir, "q/r/in", "1")
							write(t, y.dir, "q/aside", "stays as it is")
							write(t, y.dir, "other", "other")
							must(t, os.Chmod(filepath.Join(y.dir, "q"), 0o700))
							must(t, os.Chmod(filepath.Join(y.dir, "q/r"), 0o2750))
							must(t, os.Chtimes(filepath.Join(y.dir, "q"), someTime, someTime))
							settle(t, y, x)
							change(t, x.dir)
							must(t, remove(y.dir))
							order := []*machine{x, y}
							if removesFirst {
								order = []*machine{y, x}
							}
							o := Options{Direction: plan.Both, Owners: true, List: list}
							for i, m := range []*machine{order[0], order[1], order[1], order[0], order[0]} {
								o.State = m.state
								s := mustSync(t, m.dir, m.b, o)
								if (i == 2 || i == 4) && s.Files+s.Updated+s.Deleted+s.Conflicts > 0 {
									t.Errorf("sync %d is not quiet: %s %+v", i, s, s.Decided)
								}
							}
							sameTrees(t, x.dir, y.dir)
							for path, mode := range map[string]os.FileMode{"q": 0o700, "q/r": 0o750} {
								info, err := os.Stat(filepath.Join(y.dir, path))
								if err != nil || info.Mode().Perm() != mode {
									t.Errorf("%s: %v, %v", path, info, err)
								}
							}
						})
					}
				}
			}
		}
	}
}

// TestFileAndDirectoryChangeAlongPath does the same where a machine put a file or a link in the place of the directory:
// the directory stays, and the file becomes a copy.
// mission: D1, D2
func TestFileAndDirectoryChangeAlongPath(t *testing.T) {
	t.Parallel()
	for place, machines := range places {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			x, y := machines(t)
			write(t, y.dir, "q/r/in", "1")
			must(t, os.Chmod(filepath.Join(y.dir, "q"), 0o700))
			settle(t, y, x)
			must(t, os.Chmod(filepath.Join(x.dir, "q/r/in"), 0o600))
			must(t, os.RemoveAll(filepath.Join(y.dir, "q")))
			write(t, y.dir, "q", "a file")
			settle(t, x, y)
			want := map[string][]string{"q copy": {"a file"}, "q/r/in": {"1"}}
			if got := filesOf(t, y.dir); !maps.EqualFunc(got, want, slices.Equal) {
				t.Errorf("the volume has %q, want %q", got, want)
			}
			if info, err := os.Stat(filepath.Join(y.dir, "q")); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("the directory: %v, %v", info, err)
			}
		})
	}
}

// places are the servers of two machines at one place.
var places = map[string]func(t *testing.T) (x, y *machine){
	"embedded": func(t *testing.T) (x, y *machine) { all, _, _ := machines(t, 2); return all[0], all[1] },
	"strict":   func(t *testing.T) (x, y *machine) { return twoAt(t, strictBucket(t)) },
}

// editInPlace changes the content of a file, and keeps its inode.
func editInPlace(t *testing.T, path, content string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	must(t, err)
	_, err = f.WriteString(content)
	must(t, err)
	must(t, f.Close())
	now := time.Now()
	must(t, os.Chtimes(path, now, now))
}

// TestLargeDirectoryOfChangedFileStays does the same with more deleted files than a plan looks ahead.
// mission: D1, D2
func TestLargeDirectoryOfChangedFileStays(t *testing.T) {
	t.Parallel()
	x, y := twoAt(t, strictBucket(t))
	for i := range 1100 {
		write(t, y.dir, fmt.Sprintf("q/r/f%04d", i), "content")
	}
	write(t, y.dir, "q/r/in", "1")
	write(t, y.dir, "s/r/in", "1")
	write(t, y.dir, "zz/other", "1")
	for _, dir := range []string{"q", "q/r"} {
		must(t, os.Chmod(filepath.Join(y.dir, dir), 0o700))
	}
	y.both(t)
	x.both(t)
	editInPlace(t, filepath.Join(x.dir, "q/r/in"), "edited")
	x.both(t)
	must(t, os.RemoveAll(filepath.Join(y.dir, "q")))
	must(t, os.RemoveAll(filepath.Join(y.dir, "s")))
	for _, m := range []*machine{y, x} {
		mustSync(t, m.dir, m.b, Options{Direction: plan.Both, State: m.state, Owners: true, DeleteMany: true})
	}
	for _, m := range []*machine{y, x} {
		if s := m.both(t); s.Files+s.Updated+s.Deleted+s.Conflicts > 0 {
			t.Errorf("another sync is not quiet: %s %+v", s, s.Decided)
		}
		want := map[string][]string{"q/r/in": {"edited"}, "zz/other": {"1"}}
		if got := filesOf(t, m.dir); !maps.EqualFunc(got, want, slices.Equal) {
			t.Errorf("the volume has %d files: %.200q", len(got), got)
		}
		for path, mode := range map[string]os.FileMode{"q": 0o700, "q/r": 0o700, "s": 0} {
			info, err := os.Stat(filepath.Join(m.dir, path))
			if mode == 0 && !os.IsNotExist(err) || mode != 0 && (err != nil || info.Mode().Perm() != mode) {
				t.Errorf("%s: %v, %v", path, info, err)
			}
		}
	}
}

// TestDirectoryReturnsWithFileChangedMeanwhile changes a file while another machine's sync deletes it, together with
// its directories: these return with their modes.
// mission: D1, D2
func TestDirectoryReturnsWithFileChangedMeanwhile(t *testing.T) {
	t.Parallel()
	loc := strictLocation(t, &strictServer{})
	a := between(t, &loc)
	x, y := twoAt(t, openBucket(t, loc))
	write(t, y.dir, "q/r/in", "1")
	must(t, os.Chmod(filepath.Join(y.dir, "q"), 0o700))
	must(t, os.Chmod(filepath.Join(y.dir, "q/r"), 0o750))
	settle(t, y, x)
	must(t, os.RemoveAll(filepath.Join(y.dir, "q")))
	asks(a, http.MethodHead, "/q/r/in", func() {
		editInPlace(t, filepath.Join(x.dir, "q/r/in"), "edited")
		x.both(t)
	})
	y.both(t)
	a.reset(nil)
	settle(t, y, x)
	want := map[string][]string{"q/r/in": {"edited"}}
	if got := filesOf(t, y.dir); !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("the volume has %q", got)
	}
	for path, mode := range map[string]os.FileMode{"q": 0o700, "q/r": 0o750} {
		if info, err := os.Stat(filepath.Join(y.dir, path)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
}

// TestListedDirectoryKeepsItsTime syncs a directory that exists only in the keys of another program. All machines agree
// on its mode and time.
// mission: D1, D2
func TestListedDirectoryKeepsItsTime(t *testing.T) {
	t.Parallel()
	b := strictBucket(t)
	x, y := twoAt(t, b)
	put(t, b, "d/e/f", "of another program")
	begin := time.Now().Add(-time.Hour)
	for _, m := range []*machine{x, y, x, y} {
		m.both(t)
		info, err := os.Stat(filepath.Join(m.dir, "d/e"))
		must(t, err)
		if info.ModTime().Before(begin) {
			t.Errorf("the directory is of %s", info.ModTime())
		}
	}
	settle(t, x, y)
}

// TestKilledRestoreKeepsModesOfDirectories ends a sync between the directories and the end: the next sync does not take
// the modes of unfinished directories for changes.
// mission: A8, D2
func TestKilledRestoreKeepsModesOfDirectories(t *testing.T) {
	t.Parallel()
	loc := strictLocation(t, &strictServer{})
	a := between(t, &loc)
	b := openBucket(t, loc)
	x, y := twoAt(t, b)
	write(t, x.dir, "d/e/f", "content")
	must(t, os.Chmod(filepath.Join(x.dir, "d"), 0o750))
	settle(t, x)
	ctx, cancel := context.WithCancel(t.Context())
	a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/d/e/f") {
			return false
		}
		cancel()
		panic(http.ErrAbortHandler)
	})
	if _, err := Sync(ctx, openTree(t, y.dir), b, Options{Direction: plan.Both, State: y.state}); err == nil {
		t.Fatal("the sync was not canceled")
	}
	a.reset(nil)
	settle(t, y, x)
	for path, mode := range map[string]os.FileMode{"d": 0o750, "d/e": 0o755} {
		if info, err := os.Stat(filepath.Join(x.dir, path)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
}
