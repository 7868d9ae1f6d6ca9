package volsync

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/state"
)

// TestDeletionsCutShort checks that the next sync finishes a deletion that was interrupted between the manifest and the
// objects, and that none of the files comes back. Files that were rewritten meanwhile are not deleted.
// mission: A8, D1
func TestDeletionsCutShort(t *testing.T) {
	for name, next := range map[string]Options{
		"both, listed":   {Direction: plan.Both, List: true},
		"both":           {Direction: plan.Both},
		"mirror, listed": {Direction: plan.Up, Mirror: true, List: true},
		"mirror":         {Direction: plan.Up, Mirror: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, stateDir, loc := t.TempDir(), t.TempDir(), location(t)
			for i := range 6 {
				write(t, dir, fmt.Sprintf("gone/all/f%d", i), "one")
			}
			for _, name := range []string{"stays", "again", "rewritten", "sent"} {
				write(t, dir, name, "of "+name)
			}
			a := between(t, &loc)
			b := openBucket(t, loc)
			mustSync(t, dir, b, Options{Direction: plan.Up, State: stateDir})
			must(t, os.RemoveAll(filepath.Join(dir, "gone")))
			for _, name := range []string{"again", "rewritten", "sent"} {
				must(t, os.Remove(filepath.Join(dir, name)))
			}
			ctx, cancel := context.WithCancel(t.Context())
			a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
				if !isDeletion(r) {
					return false
				}
				cancel()
				return xmlFault(w, 500, "InternalError")
			})
			if _, err := Sync(ctx, openTree(t, dir), b,
				Options{Direction: plan.Up, Mirror: true, State: stateDir}); err == nil {
				t.Fatal("the sync was not cut short")
			}
			// Down, none of the files comes back, and a copy up deletes nothing.
			mustSync(t, dir, b, Options{Direction: plan.Down, List: true, State: stateDir})
			mustSync(t, dir, b, Options{Direction: plan.Up, State: stateDir})
			for _, name := range []string{"gone", "again"} {
				if _, err := os.Lstat(filepath.Join(dir, name)); !errors.IsNotExist(err) {
					t.Fatalf("%s came back: %v", name, err)
				}
			}
			if _, err := b.Stat(t.Context(), "gone/all/f0"); err != nil {
				t.Errorf("a copy deleted: %v", err)
			}
			a.reset(nil) // now no deletion of the sync that was cut short is on its way
			write(t, dir, "again", "of again")
			other := t.TempDir()
			write(t, other, "sent", "of sent")
			write(t, other, "rewritten", "by another")
			mustSync(t, other, b, Options{Direction: plan.Up})
			next.State = stateDir
			mustSync(t, dir, b, next)
			for i := range 6 {
				if _, err := b.Stat(t.Context(), fmt.Sprintf("gone/all/f%d",
					i)); errors.KindOf(err) != errors.NotFound {
					t.Errorf("f%d is still there: %v", i, err)
				}
			}
			if _, err := os.Lstat(filepath.Join(dir, "gone")); !errors.IsNotExist(err) {
				t.Errorf("the directory came back: %v", err)
			}
			third := t.TempDir()
			mustSync(t, third, b, Options{Direction: plan.Down, List: true})
			want := map[string]string{"stays": "of stays", "again": "of again"}
			if next.Direction == plan.Both {
				want["rewritten"], want["sent"] = "by another", "of sent"
			}
			for _, name := range []string{"stays", "again", "rewritten", "sent"} {
				if raw, err := os.ReadFile(filepath.Join(third, name)); string(raw) != want[name] {
					t.Errorf("%s is %q, want %q: %v", name, raw, want[name], err)
				}
			}
			if left, err := filepath.Glob(filepath.Join(stateDir, "*", state.DoomedFile)); err != nil || len(left) > 0 {
				t.Errorf("%q are left, %v", left, err)
			}
		})
	}
}

// TestDeletionsCutShortBeforeTheManifest checks that a deletion that was recorded and not stored is still one: the next
// sync deletes the files, although the bucket and this machine's record have them.
// mission: A8, D1
func TestDeletionsCutShortBeforeTheManifest(t *testing.T) {
	t.Parallel()
	for how, list := range map[string]bool{"unlisted": false, "listed": true} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			all, direct, a := machines(t, 2)
			write(t, all[0].dir, "d/gone", "content")
			write(t, all[0].dir, "stays", "content")
			settle(t, all...)
			must(t, os.RemoveAll(filepath.Join(all[0].dir, "d")))
			o := Options{Direction: plan.Both, State: all[0].state, Owners: true, List: list}
			interruptedAtManifest(t, a, all[0], o)
			if left := glob(t, all[0].state, "*", state.DoomedFile); len(left) != 1 {
				t.Fatalf("the sync had not recorded its deletions: %q", left)
			}
			mustSync(t, all[0].dir, all[0].b, o)
			settle(t, all...)
			for _, m := range all {
				if got := filesOf(t, m.dir); len(got["d/gone"])+len(got["d/gone copy"]) > 0 || len(got["stays"]) != 1 {
					t.Errorf("a machine has %q", got)
				}
			}
			if _, err := direct.Stat(t.Context(), "d/gone"); errors.KindOf(err) != errors.NotFound {
				t.Errorf("the object is left: %v", err)
			}
		})
	}
}

// TestKilledAtTenPoints checks that a sync that is killed at any of ten moments, in each direction, and then repeated
// has the same result as an undisturbed one.
// mission: A8, D1, D2
func TestKilledAtTenPoints(t *testing.T) {
	testenv.Long(t)
	dir := t.TempDir()
	for i := range 60 {
		write(t, dir, fmt.Sprintf("d%02d/f%03d", i%7, i), strings.Repeat(fmt.Sprint(i), i))
	}
	write(t, dir, "large", strings.Repeat("0123456789abcdef", 3<<20)) // 48 MiB: 3 parts
	must(t, os.Symlink("d00", filepath.Join(dir, "link")))
	age(t, dir)
	for _, direction := range []plan.Direction{plan.Up, plan.Down} {
		t.Run(string(direction), func(t *testing.T) {
			count := 10 // the first kill needs no count
			for point := range 11 {
				loc, tree := location(t), dir
				loc.Prefix = fmt.Sprintf("p%d", point)
				plain := loc
				a := between(t, &loc)
				b := openBucket(t, plain)
				if direction == plan.Down {
					mustSync(t, dir, b, Options{Direction: plan.Up})
					tree = t.TempDir()
				}
				c := childSpec{tree, t.TempDir(), direction, loc, ""}
				if point == 0 { // not killed: it counts the requests
					a.reset(nil)
					runUntil(t, a, c, 0)
					count = len(a.seen())
				} else if n := 1 + (point-1)*(count-1)/9; !runUntil(t, a, c, n) {
					t.Errorf("it was not killed when it asked for the %dth time of %d", n, count)
				}
				mustSync(t, tree, b, Options{Direction: direction, State: c.State, Owners: true, Mirror: true})
				back := t.TempDir()
				mustSync(t, back, b, Options{Direction: plan.Down, Owners: true})
				sameTrees(t, dir, back)
				sameTrees(t, dir, tree)
			}
			if count < 30 {
				t.Errorf("a sync asked %d times only", count)
			}
		})
	}
}

// runUntil runs a sync in its own process, which is killed at the server's nth request, and reports whether it was
// killed.
func runUntil(t *testing.T, a *asked, c childSpec, n int) bool {
	t.Helper()
	spec, err := json.Marshal(c)
	must(t, err)
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "S3SYNC_TEST_CHILD="+string(spec))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan struct{})
	a.reset(func(i int, _ http.ResponseWriter, _ *http.Request) bool {
		if i == n {
			<-started
			_ = cmd.Process.Kill()
		}
		return false
	})
	must(t, cmd.Start())
	close(started)
	err = cmd.Wait()
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	killed := status.Signal() == syscall.SIGKILL
	if err != nil && !killed {
		t.Errorf("it ended with %v", err)
	}
	return killed
}
