// Package atomicfile replaces small files atomically: at any moment, a reader and a process that starts after a crash
// see the old content or the new one, never a part.
package atomicfile

import (
	"io/fs"
	"os"
	"path/filepath"

	"github.com/RelevanceAI/harvest/client/errors"
)

// suffix is that of the file that becomes the new one. A crash may leave it; the next Write to the path replaces it.
const suffix = ".new"

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
	f, err := os.OpenFile(path+suffix, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return errors.Wrapf(err, "write a file")
	}
	_, err = f.Write(data)
	if durable && err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(path+suffix, path)
	}
	if err != nil {
		_ = os.Remove(path + suffix)
	}
	return errors.Wrapf(err, "write a file")
}

// SyncDir returns once the names in a directory are on the disk.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return errors.Wrapf(err, "sync a directory")
	}
	return errors.Wrapf(errors.Join(f.Sync(), f.Close()), "sync a directory")
}
