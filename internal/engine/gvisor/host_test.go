package gvisor

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// TestTrashDuringClose checks that nothing is left of files that are thrown away while the trash is closed, and
// afterwards.
func TestTrashDuringClose(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, rubbish := filepath.Join(dir, "file"), filepath.Join(dir, "trash")
	var one sync.Mutex
	testenv.CloseWhileUsed(t, func() (use, end func()) {
		bin := openTrash(rubbish)
		return func() {
			one.Lock()
			defer one.Unlock()
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Error(err)
			}
			if err := bin.put(file); err != nil {
				t.Error(err)
			}
		}, bin.close
	})
	if left, err := os.ReadDir(rubbish); err != nil || len(left) > 0 {
		t.Errorf("%d files are left: %v", len(left), err)
	}
}
