package fleet

import (
	"context"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/fault"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/carry"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// fit returns when to end a sandbox that should live until expires, as carry.Fit says. snapshot leaves time for one.
func (f *Fleet) fit(box engine.Sandbox, expires time.Time, snapshot bool) time.Time {
	if snapshot {
		return carry.Fit(box, expires, endSnapshotLimit)
	}
	return carry.Fit(box, expires, 0)
}

// carryDue starts to carry over the sandboxes that the engine would end before they expire. It returns when to check
// again.
func (f *Fleet) carryDue(at time.Time) time.Duration {
	nap := longestNap
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.live {
		if e.record.Status != record.Running {
			continue
		}
		switch left, ok := e.carry.Due(e.box, e.record.Expires, at); {
		case !ok:
		case left > 0:
			nap = min(nap, left)
		default:
			box, done := e.box, e.carry.Begin()
			f.tasks.Go(func() { f.carry(e, box, done) })
		}
	}
	return nap
}

// carry replaces a sandbox that the engine would end with a new one that has the same ID, name, tags, volumes,
// environment and files. Its commands end. Meanwhile its status is lost, and operations on it wait.
func (f *Fleet) carry(e *entry, box engine.Sandbox, carried func()) {
	ctx := logf.With(f.ctx, "sandbox_id", e.id)
	c := box.(engine.Carrier)
	done := sync.OnceFunc(func() {
		carried()
		f.wakeReaper()
	})
	defer done()
	changed, err := f.update(ctx, e, func(sb *record.Sandbox) error {
		if err := e.requireBox(sb, box); err != nil {
			return err
		}
		e.box = nil
		sb.Status, sb.Reason = record.Lost,
			"it is being carried over to a new sandbox, because its engine ends this one"
		return nil
	})
	if !changed {
		return
	}
	if err != nil {
		logf.Errorf(ctx, "a sandbox that is carried over: %v", err)
	}
	e.commands.Settle(ctx, carry.Quiet(c, f.now()))
	next, err := c.Carry(ctx)
	if err == nil {
		if err = f.enforce(ctx, e, next); err != nil {
			f.leftovers.Discard(ctx, e.id, next.Handle(), next)
		}
	}
	if err != nil {
		f.carryLater(ctx, e, box, c, err)
		return
	}
	fault.Point("sandbox.carried")
	old := box.Handle()
	if f.caps.Usage {
		e.meter.Renew(ctx)
	}
	if !f.adopt(ctx, e, next) { // it was destroyed meanwhile
		f.leftovers.Discard(ctx, e.id, next.Handle(), next)
		return
	}
	f.mu.Lock()
	sb := f.snapshot(e)
	f.mu.Unlock()
	f.emit(record.Event{Type: record.EventCarried, Sandbox: sb})
	done()
	logf.Infof(ctx, "sandbox carried over from %s to %s", old.Ref, sb.Handle.Ref)
	f.leftovers.Discard(ctx, e.id, old, box)
}

// carryLater keeps a sandbox running after a failed carry-over, until the next attempt. If the Fleet is closing, it
// leaves the sandbox to the next one.
func (f *Fleet) carryLater(ctx context.Context, e *entry, box engine.Sandbox, c engine.Carrier, cause error) {
	if f.ctx.Err() != nil {
		return
	}
	pause := e.carry.Failed(c, f.now())
	logf.Errorf(ctx, "the sandbox could not be carried over, which is tried again in %v: %v", pause, cause)
	f.adopt(ctx, e, box)
}
