//go:build unix

// Package dirlock gives a data directory to one process at a time.
package dirlock

import (
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Lock is the exclusive right of a process to a data directory. It ends with Unlock or with the
// process, even after a crash.
type Lock struct {
	File *os.File // the lock, which contains the pid
}

// Name is the name of the lock in the directory.
const Name = "lock"

// Take locks the data directory dir, which it creates if missing, for this process. The file
// "lock" contains the pid. Take returns Conflict, with the pid of the holder, if another process
// has the lock, and Denied if dir belongs to another user or is not writable.
func Take(dir string) (*Lock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, dirError(err, dir)
	}
	if err := checkOwner(dir); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, Name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, dirError(err, dir)
	}
	if err := wait(f, dir); err != nil {
		defer f.Close()
		return nil, err
	}
	l := &Lock{f}
	if err := errors.Join(f.Truncate(0), writePID(f)); err != nil {
		l.Unlock()
		return nil, dirError(err, dir)
	}
	return l, nil
}

// Unlock releases the directory. The file stays: if it were removed, two processes could lock
// different files of the same name.
func (l *Lock) Unlock() error {
	emptied := l.File.Truncate(0)
	// Unlock explicitly: a child process that is being started briefly shares the file, and closing
	// alone would leave the lock to it.
	unlocked := unix.Flock(int(l.File.Fd()), unix.LOCK_UN)
	return errors.Wrapf(errors.Join(emptied, unlocked, l.File.Close()), "unlock the data directory")
}

func writePID(f *os.File) error {
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// wait locks the file of the directory dir. The lock of a process that has just ended may stay for
// a moment: with a child that it was starting, or until the kernel has closed its files.
func wait(f *os.File, dir string) error {
	const every, patience = 10 * time.Millisecond, 2 * time.Second
	for waited := time.Duration(0); ; waited += every {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return errors.Wrapf(err, "lock %s", f.Name())
		}
		if pid := holder(f); pid > 0 && !errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			return errors.Remedy(errors.Newf(errors.Conflict,
				"the data directory %s is in use by another Harvest, process %d", dir, pid),
				"use that one, end it with \"harvest down\", or choose another directory with --data")
		}
		if waited >= patience {
			return errors.Remedy(errors.Newf(errors.Conflict,
				"the data directory %s is in use by another Harvest", dir),
				"end that one, or choose another directory with --data")
		}
		time.Sleep(every)
	}
}

// holder returns the pid in a lock's file, or 0.
func holder(f *os.File) int {
	data := make([]byte, 32)
	n, _ := f.ReadAt(data, 0)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(data[:n])))
	return pid
}

func checkOwner(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return dirError(err, dir)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) == os.Geteuid() {
		return nil
	}
	owner := strconv.Itoa(int(stat.Uid))
	if u, err := user.LookupId(owner); err == nil {
		owner = u.Username
	}
	return errors.Remedy(errors.Newf(errors.Denied, "the data directory %s belongs to the user %s", dir, owner),
		"choose a directory of your own with --data or HARVEST_DATA, or run Harvest as that user")
}

func dirError(err error, dir string) error {
	switch {
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS):
		return errors.Remedy(errors.Explainf(err, errors.Denied, "the data directory %s cannot be written", dir),
			"choose a directory of your own with --data or HARVEST_DATA")
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, os.ErrExist):
		return errors.Remedy(errors.Explainf(err, errors.Invalid, "%s is not a directory", dir),
			"choose another one with --data or HARVEST_DATA")
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return errors.Remedy(errors.Explainf(err, errors.Exhausted, "there is no space left in the data directory %s",
			dir), "free space on its disk, or choose another directory with --data")
	}
	return errors.Wrapf(err, "%s", dir)
}
