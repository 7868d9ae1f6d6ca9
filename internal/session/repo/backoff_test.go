package repo

import (
	"strings"
	"testing"
	"time"
)

// A repository that cannot be built is shown as failed, and its schedule tries less and less often.
// mission: B5
func TestFailuresBackOff(t *testing.T) {
	t.Parallel()
	r := Repo{Status: Ready}
	ended := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	for n, hours := range []time.Duration{0, 0, 0, 1, 2, 4, 8, 16, 24, 24} {
		r.failed(Build{Stage: "install", Error: "exit code 1", Ended: ended})
		if next := ended.Add(hours * time.Hour); r.Status != Failed || r.Failures != n+1 || hours > 0 &&
			!r.Next.Equal(next) || hours == 0 && !r.Next.IsZero() {
			t.Errorf("failure %d: %+v", n+1, r)
		}
		if says := strings.Contains(r.Reason, "the next attempt is after"); says != (hours > 0) ||
			!strings.HasPrefix(r.Reason, "install: exit code 1") {
			t.Errorf("failure %d: %q", n+1, r.Reason)
		}
	}
}
