package modal

import (
	"context"

	"github.com/hashicorp/yamux"
	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/modal/inside"
	"github.com/RelevanceAI/harvest/internal/engine/modal/pipe"
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
	mux.ConnectionWriteTimeout = e.patience.Link
	session, err := yamux.Client(pipe.New(e.ctx, p, e.patience.Link), mux)
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
