package modalapi

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/RelevanceAI/harvest/errors"
)

// queued is how many bytes of input may wait for a command before who sends more has to wait.
const queued = 4 << 20

// stdin is the input of a command, written at offsets so that what arrives twice is taken once. Reads wait for it.
type stdin struct {
	mu      sync.Mutex
	data    []byte        // guarded by mu; not read yet
	written int64         // guarded by mu; taken in all
	eof     bool          // guarded by mu; nothing follows
	gone    bool          // guarded by mu; nobody reads
	resumed bool          // guarded by mu; an earlier server has taken some
	counted bool          // guarded by mu; with resumed: written is what the command has had then
	changed chan struct{} // guarded by mu; closed when anything above changes
}

func newStdin() *stdin { return &stdin{changed: make(chan struct{})} }

// wake tells who waits. i.mu is held.
func (i *stdin) wake() {
	close(i.changed)
	i.changed = make(chan struct{})
}

// Read implements io.Reader.
func (i *stdin) Read(p []byte) (int, error) {
	for {
		i.mu.Lock()
		if len(i.data) > 0 && !i.gone {
			n := copy(p, i.data)
			if i.data = i.data[n:]; len(i.data) == 0 {
				i.data = nil
			}
			i.wake()
			i.mu.Unlock()
			return n, nil
		}
		end, changed := i.eof || i.gone, i.changed
		i.mu.Unlock()
		if end {
			return 0, io.EOF
		}
		<-changed
	}
}

// write takes the bytes of data that are behind what it has, and the end if eof. It waits while too much waits already.
// Kinds: Invalid if something is missing in between, Conflict if the command has ended or its input has.
func (i *stdin) write(ctx context.Context, offset int64, data []byte, eof bool) error {
	for {
		i.mu.Lock()
		skip := i.written - offset
		switch {
		case skip < 0:
			have, resumed, counted := i.written, i.resumed, i.counted
			i.mu.Unlock()
			switch {
			case resumed && counted:
				err := errors.Newf(errors.Invalid, "the server was started anew: of the input that it had taken before, the command has had %d bytes, and not the rest up to offset %d", have, offset)
				return withCode(errors.Remedy(err, "Send it again from byte %d on, which TaskExecStdinStatus tells", have), codes.DataLoss)
			case resumed:
				err := errors.Newf(errors.Invalid, "the server was started anew, and how much of its input the command has had is not known")
				return withCode(errors.Remedy(err, "Start the command again"), codes.DataLoss)
			}
			return errors.Newf(errors.Invalid, "input was given at offset %d, but only %d bytes came before", offset, have)
		case i.eof && skip >= int64(len(data)):
			i.mu.Unlock()
			return nil // it comes again
		case i.gone || i.eof:
			i.mu.Unlock()
			return errors.Newf(errors.Conflict, "the command does not take input any more")
		case len(i.data) < queued || skip >= int64(len(data)):
			if skip < int64(len(data)) {
				i.data = append(i.data, data[skip:]...)
				i.written = offset + int64(len(data))
			}
			i.eof = i.eof || eof
			i.wake()
			i.mu.Unlock()
			return nil
		}
		changed := i.changed
		i.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// leave says that nobody reads any more.
func (i *stdin) leave() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.gone, i.data = true, nil
	i.wake()
}

// status returns how much was taken, and whether more will be.
func (i *stdin) status() (written int64, closed bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.written, i.eof || i.gone
}

// passed returns how much was taken, if all of it was read.
func (i *stdin) passed() (int64, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.written, len(i.data) == 0 && !i.eof && !i.gone
}

// resume has the input go on at an offset that an earlier server has noted, 0 if it has noted none.
func (i *stdin) resume(offset int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.written, i.resumed, i.counted = offset, true, offset > 0
}

// resumeAt has the input go on at an offset to which the command has had it, or have ended there.
func (i *stdin) resumeAt(offset int64, ended bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.written, i.eof, i.resumed, i.counted = offset, ended, true, true
	i.wake()
}
