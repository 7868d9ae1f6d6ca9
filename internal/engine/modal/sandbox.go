package modal

import (
	"context"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// Sandbox is a sandbox at Modal. Its wire.Client runs commands and copies files.
type Sandbox struct {
	wire.Client
	e   *Engine
	h   engine.Handle
	box *sdk.Sandbox
	end time.Time // when Modal ends it; zero if unknown
}

var (
	_ engine.Sandbox       = (*Sandbox)(nil)
	_ engine.ProcessOpener = (*Sandbox)(nil)
	_ engine.Filer         = (*Sandbox)(nil)
	_ engine.Imager        = (*Sandbox)(nil)
	_ engine.Described     = (*Sandbox)(nil)
	_ engine.Carrier       = (*Sandbox)(nil)
)

func (e *Engine) sandbox(h engine.Handle, box *sdk.Sandbox) *Sandbox {
	s := &Sandbox{e: e, h: h, box: box}
	s.Client = wire.Client{ID: h.ID, Connect: s.connect}
	return s
}

// Handle implements engine.Sandbox.
func (s *Sandbox) Handle() engine.Handle { return s.h }

// claim sends the description of the sandbox to the program inside, and returns the defaults that the program
// found there. The environment may contain secrets. The program keeps it only in memory.
func (s *Sandbox) claim(ctx context.Context, spec engine.Spec, links []wire.Mount) (*wire.Found, error) {
	rest := spec
	rest.Env, rest.Stage = nil, nil
	reply, err := s.Call(ctx, wire.Request{Op: wire.Claim, Claim: &wire.ClaimArgs{
		ID: spec.ID, Env: spec.Env, Dir: spec.Dir, User: spec.User, Mounts: links,
		OutputBytes: s.e.opts.OutputBytes, Spec: &rest,
	}})
	return reply.Found, err
}

// connect opens a connection to the program inside. Conflict if the sandbox has ended.
func (s *Sandbox) connect(ctx context.Context) (*wire.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, errors.Wrapf(err, "connect to the sandbox")
	}
	var problem error
	for range 2 { // the link may have broken since its last use
		if s.e.endOf(s.h.Ref) != nil {
			return nil, s.over()
		}
		l, err := s.e.link(ctx, s.box)
		if err == nil {
			stream, err := l.session.Open()
			if err == nil {
				return wire.NewConn(stream), nil
			}
			problem = errors.Explainf(err, errors.Unavailable, "the connection to the sandbox broke")
			_ = l.session.Close()
			continue
		}
		if ctx.Err() != nil {
			return nil, err
		}
		problem = err
	}
	if s.hasEnded(ctx) {
		return nil, s.over()
	}
	return nil, problem
}

func (s *Sandbox) over() error {
	return errors.Newf(errors.Conflict, "the sandbox %q has ended", s.h.ID)
}

// hasEnded reports whether the sandbox has ended, and asks Modal unless that is known.
func (s *Sandbox) hasEnded(ctx context.Context) bool {
	if s.e.endOf(s.h.Ref) != nil {
		return true
	}
	return s.e.over(ctx, s.box)
}

// endOf returns the end of a sandbox if this process has destroyed it or seen its end, or else nil.
func (e *Engine) endOf(ref string) *engine.End {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ended[ref].end
}

// Destroy implements engine.Sandbox.
func (s *Sandbox) Destroy(ctx context.Context) error {
	s.e.mu.Lock()
	s.e.noteEnd(s.h.Ref, &engine.End{Destroyed: true, Detail: "It was destroyed."})
	s.e.mu.Unlock()
	err := s.e.terminate(ctx, s.box)
	s.e.unlink(s.h.Ref)
	return errors.Stage(err, "destroy")
}
