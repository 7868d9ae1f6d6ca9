//go:build unix

package main

import (
	"io/fs"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that are passed on to the command instead of ending this process.
var forwarded = map[os.Signal]string{
	syscall.SIGINT: "INT", syscall.SIGTERM: "TERM", syscall.SIGHUP: "HUP", syscall.SIGUSR1: "USR1",
	syscall.SIGUSR2: "USR2",
}

// onResize sends changes of the terminal's size to signals.
func onResize(signals chan<- os.Signal) { signal.Notify(signals, syscall.SIGWINCH) }

func isResize(sig os.Signal) bool { return sig == syscall.SIGWINCH }

// background reports whether this process is not in the terminal's foreground process group: reading would stop
// it.
func background(f *os.File) bool {
	pgrp, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	return err == nil && pgrp != unix.Getpgrp()
}

// owned returns the st_mode and the owner of a file.
func owned(info fs.FileInfo) (mode uint32, uid, gid int) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, 0
	}
	return uint32(st.Mode), int(st.Uid), int(st.Gid)
}
