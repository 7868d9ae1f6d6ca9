//go:build unix

// Package filelock locks files between processes. The locks are those of flock(2): they belong to the open file, and
// end with the process.
package filelock

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Lock is a locked file. Only its own Close releases it for certain.
type Lock struct{ *os.File }

// Exclusive locks f, or returns unix.EWOULDBLOCK if another open file has a lock of it. On an error f stays open.
func Exclusive(f *os.File) (*Lock, error) { return lock(f, unix.LOCK_EX) }

// Shared locks f, or returns unix.EWOULDBLOCK if another open file has an exclusive lock of it. On an error f stays
// open.
func Shared(f *os.File) (*Lock, error) { return lock(f, unix.LOCK_SH) }

func lock(f *os.File, how int) (*Lock, error) {
	if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
		return nil, err
	}
	return &Lock{f}, nil
}

// Close unlocks the file and closes it. Closing alone is not enough: a child process that is being started shares
// all open files until it executes its program, and would keep the lock.
func (l *Lock) Close() error {
	return errors.Join(unix.Flock(int(l.Fd()), unix.LOCK_UN), l.File.Close())
}
