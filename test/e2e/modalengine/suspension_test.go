package modalengine

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/host/modalhost"
)

// TestModalEngineSuspension suspends a sandbox at Modal, whose sandbox there ends, and wakes it by requests in another
// one.
func TestModalEngineSuspension(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	at := modalhost.WithBase(t)
	h := newModalHost(t, at)
	host.Suspension(t, h, false, func() []string {
		out, err := at.Run("sandbox", "ls", "-o", "name")
		if err != nil {
			t.Errorf("%s, %v", out, err)
		}
		return strings.Fields(out)
	})
}
