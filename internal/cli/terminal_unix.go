//go:build unix

package cli

import (
	"os"
	"os/signal"
	"syscall"
)

// OnResize sends changes of the terminal's size to signals.
func OnResize(signals chan<- os.Signal) { signal.Notify(signals, syscall.SIGWINCH) }
