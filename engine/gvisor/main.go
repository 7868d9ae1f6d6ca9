package gvisor

import (
	"os"
	"runtime/debug"
	"strings"
	"time"

	"gvisor.dev/gvisor/runsc/cli/maincli"
	"gvisor.dev/gvisor/runsc/specutils"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/engine/gvisor/filter"
	"github.com/RelevanceAI/harvest/engine/gvisor/keeper"
	"github.com/RelevanceAI/harvest/engine/gvisor/layer"
)

// Main hands the process over if it was started as one of the engine's helpers: a keeper, a tool inside a sandbox, or a part
// of gVisor, which starts its own binary again under other names. It then never returns. A program that uses this engine
// calls it first of all in main.
func Main() {
	if len(os.Args) == 0 {
		return
	}
	switch name := os.Args[0]; {
	case name == keeper.Name:
		layer.Register()
		os.Exit(keeper.Main())
	case name == engine.OwnEcho:
		engine.Echo(os.Args[1:], os.Stdout)
		os.Exit(0)
	case name == keeper.ToolName:
		os.Exit(keeper.Tool(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	case strings.HasPrefix(name, "runsc-"), name == specutils.ExePath:
		if name == "runsc-sandbox" {
			bootWithoutGC()
			filter.Register()
			layer.Register()
		}
		maincli.Main()
		os.Exit(0)
	}
}

// bootTime is when gVisor has certainly booted, and the first command has mostly run.
const bootTime = 400 * time.Millisecond

// bootWithoutGC keeps the garbage collector out of the way while gVisor boots, and makes up for it once: what booting has
// left goes back to the host.
func bootWithoutGC() {
	percent := debug.SetGCPercent(-1)
	time.AfterFunc(bootTime, func() {
		debug.SetGCPercent(percent)
		debug.FreeOSMemory()
	})
}
