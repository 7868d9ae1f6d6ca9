package sandbox

import (
	"context"
	"fmt"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
)

// longestNap bounds how late the reaper notices that the clock was set or that the machine slept.
const longestNap = time.Minute

const pruneEvery = time.Hour

// reap ends sandboxes whose lifetime is over or that were idle for too long, sends volumes to S3 that are sent every so often, and forgets
// old records.
func (f *Fleet) reap() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var pruned time.Time
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-f.wake:
		case <-timer.C:
		}
		if time.Since(pruned) >= pruneEvery {
			pruned = time.Now()
			f.prune()
		}
		at := now()
		timer.Reset(min(f.endOverdue(at), f.sendDue(at)))
	}
}

// endOverdue ends what is overdue, and returns when to look again.
func (f *Fleet) endOverdue(at time.Time) time.Duration {
	nap := longestNap
	type overdue struct {
		e           *entry
		end, reason string
	}
	var over []overdue
	f.mu.Lock()
	for _, e := range f.live {
		due, end, reason := f.deadline(e)
		switch {
		case due.IsZero():
		case !due.After(at):
			over = append(over, overdue{e, end, reason})
		default:
			nap = min(nap, due.Sub(at))
		}
	}
	f.mu.Unlock()
	for _, o := range over {
		f.tasks.Go(func() {
			if err := f.end(context.WithoutCancel(f.ctx), o.e, o.end, o.reason); err != nil {
				logf.Errorf(logf.With(f.ctx, "sandbox_id", o.e.id), "end an overdue sandbox: %v", err)
			}
		})
	}
	return nap
}

// deadline returns when e is to end as things are, and why; zero if it is not to be ended. f.mu is held.
func (f *Fleet) deadline(e *entry) (due time.Time, end, reason string) {
	sb := e.record
	if sb.Status != Running && sb.Status != Lost {
		return time.Time{}, "", ""
	}
	due, end, reason = sb.Expires, EndLifetime, "its lifetime was over"
	idle := seconds(sb.IdleTimeoutSeconds)
	if idle > 0 && e.busy == 0 && sb.Status == Running {
		if at := sb.LastUsed.Add(idle); at.Before(due) {
			due, end, reason = at, EndIdle, fmt.Sprintf("it was idle for %s", idle)
		}
	}
	return due, end, reason
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (f *Fleet) prune() {
	n, err := f.opts.Store.Delete(f.ctx, now().Add(-f.opts.Retention))
	switch {
	case f.ctx.Err() != nil:
	case err != nil:
		logf.Errorf(f.ctx, "forget old records: %v", err)
	case n > 0:
		logf.Infof(f.ctx, "%d records of sandboxes that ended more than %s ago are deleted", n, f.opts.Retention)
	}
}

// Extend gives the sandbox timeout to live from now and sets its idle limit; 0 leaves either as it is.
func (f *Fleet) Extend(ctx context.Context, account, ref string, timeout, idle time.Duration) (Sandbox, error) {
	if err := f.begin(); err != nil {
		return Sandbox{}, err
	}
	defer f.tasks.Done()
	var p problems
	if timeout == 0 && idle == 0 {
		p.invalidf("give timeout_seconds, idle_timeout_seconds or both", "there is nothing to extend")
	}
	timeout = checkTime(&p, "timeout_seconds", timeout.Seconds(), 0, f.opts.Timeouts.MaxLife)
	idle = checkTime(&p, "idle_timeout_seconds", idle.Seconds(), 0, f.opts.Timeouts.MaxLife)
	if err := p.err(); err != nil {
		return Sandbox{}, errors.Stage(err, "validate")
	}
	sb, e, err := f.find(ctx, account, ref)
	if err != nil {
		return Sandbox{}, err
	}
	if e == nil {
		return Sandbox{}, sb.requireStatus(Running)
	}
	_, err = f.update(ctx, e, func(r *Sandbox) error {
		if err := r.requireStatus(Running); err != nil {
			return err
		}
		r.LastUsed = now()
		if timeout > 0 {
			r.Expires = r.LastUsed.Add(timeout)
		}
		if idle > 0 {
			r.IdleTimeoutSeconds = idle.Seconds()
		}
		sb = r.Clone()
		return nil
	})
	if err != nil {
		return Sandbox{}, err
	}
	f.wakeReaper()
	logf.Infof(logContext(ctx, sb), "sandbox extended until %s, idle limit %s", sb.Expires.Format(time.RFC3339), seconds(sb.IdleTimeoutSeconds))
	return sb, nil
}
