package cli

import (
	"testing"

	"github.com/RelevanceAI/harvest/test/host"
)

func TestScriptsGVisor(t *testing.T) {
	t.Parallel()
	host.Scripts(t, "../../../cmd/harvest/testdata/script", "gvisor", host.GVisor(t))
}
