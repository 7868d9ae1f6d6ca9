package socket

import (
	"fmt"
	"os"
	"syscall"
)

// oPath is Linux's O_PATH, which package syscall lacks (include/uapi/asm-generic/fcntl.h; all architectures of Go).
const oPath = 0x200000

func open(dir string) (*os.File, error) {
	return os.OpenFile(dir, oPath|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
}

// within is a short path of the socket, through the open directory.
func within(_ string, dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}
