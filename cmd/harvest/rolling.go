package main

import (
	"os"
	"sync"

	"github.com/RelevanceAI/harvest/errors"
)

// rolling is a log file of which, when it has reached its limit, a new one is begun; one old one is kept, as PATH.1. So a log takes at
// most twice its limit, however long the server runs.
type rolling struct {
	path  string
	limit int64
	began func(*os.File) error // is told of each new file; may be nil

	mu   sync.Mutex
	file *os.File // guarded by mu
	size int64    // guarded by mu
}

// openRolling opens the log at path to append to it.
func openRolling(path string, limit int64, began func(*os.File) error) (*rolling, error) {
	r := &rolling{path: path, limit: limit, began: began}
	return r, r.open()
}

// open opens the file, which is made if missing. mu is held, or r is not shared yet.
func (r *rolling) open() error {
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return errors.Wrapf(err, "open a log")
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(errors.Wrapf(err, "look at a log"), f.Close())
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

// Write implements io.Writer. A text is never divided between two files. If no new one can be begun, the old one goes on.
func (r *rolling) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.size > 0 && r.size+int64(len(p)) > r.limit {
		if err := os.Rename(r.path, r.path+".1"); err == nil {
			_ = r.open() // on failure, what there is stays open, under its new name
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
