// Package sentry is gVisor's own processes: the sandbox, whose kernel gVisor calls its sentry, and the file server. Keepers start them; a
// keeper itself links nothing of it.
package sentry

import (
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"gvisor.dev/gvisor/runsc/cli/maincli"
	"gvisor.dev/gvisor/runsc/specutils"

	"github.com/RelevanceAI/harvest/engine/gvisor/filter"
	"github.com/RelevanceAI/harvest/engine/gvisor/layer/agent"
)

// Main hands the process over if it was started as a part of gVisor, which also starts its own binary again under other names. It then
// never returns.
func Main() {
	if len(os.Args) == 0 {
		return
	}
	name := os.Args[0]
	if !strings.HasPrefix(name, "runsc-") && name != specutils.ExePath {
		return
	}
	if name == "runsc-sandbox" {
		bootWithoutGC()
		filter.Register()
		agent.Register()
	}
	maincli.Main()
	os.Exit(0)
}

// bootTime is when gVisor has certainly booted, and the first command has mostly run.
const bootTime = 400 * time.Millisecond

// bootWithoutGC keeps the garbage collector out of the way while gVisor boots, and makes up for it once: what booting has
// left goes back to the host.
func bootWithoutGC() {
	runtime.MemProfileRate = 0 // nobody reads the profile, and its tables stay
	percent := debug.SetGCPercent(-1)
	time.AfterFunc(bootTime, func() {
		debug.SetGCPercent(percent)
		debug.FreeOSMemory() // no more than once: each collection leaves bookkeeping of the runtime's behind
	})
}
