package sandbox

import (
	"context"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/fault"
	"github.com/RelevanceAI/harvest/logf"
)

// carriedReason is in the records of commands that ended with what their sandbox was, and in that of the sandbox meanwhile.
const carriedReason = "the sandbox was carried over to a new one with its files, because its engine lets none live longer; commands end with that"

const (
	// notWorthIt is by how much a lifetime is shortened rather than that commands end for it.
	notWorthIt = 10 * time.Minute
	// early is how much earlier a lifetime is over than the engine would end the sandbox.
	early = 5 * time.Second
	// carryQuiet is how long copies of files may take that were under way when a sandbox is carried over.
	carryQuiet = 10 * time.Minute
	// carryPause is how long after a failure a sandbox is tried to be carried over again, at the most.
	carryPause = 5 * time.Minute
)

// fit returns when a sandbox is to end that shall live until expires: earlier, if its engine ends it shortly before; by as much as a snapshot
// on the end may take, if it is to have one.
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

// carryDue begins to carry over what its engine ends before its time, and returns when to look again.
func (f *Fleet) carryDue(at time.Time) time.Duration {
	nap := longestNap
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.live {
		c, ok := e.box.(engine.Carrier)
		if !ok || e.record.Status != Running || e.carried != nil {
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

// carry puts a new sandbox of the engine in the place of one that the engine would end: with the same id, name, tags, volumes and environment,
// and with the files. Its commands end. Meanwhile it is lost, and whoever wants something of it waits.
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
	changed, err := f.update(ctx, e, func(sb *Sandbox) error {
		if err := e.requireBox(sb, box); err != nil {
			return err
		}
		e.box = nil
		sb.Status, sb.Reason = Lost, "it is being carried over to a new sandbox, because its engine lets none live longer"
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
	f.emit(Event{Type: EventCarried, Sandbox: sb})
	done()
	logf.Infof(ctx, "sandbox carried over from %s to %s", old.Ref, sb.Handle.Ref)
	f.discard(ctx, e.id, old, box)
}

// carryLater has a sandbox go on that could not be carried over, until that is tried again. The end of the Fleet leaves it to the next one.
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

// settle ends the running commands, also those that are just being started, and waits until nothing else is under way in the sandbox, for as
// long as limit: what it writes from then on would be lost.
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
			logf.Warnf(ctx, "copies of files go on in a sandbox that is carried over; what they have not written is lost")
			return
		}
	}
}

// endCommands ends the running commands: they are asked to, get the grace period, and are killed.
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
