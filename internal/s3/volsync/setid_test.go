package volsync

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// setIDModes are the modes of files and directories with setuid and setgid bits.
var setIDModes = map[string]os.FileMode{"suid": os.ModeSetuid | 0o711, "sgid": os.ModeSetgid | 0o755,
	"both": os.ModeSetuid | os.ModeSetgid | 0o700, "shared": os.ModeDir | os.ModeSetgid | 0o775}

// setIDTree has a file for each of setIDModes, and one without such bits.
func setIDTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "shared"), 0o755))
	for _, name := range []string{"suid", "sgid", "both", "plain", "shared/f"} {
		write(t, dir, name, name)
	}
	for name, mode := range setIDModes {
		must(t, os.Chmod(filepath.Join(dir, name), mode))
	}
	age(t, dir)
	return dir
}

// setIDs checks the setuid and setgid bits in a tree: those of setIDModes, or no bits at all.
func setIDs(t *testing.T, dir string, want bool) {
	t.Helper()
	const bits = os.ModeSetuid | os.ModeSetgid
	for name, mode := range setIDModes {
		if !want {
			mode &^= bits
		}
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s is %v, %v, want %v", name, info.Mode(), err, mode)
		}
	}
}

// TestSetIDStaysAway checks that a restore sets setuid and setgid bits only on request. Omitted bits do not count as a
// change, neither locally nor in the bucket.
// mission: 2.2, 3.2
func TestSetIDStaysAway(t *testing.T) {
	t.Parallel()
	for _, remembers := range []bool{false, true} {
		for _, list := range []bool{false, true} {
			t.Run(fmt.Sprintf("remembers=%t list=%t", remembers, list), func(t *testing.T) {
				dir, back, b := setIDTree(t), t.TempDir(), openBucket(t, location(t))
				mustSync(t, dir, b, Options{Direction: plan.Up})
				down := Options{Direction: plan.Down, Owners: true, List: list}
				if remembers {
					down.State = t.TempDir()
				}
				mustSync(t, back, b, down)
				setIDs(t, back, false)
				before := snapshot(t, back)
				if stats := mustSync(t, back, b, down); stats.Files+stats.Updated != 0 || stats.Skipped != 6 {
					t.Errorf("again: %s", stats)
				}
				if remembers {
					// A sync up does not remove the bits in the bucket.
					for _, d := range []plan.Direction{plan.Both, plan.Up, plan.Both} {
						o := down
						o.Direction = d
						mustSync(t, back, b, o)
					}
					third := t.TempDir()
					mustSync(t, third, b, Options{Direction: plan.Down, Owners: true, SetID: true})
					for _, name := range []string{"suid", "sgid", "both"} {
						if info, err := os.Stat(filepath.Join(third, name)); err != nil ||
							info.Mode() != setIDModes[name] {
							t.Errorf("the bucket has %s as %v, %v", name, info.Mode(), err)
						}
					}
				}
				// Files with matching content get the bucket's metadata without the bits, too.
				must(t, os.Chmod(filepath.Join(back, "suid"), 0o600))
				must(t, os.Chmod(filepath.Join(back, "shared"), 0o700))
				if stats := mustSync(t, back, b, down); stats.Files != 0 || stats.Updated == 0 {
					t.Errorf("other modes: %s", stats)
				}
				setIDs(t, back, false)
				if got := snapshot(t, back); len(got) != len(before) || got["suid"] != before["suid"] {
					t.Errorf("there is %v, want %v", got, before)
				}
				down.SetID = true
				mustSync(t, back, b, down)
				setIDs(t, back, true)
			})
		}
	}
}

// TestSetIDOfOthers checks that the same holds for foreign objects whose metadata have such bits.
// mission: 3.2
func TestSetIDOfOthers(t *testing.T) {
	t.Parallel()
	back, state, b := t.TempDir(), t.TempDir(), openBucket(t, location(t))
	for key, header := range map[string]http.Header{
		"suid":    {"X-Amz-Meta-Mode": {"0104755"}, "X-Amz-Meta-Mtime": {"1709210096.5"}},
		"sgid":    {"X-Amz-Meta-File-Permissions": {"0102755"}, "X-Amz-Meta-File-Mtime": {"1709210096500000000ns"}},
		"decimal": {"X-Amz-Meta-Mode": {"36333"}, "X-Amz-Meta-Mtime": {"1709210096"}}, // 0106755, as s3fs writes it
		"shared/": {"X-Amz-Meta-Mode": {"042775"}, "X-Amz-Meta-Mtime": {"1709210096"}},
	} {
		_, err := b.Put(t.Context(), key, []byte{}, crc64nvme.Checksum(nil), header)
		must(t, err)
	}
	modes := func() {
		t.Helper()
		for name, want := range map[string]os.FileMode{"suid": 0o755, "sgid": 0o755, "decimal": 0o755,
			"shared": os.ModeDir | 0o775} {
			if info, err := os.Lstat(filepath.Join(back, name)); err != nil || info.Mode() != want {
				t.Errorf("%s is %v, %v, want %v", name, info.Mode(), err, want)
			}
		}
	}
	down := Options{Direction: plan.Down, Owners: true, State: state}
	mustSync(t, back, b, down)
	modes()
	if stats := mustSync(t, back, b, down); stats.Files != 0 {
		t.Errorf("again: %s", stats)
	}
	modes()
	// The same holds if only metadata differ.
	must(t, os.Chmod(filepath.Join(back, "suid"), 0o600))
	mustSync(t, back, b, down)
	modes()
}
