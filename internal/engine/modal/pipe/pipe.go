// Package pipe carries connections over the commands that Modal runs in a sandbox.
package pipe

import (
	"context"
	"io"
	"sync"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/modal/call"
)

// Pipe is the standard input and output of a command at Modal. Each write to such a command is an API call.
// While one is in progress, further writes are buffered.
type Pipe struct {
	p    *sdk.ContainerProcess
	ctx  context.Context // context of writes
	most time.Duration   // time limit of a write

	mu     sync.Mutex
	moved  *sync.Cond
	buffer []byte // guarded by mu, like all below; data to be sent
	err    error  // of a write, or set by Close
}

// collected is the size of the buffer at which writers block.
const collected = 1 << 20

// New returns the standard input and output of a running command. Writes have the time limit most; they go on when ctx
// ends, until Close.
func New(ctx context.Context, p *sdk.ContainerProcess, most time.Duration) *Pipe {
	c := &Pipe{p: p, ctx: context.WithoutCancel(ctx), most: most}
	c.moved = sync.NewCond(&c.mu)
	go c.send()
	return c
}

// Read implements io.Reader.
func (c *Pipe) Read(b []byte) (int, error) { return c.p.Stdout.Read(b) }

// Write implements io.Writer. It blocks while much data waits to be sent.
func (c *Pipe) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.buffer) >= collected && c.err == nil {
		c.moved.Wait()
	}
	if c.err != nil {
		return 0, c.err
	}
	c.buffer = append(c.buffer, b...)
	c.moved.Broadcast()
	return len(b), nil
}

// send sends the buffered data until the pipe is closed.
func (c *Pipe) send() {
	for {
		c.mu.Lock()
		for len(c.buffer) == 0 && c.err == nil {
			c.moved.Wait()
		}
		if c.err != nil {
			c.mu.Unlock()
			// Closing its input ends the command. An error is harmless: a sandbox that is gone has no command
			// to end.
			_, _ = c.write(func() (int, error) { return 0, c.p.Stdin.Close() })
			return
		}
		data := c.buffer
		c.buffer = nil
		c.moved.Broadcast()
		c.mu.Unlock()
		late, err := c.write(func() (int, error) { return c.p.Stdin.Write(data) })
		if err != nil {
			c.fail(errors.Wrapf(err, "write to the sandbox"))
			_ = c.p.Stdout.Close()
			if late {
				return // that write is still in progress, so nothing may follow it
			}
		}
	}
}

// write calls write with a deadline, and reports whether Modal missed it. The SDK itself sets no deadline for
// writes.
func (c *Pipe) write(write func() (int, error)) (late bool, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.most)
	defer cancel()
	_, err = call.Bounded(ctx, func(context.Context) (int, error) { return write() })
	return ctx.Err() != nil, err
}

func (c *Pipe) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	c.moved.Broadcast()
}

// Close implements io.Closer.
func (c *Pipe) Close() error {
	c.fail(io.ErrClosedPipe)
	return c.p.Stdout.Close()
}
