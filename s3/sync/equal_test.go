package sync

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/s3/buffer"
	"github.com/RelevanceAI/harvest/s3/sync/plan"
)

// TestEqualContentOutlivesADeletion stores the content that an object has on its path again, after the manifest of the
// machine that deletes it and before its deletion of the object. Equal contents have equal ETags.
// mission: A8, D1
func TestEqualContentOutlivesADeletion(t *testing.T) {
	t.Parallel()
	t.Run("unremembered", func(t *testing.T) {
		t.Parallel()
		testEqualContent(t, false, "content", func(second *machine) { second.state = t.TempDir() })
	})
	again := func(content string) func(*machine) {
		return func(second *machine) {
			must(t, os.Remove(filepath.Join(second.dir, "f")))
			write(t, second.dir, "f", content)
			must(t, os.Remove(filepath.Join(second.dir, "link")))
			must(t, os.Symlink("other", filepath.Join(second.dir, "link")))
		}
	}
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
		must(t, err)
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
