package mount

import (
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// TestWatchDuringClose begins to watch a mount while the Manager is closed, and afterwards.
func TestWatchDuringClose(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testenv.CloseWhileUsed(t, func() (use, end func()) {
		m, err := Open(t.Context(), Options{Dir: dir, Tell: func(Told) {}})
		if err != nil {
			t.Fatal(err)
		}
		return func() { m.watch(about("sbx_1")) }, m.Close
	})
}
