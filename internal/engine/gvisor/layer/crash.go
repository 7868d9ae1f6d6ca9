package layer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"unicode"

	"github.com/RelevanceAI/harvest/internal/engine"
)

// CrashMark is the prefix of log lines of gVisor that report a crash. The JSON of a Crash follows.
const CrashMark = "harvest-crash: "

// Crash describes a process that a signal such as SIGSEGV ended. Package agent writes it to gvisor.log before
// the process's exit becomes visible.
type Crash struct {
	Time    string // RFC 3339
	Process string // name of the thread that received the signal
	PID     int32  // PID in the container
	Signal  int32  // number
	Address string // faulting address, in hexadecimal; "" for signals without one
	// Sender is the process that sent the signal, such as "sh (pid 7)". It is "" if the process itself or the
	// processor caused the signal.
	Sender string
	// Command is the marker in the process's environment: the ID of the command that started it. It is "" if
	// unknown.
	Command string
	// Ancestors are the PIDs, in the sandbox, of the process and its ancestors.
	Ancestors []int32

	// Access describes gVisor's own access to the address after the crash: "write", "read", "execute", or the
	// reason why it has none. If it includes the access of the instruction at the instruction pointer, the
	// fault lies with gVisor or the machine. It is "" for signals without an address.
	Access string

	// The following fields are only set for the first crashes of a sandbox.
	Registers map[string]string `json:",omitempty"` // general registers, in hexadecimal
	Vector    string            `json:",omitempty"` // XSAVE area or its equivalent, in hexadecimal
	Code      string            `json:",omitempty"` // bytes at the instruction pointer, in hexadecimal
	Maps      []string          `json:",omitempty"` // lines of /proc/PID/maps
}

// CrashSignals are the signals caused by a fault of the program or of the machine.
var CrashSignals = []syscall.Signal{syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE, syscall.SIGABRT,
	syscall.SIGTRAP}

// DecodeCrash parses a line of gVisor's log. It returns false for other lines.
func DecodeCrash(line string) (Crash, bool) {
	text, ok := strings.CutPrefix(line, CrashMark)
	var c Crash
	return c, ok && json.Unmarshal([]byte(text), &c) == nil
}

// Of reports whether the crashed process belongs to a command: pid is its main process, in the sandbox.
// Descendants of that process belong to it, too.
func (c Crash) Of(command string, pid int32) bool {
	return command == c.Command || slices.Contains(c.Ancestors, pid)
}

// String describes the crash for users.
func (c Crash) String() string {
	text := fmt.Sprintf("process %s (pid %d) died of SIG%s", c.Process, c.PID,
		engine.SignalName(syscall.Signal(c.Signal)))
	if c.Address != "" {
		text += " at address " + c.Address
	}
	return strings.Map(func(r rune) rune { // programs choose their own names
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}
