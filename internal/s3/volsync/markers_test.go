package volsync

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// dirChanges are changes of the directory d, which has the file d/f.
var dirChanges = map[string]func(t *testing.T, dir string){
	"chmod":  func(t *testing.T, dir string) { must(t, os.Chmod(filepath.Join(dir, "d"), 0o750)) },
	"make":   func(t *testing.T, dir string) { must(t, os.MkdirAll(filepath.Join(dir, "d/made/deep"), 0o700)) },
	"delete": func(t *testing.T, dir string) { must(t, os.RemoveAll(filepath.Join(dir, "d"))) },
	"file": func(t *testing.T, dir string) {
		must(t, os.RemoveAll(filepath.Join(dir, "d")))
		write(t, dir, "d", "a file")
	},
}

// orphans are the objects of directories that no machine has.
func orphans(t *testing.T, b *object.Bucket, dir string) (all []string) {
	t.Helper()
	for key := range keysOf(t, b) {
		name, marker := strings.CutSuffix(key, "/")
		if !marker || strings.HasPrefix(key, tree.Reserved+"/") {
			continue
		}
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || !info.IsDir() {
			all = append(all, key)
		}
	}
	return all
}

// TestNoOrphanDirectories runs the sync of another machine at each request of a sync. Whatever the two changed, no
// object of a directory stays that neither machine has any more, and no sync needs a list for that. A directory that
// one machine changed stays.
// mission: A8, D1, D2
func TestNoOrphanDirectories(t *testing.T) {
	t.Parallel()
	for _, mine := range []string{"chmod", "make"} {
		for _, theirs := range []string{"delete", "file"} {
			for _, mode := range []os.FileMode{0o755, 0o700} {
				for _, gone := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s, %s, %o, gone=%v", mine, theirs, mode, gone), func(t *testing.T) {
						t.Parallel()
						for at := 1; overlapped(t, at, mode, mine, theirs, gone); at++ {
						}
					})
				}
			}
		}
	}
}

// overlapped synchronises one machine, with the sync of the other before request at, and reports whether there was such
// a request. If gone is set, somebody deletes the directory on the first machine in this moment, too.
func overlapped(t *testing.T, at int, mode os.FileMode, mine, theirs string, gone bool) (reached bool) {
	t.Helper()
	loc := strictLocation(t, &strictServer{})
	direct := openBucket(t, loc)
	a := between(t, &loc)
	one, two := twoAt(t, direct)
	write(t, one.dir, "d/f", "content")
	write(t, one.dir, "other", "content")
	must(t, os.Chmod(filepath.Join(one.dir, "d"), mode))
	settle(t, one, two)
	dirChanges[mine](t, one.dir)
	dirChanges[theirs](t, two.dir)
	one.b = openBucket(t, loc)
	a.reset(func(n int, _ http.ResponseWriter, _ *http.Request) bool {
		if n == at {
			reached = true
			two.both(t)
			if gone {
				must(t, os.RemoveAll(filepath.Join(one.dir, "d")))
			}
		}
		return false
	})
	_, err := Sync(t.Context(), openTree(t, one.dir), one.b, Options{Direction: plan.Both, State: one.state,
		Owners: true})
	must(t, err) // files that are deleted meanwhile may fail
	a.reset(nil)
	for range 2 {
		one.both(t)
		two.both(t)
	}
	for i, m := range []*machine{one, two} {
		if all := orphans(t, direct, m.dir); len(all) > 0 {
			t.Errorf("request %d: machine %d does not have the directories %q of the bucket", at, i, all)
		}
	}
	info, err := os.Stat(filepath.Join(two.dir, "d"))
	if mine == "chmod" && !gone && (err != nil || info.Mode().Perm() != 0o750) {
		t.Errorf("request %d: the changed directory: %v, %v", at, info, err)
	}
	settle(t, one, two)
	return reached
}
