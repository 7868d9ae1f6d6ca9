package kubernetes

import (
	"testing"

	"github.com/RelevanceAI/harvest/test/host"
)

// TestSuspension suspends a sandbox, whose pod goes, and wakes it by requests in a new pod.
func TestSuspension(t *testing.T) {
	h := newHost(t, nil)
	host.Suspension(t, h, false, func(string) {
		if left := pods(t); len(left) > 0 {
			t.Errorf("pods of a suspended sandbox: %q", left)
		}
	}, "--volume", "data:/data")
}
