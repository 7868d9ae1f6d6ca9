package state

import (
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// appended is a file of records that survive the end of the process at any moment, without a system
// call for each: they are copied into a shared mapping of the file. The file ends with zeros.
type appended struct {
	file *os.File // nil until start
	size int64    // of the records
	at   int64    // where the mapping begins in the file
	mem  []byte
}

// appendBytes is by how much the file grows.
const appendBytes = 64 << 10

// start makes the file, empty. It does nothing if it is open.
func (a *appended) start(path string) (err error) {
	if a.file == nil {
		a.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	}
	return err
}

// add appends a record, whose first byte is not zero.
func (a *appended) add(record []byte) error {
	if a.size+int64(len(record)) > a.at+int64(len(a.mem)) {
		if err := a.grow(len(record)); err != nil {
			return err
		}
	}
	if err := publish(a.mem[a.size-a.at:], record); err != nil {
		return err
	}
	a.size += int64(len(record))
	return nil
}

// grow maps the end of the file, with room for n bytes.
func (a *appended) grow(n int) error {
	page := int64(os.Getpagesize())
	at := a.size &^ (page - 1)
	end := (a.size + int64(max(n, appendBytes)) + page - 1) &^ (page - 1)
	// Zeros are written, so that a full disk is an error here and not a fault later.
	if _, err := a.file.WriteAt(make([]byte, end-a.size), a.size); err != nil {
		return err
	}
	mem, err := unix.Mmap(int(a.file.Fd()), at, int(end-at), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	a.unmap()
	a.at, a.mem = at, mem
	return nil
}

// patch replaces bytes of a record. A process that is killed meanwhile may leave the first byte as it was.
func (a *appended) patch(at int64, with []byte) error {
	if at < a.at {
		_, err := a.file.WriteAt(with, at)
		return err
	}
	return publish(a.mem[at-a.at:], with)
}

func (a *appended) unmap() {
	if a.mem != nil {
		_ = unix.Munmap(a.mem)
		a.mem = nil
	}
}

// publish copies bytes to a mapping, the first one last: until then the reader of a new record sees
// a zero, and stops there. If the disk fails, the kernel reports it as a fault.
func publish(mem, record []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			err = errors.Newf(errors.Unavailable, "the disk failed: %v", fault)
		}
	}()
	copy(mem[1:], record[1:])
	mem[0] = record[0]
	return nil
}

// close closes the file without the zeros.
func (a *appended) close() {
	if a.file == nil {
		return
	}
	a.unmap()
	_ = a.file.Truncate(a.size) // best effort: readers stop at the first zero
	a.file.Close()
	*a = appended{}
}
