package sandbox

import (
	"context"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/fault"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox/record"
)

// carriedReason is the reason in the records of commands that ended because their sandbox was carried over, and in
// the sandbox's record meanwhile.
const carriedReason = "the sandbox was carried over to a new one with its files, because its engine lets none live longer; commands end with that"

const (
	// notWorthIt is by how much a lifetime may be shortened to avoid a carry-over, which ends the commands.
	notWorthIt = 10 * time.Minute
	// early is how long before the engine's limit the Fleet ends a sandbox.
	early = 5 * time.Second
	// carryQuiet is how long a carry-over waits for file copies that are under way.
	carryQuiet = 10 * time.Minute
	// carryPause is the longest pause before a failed carry-over is retried.
	carryPause = 5 * time.Minute
)

// fit returns when to end a sandbox that should live until expires. The result is earlier if the engine would end the
// sandbox shortly before expires. If a snapshot on end is requested, fit leaves time for it.
func fit(box engine.Sandbox, expires time.Time, snapshot bool) time.Time {
	c, ok := box.(engine.Carrier)
	if !ok {
		return expires
	}
	due, end := c.Ends()
	before := early
	if snapshot {
		before = max(early, min(endSnapshotLimit, end.Sub(due)))
	}
	if !end.IsZero() && expires.After(end.Add(-before)) && expires.Before(end.Add(notWorthIt)) {
		return end.Add(-before).UTC().Round(0)
	}
	return expires
}

// carryDue starts to carry over the sandboxes that the engine would end before they expire. It returns when to check
// again.
func (f *Fleet) carryDue(at time.Time) time.Duration {
	nap := longestNap
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.live {
		c, ok := e.box.(engine.Carrier)
		if !ok || e.record.Status != record.Running || e.carried != nil {
			continue
		}
		due, end := c.Ends()
		if due.IsZero() || !e.record.Expires.After(end) {
			continue
		}
		if e.notAgain.After(due) {
			due = e.notAgain
		}
		if left := due.Sub(at); left > 0 {
			nap = min(nap, left)
			continue
		}
		e.carried = make(chan struct{})
		box := e.box
		f.tasks.Go(func() { f.carry(e, box, c) })
	}
	return nap
}

// carry replaces a sandbox that the engine would end with a new one that has the same ID, name, tags, volumes,
// environment and files. Its commands end. Meanwhile its status is lost, and operations on it wait.
func (f *Fleet) carry(e *entry, box engine.Sandbox, c engine.Carrier) {
	ctx := logf.With(f.ctx, "sandbox_id", e.id)
	done := sync.OnceFunc(func() {
		f.mu.Lock()
		close(e.carried)
		e.carried = nil
		f.mu.Unlock()
		f.wakeReaper()
	})
	defer done()
	changed, err := f.update(ctx, e, func(sb *record.Sandbox) error {
		if err := e.requireBox(sb, box); err != nil {
			return err
		}
		e.box = nil
		sb.Status, sb.Reason = record.Lost,
			"it is being carried over to a new sandbox, because its engine lets none live longer"
		return nil
	})
	if !changed {
		return
	}
	if err != nil {
		logf.Errorf(ctx, "a sandbox that is carried over: %v", err)
	}
	_, end := c.Ends()
	f.settle(ctx, e, min(carryQuiet, end.Sub(f.now())/4))
	next, err := c.Carry(ctx)
	if err == nil {
		if err = f.enforce(ctx, e, next); err != nil {
			f.discard(ctx, e.id, next.Handle(), next)
		}
	}
	if err != nil {
		f.carryLater(ctx, e, box, c, err)
		return
	}
	fault.Point("sandbox.carried")
	old := box.Handle()
	if !f.adopt(ctx, e, next) { // it was destroyed meanwhile
		f.discard(ctx, e.id, next.Handle(), next)
		return
	}
	f.mu.Lock()
	sb := f.snapshot(e)
	f.mu.Unlock()
	f.emit(record.Event{Type: record.EventCarried, Sandbox: sb})
	done()
	logf.Infof(ctx, "sandbox carried over from %s to %s", old.Ref, sb.Handle.Ref)
	f.discard(ctx, e.id, old, box)
}

// carryLater keeps a sandbox running after a failed carry-over, until the next attempt. If the Fleet is closing, it
// leaves the sandbox to the next one.
func (f *Fleet) carryLater(ctx context.Context, e *entry, box engine.Sandbox, c engine.Carrier, cause error) {
	if f.ctx.Err() != nil {
		return
	}
	_, end := c.Ends()
	pause := min(carryPause, max(time.Second, end.Sub(f.now())/8))
	logf.Errorf(ctx, "the sandbox could not be carried over, which is tried again in %v: %v", pause, cause)
	f.mu.Lock()
	e.notAgain = f.now().Add(pause)
	f.mu.Unlock()
	f.adopt(ctx, e, box)
}

// settle ends the running commands, including those that are just starting. It then waits, at most for limit, until
// no other operation in the sandbox is under way: later writes would be lost.
func (f *Fleet) settle(ctx context.Context, e *entry, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		f.endCommands(ctx, e)
		f.mu.Lock()
		quiet := e.busy == 0 && len(e.commands) == 0
		f.mu.Unlock()
		if quiet {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			logf.Warnf(ctx, "copies of files are still running in the sandbox; unwritten data would be lost")
			return
		}
	}
}

// endCommands terminates the running commands, and kills them after the grace period.
func (f *Fleet) endCommands(ctx context.Context, e *entry) {
	f.terminate(ctx, e)
	f.mu.Lock()
	var running []*Execution
	for x := range e.commands {
		running = append(running, x)
	}
	f.mu.Unlock()
	var wg sync.WaitGroup
	for _, x := range running {
		wg.Go(func() {
			x.kill(ctx)
			select {
			case <-x.done:
			case <-time.After(killLimit):
			case <-ctx.Done():
			}
		})
	}
	wg.Wait()
}

// isCarried reports whether e is being carried over.
func (e *entry) isCarried(f *Fleet) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return e.carried != nil
}

// waitCarried waits until e, which may be nil, is not being carried over.
func (f *Fleet) waitCarried(ctx context.Context, e *entry) error {
	if e == nil {
		return nil
	}
	f.mu.Lock()
	carried := e.carried
	f.mu.Unlock()
	if carried == nil {
		return nil
	}
	select {
	case <-carried:
		return nil
	case <-ctx.Done():
		return errors.Wrapf(ctx.Err(), "wait until sandbox %s is carried over", e.id)
	}
}
