package volsync

import (
	"cmp"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/state"
)

// marks returns the records of restores in a state.
func marks(t *testing.T, stateDir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(stateDir, state.UnsettledDir, "*"))
	must(t, err)
	return files
}

// failures returns the paths that a sync reported.
func failures(stats Stats) []string {
	paths := map[string]bool{}
	for _, f := range stats.Failures {
		paths[f.Path] = true
	}
	return slices.Sorted(maps.Keys(paths))
}

// lose does the same to a restored file as a power failure: the file keeps its name, mode and time, but loses its
// content.
func lose(t *testing.T, path, left string) {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	must(t, os.WriteFile(path, []byte(left), 0o644))
	must(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
}

// TestRestoredInVain checks that a restored file whose content was lost, because the disk refused it or the power
// failed before it was durable, never replaces its object: it is restored again. Later changes are sent all the same.
// mission: 3.4, 3.5, A8
func TestRestoredInVain(t *testing.T) {
	for name, c := range map[string]struct {
		fail   bool   // the disk refuses the written data
		mark   string // the content of the mark afterwards; "" is the sync's
		doubts bool
	}{
		"the disk failed":         {fail: true, doubts: true},
		"the power failed":        {mark: `{"boot":"another"}`, doubts: true},
		"while the mark was made": {mark: " ", doubts: true},
		"killed":                  {mark: "{}"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, back, stateDir, b := t.TempDir(), t.TempDir(), t.TempDir(), openBucket(t, location(t))
			for _, f := range []string{"a", "b", "d/c"} {
				write(t, dir, f, "content of "+f)
			}
			age(t, dir)
			mustSync(t, dir, b, Options{Direction: plan.Up})
			down, up := Options{Direction: plan.Down, State: stateDir, Owners: true}, Options{Direction: plan.Up,
				State: stateDir}

			tree := openTree(t, back)
			tree.Syncfs = func(int) error { return unix.EIO } // which, for a crash, is as if the sync had been killed before
			if _, err := Sync(t.Context(), tree, b, down); !errors.Is(err, unix.EIO) {
				t.Fatalf("a disk that fails: %v", err)
			}
			files := marks(t, stateDir)
			if len(files) != 1 {
				t.Fatalf("%d marks", len(files))
			}
			var mark state.Unsettled
			raw, err := os.ReadFile(files[0])
			must(t, err)
			must(t, json.Unmarshal(raw, &mark))
			if !mark.Failed || mark.From == 0 || mark.Boot == "" || mark.Place != b.String() {
				t.Fatalf("the mark says %s", raw)
			}
			if !c.fail {
				mark.Failed = false
				must(t, json.Unmarshal([]byte(cmp.Or(strings.TrimSpace(c.mark), "{}")), &mark))
				raw, err := json.Marshal(mark)
				must(t, err)
				if c.mark == " " {
					raw = nil
				}
				at := time.Unix(0, mark.From)
				must(t, os.WriteFile(files[0], raw, 0o600))
				must(t, os.Chtimes(files[0], at, at))
			}
			if c.doubts {
				lose(t, filepath.Join(back, "a"), "")                    // shorter
				lose(t, filepath.Join(back, "d/c"), "\x00ontent of d/c") // as long
			}
			write(t, back, "mine", "written since")

			want := []string{"a", "b", "d/c"}
			if !c.doubts {
				want = nil
			}
			elsewhere := openBucket(t, location(t))
			for _, to := range []*object.Bucket{b, elsewhere} {
				stats, err := Sync(t.Context(), openTree(t, back), to, up)
				must(t, err)
				if got := failures(stats); !slices.Equal(got, want) {
					t.Errorf("up named %q, want %q", got, want)
				}
				if c.doubts && (stats.Files != 1 || !strings.Contains(stats.Failures[0].Remedy, "sync down from ") ||
					c.mark != " " && !strings.Contains(stats.Failures[0].Remedy, b.String())) {
					t.Errorf("up: %s, %+v", stats, stats.Failures)
				}
			}
			if got := len(marks(t, stateDir)); got != 1 {
				t.Errorf("%d marks after what changes nothing here", got)
			}
			stats := mustSync(t, back, b, down)
			if got := len(marks(t, stateDir)); got != 0 {
				t.Errorf("%d marks after a restore", got)
			}
			if c.doubts && stats.Files != 3 {
				t.Errorf("down again: %s", stats)
			}
			write(t, dir, "mine", "written since")
			must(t, os.Chtimes(filepath.Join(dir, "mine"), time.Now(), modTime(t, filepath.Join(back, "mine"))))
			must(t, os.Chtimes(filepath.Join(dir), time.Now(), modTime(t, back)))
			sameTrees(t, dir, back)
			if stats := mustSync(t, back, b, up); stats.Files != 0 {
				t.Errorf("up at last: %s", stats)
			}
		})
	}
}

func modTime(t *testing.T, path string) time.Time {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	return info.ModTime()
}

// TestEditedAfterTheFailure checks that a file which a person changed after the power failure, with a time from before
// it, as cp -p and tar do, is theirs: it is sent, and never restored over. A damaged file beside it is restored.
// mission: 3.4, A8
func TestEditedAfterTheFailure(t *testing.T) {
	dir, back, stateDir, b := t.TempDir(), t.TempDir(), t.TempDir(), openBucket(t, location(t))
	write(t, dir, "damaged", "content")
	write(t, dir, "edited", "content")
	age(t, dir)
	mustSync(t, dir, b, Options{Direction: plan.Up})
	tree := openTree(t, back)
	tree.Syncfs = func(int) error { return unix.EIO }
	if _, err := Sync(t.Context(), tree, b, Options{Direction: plan.Down, State: stateDir}); err == nil {
		t.Fatal("a disk that fails was no error")
	}
	file := marks(t, stateDir)[0]
	var mark state.Unsettled
	raw, err := os.ReadFile(file)
	must(t, err)
	must(t, json.Unmarshal(raw, &mark))
	mark.Boot, mark.Failed = "another", false
	raw, err = json.Marshal(mark)
	must(t, err)
	must(t, os.WriteFile(file, raw, 0o600))

	lose(t, filepath.Join(back, "damaged"), "")
	started := time.Now().Add(time.Millisecond) // ctimes lag a little
	for name := filepath.Join(back, "edited"); ; {
		lose(t, name, "by a person")
		var st unix.Stat_t
		must(t, unix.Lstat(name, &st))
		if time.Unix(st.Ctim.Unix()).After(started) {
			break
		}
	}
	both := Options{Direction: plan.Both, State: stateDir, booted: started.Add(-time.Second)}
	if stats, err := Sync(t.Context(), openTree(t, back), b, both); err != nil || stats.Failed+stats.Conflicts > 0 {
		t.Errorf("%s, %v", stats, err)
	}
	mustSync(t, dir, b, Options{Direction: plan.Down, List: true, Contents: true})
	for _, side := range []string{dir, back} {
		for name, want := range map[string]string{"damaged": "content", "edited": "by a person"} {
			if got, err := os.ReadFile(filepath.Join(side, name)); err != nil || string(got) != want {
				t.Errorf("%s has %q, want %q: %v", name, got, want, err)
			}
		}
	}
	if left := marks(t, stateDir); len(left) > 0 {
		t.Errorf("records are left: %s", left)
	}
}

// TestDoubtsEnd checks that a suspect file that its owner has checked and touched counts as theirs, and that a file of
// another tree at the same path was never suspect.
func TestDoubtsEnd(t *testing.T) {
	dir, back, state, b := t.TempDir(), t.TempDir(), t.TempDir(), openBucket(t, location(t))
	write(t, dir, "f", "content")
	age(t, dir)
	mustSync(t, dir, b, Options{Direction: plan.Up})
	tree := openTree(t, back)
	tree.Syncfs = func(int) error { return unix.EIO }
	if _, err := Sync(t.Context(), tree, b, Options{Direction: plan.Down, State: state}); err == nil {
		t.Fatal("a disk that fails was no error")
	}
	for _, direction := range []plan.Direction{plan.Up, plan.Both} {
		if stats, err := Sync(t.Context(), openTree(t, back), openBucket(t, location(t)),
			Options{Direction: direction, State: state}); err != nil || stats.Failed != 1 {
			t.Errorf("%s elsewhere: %s, %v", direction, stats, err)
		}
	}
	must(t, os.Chtimes(filepath.Join(back, "f"), time.Now(), time.Now()))
	if stats := mustSync(t, back, b, Options{Direction: plan.Up, State: state}); stats.Failed+stats.Deleted > 0 {
		t.Errorf("touched: %s", stats)
	}
	must(t, os.Rename(back, back+".old"))
	must(t, os.Mkdir(back, 0o755))
	write(t, back, "f", "of another tree")
	age(t, back)
	if stats := mustSync(t, back, b, Options{Direction: plan.Up, State: state}); stats.Files != 1 {
		t.Errorf("another tree: %s", stats)
	}
}
