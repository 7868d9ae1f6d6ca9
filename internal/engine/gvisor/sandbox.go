package gvisor

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/socket"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/processes"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/cgroup"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// Sandbox is a gVisor sandbox. It implements engine.Checkpointer and what Container implements.
type Sandbox struct{ *Container }

// Container is a container. It implements engine.Sandbox, engine.ProcessOpener, engine.Networker, engine.Peered,
// engine.Snapshotter, engine.Meter and engine.Dialer.
type Container struct {
	wire.Keeper
	e *Engine
	h engine.Handle
}

// container returns the sandbox, of either kind, without what only gVisor can do.
func (e *Engine) container(h engine.Handle) *Container {
	s := &Container{e: e, h: h}
	s.Keeper = wire.Keeper{Client: wire.Client{ID: h.ID, Connect: s.connect}}
	return s
}

// sandbox returns the sandbox, with all that its kind can do.
func (e *Engine) sandbox(h engine.Handle, container bool) engine.Sandbox {
	c := e.container(h)
	if container {
		return c
	}
	return &Sandbox{c}
}

// Handle implements engine.Sandbox.
func (s *Container) Handle() engine.Handle { return s.h }

// dial connects to the keeper of the sandbox in dir.
func dial(ctx context.Context, dir string) (*wire.Conn, error) {
	c, err := socket.Dial(ctx, dir, wire.Socket)
	if err != nil {
		return nil, err
	}
	return wire.NewConn(c), nil
}

// Keeper connects to the keeper of a sandbox, which may be a warm one, for callers that pass its protocol on.
func (e *Engine) Keeper(ctx context.Context, h engine.Handle) (net.Conn, error) {
	return socket.Dial(ctx, e.dir(h.Ref), wire.Socket)
}

// connect connects to the keeper. A sandbox without one has ended.
func (s *Container) connect(ctx context.Context) (*wire.Conn, error) {
	conn, err := dial(ctx, s.e.dir(s.h.Ref))
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, errors.Wrapf(ctx.Err(), "connect to sandbox %s", s.h.ID)
	default:
		err = errors.Wrapf(err, "connect to keeper%s", s.e.lastWords(s.h.Ref))
		return nil, errors.Explainf(err, errors.Conflict, "the sandbox %q has ended", s.h.ID)
	}
}

// Root implements engine.Rooted.
func (s *Container) Root() string {
	name := filepath.Join(s.e.dir(s.h.Ref), rootName)
	if _, err := os.Stat(name); err != nil {
		return ""
	}
	return name
}

// Wait implements engine.Sandbox.
func (s *Container) Wait(ctx context.Context) (engine.End, error) {
	reply, err := s.Call(ctx, wire.Request{Op: wire.Wait})
	if err == nil {
		return *reply.End, nil
	}
	if ctx.Err() != nil {
		return engine.End{}, err
	}
	// The keeper is gone. It may have saved the reason.
	s.e.mu.Lock()
	held := s.e.holding[s.h.Ref]
	destroyed := held == nil || held.ending
	s.e.mu.Unlock()
	if state, err := s.e.readState(s.h.Ref); err == nil && state.End != nil {
		return *state.End, nil
	}
	if destroyed {
		return engine.End{Destroyed: true, Detail: "the sandbox was destroyed"}, nil
	}
	return engine.End{Detail: "the process that kept the sandbox was killed"}, nil
}

// Destroy implements engine.Sandbox.
func (s *Container) Destroy(ctx context.Context) error { return s.e.destroy(ctx, s.h.Ref) }

// alive reports whether ref has a keeper that answers.
func (e *Engine) alive(ctx context.Context, ref string) bool {
	conn, err := dial(ctx, e.dir(ref))
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

func (e *Engine) readState(ref string) (wire.State, error) {
	var s wire.State
	b, err := os.ReadFile(filepath.Join(e.dir(ref), wire.StateFile))
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	return s, errors.Wrapf(err, "read state of sandbox %s", ref)
}

// destroy ends a sandbox through its keeper, if that answers, and removes the rest.
func (e *Engine) destroy(ctx context.Context, ref string) error {
	e.mu.Lock()
	if h := e.holding[ref]; h != nil {
		h.ending = true
	}
	e.mu.Unlock()
	s := e.container(engine.Handle{Ref: ref})
	_, err := s.Call(ctx, wire.Request{Op: wire.Destroy})
	if err != nil && !errors.Is(err, errors.Conflict) {
		logf.Warnf(ctx, "the keeper of sandbox %s does not end it: %v", ref, err)
	}
	return e.remove(ref)
}

// remove kills the remains of a sandbox, and removes its cgroup and files. It is idempotent.
func (e *Engine) remove(ref string) error {
	dir := e.dir(ref)
	if _, err := os.Lstat(dir); errors.IsNotExist(err) {
		e.drop(ref)
		return nil
	}
	// gVisor's processes die with the keeper.
	for _, pid := range processes.WithArgs(keeper.Name, dir) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	err := cgroup.Open(e.cgroup(ref)).Remove()
	e.drop(ref)
	return errors.Stage(errors.Join(err, e.trash.put(dir)), "destroy")
}
