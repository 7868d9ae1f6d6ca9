package gvisor

import (
	"github.com/RelevanceAI/harvest/engine/gvisor/keeper"
	"github.com/RelevanceAI/harvest/engine/gvisor/sentry"
	"github.com/RelevanceAI/harvest/engine/gvisor/tool"
)

// Main takes the process over if it was started as one of the engine's helper processes: a keeper, a tool
// inside a sandbox, or a part of gVisor. It then never returns. A program that uses this engine without naming
// other programs in Options must call it first in main.
func Main() {
	keeper.Handover()
	tool.Handover()
	sentry.Main()
}
