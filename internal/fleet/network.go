package fleet

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/fleet/denials"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// SetNetwork replaces the network policy of a running sandbox. It closes connections that the new policy forbids
// before it returns. Kinds: Invalid, Unsupported, NotFound, Conflict and Gone (it does not run).
func (f *Fleet) SetNetwork(ctx context.Context, account, ref string, n spec.Network) (record.Sandbox, error) {
	if err := f.begin(); err != nil {
		return record.Sandbox{}, err
	}
	defer f.tasks.Done()
	var p spec.Problems
	if n.Mode == "" && len(n.Allow) == 0 {
		p.Invalidf("use none, default or allow", "no network mode given")
	}
	n = f.rules.Network(&p, n.Clone())
	if err := p.Err(); err != nil {
		return record.Sandbox{}, errors.Stage(err, "validate")
	}
	e, box, leave, err := f.enter(ctx, account, ref)
	if err != nil {
		return record.Sandbox{}, err
	}
	defer leave()
	e.network.Lock()
	defer e.network.Unlock()
	f.mu.Lock()
	old := e.record.Network.Clone()
	f.mu.Unlock()
	save := func(n spec.Network) error {
		_, err := f.update(ctx, e, func(sb *record.Sandbox) error {
			sb.Network = n
			return nil
		})
		return err
	}
	// A server that finds the sandbox later applies the policy of the record.
	if err := save(n); err != nil {
		return record.Sandbox{}, errors.Join(err, save(old))
	}
	if err := f.putInForce(ctx, e, box); err != nil {
		return record.Sandbox{}, errors.Stage(errors.Join(err, save(old)), "network")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	sb := f.snapshot(e)
	logf.Infof(logf.With(ctx, "sandbox_id", e.id), "network %s", n.Summary())
	return sb, nil
}

// putInForce applies the network policy of e's record on the engine, and follows its denials.
func (f *Fleet) putInForce(ctx context.Context, e *entry, box engine.Sandbox) error {
	if err := f.enforce(ctx, e, box); err != nil {
		return err
	}
	f.follow(e, box)
	return nil
}

// enforce applies the network policy of e's record on the engine.
func (f *Fleet) enforce(ctx context.Context, e *entry, box engine.Sandbox) error {
	f.mu.Lock()
	n := e.record.Network.Engine()
	f.mu.Unlock()
	var err error
	if n.Intercept, err = e.loan.Hosts(ctx); err != nil {
		return err
	}
	networker, ok := box.(engine.Networker)
	if !ok {
		if n.Mode == engine.NetworkNone {
			return nil
		}
		return errors.Newf(errors.Unsupported, "the engine %s cannot change the network of a running sandbox",
			f.opts.Engine.Name())
	}
	return networker.SetNetwork(ctx, n)
}

// follow follows the denials of a sandbox, and takes its connections to hosts with credentials.
func (f *Fleet) follow(e *entry, box engine.Sandbox) {
	e.denials.Follow(box, f.current(e))
	e.loan.Follow(box)
}

// saveDenials changes the denials in e's record.
func (f *Fleet) saveDenials(ctx context.Context, e *entry, change func(*record.Sandbox)) {
	if changed, err := f.update(ctx, e, func(sb *record.Sandbox) error {
		change(sb)
		return sb.RequireStatus(record.Running)
	}); changed && err != nil {
		logf.Errorf(ctx, "record denied connections: %v", err)
	}
}

// Refusal returns why the sandbox's network policy refused a host, a name or an address; "" if it did not. It waits
// up to two seconds, since a refusal is reported after the program notices it.
func (f *Fleet) Refusal(ctx context.Context, account, ref, host string) string {
	const moment, pause = 2 * time.Second, 50 * time.Millisecond
	for end := time.Now().Add(moment); ; {
		sb, err := f.Get(ctx, account, ref)
		if err != nil {
			return ""
		}
		if why := denials.Reason(sb, host); why != "" {
			return why
		}
		if time.Now().After(end) || !f.pause(pause) {
			return ""
		}
	}
}

// denied publishes one denial.
func (f *Fleet) denied(e *entry, d engine.Denial) {
	f.mu.Lock()
	sb := f.snapshot(e)
	f.mu.Unlock()
	f.emit(record.Event{Type: record.EventDenied, Sandbox: sb, Denial: d})
}

// Dial connects to a port on which a command in the sandbox listens, on any of its addresses, loopback included. An
// open connection keeps the sandbox from becoming idle. Dial waits for the start command of a sandbox that has just
// started or woken. The end of ctx aborts only the connection attempt. Kinds:
// Invalid, Unsupported, NotFound, Conflict and Gone (it does not run), Unavailable (no process listens).
func (f *Fleet) Dial(ctx context.Context, account, ref string, port int) (net.Conn, error) {
	if err := f.begin(); err != nil {
		return nil, err
	}
	defer f.tasks.Done()
	var p spec.Problems
	spec.CheckPort(&p, port)
	if err := p.Err(); err != nil {
		return nil, errors.Stage(err, "validate")
	}
	e, box, leave, err := f.enter(ctx, account, ref)
	if err != nil {
		return nil, err
	}
	dialer, ok := box.(engine.Dialer)
	if !ok {
		leave()
		return nil, errors.Newf(errors.Unsupported, "the engine %s cannot connect to ports of sandboxes",
			f.opts.Engine.Name())
	}
	c, err := dialer.Dial(ctx, port)
	for errors.Is(err, errors.Unavailable) && starting(f, e) && ctx.Err() == nil && f.pause(startingPause) {
		c, err = dialer.Dial(ctx, port)
	}
	if err != nil {
		leave()
		return nil, errors.Stage(err, "connect")
	}
	return commands.HeldConn{Conn: c, Leave: sync.OnceFunc(leave)}, nil
}
