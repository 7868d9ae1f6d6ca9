// Package sentry contains gVisor's own processes: the sandbox, whose kernel gVisor calls its sentry, and the
// file server. Keepers start them. A keeper itself does not link them.
package sentry

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"gvisor.dev/gvisor/runsc/cli/maincli"
	"gvisor.dev/gvisor/runsc/specutils"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/filter"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/layer/agent"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// Main runs gVisor if the process was started as a part of it, and then never returns. gVisor also restarts its own
// binary under other names.
func Main() {
	if len(os.Args) == 0 {
		return
	}
	name := os.Args[0]
	if name == wire.VerifyName {
		os.Exit(verify(os.Stdout))
	}
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

// verify verifies the system call filter of this program, and returns its exit status: see wire.VerifyName.
func verify(w io.Writer) int {
	const anySocket = 9
	err := filter.Verify(anySocket)
	if err == nil {
		fmt.Fprintln(w, wire.Verified)
		return 0
	}
	fmt.Fprintln(w, err)
	if errors.Is(err, errors.Unsupported) {
		return wire.VerifyUnsupported
	}
	return 1
}

// bootTime is a time after which gVisor has certainly booted, and usually the first command has run.
const bootTime = 400 * time.Millisecond

// bootWithoutGC disables the garbage collector while gVisor boots. Afterwards it collects once, which returns
// the memory used for booting to the host.
func bootWithoutGC() {
	runtime.MemProfileRate = 0 // the profile is not used, and its tables would stay allocated
	percent := debug.SetGCPercent(-1)
	time.AfterFunc(bootTime, func() {
		debug.SetGCPercent(percent)
		debug.FreeOSMemory() // only once: each collection leaves bookkeeping of the runtime behind
	})
}
