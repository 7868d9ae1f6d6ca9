//go:build unix

package sandboxes

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that are passed on to the command instead of ending this process.
var forwarded = map[os.Signal]string{
	syscall.SIGINT: "INT", syscall.SIGTERM: "TERM", syscall.SIGHUP: "HUP", syscall.SIGUSR1: "USR1",
	syscall.SIGUSR2: "USR2",
}

func isResize(sig os.Signal) bool { return sig == syscall.SIGWINCH }

// background reports whether this process is not in the terminal's foreground process group: reading would stop
// it.
func background(f *os.File) bool {
	pgrp, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	return err == nil && pgrp != unix.Getpgrp()
}
