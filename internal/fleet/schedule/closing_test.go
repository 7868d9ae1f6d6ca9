package schedule_test

import (
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/fleet/schedule"
)

// TestRunDuringClose starts a job while the Scheduler is closed, and afterwards.
func TestRunDuringClose(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	opts := w.opts
	opts.Store, opts.ByHand = w.store, true
	testenv.CloseWhileUsed(t, func() (use, end func()) {
		s, err := schedule.Open(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Set(t.Context(), halfHourly()); err != nil {
			t.Fatal(err)
		}
		return func() { _, _ = s.RunNow(t.Context(), account, "job") }, func() { shut(t, s) }
	})
}
