package session

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/agent"
	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/model"
	"github.com/RelevanceAI/harvest/model/tunnel"
	"github.com/RelevanceAI/harvest/sandbox"
)

// Line is a connection from a sandbox to a model. Programs in the sandbox can use the model while the line is open.
type Line struct {
	m                *Manager
	account, sandbox string
	grant            model.Grant
	stop             context.CancelFunc
	ended            sync.WaitGroup
}

const (
	programTime = 30 * time.Second       // time limit for the program in the sandbox to start listening
	tryAgain    = 100 * time.Millisecond // between attempts to connect to it
)

// tunneled reports whether agents reach their models through this server.
func (m *Manager) tunneled() bool {
	return m.opts.Models != nil && !m.opts.DirectModels && m.opts.Fleet.Capabilities().Network
}

// withheld returns the secret keys that sandboxes of sessions do not receive.
func (m *Manager) withheld() []string {
	if m.opts.Models == nil {
		return nil
	}
	return model.Keys() // without a tunnel, only the agent's process receives its credential
}

// Access returns the address and credential with which a program in a sandbox reaches its model. id identifies the
// owner of the token; secrets are the names of secrets that are searched first.
func (m *Manager) Access(ctx context.Context, account, id string, secrets []string) (*agent.Access, error) {
	if m.opts.Models == nil {
		return nil, nil
	}
	c, err := m.opts.Models.Credential(ctx, account, secrets)
	if err != nil {
		return nil, err
	}
	if m.tunneled() {
		if c.Kind == "" {
			c.Kind = model.APIKey // the gateway reports the missing credential
		}
		return &agent.Access{Kind: agent.AccessKind(c.Kind), URL: tunnel.URL(), Token: m.opts.Models.Token(id),
			Region: c.Region}, nil
	}
	if c.Value == "" {
		return nil, nil
	}
	a := &agent.Access{Kind: agent.AccessKind(c.Kind), Token: c.Value.Reveal(), Region: c.Region}
	url, err := m.opts.Models.Upstream(c)
	if err != nil {
		return nil, err
	}
	if url != model.Anthropic && c.Kind != model.Bedrock {
		a.URL = url
	}
	return a, nil
}

// OpenLine opens a line from a sandbox. The caller closes it. It returns nil if agents do not reach their models
// through this server.
func (m *Manager) OpenLine(ctx context.Context, account, sandboxID string, grant model.Grant) *Line {
	if !m.tunneled() {
		return nil
	}
	l := &Line{m: m, account: account, sandbox: sandboxID, grant: grant}
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
	infos, err := l.m.opts.Fleet.Processes(ctx, l.account, l.sandbox)
	if err != nil {
		return // the sandbox has ended
	}
	for _, info := range infos {
		if info.Exit != nil || len(info.Args) == 0 || info.Args[0] != tunnel.Program {
			continue
		}
		if x, err := l.m.opts.Fleet.Attach(ctx, l.account, l.sandbox, info.ID, engine.Stdio{}); err == nil {
			_ = x.Kill(ctx)
		}
	}
}

// serve serves requests from the sandbox, and reconnects when the connection ends.
func (l *Line) serve(ctx context.Context) {
	handler := l.m.opts.Models.Handler(l.grant)
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
	fleet := l.m.opts.Fleet
	conn, err := fleet.Dial(ctx, l.account, l.sandbox, tunnel.ServerPort)
	if err == nil || errors.KindOf(err) != errors.Unavailable {
		return conn, err
	}
	req := sandbox.ExecRequest{Args: []string{tunnel.Program}, Own: true, Workdir: "/", Timeout: agentLife,
		Detach: true, Background: true}
	if fleet.Capabilities().Users {
		req.User = "0:0" // so that an agent that runs as another user cannot kill it
	}
	if _, err := fleet.Exec(ctx, l.account, l.sandbox, req); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(programTime); ; {
		conn, err := fleet.Dial(ctx, l.account, l.sandbox, tunnel.ServerPort)
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

// openLine opens the line to the model for the agent's process.
func (r *runner) openLine() {
	s := r.session()
	if r.line != nil || !needsModel(r.m.opts.Agents[s.Agent]) {
		return
	}
	r.line = r.m.OpenLine(logf.With(r.m.ctx, "session_id", r.id), r.account, s.SandboxID, model.Grant{
		ID: r.id, Account: r.account, Secrets: s.Sandbox.Secrets,
		Spend: func(u model.Usage) {
			r.mu.Lock()
			r.spent += u.Cost()
			r.mu.Unlock()
		},
		Left: func() float64 {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.s.Limits.USD <= 0 {
				return 1
			}
			return r.s.Limits.USD - r.s.Usage.Cost - r.spent
		},
	})
}

// needsModel reports whether an agent uses a model.
func needsModel(a agent.Agent) bool {
	without, ok := a.(interface{ Modelless() bool })
	return !ok || !without.Modelless()
}

// checkKeys returns Invalid if a session's environment contains a key that belongs into a secret.
func (m *Manager) checkKeys(a agent.Agent, env map[string]string) error {
	if !m.tunneled() || !needsModel(a) {
		return nil
	}
	for _, key := range model.Keys() {
		if env[key] != "" {
			return errors.Remedy(errors.Newf(errors.Invalid,
				"%s would be in the agent's environment, which its commands can read", key),
				"store it with \"harvest secret set anthropic %s=…\" and leave it out here: the server adds it to the agent's requests", key)
		}
	}
	return nil
}

// overspent returns the reason for a failed turn if the cost limit caused the failure.
func (r *runner) overspent() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.s.Limits.USD; l > 0 && r.spent > 0 && r.s.Usage.Cost+r.spent >= l {
		return "the session has reached its cost limit"
	}
	return ""
}
