package volume_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

func TestGiveChangesOwnerOfFreshVolumesOnly(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root may change owners: run this test with sudo")
	}
	all, err := volume.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := all.Close(); err != nil {
			t.Error(err)
		}
	})
	owner := func(path string) int {
		t.Helper()
		stat, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		return int(stat.Sys().(*syscall.Stat_t).Uid)
	}
	for name, change := range map[string]struct {
		volume string
		do     func(dir string) error
		given  bool
	}{
		"empty": {"a", func(string) error { return nil }, true},
		"state": {volume.StateName, func(string) error { return nil }, true},
		"file":  {"b", func(dir string) error { return os.WriteFile(dir+"/file", nil, 0o600) }, false},
		"file of the state": {volume.StateName,
			func(dir string) error { return os.WriteFile(dir+"/sessions/x", nil, 0o600) }, false},
		"link":   {"c", func(dir string) error { return os.Symlink("/", dir+"/sessions") }, false},
		"closed": {"d", func(dir string) error { return os.Chmod(dir, 0o700) }, false},
	} {
		if _, err := all.Create(t.Context(), change.volume); err != nil {
			t.Fatal(err)
		}
		dir := all.Path(change.volume)
		if err := change.do(dir); err != nil {
			t.Fatal(err)
		}
		if err := volume.Give(dir, 1234, 5678); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if given := owner(dir) == 1234; given != change.given {
			t.Errorf("%s: given %t", name, given)
		}
		if change.volume == volume.StateName && (owner(filepath.Join(dir, "sessions")) == 1234) != change.given {
			t.Errorf("%s: a directory of the state has another owner than the volume", name)
		}
		if change.given {
			if err := volume.Give(dir, 99, 99); err != nil || owner(dir) != 1234 {
				t.Errorf("%s: the second user took the volume: %v", name, err)
			}
		}
		if err := all.Delete(t.Context(), change.volume); err != nil {
			t.Fatal(err)
		}
	}
	if err := volume.Give(filepath.Join(t.TempDir(), "missing"), 1, 1); err == nil {
		t.Error("a missing volume was given")
	}
}
