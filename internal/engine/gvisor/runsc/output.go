package runsc

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// checkOutputs refuses files that a program in gVisor would overwrite. gVisor keeps an offset of its own for a regular
// file of the host, which begins at 0, so that a program overwrites earlier output unless the file was opened for
// appending.
func checkOutputs(files ...*os.File) error {
	for _, f := range files {
		raw, err := f.SyscallConn() // unlike Fd, it does not change the mode of the file
		if err != nil {
			return errors.Wrapf(err, "look at an output")
		}
		var st unix.Stat_t
		flags := 0
		failed := raw.Control(func(fd uintptr) {
			if err = unix.Fstat(int(fd), &st); err == nil {
				flags, err = unix.FcntlInt(fd, unix.F_GETFL, 0)
			}
		})
		if err = errors.Join(failed, err); err != nil {
			return errors.Wrapf(err, "look at an output")
		}
		if st.Mode&unix.S_IFMT == unix.S_IFREG && flags&unix.O_ACCMODE != unix.O_RDONLY && flags&unix.O_APPEND == 0 {
			return errors.Errorf("the output %s is a file that is not opened for appending", f.Name())
		}
	}
	return nil
}
