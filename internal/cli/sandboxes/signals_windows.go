package sandboxes

import (
	"os"
	"syscall"
)

// forwarded are the signals that are passed on to the command instead of ending this process.
var forwarded = map[os.Signal]string{os.Interrupt: "INT", syscall.SIGTERM: "TERM"}

func isResize(os.Signal) bool { return false }

// background is false: Windows has no process groups that own a terminal.
func background(*os.File) bool { return false }
