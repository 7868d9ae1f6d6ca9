package cli

import (
	"testing"

	"github.com/RelevanceAI/harvest/e2e/host"
)

func TestScriptsGVisor(t *testing.T) {
	t.Parallel()
	host.Scripts(t, "../../cmd/harvest/testdata/script", "gvisor", host.GVisor(t))
}
