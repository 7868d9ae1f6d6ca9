package image

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/filelock"
)

// poll is the interval of attempts to get a lock that another process holds. Waiting in the kernel
// could not be canceled.
const poll = 50 * time.Millisecond

// tryLock locks the file, which it creates if missing. It returns nil if another process holds a
// lock.
func tryLock(name string) (*filelock.Lock, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	lock, err := filelock.Exclusive(f)
	if err == nil {
		return lock, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = nil
	}
	return nil, err
}

// waitLock locks the file. It calls waiting once if another process holds a lock.
func waitLock(ctx context.Context, name string, waiting func()) (*filelock.Lock, error) {
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
func shareLock(name string) (*filelock.Lock, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	lock, err := filelock.Shared(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	return lock, nil
}
