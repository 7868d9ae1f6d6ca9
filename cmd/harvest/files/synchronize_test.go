package files

import (
	"testing"

	"github.com/RelevanceAI/harvest/api"
)

// TestSyncBar checks that a sync in a terminal shows a progress bar once the total is known.
// mission: 2.6
func TestSyncBar(t *testing.T) {
	t.Parallel()
	stats := api.SyncStats{Files: 3, Bytes: 2 << 20, Rate: 1 << 20, Skipped: 4}
	const rest = "3 files, 2MiB, 1MiB/s; 4 unchanged, 0 failed"
	half, whole := stats, stats
	half.Seen, half.Total, whole.Seen, whole.Total = 512<<20, 1<<30, 1<<30, 1<<30
	for _, c := range []struct {
		stats api.SyncStats
		bar   bool
		want  string
	}{
		{stats, true, "harvest: data: " + rest},
		{half, true, "harvest: data: [==========          ] 50% of 1GiB, " + rest},
		{whole, true, "harvest: data: [====================] 100% of 1GiB, " + rest},
		{half, false, "harvest: data: 50% of 1GiB, " + rest},
	} {
		if got := soFar("data", c.stats, c.bar); got != c.want {
			t.Errorf("shown %q, want %q", got, c.want)
		}
	}
}
