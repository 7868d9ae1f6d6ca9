package image

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/errors"
)

// Locks are the kernel's on open files: they end with their process, however it ends. The caller unlocks by closing the file.

// poll is how often a lock is tried that another process holds: waiting in the kernel could not be cancelled.
const poll = 50 * time.Millisecond

// tryLock locks the file, which is made if missing. It returns nil if somebody else holds a lock.
func tryLock(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = nil
	}
	return nil, err
}

// waitLock locks the file; waiting is called once if somebody else holds a lock.
func waitLock(ctx context.Context, name string, waiting func()) (*os.File, error) {
	for first := true; ; first = false {
		f, err := tryLock(name)
		if f != nil || err != nil {
			return f, err
		}
		if first {
			waiting()
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(poll):
		}
	}
}

// shareLock locks the file against tryLock only.
func shareLock(name string) (*os.File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
