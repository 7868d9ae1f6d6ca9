package store

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// reserved is the space that Reserve allocates for each file of the database.
const reserved = 16 << 20

// Reserve allocates space for further records, so that the database can grow by some MiB when the disk is full. The
// space lies behind the end of SQLite's files, where SQLite does not see it until it writes there. No other file can
// use it. Call Reserve again from time to time: the database grows, and SQLite may make its log anew. Exhausted: the
// disk has no space for it.
func (db *DB) Reserve() error {
	log, err := os.OpenFile(db.path+"-wal", os.O_WRONLY, 0)
	if err != nil && !errors.IsNotExist(err) {
		return fileError(err, db.path)
	}
	if err == nil {
		defer log.Close()
		err = reserve(log)
	} else {
		err = nil
	}
	return errors.Join(reserve(db.file), err)
}

func reserve(f *os.File) error {
	info, err := f.Stat()
	if err == nil {
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, info.Size(), reserved)
	}
	if err == nil || errors.Is(err, unix.EOPNOTSUPP) { // best effort: some file systems cannot allocate ahead
		return nil
	}
	return errors.Wrapf(fileError(err, f.Name()), "reserve space for the database")
}
