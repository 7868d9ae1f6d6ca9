package pipe

import (
	"cmp"
	"slices"
	"syscall"

	"github.com/RelevanceAI/harvest/internal/engine"
)

// crashSignals are the signals that the processor or a program's own check raises. SIGKILL is not in the list: it
// results from limits, from an interrupted turn, and from the end of the sandbox, which may become known later.
var crashSignals = []string{"SEGV", "BUS", "ILL", "FPE", "ABRT", "TRAP", "SYS"}

// shellSignal is the offset that shells add to the number of the signal that killed a program.
const shellSignal = 128

// Crash describes how one of crashSignals killed the agent's process; "" if it ended in another way.
func (e Exit) Crash() string {
	res := e.Result
	signal := res.Signal
	if signal == "" && res.ReturnCode > shellSignal { // of its child
		signal = engine.SignalName(syscall.Signal(res.ReturnCode - shellSignal))
	}
	switch {
	case e.Err != nil || res.OutOfMemory || res.TimedOut || res.Reason != "":
		return ""
	case !slices.Contains(crashSignals, signal):
		return ""
	}
	return "the agent's process ended: " + cmp.Or(res.Crashed, "it died of SIG"+signal)
}
