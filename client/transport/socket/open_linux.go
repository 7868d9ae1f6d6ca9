package socket

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func open(dir string) (*os.File, error) {
	return os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// within is a short path of the socket, through the open directory.
func within(_ string, dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}
