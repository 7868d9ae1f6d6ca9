package engine

import (
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// maxSignal is the last real-time signal of Linux.
const maxSignal = 64

// ParseSignal returns the signal for a name such as "TERM", "SIGTERM", "term" or "15". Invalid for an unknown
// name.
func ParseSignal(name string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n <= maxSignal {
		return syscall.Signal(n), nil
	}
	if sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG")); sig != 0 {
		return sig, nil
	}
	return 0, errors.Remedy(errors.Newf(errors.Invalid, "there is no signal %.40q", name),
		"use a name such as TERM, INT, HUP, KILL or USR1, or a number from 1 to %d", maxSignal)
}

// SignalName returns the name of sig as in Exit.Signal, such as "KILL", or its number if it has no name.
func SignalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return strings.TrimPrefix(name, "SIG")
	}
	return strconv.Itoa(int(sig))
}

// ExitOf returns the Exit of a command that ended with code, or, if sig is not 0, by that signal.
func ExitOf(code int, sig syscall.Signal) Exit {
	if sig != 0 {
		return Exit{Code: 128 + int(sig), Signal: SignalName(sig)}
	}
	return Exit{Code: code}
}
