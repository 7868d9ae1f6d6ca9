package fleet

import (
	"context"
	"fmt"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// longestNap bounds the delay until the reaper notices that the clock was set or that the machine slept.
const longestNap = time.Minute

const pruneEvery = time.Hour

// reap ends sandboxes whose lifetime or idle limit is over, sends volumes to S3 periodically, carries over sandboxes
// that the engine would end, and deletes old records.
func (f *Fleet) reap() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var pruned time.Time
	var announced <-chan struct{}
	if a, ok := f.opts.Engine.(engine.Announcer); ok {
		announced = a.Announced()
	}
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-f.wake:
		case <-announced:
		case <-timer.C:
		}
		if time.Since(pruned) >= pruneEvery {
			pruned = time.Now()
			f.prune()
		}
		at := f.now()
		timer.Reset(min(f.endOverdue(at), f.sendDue(at), f.carryDue(at)))
	}
}

// endOverdue ends overdue sandboxes, and returns when to check again.
func (f *Fleet) endOverdue(at time.Time) time.Duration {
	nap := longestNap
	type overdue struct {
		e           *entry
		end, reason string
	}
	var over []overdue
	f.mu.Lock()
	for _, e := range f.live {
		left, end, reason := e.left(at, time.Now(), f.opts.Suspended)
		switch {
		case end == "":
		case left <= 0:
			over = append(over, overdue{e, end, reason})
		default:
			nap = min(nap, left)
		}
	}
	f.mu.Unlock()
	for _, o := range over {
		f.tasks.Go(func() {
			if o.end == record.EndIdle && f.current(o.e).IdleAction == spec.IdleSuspend {
				suspendIdle(f, o.e)
				return
			}
			if err := f.end(context.WithoutCancel(f.ctx), o.e, o.end, o.reason); err != nil {
				logf.Errorf(logf.With(f.ctx, "sandbox_id", o.e.id), "end an overdue sandbox: %v", err)
			}
		})
	}
	return nap
}

// left returns the time until e must end or be suspended, and the reason; end is "" if there is none. longest is how
// long it may be suspended. Both the clock and the elapsed time count, and the earlier end wins: setting the clock back
// does not prolong a lifetime. at is the current time of the clock. Fleet.mu is held.
func (e *entry) left(at, lived time.Time, longest time.Duration) (left time.Duration, end, reason string) {
	sb := e.record
	if sb.Status == record.Suspended && e.waking == nil {
		return e.expires.until(sb.Suspended.Add(longest), at, lived), record.EndLifetime,
			fmt.Sprintf("it was suspended for %s", longest)
	}
	if sb.Status != record.Running && sb.Status != record.Lost {
		return 0, "", ""
	}
	left, end, reason = e.expires.until(sb.Expires, at, lived), record.EndLifetime, "its lifetime was over"
	idle := seconds(sb.IdleTimeoutSeconds)
	rests := idle > 0 && !e.commands.Busy() && !e.carry.UnderWay()
	if rests && sb.Status == record.Running && sb.Account != record.SpareAccount {
		if rest := e.used.until(sb.LastUsed, at, lived) + idle; rest < left {
			left, end, reason = rest, record.EndIdle, fmt.Sprintf("it was idle for %s", idle)
		}
	}
	return left, end, reason
}

// moment is a time of the clock with the monotonic time that corresponded to it when the reaper first looked.
type moment struct{ clock, lived time.Time }

// until returns the time until t: the smaller of the difference to now by the clock and the remaining monotonic time.
func (m *moment) until(t, at, lived time.Time) time.Duration {
	if !m.clock.Equal(t) {
		*m = moment{t, lived.Add(t.Sub(at))}
	}
	return min(t.Sub(at), m.lived.Sub(lived))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (f *Fleet) prune() {
	f.checkpoints.Sweep(f.ctx)
	n, err := f.opts.Store.Delete(f.ctx, f.now().Add(-f.opts.Retention))
	switch {
	case f.ctx.Err() != nil:
	case err != nil:
		logf.Errorf(f.ctx, "forget old records: %v", err)
	case n > 0:
		logf.Infof(f.ctx, "%d records of sandboxes that ended more than %s ago are deleted", n, f.opts.Retention)
	}
}

// Extend sets the sandbox's lifetime to timeout from now, or from when it wakes, and its idle limit to idle. 0 leaves a
// value unchanged.
func (f *Fleet) Extend(ctx context.Context, account, ref string, timeout, idle time.Duration) (record.Sandbox, error) {
	if err := f.begin(); err != nil {
		return record.Sandbox{}, err
	}
	defer f.tasks.Done()
	var p spec.Problems
	if timeout == 0 && idle == 0 {
		p.Invalidf("give timeout_seconds, idle_timeout_seconds or both", "nothing to extend")
	}
	timeout = spec.CheckTime(&p, "timeout_seconds", timeout.Seconds(), 0, f.opts.Timeouts.MaxLife)
	idle = spec.CheckTime(&p, "idle_timeout_seconds", idle.Seconds(), 0, f.opts.Timeouts.MaxLife)
	if err := p.Err(); err != nil {
		return record.Sandbox{}, errors.Stage(err, "validate")
	}
	sb, e, err := f.find(ctx, account, ref)
	if err != nil {
		return record.Sandbox{}, err
	}
	if e == nil {
		return record.Sandbox{}, sb.RequireStatus(record.Running)
	}
	if err := e.carry.Wait(ctx, e.id); err != nil {
		return record.Sandbox{}, err
	}
	_, err = f.update(ctx, e, func(r *record.Sandbox) error {
		if err := r.RequireStatus(record.Running, record.Suspended); err != nil {
			return err
		}
		switch {
		case r.Status == record.Suspended && timeout > 0:
			r.Expires = r.Suspended.Add(timeout) // it passes from when the sandbox wakes
		case timeout > 0:
			r.Expires = f.fit(e.box, f.now().Add(timeout), r.SnapshotOnEnd)
		}
		if r.Status == record.Running {
			r.LastUsed = f.now()
		}
		if idle > 0 {
			r.IdleTimeoutSeconds = idle.Seconds()
		}
		sb = r.Clone()
		return nil
	})
	if err != nil {
		return record.Sandbox{}, err
	}
	f.wakeReaper()
	logf.Infof(logContext(ctx, sb), "sandbox extended until %s, idle limit %s", sb.Expires.Format(time.RFC3339),
		seconds(sb.IdleTimeoutSeconds))
	return sb, nil
}
