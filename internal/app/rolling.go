package app

import (
	"os"
	"sync"

	"github.com/RelevanceAI/harvest/client/errors"
)

// rolling is a log file that is rotated at its limit. One old file is kept as PATH.1, so a log takes at most
// twice its limit, however long the server runs.
type rolling struct {
	path  string
	limit int64
	began func(*os.File) error // called with each new file; may be nil

	mu   sync.Mutex
	file *os.File // guarded by mu
	size int64    // guarded by mu
}

// openRolling opens the log at path to append to it.
func openRolling(path string, limit int64, began func(*os.File) error) (*rolling, error) {
	r := &rolling{path: path, limit: limit, began: began}
	return r, r.open()
}

// open opens or creates the file. mu is held, or r is not shared yet.
func (r *rolling) open() error {
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return errors.Wrapf(err, "open a log")
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(errors.Wrapf(err, "stat a log"), f.Close())
	}
	if r.file != nil {
		err = r.file.Close()
	}
	r.file, r.size = f, info.Size()
	if r.began != nil {
		err = errors.Join(err, r.began(f))
	}
	return errors.Wrapf(err, "begin a log")
}

// Write implements io.Writer. It never splits p between two files. If no new file can be created, it continues
// the old one.
func (r *rolling) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.size > 0 && r.size+int64(len(p)) > r.limit {
		if err := os.Rename(r.path, r.path+".1"); err == nil {
			_ = r.open() // on failure, the old file stays open under its new name
		}
	}
	n, err := r.file.Write(p)
	r.size += int64(n)
	return n, err
}

// Close implements io.Closer.
func (r *rolling) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.file.Close()
}
