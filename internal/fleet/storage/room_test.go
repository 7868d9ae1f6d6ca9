package storage

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	s3sync "github.com/RelevanceAI/harvest/internal/s3/volsync"
)

// TestSyncsHaveTheFileLimit checks that a sync from S3 does not create more files, links and directories in a volume
// than it may have. It names those that are missing, and replaces existing files.
//
// mission: A6
func TestSyncsHaveTheFileLimit(t *testing.T) {
	h := newHome(t, nil)
	from := h.volume(t, "data", "a", "b", "c", "d")
	must(t, os.MkdirAll(filepath.Join(dirOf(from), "dir", "sub"), 0o755))
	must(t, os.WriteFile(filepath.Join(dirOf(from), "dir", "sub", "e"), nil, 0o644))
	must(t, os.Symlink("a", filepath.Join(dirOf(from), "link")))
	h.sync(t, "acme", from, Request{Sync: up})
	must(t, os.WriteFile(filepath.Join(dirOf(from), "a"), []byte("changed"), 0o644))
	h.sync(t, "acme", from, Request{Sync: up})

	must(t, h.volumes.Delete(t.Context(), "data"))
	to := h.volume(t, "data", "a", "own")
	count := func() (files int) {
		must(t, filepath.WalkDir(dirOf(to), func(string, fs.DirEntry, error) error { files++; return nil }))
		return files - 1 // without the root
	}
	for _, most := range []int{3, 5, 8} {
		h.volumes.SetFileLimit(most)
		res, err := h.Sync(t.Context(), "acme", to, Request{Sync: down})
		must(t, err)
		// There are nine entries: seven in S3 that are new, one that is replaced, and one of the volume's own.
		explained := slices.ContainsFunc(res.Stats.Failures, func(f s3sync.Failure) bool {
			return strings.Contains(f.Reason, "files and directories") &&
				strings.Contains(f.Remedy, "limits.volume_files")
		})
		if n := count(); n > most || n < most-2 || res.Stats.Failed == 0 || !explained {
			t.Errorf("of at most %d there are %d; %d failed: %+v", most, n, res.Stats.Failed, res.Stats.Failures)
		}
		if text, err := os.ReadFile(filepath.Join(dirOf(to), "a")); err != nil || string(text) != "changed" {
			t.Errorf("an existing file is %q, %v", text, err)
		}
	}
	h.volumes.SetFileLimit(9)
	h.sync(t, "acme", to, Request{Sync: down})
	if n := count(); n != 9 {
		t.Errorf("there are %d files and directories, want 9", n)
	}
}
