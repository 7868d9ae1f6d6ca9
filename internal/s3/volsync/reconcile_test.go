package volsync

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// TestBothWithoutMemory checks that a tree that both sides already have, when a machine first synchronises it in both
// directions, conflicts only where it differs.
// mission: D1, D2
func TestBothWithoutMemory(t *testing.T) {
	for _, stored := range []bool{true, false} {
		t.Run(map[bool]string{true: "manifest", false: "list"}[stored], func(t *testing.T) {
			one, two, b := t.TempDir(), t.TempDir(), openBucket(t, location(t))
			for _, dir := range []string{one, two} {
				write(t, dir, "same", "same content")
				write(t, dir, "d/empty", "")
				write(t, dir, "differs", "of "+filepath.Base(dir)) // of one length
				write(t, dir, "large", strings.Repeat("0123456789abcdef", 20<<16))
				must(t, os.Symlink("same", filepath.Join(dir, "link")))
			}
			// The two machines checked it out at different times.
			for _, name := range []string{"same", "d/empty", "differs", "large", "link"} {
				past := []unix.Timespec{unix.NsecToTimespec(time.Now().Add(-time.Hour).UnixNano()),
					unix.NsecToTimespec(time.Now().Add(-time.Hour).UnixNano())}
				must(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(one, name), past, unix.AT_SYMLINK_NOFOLLOW))
			}
			mustSync(t, one, b, Options{Direction: plan.Up})
			if !stored {
				must(t, b.Delete(t.Context(), []string{manifest.Key}, func(_ string, err error) { t.Error(err) }))
			}
			var shown []string
			dry := mustSync(t, two, b, Options{Direction: plan.Both, DryRun: true, Plan: func(a plan.Action) {
				if a.Conflict != "" {
					shown = append(shown, a.Path)
				}
			}})
			stats := mustSync(t, two, b, Options{Direction: plan.Both, State: t.TempDir()})
			if dry.Conflicts != 1 || len(shown) != 1 || stats.Conflicts != 1 || len(stats.Decided) != 1 ||
				stats.Decided[0].Path != "differs" {
				t.Errorf("in conflict should be one: %+v; shown before: %q", stats.Decided, shown)
			}
			copies, err := filepath.Glob(filepath.Join(two, "*.conflict-*"))
			if err != nil || len(copies) != 1 {
				t.Errorf("copies: %q, %v", copies, err)
			}
			if to, err := os.Readlink(filepath.Join(two, "link")); to != "same" {
				t.Errorf("the link leads to %q, %v", to, err)
			}
		})
	}
}

// TestVersionsWithFailures checks that a file that cannot be read from the volume is in the new version as it was in
// the previous one, and stays when that one is deleted.
// mission: D4, 2.5
func TestVersionsWithFailures(t *testing.T) {
	loc := location(t)
	loc.Prefix = "account"
	b, dir, o := openBucket(t, loc), t.TempDir(), Options{State: t.TempDir()}
	write(t, dir, "kept", "one")
	write(t, dir, "changed", "one")
	write(t, dir, "d/kept", "one")
	first, _, err := Save(t.Context(), openTree(t, dir), b, o)
	must(t, err)
	for _, name := range []string{"kept", "d/kept"} {
		must(t, os.Remove(filepath.Join(dir, name)))
		must(t, unix.Mkfifo(filepath.Join(dir, name), 0o600))
	}
	write(t, dir, "changed", "another")
	second, stats, err := Save(t.Context(), openTree(t, dir), b, o)
	must(t, err)
	if stats.Failed != 2 || second == first {
		t.Fatalf("the second version %s: %s", second.Name(), stats)
	}
	third, stats, err := Save(t.Context(), openTree(t, dir), b, o)
	if err != nil || third != second || stats.Failed != 2 {
		t.Errorf("nothing changed, and there is a version %s: %s, %v", third.Name(), stats, err)
	}
	if deleted, err := b.Prune(t.Context(), 1); err != nil || len(deleted) != 1 {
		t.Fatalf("deleted %v, %v", deleted, err)
	}
	back := t.TempDir()
	_, stats, err = Restore(t.Context(), openTree(t, back), b, second, Options{})
	if err != nil || stats.Failed > 0 {
		t.Fatalf("the second version comes back: %+v, %v", stats.Failures, err)
	}
	for name, want := range map[string]string{"kept": "one", "d/kept": "one", "changed": "another"} {
		if raw, err := os.ReadFile(filepath.Join(back, name)); err != nil || string(raw) != want {
			t.Errorf("%s is %q, %v", name, raw, err)
		}
	}
}
