package keeper

import (
	"io"
	"os"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/log"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// lastInput limits the wait for input that is in transit from a server that is gone. The input does not arrive
// if the command does not read.
const lastInput = 500 * time.Millisecond

// input tracks the connections that provide a command's input, and the number of bytes it has received.
type input struct {
	writing sync.Mutex // held during a write to a pipe

	mu    sync.Mutex
	feeds map[*feed]struct{} // guarded by mu; connections that provide input
	taken int64              // guarded by mu; bytes
}

// feed is a connection that provides input.
type feed struct {
	done chan struct{} // closed when it has ended
	cut  bool          // guarded by input.mu; its further input is discarded
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

// leave removes a connection, which may be nil.
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

// takeOver returns the input that the command has received. Input that broken connections still had in transit
// reaches the command, unless the command does not read. After that, their input is discarded.
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
	if pipe != nil && c.terminal == nil && over { // the writer must report how much of its data has gone into the pipe
		_ = pipe.SetWriteDeadline(time.Now())
		i.writing.Lock()
		_ = pipe.SetWriteDeadline(time.Time{})
		i.writing.Unlock()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return &wire.Input{Bytes: i.taken, Ended: ended}
}

// feeder writes to the input pipe of a command.
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

// counter counts the bytes read through it.
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

// loseInput kills a command whose input nobody can continue, unless the input or the command has ended.
func (k *Keeper) loseInput(c *command) {
	c.mu.Lock()
	open := c.stdin != nil
	c.mu.Unlock()
	if !c.inputOnce || !open || ended(c) {
		return
	}
	c.inputLost.Store(true)
	if err := k.killTree(c); err != nil {
		log.Warningf("kill command %s, whose input is lost: %v", c.id, err)
	}
}
