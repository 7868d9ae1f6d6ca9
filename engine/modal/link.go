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

// link carries connections to the program in one sandbox: over the standard input and output of a command that the SDK runs there.
type link struct {
	done    chan struct{}  // closed when session and err are set
	session *yamux.Session // nil with an error
	err     error
}

// close ends the link, and the command that it is.
func (l *link) close() {
	select {
	case <-l.done:
		if l.session != nil {
			_ = l.session.Close()
		}
	default: // it is being made, in a context that has ended
	}
}

// stale reports whether the link cannot be used any more.
func (l *link) stale() bool {
	select {
	case <-l.done:
		return l.err != nil || l.session.IsClosed()
	default:
		return false
	}
}

// link returns the link to a sandbox, which is made if there is none.
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

// unlink ends the link to a sandbox that has ended.
func (e *Engine) unlink(ref string) {
	e.mu.Lock()
	l := e.links[ref]
	delete(e.links, ref)
	e.mu.Unlock()
	if l != nil {
		l.close()
	}
}

// dial makes a link.
func (e *Engine) dial(box *sdk.Sandbox) (*yamux.Session, error) {
	p, err := ask(e.ctx, "connect to the sandbox", func(ctx context.Context) (*sdk.ContainerProcess, error) {
		return box.Exec(ctx, []string{programPath, inside.Client}, nil)
	})
	if e.ctx.Err() != nil {
		return nil, errors.Newf(errors.Conflict, "the engine modal is closed")
	}
	if err != nil {
		return nil, err
	}
	session, err := yamux.Client(newPipe(p), inside.Mux())
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

// pipe is the standard input and output of a command at Modal. Each write to a command there is a call of its own, so what is written
// meanwhile is collected.
type pipe struct {
	p *sdk.ContainerProcess

	mu     sync.Mutex
	moved  *sync.Cond
	buffer []byte // guarded by mu, like all below; to be sent
	err    error  // of a write, or of Close
}

// collected is how much a pipe collects before writers wait.
const collected = 1 << 20

func newPipe(p *sdk.ContainerProcess) *pipe {
	c := &pipe{p: p}
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

// send sends what was written until the pipe is closed.
func (c *pipe) send() {
	for {
		c.mu.Lock()
		for len(c.buffer) == 0 && c.err == nil {
			c.moved.Wait()
		}
		if c.err != nil {
			c.mu.Unlock()
			_ = c.p.Stdin.Close() // which ends the command; a sandbox that is gone has no need of it
			return
		}
		data := c.buffer
		c.buffer = nil
		c.moved.Broadcast()
		c.mu.Unlock()
		if _, err := c.p.Stdin.Write(data); err != nil {
			c.fail(errors.Wrapf(err, "write to the sandbox"))
			_ = c.p.Stdout.Close()
		}
	}
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

var _ io.ReadWriteCloser = (*pipe)(nil)

// pollPatience is how long it may take to find out whether a sandbox has ended.
const pollPatience = 10 * time.Second
