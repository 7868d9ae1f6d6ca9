package volsync

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// TestForeignDirectories checks that directories that another tool stored come with their metadata, and that
// directories which exist only in keys keep theirs.
// mission: 3.2, D2
func TestForeignDirectories(t *testing.T) {
	b := openBucket(t, location(t))
	// As rclone writes them with --metadata --s3-directory-markers, and s3fs.
	for key, header := range map[string]http.Header{
		"rclone/": {"X-Amz-Meta-Mode": {"40750"}, "X-Amz-Meta-Uid": {"1234"}, "X-Amz-Meta-Gid": {"567"},
			"X-Amz-Meta-Mtime": {"1234567890.5"}},
		"s3fs/": {"X-Amz-Meta-Mode": {"16832"}, "X-Amz-Meta-Uid": {"1234"}, "X-Amz-Meta-Gid": {"567"},
			"X-Amz-Meta-Mtime": {"1234567890"}},
		"bare/":       {},
		"rclone/f":    {},
		"shown/sub/f": {},
	} {
		_, err := b.Put(t.Context(), key, []byte{}, 0, header)
		must(t, err)
	}
	back := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(back, "shown"), 0o700))
	must(t, os.Chmod(filepath.Join(back, "shown"), 0o700))
	begin := time.Now().Add(-time.Minute)
	mustSync(t, back, b, Options{Direction: plan.Down, Owners: true, State: t.TempDir()})
	for name, want := range map[string]struct {
		mode os.FileMode
		uid  uint32
		at   time.Time // zero: of the moment
	}{
		"rclone":    {0o750, 1234, time.Unix(1234567890, 5e8)},
		"s3fs":      {0o700, 1234, time.Unix(1234567890, 0)},
		"shown":     {0o700, 0, time.Time{}},
		"shown/sub": {0o755, 0, time.Time{}},
	} {
		info, err := os.Stat(filepath.Join(back, name))
		must(t, err)
		if info.Mode().Perm() != want.mode || info.Sys().(*syscall.Stat_t).Uid != want.uid || want.at.IsZero() &&
			info.ModTime().Before(begin) || !want.at.IsZero() && !info.ModTime().Equal(want.at) {
			t.Errorf("%s: %s, uid %d, %s", name, info.Mode(), info.Sys().(*syscall.Stat_t).Uid, info.ModTime())
		}
	}
	if info, err := os.Stat(filepath.Join(back, "bare")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("bare: %v", err)
	}
}

// TestLesserServer checks that syncs work with a server that deletes objects one by one, ignores write conditions, and
// is behind a proxy that requests compression (as reported of Google's storage).
// mission: D1, D4
func TestLesserServer(t *testing.T) {
	dir, back, loc, state := t.TempDir(), t.TempDir(), location(t), t.TempDir()
	for i := range 30 {
		write(t, dir, fmt.Sprintf("f%02d", i), "x")
	}
	var single, refused atomic.Int32
	a := between(t, &loc)
	a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
		r.Header.Set("Accept-Encoding", "gzip,gfe")
		switch {
		case r.Method == http.MethodPost && r.URL.Query().Has("delete"),
			r.Method == http.MethodPut && r.Header.Get("If-Match")+r.Header.Get("If-None-Match") != "":
			refused.Add(1)
			return xmlFault(w, http.StatusNotImplemented, "NotImplemented")
		case r.Method == http.MethodDelete:
			single.Add(1)
		}
		return false
	})
	b := openBucket(t, loc)
	mustSync(t, dir, b, Options{Direction: plan.Up, State: state})
	for i := range 20 {
		must(t, os.Remove(filepath.Join(dir, fmt.Sprintf("f%02d", i))))
	}
	write(t, dir, "g", "y")
	// Each file, the first one twice to find out about conditions, and the note of the deletion.
	if stats := mustSync(t, dir, b, Options{Direction: plan.Up, State: state, Mirror: true,
		DeleteMany: true}); stats.Deleted != 20 || single.Load() != 22 || refused.Load() < 3 {
		t.Errorf("up: %s, with %d deletions, %d refused", stats, single.Load(), refused.Load())
	}
	mustSync(t, back, b, Options{Direction: plan.Down, List: true, Owners: true})
	sameTrees(t, dir, back)
	// Files that cannot be deleted are reported, and the others are deleted.
	for _, name := range []string{"f20", "f21"} {
		must(t, os.Remove(filepath.Join(dir, name)))
	}
	a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
		return r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "f20") &&
			xmlFault(w, http.StatusForbidden, "AccessDenied")
	})
	stats, err := Sync(t.Context(), openTree(t, dir), b, Options{Direction: plan.Up, State: state, Mirror: true})
	if err != nil || stats.Failed != 1 || stats.Failures[0].Path != "f20" {
		t.Errorf("a refused deletion: %+v, %v", stats.Failures, err)
	}
	if _, err := b.Stat(t.Context(), "f21"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("f21: %v", err)
	}
}

// TestObjectDeletedBehindManifest deletes an object behind the manifest. A machine that does not list the bucket finds
// that out when it fetches the object: nothing fails, and the next manifest does not have it.
// mission: A8, D2
func TestObjectDeletedBehindManifest(t *testing.T) {
	t.Parallel()
	for place, machines := range places {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			x, y := machines(t)
			write(t, x.dir, "d/new", "content")
			write(t, x.dir, "edited", "1")
			write(t, x.dir, "other", "other")
			x.both(t)
			must(t, x.b.Delete(t.Context(), []string{"d/new"}, func(_ string, err error) { must(t, err) }))
			y.both(t)
			settle(t, y, x)
			write(t, x.dir, "edited", "2-edited")
			x.both(t)
			must(t, x.b.Delete(t.Context(), []string{"edited"}, func(_ string, err error) { must(t, err) }))
			settle(t, y, x)
			want := map[string][]string{"other": {"other"}}
			if got := filesOf(t, y.dir); !maps.EqualFunc(got, want, slices.Equal) {
				t.Errorf("the volume has %q", got)
			}
		})
	}
}

// TestObjectDeletedBehindEditOfSameSize deletes an object behind the manifest, after an edit that kept the size and the
// time. The other machine has the old content in an inode that changed since its last sync, so that it compares the
// contents before it fetches the object.
// mission: D1, D2
func TestObjectDeletedBehindEditOfSameSize(t *testing.T) {
	t.Parallel()
	b := strictBucket(t)
	one, two := twoAt(t, b)
	write(t, one.dir, "p", "zero")
	write(t, one.dir, "other", "other")
	settle(t, one, two)
	disguise(t, one.dir, "p", "edit")
	one.both(t)
	must(t, b.Delete(t.Context(), []string{"p"}, func(_ string, err error) { must(t, err) }))
	must(t, os.Chmod(filepath.Join(two.dir, "p"), 0o644)) // the mode stays, the ctime does not
	two.both(t)
	if got := filesOf(t, two.dir); len(got) != 1 || len(got["other"]) != 1 {
		t.Errorf("the other machine has %q", got)
	}
	settle(t, one, two)
}

// TestLinkedObjectsDeletedBehindManifest deletes the objects of two names of a file behind the manifest. A machine that
// does not list the bucket makes the second name once all files are in place, and finds then that it has no object.
// mission: A8, D2
func TestLinkedObjectsDeletedBehindManifest(t *testing.T) {
	t.Parallel()
	b := strictBucket(t)
	one, two := twoAt(t, b)
	write(t, one.dir, "other", "other")
	settle(t, one, two)
	write(t, one.dir, "p", "zero")
	must(t, os.Link(filepath.Join(one.dir, "p"), filepath.Join(one.dir, "q")))
	one.both(t)
	must(t, b.Delete(t.Context(), []string{"p", "q"}, func(_ string, err error) { must(t, err) }))
	two.both(t)
	settle(t, two, one)
	if got := filesOf(t, two.dir); len(got) != 1 || len(got["other"]) != 1 {
		t.Errorf("the other machine has %q", got)
	}
}

// TestFileBehindManifestInPlaceOfDirectory makes a directory where another program has stored a file that no manifest
// has, on a server that stores objects as files. A sync that does not list the bucket keeps both, whatever the server
// refuses: the object of the directory, or a file beneath it.
// mission: D1, D2
func TestFileBehindManifestInPlaceOfDirectory(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]os.FileMode{"with an object": 0o711, "through its files": 0o755} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all, direct, _ := machines(t, 2)
			one, two := all[0], all[1]
			write(t, one.dir, "other", "other")
			settle(t, one, two)
			for i := range 5 {
				write(t, one.dir, fmt.Sprintf("a/b/x%d", i), "beneath")
			}
			must(t, os.Chmod(filepath.Join(one.dir, "a"), mode))
			put(t, direct, "a", "of another program")
			if s := one.both(t); s.Conflicts != 1 || len(s.Decided) != 1 || s.Decided[0].Path != "a" {
				t.Errorf("the decisions: %d %+v", s.Conflicts, s.Decided)
			}
			settle(t, one, two)
			for _, m := range all {
				got := filesOf(t, m.dir)
				if len(got) != 7 || !slices.Equal(got["a copy"], []string{"of another program"}) {
					t.Errorf("a machine has %q", got)
				}
			}
			if info, err := os.Stat(filepath.Join(two.dir, "a")); err != nil || info.Mode().Perm() != mode {
				t.Errorf("the directory: %v, %v", info, err)
			}
		})
	}
}
