package kubernetes

import (
	"testing"

	"github.com/RelevanceAI/harvest/test/host"
)

// TestSuspension suspends a sandbox, whose pod goes, and wakes it by requests in a new pod.
func TestSuspension(t *testing.T) {
	h := newHost(t, nil)
	host.Suspension(t, h, false, func() []string { return pods(t) }, "--volume", "data:/data")
}
