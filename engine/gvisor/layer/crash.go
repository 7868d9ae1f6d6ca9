package layer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"unicode"

	"github.com/RelevanceAI/harvest/engine"
)

// CrashMark begins each line of gVisor's log that reports a crash. The JSON of a Crash follows.
const CrashMark = "harvest-crash: "

// Crash describes a process that a signal such as SIGSEGV ended. Package agent writes it to gvisor.log before the process's exit becomes known.
type Crash struct {
	Time      string  // RFC 3339
	Process   string  // name of the thread that got the signal
	PID       int32   // as the container has it
	Signal    int32   // number
	Address   string  // faulting address, in hexadecimal; "" for signals without one
	Sender    string  // process that sent the signal, such as "sh (pid 7)"; "" if the process itself or the processor caused it
	Command   string  // marker in the process's environment: id of the command that started it; "" if unknown
	Ancestors []int32 // process ids of the process and its ancestors, as the sandbox has them

	// Access says what gVisor can do at the address now: "write", "read", "execute", or why it cannot do any. If that includes what the instruction at the
	// instruction pointer did, the fault is gVisor's or the machine's. "" for signals without an address.
	Access string

	// The rest is only kept for the first crashes of a sandbox.
	Registers map[string]string `json:",omitempty"` // general registers, in hexadecimal
	Vector    string            `json:",omitempty"` // XSAVE area or its equivalent, in hexadecimal
	Code      string            `json:",omitempty"` // bytes at the instruction pointer, in hexadecimal
	Maps      []string          `json:",omitempty"` // lines of /proc/PID/maps
}

// CrashSignals are the signals that a fault of the program or of the machine causes.
var CrashSignals = []syscall.Signal{syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE, syscall.SIGABRT, syscall.SIGTRAP}

// DecodeCrash reads a line of gVisor's log. It reports false for other lines.
func DecodeCrash(line string) (Crash, bool) {
	text, ok := strings.CutPrefix(line, CrashMark)
	var c Crash
	return c, ok && json.Unmarshal([]byte(text), &c) == nil
}

// Of reports whether the crashed process belongs to a command: its main process, as the sandbox has it, or a descendant.
func (c Crash) Of(command string, pid int32) bool {
	return command == c.Command || slices.Contains(c.Ancestors, pid)
}

// String says what happened, for users.
func (c Crash) String() string {
	text := fmt.Sprintf("process %s (pid %d) died of SIG%s", c.Process, c.PID, engine.SignalName(syscall.Signal(c.Signal)))
	if c.Address != "" {
		text += " at address " + c.Address
	}
	return strings.Map(func(r rune) rune { // programs choose their names
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}
