package keeper

import (
	"io"
	"os"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/errors"
)

// lastInput is how long input that is on its way from a server that is gone may take to reach a command: it does not where the command does not read.
const lastInput = 500 * time.Millisecond

// input is who gives a command its input, and how much it has had.
type input struct {
	writing sync.Mutex // held while a pipe is written to

	mu    sync.Mutex
	feeds map[*feed]struct{} // guarded by mu; connections that give some
	taken int64              // guarded by mu; bytes
}

// feed is a connection that gives input.
type feed struct {
	done chan struct{} // closed when it has ended
	cut  bool          // guarded by input.mu; what it gives is not wanted any more
}

func (i *input) enter() *feed {
	f := &feed{done: make(chan struct{})}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.feeds == nil {
		i.feeds = map[*feed]struct{}{}
	}
	i.feeds[f] = struct{}{}
	return f
}

// leave notes the end of a connection, which may be nil.
func (i *input) leave(f *feed) {
	if f == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.feeds, f)
	close(f.done)
}

func (i *input) isCut(f *feed) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return f.cut
}

func (i *input) add(n int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.taken += n
}

// takeOver returns what the command has had. What connections that have broken off still had on its way gets to it, unless it does not read; after
// that they give it no more.
func (c *command) takeOver() *wire.Input {
	i := &c.input
	i.mu.Lock()
	var others []*feed
	for f := range i.feeds {
		others = append(others, f)
	}
	i.mu.Unlock()
	late := time.NewTimer(lastInput)
	defer late.Stop()
	over := false
	for _, f := range others {
		if over {
			break
		}
		select {
		case <-f.done:
		case <-late.C:
			over = true
		}
	}
	i.mu.Lock()
	for _, f := range others {
		f.cut = true
	}
	i.mu.Unlock()
	c.mu.Lock()
	pipe, ended := c.stdin, c.stdin == nil
	c.mu.Unlock()
	if pipe != nil && c.terminal == nil && over { // whoever writes to the pipe shall say how much of it has gone
		_ = pipe.SetWriteDeadline(time.Now())
		i.writing.Lock()
		_ = pipe.SetWriteDeadline(time.Time{})
		i.writing.Unlock()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return &wire.Input{Bytes: i.taken, Ended: ended}
}

// feeder writes to the pipe that is a command's input.
type feeder struct {
	c    *command
	from *feed
	pipe *os.File
}

// Write implements io.Writer.
func (w feeder) Write(p []byte) (int, error) {
	i := &w.c.input
	i.writing.Lock()
	defer i.writing.Unlock()
	if i.isCut(w.from) {
		return 0, errors.Newf(errors.Conflict, "another connection gives the input")
	}
	n, err := w.pipe.Write(p)
	i.add(int64(n))
	return n, err
}

// counter counts what is read through it.
type counter struct {
	r io.Reader
	n int64
}

// Read implements io.Reader.
func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}
