package gvisor

import (
	"github.com/RelevanceAI/harvest/engine/gvisor/keeper"
	"github.com/RelevanceAI/harvest/engine/gvisor/sentry"
	"github.com/RelevanceAI/harvest/engine/gvisor/tool"
)

// Main hands the process over if it was started as one of the engine's helpers: a keeper, a tool inside a sandbox, or a part
// of gVisor. It then never returns. A program that uses this engine without naming others for them (Options) calls it first of all in main.
func Main() {
	keeper.Handover()
	tool.Handover()
	sentry.Main()
}
