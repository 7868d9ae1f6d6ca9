package volume_test

import (
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

// TestDeleteDuringClose deletes a volume while Close waits for the removal of files, and afterwards.
func TestDeleteDuringClose(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "volumes")
	testenv.CloseWhileUsed(t, func() (use, end func()) {
		l, err := volume.OpenDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Create(t.Context(), "v"); err != nil {
			t.Fatal(err)
		}
		return func() { _ = l.Delete(t.Context(), "v") }, func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
