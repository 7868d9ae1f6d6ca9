package sandbox

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/gateway"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox/record"
	"github.com/RelevanceAI/harvest/sandbox/spec"
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
	logf.Infof(logf.With(ctx, "sandbox_id", e.id), "network %s", describe(n))
	return sb, nil
}

// describe formats n for the log.
func describe(n spec.Network) string {
	var b strings.Builder
	b.WriteString(n.Mode)
	for word, rules := range map[string][]string{"allow": n.Allow, "deny": n.Deny} {
		if len(rules) > 0 {
			b.WriteString(", " + word + " " + strings.Join(rules, " "))
		}
	}
	return b.String()
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

// Bounds of the polling interval for a sandbox's denials. The interval grows, so that a sandbox with many denials
// causes little load, and no denials of a short-lived sandbox are missed.
const (
	firstDenialPause = 20 * time.Millisecond
	denialPause      = time.Second
)

// keptDenials is the number of denials that a record keeps.
const keptDenials = 10

// follow publishes the denials of a sandbox until it ends or is lost. Without a network there are no denials to
// follow.
func (f *Fleet) follow(e *entry, box engine.Sandbox) {
	networker, ok := box.(engine.Networker)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !ok || e.followed == box || e.record.Network.Mode == gateway.ModeNone {
		return
	}
	e.followed = box
	seq := e.record.Denied
	f.tasks.Go(func() {
		ctx := logf.With(f.ctx, "sandbox_id", e.id)
		pause := firstDenialPause
		for {
			begin := time.Now()
			denied, err := networker.Denials(ctx, seq)
			if err != nil || ctx.Err() != nil {
				return // it has ended, or watch detects that it is lost
			}
			for _, d := range denied {
				seq = d.Seq
				f.denied(ctx, e, d)
			}
			if changed, err := f.update(ctx, e, func(sb *record.Sandbox) error {
				sb.Denied = seq
				sb.Denials = keepDenials(sb.Denials, denied)
				return sb.RequireStatus(record.Running)
			}); changed && err != nil {
				logf.Errorf(ctx, "record denied connections: %v", err)
			}
			if time.Since(begin) > denialPause {
				pause = firstDenialPause
			}
			f.pause(pause)
			pause = min(2*pause, denialPause)
		}
	})
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
		if sb.Network.Mode == gateway.ModeNone {
			return "the sandbox has no network"
		}
		for _, d := range sb.Denials {
			if strings.EqualFold(strings.TrimSuffix(d.Domain, "."), host) || d.Address == host {
				return d.Reason
			}
		}
		if time.Now().After(end) || !f.pause(pause) {
			return ""
		}
	}
}

// keepDenials adds denials to the most recent ones of a sandbox. It merges equal denials and keeps the time of the
// last.
func keepDenials(kept, more []engine.Denial) []engine.Denial {
	kept = slices.Clone(kept)
	for _, d := range more {
		d.Count = max(d.Count, 1)
		kept = slices.DeleteFunc(kept, func(k engine.Denial) bool {
			same := k.Protocol == d.Protocol && k.Domain == d.Domain && k.Address == d.Address && k.Port == d.Port &&
				k.Reason == d.Reason
			if same {
				d.Count += k.Count
			}
			return same
		})
		kept = append(kept, d)
	}
	return kept[max(0, len(kept)-keptDenials):]
}

// denied publishes one denial (mission A6).
func (f *Fleet) denied(ctx context.Context, e *entry, d engine.Denial) {
	what := d.Protocol
	if d.Domain != "" {
		what += " " + strconv.Quote(d.Domain)
	}
	if d.Address != "" {
		what += " " + d.Address
	}
	if d.Port != 0 {
		what += " port " + strconv.Itoa(d.Port)
	}
	logf.Warnf(ctx, "denied %s, %d times: %s", what, max(d.Count, 1), d.Reason)
	f.mu.Lock()
	sb := f.snapshot(e)
	f.mu.Unlock()
	f.emit(record.Event{Type: record.EventDenied, Sandbox: sb, Denial: d})
}

// Dial connects to a port on which a command in the sandbox listens, on any of its addresses, loopback included. An
// open connection keeps the sandbox from becoming idle. The end of ctx aborts only the connection attempt. Kinds:
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
	_, box, leave, err := f.enter(ctx, account, ref)
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
	if err != nil {
		leave()
		return nil, errors.Stage(err, "connect")
	}
	return &portConn{Conn: c, leave: sync.OnceFunc(leave)}, nil
}

// portConn is a connection to a port of a sandbox.
type portConn struct {
	net.Conn
	leave func()
}

// Close closes the connection.
func (c *portConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// CloseWrite closes the direction into the sandbox.
func (c *portConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errors.Errorf("connections of the type %T have no directions", c.Conn)
}
