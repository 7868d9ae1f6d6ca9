// Package atomicfile replaces small files atomically: at any moment, a reader and a process that starts after a crash
// see the old content or the new one, never a part.
package atomicfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/RelevanceAI/harvest/client/errors"
)

// suffix is that of the file that becomes the new one. A crash may leave it; the next Write to the path replaces it.
const suffix = ".new"

// reserveSuffix is that of the file with the space that Reserve allocates, of reserved bytes.
const (
	reserveSuffix = ".reserve"
	reserved      = 4 << 10
)

// Reserve allocates space for one Write of up to 4 KiB to path when the disk is full. It does nothing if the space is
// there already. The file that holds it is beside path; ReleaseReserve removes it.
func Reserve(path string) error {
	f, err := os.OpenFile(path+reserveSuffix, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return errors.Wrapf(err, "reserve space for a file")
	}
	_, err = f.Write(make([]byte, reserved)) // some file systems cannot allocate otherwise
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(path + reserveSuffix)
	}
	return errors.Wrapf(err, "reserve space for a file")
}

// ReleaseReserve removes the space that Reserve has allocated.
func ReleaseReserve(path string) { _ = os.Remove(path + reserveSuffix) }

// Write replaces the file at path, or creates it with a mode. The file is complete if this process or another one is
// killed, but after a power failure it may be empty. Only one process may write to a path at a time.
func Write(path string, data []byte, mode fs.FileMode) error {
	return replace(path, data, mode, false)
}

// WriteDurable is Write for content that must survive a power failure: it returns once data and name are on the disk.
func WriteDurable(path string, data []byte, mode fs.FileMode) error {
	if err := replace(path, data, mode, true); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

func replace(path string, data []byte, mode fs.FileMode, durable bool) error {
	err := attempt(path, data, mode, durable, os.O_CREATE|os.O_TRUNC)
	full := errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
	if full && len(data) <= reserved && os.Rename(path+reserveSuffix, path+suffix) == nil {
		err = attempt(path, data, mode, durable, 0)
	}
	return errors.Wrapf(err, "write a file")
}

// attempt writes a new file, in place of an existing one unless flags contain O_TRUNC, and renames it.
func attempt(path string, data []byte, mode fs.FileMode, durable bool, flags int) error {
	f, err := os.OpenFile(path+suffix, os.O_WRONLY|flags, mode)
	if err != nil {
		return err
	}
	if _, err = f.Write(data); err == nil && flags&os.O_TRUNC == 0 {
		err = errors.Join(f.Truncate(int64(len(data))), f.Chmod(mode))
	}
	if durable && err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(path+suffix, path)
	}
	if err != nil {
		_ = os.Remove(path + suffix)
	}
	return err
}

// SyncDir returns once the names in a directory are on the disk.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return errors.Wrapf(err, "sync a directory")
	}
	return errors.Wrapf(errors.Join(f.Sync(), f.Close()), "sync a directory")
}
