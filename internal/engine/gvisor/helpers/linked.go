//go:build !keeper && !race

package helpers

import (
	"github.com/RelevanceAI/harvest/internal/engine/container/pid1"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/sentry"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/tool"
)

// Linked reports whether this program contains the helpers. It does if it was built without embedded programs.
const Linked = true

// Main takes the process over if it was started as one of the engine's helper processes: a keeper, a tool inside a
// sandbox, the first process of a container, or a part of gVisor. It then never returns. A program that uses the engine
// without naming other programs in gvisor.Options must call it first in main.
func Main() {
	keeper.Handover()
	tool.Handover()
	pid1.Handover()
	sentry.Main()
}
