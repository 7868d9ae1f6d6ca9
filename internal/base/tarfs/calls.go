//go:build linux

package tarfs

import (
	"encoding/binary"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// retried repeats a system call that a signal has interrupted.
func retried(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// descriptor is an open regular file. Unlike an os.File, it does not ask whether the file can be polled.
type descriptor int

// Read implements io.Reader.
func (d descriptor) Read(p []byte) (int, error) {
	n, err := retried(func() (int, error) { return unix.Read(int(d), p) })
	switch {
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write implements io.Writer.
func (d descriptor) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		n, err := retried(func() (int, error) { return unix.Write(int(d), p[done:]) })
		if err != nil {
			return done, os.NewSyscallError("write", err)
		}
		done += n
	}
	return len(p), nil
}

// Close implements io.Closer.
func (d descriptor) Close() error {
	if err := unix.Close(int(d)); err != unix.EINTR { // Linux has closed it then
		return os.NewSyscallError("close", err)
	}
	return nil
}

// dirEntry is an entry of a directory; its kind is a constant of struct dirent, such as DT_REG.
type dirEntry struct {
	name string
	kind byte
}

// readDir reads an open directory. ReadDir of an os.File from an os.Root looks at each entry.
func readDir(dir *os.File) ([]dirEntry, error) {
	const kindAt, nameAt = 18, 19 // in struct linux_dirent64, after inode, offset and length
	var all []dirEntry
	buf := make([]byte, 32<<10)
	for {
		n, err := retried(func() (int, error) { return unix.ReadDirent(int(dir.Fd()), buf) })
		if err != nil {
			return nil, os.NewSyscallError("getdents64", err)
		}
		if n <= 0 {
			return all, nil
		}
		for rest := buf[:n]; len(rest) > 0; {
			if len(rest) < nameAt {
				return nil, errors.Errorf("a directory entry of %d bytes", len(rest))
			}
			size := int(binary.NativeEndian.Uint16(rest[16:]))
			if size < nameAt || size > len(rest) {
				return nil, errors.Errorf("a directory entry of %d bytes, %d are left", size, len(rest))
			}
			name := unix.ByteSliceToString(rest[nameAt:size])
			if name != "." && name != ".." {
				all = append(all, dirEntry{name, rest[kindAt]})
			}
			rest = rest[size:]
		}
	}
}
