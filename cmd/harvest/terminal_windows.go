package main

import (
	"io/fs"
	"os"
	"syscall"
)

// forwarded are the signals that are passed on to the command instead of ending this process.
var forwarded = map[os.Signal]string{os.Interrupt: "INT", syscall.SIGTERM: "TERM"}

// onResize does nothing: Windows has no signal for a change of the size.
func onResize(chan<- os.Signal) {}

func isResize(os.Signal) bool { return false }

// background is false: Windows has no process groups that own a terminal.
func background(*os.File) bool { return false }

// owned returns the st_mode that a file would have on Linux. Windows has no numeric owners.
func owned(info fs.FileInfo) (mode uint32, uid, gid int) {
	mode = uint32(info.Mode().Perm())
	switch {
	case info.Mode().IsRegular():
		mode |= modeFile
	case info.IsDir():
		mode |= modeDir
	case info.Mode()&fs.ModeSymlink != 0:
		mode |= modeSymlink
	}
	return mode, 0, 0
}
