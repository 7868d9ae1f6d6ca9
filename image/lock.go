package image

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/errors"
)

// Locks are the kernel's locks of open files, which end with their process. The caller unlocks by
// closing the file.

// poll is the interval of attempts to get a lock that another process holds. Waiting in the kernel
// could not be canceled.
const poll = 50 * time.Millisecond

// tryLock locks the file, which it creates if missing. It returns nil if another process holds a
// lock.
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

// waitLock locks the file. It calls waiting once if another process holds a lock.
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

// shareLock takes a shared lock, which only excludes tryLock.
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
