package modal

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/engine/modal/inside"
	"github.com/RelevanceAI/harvest/errors"
)

// link carries connections to the program in one sandbox, over the standard input and output of a command that
// the SDK runs there.
type link struct {
	done    chan struct{}  // closed when session and err are set
	session *yamux.Session // nil with an error
	err     error
}

// close ends the link and its command.
func (l *link) close() {
	select {
	case <-l.done:
		if l.session != nil {
			_ = l.session.Close()
		}
	default: // still connecting, in a context that has ended
	}
}

// stale reports whether the link is no longer usable.
func (l *link) stale() bool {
	select {
	case <-l.done:
		return l.err != nil || l.session.IsClosed()
	default:
		return false
	}
}

// link returns the link to a sandbox, and connects it if necessary.
func (e *Engine) link(ctx context.Context, box *sdk.Sandbox) (*link, error) {
	e.mu.Lock()
	l := e.links[box.SandboxID]
	if l == nil || l.stale() {
		l = &link{done: make(chan struct{})}
		e.links[box.SandboxID] = l
		go func() {
			defer close(l.done)
			l.session, l.err = e.dial(box)
		}()
	}
	e.mu.Unlock()
	select {
	case <-l.done:
		return l, l.err
	case <-ctx.Done():
		return nil, errors.Wrapf(ctx.Err(), "connect to the sandbox")
	}
}

// unlink closes the link to a sandbox that has ended.
func (e *Engine) unlink(ref string) {
	e.mu.Lock()
	l := e.links[ref]
	delete(e.links, ref)
	e.mu.Unlock()
	if l != nil {
		l.close()
	}
}

// dial starts the command of a link, and opens a session over it.
func (e *Engine) dial(box *sdk.Sandbox) (*yamux.Session, error) {
	p, err := ask(e.ctx, e, "connect to the sandbox", func(ctx context.Context) (*sdk.ContainerProcess, error) {
		return box.Exec(ctx, []string{programPath, inside.Client}, nil)
	})
	if e.ctx.Err() != nil {
		return nil, errors.Newf(errors.Conflict, "the engine modal is closed")
	}
	if err != nil {
		return nil, err
	}
	mux := inside.Mux()
	mux.ConnectionWriteTimeout = e.patience.link
	session, err := yamux.Client(newPipe(e.ctx, p, e.patience.link), mux)
	if err == nil {
		_, err = session.Ping()
	}
	if err != nil {
		if session != nil {
			_ = session.Close()
		}
		return nil, errors.Explainf(err, errors.Unavailable, "the program in the sandbox does not answer")
	}
	return session, nil
}

// pipe is the standard input and output of a command at Modal. Each write to such a command is an API call.
// While one is in progress, further writes are buffered.
type pipe struct {
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

func newPipe(ctx context.Context, p *sdk.ContainerProcess, most time.Duration) *pipe {
	c := &pipe{p: p, ctx: context.WithoutCancel(ctx), most: most}
	c.moved = sync.NewCond(&c.mu)
	go c.send()
	return c
}

func (c *pipe) Read(b []byte) (int, error) { return c.p.Stdout.Read(b) }

func (c *pipe) Write(b []byte) (int, error) {
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
func (c *pipe) send() {
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
func (c *pipe) write(write func() (int, error)) (late bool, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.most)
	defer cancel()
	_, err = bounded(ctx, func(context.Context) (int, error) { return write() })
	return ctx.Err() != nil, err
}

func (c *pipe) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	c.moved.Broadcast()
}

// Close implements io.Closer.
func (c *pipe) Close() error {
	c.fail(io.ErrClosedPipe)
	return c.p.Stdout.Close()
}
