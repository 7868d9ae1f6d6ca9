package modal

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/RelevanceAI/harvest/client/errors"
)

// queued is how many bytes of input may wait for a command before the sender must wait.
const queued = 4 << 20

// stdin is the input of a command. Writes carry offsets, so that a repeated write is taken once. Reads wait for
// input.
type stdin struct {
	mu      sync.Mutex
	data    []byte        // guarded by mu; not read yet
	written int64         // guarded by mu; total bytes accepted
	eof     bool          // guarded by mu; nothing follows
	gone    bool          // guarded by mu; the reader has left
	resumed bool          // guarded by mu; an earlier server has accepted some input
	counted bool          // guarded by mu; with resumed: written is the exact offset where the command continues
	changed chan struct{} // guarded by mu; closed when anything above changes
}

func newStdin() *stdin { return &stdin{changed: make(chan struct{})} }

// wake wakes all waiters. i.mu is held.
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

// write accepts the bytes of data beyond those it already has, and the end of the input if eof. It waits while
// the queue is full. Kinds: Invalid if bytes are missing in between, Conflict if the command or its input has
// ended.
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
				err := errors.Newf(errors.Invalid,
					"the server was restarted: of the earlier input, the command received %d bytes, "+
						"not the rest up to offset %d", have, offset)
				return withCode(errors.Remedy(err, "send it again from byte %d, which TaskExecStdinStatus reports",
					have), codes.DataLoss)
			case resumed:
				err := errors.Newf(errors.Invalid,
					"the server was restarted; the number of input bytes that the command received is unknown")
				return withCode(errors.Remedy(err, "start the command again"), codes.DataLoss)
			}
			return errors.Newf(errors.Invalid, "input at offset %d, but only %d bytes came before", offset,
				have)
		case i.eof && skip >= int64(len(data)):
			i.mu.Unlock()
			return nil // it was repeated
		case i.gone || i.eof:
			i.mu.Unlock()
			return errors.Newf(errors.Conflict, "the command no longer accepts input")
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

// leave marks that the reader has left.
func (i *stdin) leave() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.gone, i.data = true, nil
	i.wake()
}

// status returns how many bytes were accepted, and whether the input has ended.
func (i *stdin) status() (written int64, closed bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.written, i.eof || i.gone
}

// passed returns how many bytes were accepted, and whether all of them were read.
func (i *stdin) passed() (int64, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.written, len(i.data) == 0 && !i.eof && !i.gone
}

// resume continues the input at the offset that an earlier server recorded, 0 if it recorded none.
func (i *stdin) resume(offset int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.written, i.resumed, i.counted = offset, true, offset > 0
}

// resumeAt continues the input at the offset that the engine reports, or ends it there.
func (i *stdin) resumeAt(offset int64, ended bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.written, i.eof, i.resumed, i.counted = offset, ended, true, true
	i.wake()
}
