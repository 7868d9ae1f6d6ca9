package processes

import (
	"math"

	"golang.org/x/sys/unix"
)

// firstFile is the descriptor after standard input, output and error.
const firstFile = 3

// KeepFiles closes inherited files in started programs. They belong to our parent, which may wait for the end
// of a pipe or hold a lock that must end with this process.
func KeepFiles() {
	// Linux before 5.11 lacks the flag; there, the files are inherited.
	_ = unix.CloseRange(firstFile, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
}
