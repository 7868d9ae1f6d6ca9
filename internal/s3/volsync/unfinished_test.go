package volsync

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// cutAt ends a sync of m at its first request of a method for a path that ends with a suffix.
func cutAt(t *testing.T, m *machine, a *asked, method, suffix string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		if r.Method != method || !strings.HasSuffix(r.URL.Path, suffix) {
			return false
		}
		cancel()
		panic(http.ErrAbortHandler)
	})
	defer a.reset(nil)
	o := Options{Direction: plan.Both, State: m.state, Owners: true}
	if _, err := Sync(ctx, openTree(t, m.dir), m.b, o); err == nil {
		t.Fatalf("the sync was not canceled: %s", strings.Join(a.seen(), ", "))
	}
}

// TestUnfinishedDirectories interrupts a sync after it has made a directory, or decided about one, and before the
// directory has its metadata. The next sync does not take the metadata for a change of the user.
// mission: A8, D1, D2
func TestUnfinishedDirectories(t *testing.T) {
	t.Parallel()
	mode := func(mode os.FileMode) func(*testing.T, string) {
		return func(t *testing.T, dir string) { must(t, os.Chmod(filepath.Join(dir, "d"), mode)) }
	}
	for name, c := range map[string]struct {
		before, after  func(t *testing.T, dir string) // on the other machine, before and after the first syncs
		method, suffix string                         // of the request at which the sync ends
	}{
		"made":                    {mode(0o750), nil, http.MethodGet, "/d/f"},
		"made and not writable":   {mode(0o555), nil, http.MethodGet, "/d/f"},
		"made, before the commit": {mode(0o555), nil, http.MethodPut, "/zz"},
		"changed":                 {mode(0o750), mode(0o705), http.MethodGet, "/later"},
		"changed to not writable": {mode(0o750), mode(0o555), http.MethodGet, "/later"},
		"changed time": {mode(0o750), func(t *testing.T, dir string) {
			must(t, os.Chtimes(filepath.Join(dir, "d"), someTime, someTime))
		}, http.MethodGet, "/later"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			loc := strictLocation(t, &strictServer{})
			a := between(t, &loc)
			x, y := twoAt(t, openBucket(t, loc))
			write(t, x.dir, "d/f", "content")
			age(t, x.dir)
			c.before(t, x.dir)
			if c.after != nil {
				settle(t, x, y)
				c.after(t, x.dir)
				write(t, x.dir, "later", "content")
			}
			x.both(t)
			want := snapshot(t, x.dir)
			write(t, y.dir, "zz", "of the other machine")
			cutAt(t, y, a, c.method, c.suffix)
			y.both(t)
			settle(t, y, x)
			for path, line := range want {
				if got := snapshot(t, y.dir)[path]; got != line {
					t.Errorf("%s:\n  have %s\n  want %s", path, got, line)
				}
			}
		})
	}
}

// TestUndescribedDirectory interrupts a sync between a directory that a list shows, and the answer with its metadata.
// mission: A8, D2
func TestUndescribedDirectory(t *testing.T) {
	t.Parallel()
	loc := strictLocation(t, &strictServer{})
	a := between(t, &loc)
	x, y := twoAt(t, openBucket(t, loc))
	must(t, os.Mkdir(filepath.Join(x.dir, "d"), 0o700))
	must(t, os.Chmod(filepath.Join(x.dir, "d"), 0o705))
	age(t, x.dir)
	cutAt(t, x, a, http.MethodPut, manifest.Key)
	cutAt(t, y, a, http.MethodHead, "/d/")
	y.both(t)
	sameTrees(t, x.dir, y.dir)
	if s := y.both(t); s.Updated > 0 {
		t.Errorf("another sync is not quiet: %s", s)
	}
	settle(t, y, x)
}

// TestDeletedAfterInterruptedSync deletes a directory on one machine after an interrupted sync of the other one has
// made it there, or has stored it: it does not come back. A directory that only one machine has stays.
// mission: A8, D1
func TestDeletedAfterInterruptedSync(t *testing.T) {
	t.Parallel()
	loc := strictLocation(t, &strictServer{})
	a := between(t, &loc)
	x, y := twoAt(t, openBucket(t, loc))
	write(t, x.dir, "other", "content")
	for _, dir := range []string{"down", "within/down"} {
		must(t, os.MkdirAll(filepath.Join(x.dir, dir), 0o711))
	}
	x.both(t)
	write(t, y.dir, "zz", "of the second machine")
	cutAt(t, y, a, http.MethodPut, "/zz")
	must(t, os.RemoveAll(filepath.Join(x.dir, "down")))
	must(t, os.RemoveAll(filepath.Join(x.dir, "within")))
	x.both(t)
	y.both(t)
	settle(t, x, y)
	for _, dir := range []string{"down", "within"} {
		if _, err := os.Lstat(filepath.Join(y.dir, dir)); !errors.IsNotExist(err) {
			t.Errorf("%s came back: %v", dir, err)
		}
	}
	must(t, os.Mkdir(filepath.Join(x.dir, "up"), 0o711))
	must(t, os.Mkdir(filepath.Join(x.dir, "stays"), 0o755))
	for range 2 {
		cutAt(t, x, a, http.MethodPut, manifest.Key)
	}
	mustSync(t, y.dir, y.b, Options{Direction: plan.Both, State: y.state, Owners: true, List: true})
	must(t, os.Remove(filepath.Join(y.dir, "up")))
	y.both(t)
	settle(t, x, y)
	if _, err := os.Lstat(filepath.Join(x.dir, "up")); !errors.IsNotExist(err) {
		t.Errorf("the stored directory came back: %v", err)
	}
	if info, err := os.Lstat(filepath.Join(y.dir, "stays")); err != nil || !info.IsDir() {
		t.Errorf("the new directory: %v, %v", info, err)
	}
}

// TestChangedAfterKilledUpload kills a sync after it has stored the object of a directory. Another machine finds the
// object and changes the directory: that change is the newer one.
// mission: A8, D1
func TestChangedAfterKilledUpload(t *testing.T) {
	t.Parallel()
	all, direct, a := machines(t, 2)
	one, two := all[0], all[1]
	loc := direct.Location()
	loc.Endpoint = a.URL
	must(t, os.Mkdir(filepath.Join(one.dir, "d"), 0o711))
	write(t, one.dir, "zz", "the last")
	killedWhen(t, a, childSpec{Dir: one.dir, State: one.state, Direction: plan.Both, Location: loc},
		func(r *http.Request) bool {
			if r.Method != http.MethodPut || filepath.Base(r.URL.Path) != "zz" {
				return false
			}
			awaitObject(t, direct, "d/")
			return true
		})
	a.reset(nil)
	two.both(t)
	must(t, os.Chmod(filepath.Join(two.dir, "d"), 0o770))
	two.both(t)
	settle(t, one, two)
	if info, err := os.Lstat(filepath.Join(one.dir, "d")); err != nil || info.Mode().Perm() != 0o770 {
		t.Errorf("the directory: %v, %v", info, err)
	}
}

// TestKilledChangeOfDirectory kills a sync after it has stored the object of a directory with another mode, and before
// its manifest: the change is sent by the next sync.
// mission: A8, D1
func TestKilledChangeOfDirectory(t *testing.T) {
	t.Parallel()
	all, direct, a := machines(t, 2)
	one, two := all[0], all[1]
	loc := direct.Location()
	loc.Endpoint = a.URL
	write(t, one.dir, "d/f", "content")
	settle(t, one, two)
	must(t, os.Chmod(filepath.Join(one.dir, "d"), 0o711))
	write(t, one.dir, "zz", "the last")
	killedWhen(t, a, childSpec{Dir: one.dir, State: one.state, Direction: plan.Both, Location: loc},
		func(r *http.Request) bool {
			if r.Method != http.MethodPut || filepath.Base(r.URL.Path) != "zz" {
				return false
			}
			awaitObject(t, direct, "d/")
			return true
		})
	a.reset(nil)
	one.both(t)
	settle(t, one, two)
	if info, err := os.Lstat(filepath.Join(two.dir, "d")); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("the directory: %v, %v", info, err)
	}
}

// TestDirectoryKeepsItsAttributes checks that a change of a directory on one machine leaves its attributes on another
// one, which are not synced.
// mission: D2
func TestDirectoryKeepsItsAttributes(t *testing.T) {
	t.Parallel()
	x, y := twoAt(t, strictBucket(t))
	write(t, x.dir, "d/f", "content")
	settle(t, x, y)
	dir := filepath.Join(y.dir, "d")
	must(t, unix.Setxattr(dir, "user.colour", []byte("blue"), 0))
	must(t, os.Chmod(filepath.Join(x.dir, "d"), 0o711))
	write(t, x.dir, "d/g", "more")
	settle(t, x, y)
	value := make([]byte, 64)
	if n, err := unix.Getxattr(dir, "user.colour", value); err != nil || string(value[:n]) != "blue" {
		t.Errorf("the attribute: %q, %v", value[:max(n, 0)], err)
	}
}
