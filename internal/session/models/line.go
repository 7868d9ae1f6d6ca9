package models

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/session/model"
	"github.com/RelevanceAI/harvest/internal/session/model/tunnel"
)

// Line is a connection from a sandbox to a model. Programs in the sandbox can use the model while the line is open.
type Line struct {
	c       Connector
	account string
	sandbox string
	grant   model.Grant
	stop    context.CancelFunc
	ended   sync.WaitGroup
}

const (
	programTime = 30 * time.Second       // time limit for the program in the sandbox to start listening
	programLife = 7 * 24 * time.Hour     // maximum lifetime of that program, the same as that of its sandbox
	tryAgain    = 100 * time.Millisecond // between attempts to connect to it
)

// Open opens a line from a sandbox. The caller closes it. It returns nil if agents do not reach their models
// through this server.
func (c Connector) Open(ctx context.Context, account, sandboxID string, grant model.Grant) *Line {
	if !c.tunneled() {
		return nil
	}
	l := &Line{c: c, account: account, sandbox: sandboxID, grant: grant}
	ctx, l.stop = context.WithCancel(ctx)
	l.ended.Go(func() { l.serve(ctx) })
	return l
}

// Close closes the line; the program in the sandbox waits for another. Close on a nil Line is a no-op.
func (l *Line) Close() {
	if l == nil {
		return
	}
	l.stop()
	l.ended.Wait()
}

// End closes the line and ends the program in the sandbox.
func (l *Line) End(ctx context.Context) {
	if l == nil {
		return
	}
	l.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), programTime)
	defer cancel()
	infos, err := l.c.Fleet.Processes(ctx, l.account, l.sandbox)
	if err != nil {
		return // the sandbox has ended
	}
	for _, info := range infos {
		if info.Exit != nil || len(info.Args) == 0 || info.Args[0] != tunnel.Program {
			continue
		}
		if x, err := l.c.Fleet.Attach(ctx, l.account, l.sandbox, info.ID, engine.Stdio{}); err == nil {
			_ = x.Kill(ctx)
		}
	}
}

// serve serves requests from the sandbox, and reconnects when the connection ends.
func (l *Line) serve(ctx context.Context) {
	handler := l.c.Gateway.Handler(l.grant)
	failed := ""
	for ctx.Err() == nil {
		conn, err := l.dial(ctx)
		if err == nil {
			failed = ""
			logf.Infof(ctx, "connected to the sandbox %s, for its model", l.sandbox)
			err = tunnel.Serve(ctx, conn, handler)
		}
		switch kind := errors.KindOf(err); {
		case ctx.Err() != nil || kind == errors.NotFound || kind == errors.Gone || kind == errors.Conflict:
			return // the sandbox has ended
		case err != nil && err.Error() != failed:
			failed = err.Error()
			logf.Errorf(ctx, "the way to the model: %v", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(tryAgain):
		}
	}
}

// dial connects to the program in the sandbox, and starts it if it does not run.
func (l *Line) dial(ctx context.Context) (net.Conn, error) {
	sandboxes := l.c.Fleet
	conn, err := sandboxes.Dial(ctx, l.account, l.sandbox, tunnel.ServerPort)
	if err == nil || errors.KindOf(err) != errors.Unavailable {
		return conn, err
	}
	req := fleet.ExecRequest{Args: []string{tunnel.Program}, Own: true, Workdir: "/", Timeout: programLife,
		Detach: true, Background: true}
	if sandboxes.Capabilities().Users {
		req.User = "0:0" // so that an agent that runs as another user cannot kill it
	}
	if _, err := sandboxes.Exec(ctx, l.account, l.sandbox, req); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(programTime); ; {
		conn, err := sandboxes.Dial(ctx, l.account, l.sandbox, tunnel.ServerPort)
		if err == nil || errors.KindOf(err) != errors.Unavailable || time.Now().After(deadline) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(tryAgain / 4):
		}
	}
}
