package fleet

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/fault"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// longestPause is the longest pause between searches for a lost sandbox.
const longestPause = time.Minute

// Destroy ends the sandbox: running commands get SIGTERM and a grace period, then all resources are released. It is
// idempotent, and continues when ctx ends. If the release fails, Destroy records and returns the error, and the Fleet
// keeps retrying.
func (f *Fleet) Destroy(ctx context.Context, account, ref string) error {
	if err := f.begin(); err != nil {
		return err
	}
	defer f.tasks.Done()
	sb, e, err := f.find(ctx, account, ref)
	if err != nil {
		return err
	}
	if e != nil {
		return f.end(ctx, e, "", "it was destroyed on request")
	}
	return errors.Stage(f.leftovers.ReleaseLeft(ctx, sb.ID), "destroy")
}

// end ends e and waits until it has ended.
func (f *Fleet) end(ctx context.Context, e *entry, why, reason string) error {
	f.mu.Lock()
	if e.record.Status == record.Creating {
		e.cancel(errors.Newf(errors.Canceled, "the sandbox was destroyed while it was created"))
		f.mu.Unlock()
		return f.waitEnded(ctx, e, false)
	}
	box := e.box
	f.mu.Unlock()
	changed, err := f.update(ctx, e, func(sb *record.Sandbox) error {
		if err := sb.RequireStatus(record.Running, record.Lost, record.Suspended); err != nil {
			return err // another call ends it, or it has ended
		}
		sb.Status, sb.Reason, sb.End = record.Stopping, reason, why
		return nil
	})
	if changed {
		if err != nil {
			logf.Errorf(ctx, "a sandbox that is to end: %v", err)
		}
		f.tasks.Go(func() { f.halt(e, box) })
	}
	return f.waitEnded(ctx, e, true)
}

func (f *Fleet) waitEnded(ctx context.Context, e *entry, tell bool) error {
	select {
	case <-ctx.Done():
		return errors.Stage(errors.Wrapf(ctx.Err(), "wait for the end of %s", e.id), "destroy")
	case <-e.ended:
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !tell {
		return nil
	}
	return errors.Stage(e.endErr, "destroy")
}

// halt ends a sandbox whose status is stopping.
func (f *Fleet) halt(e *entry, box engine.Sandbox) {
	ctx := logf.With(context.WithoutCancel(f.ctx), "sandbox_id", e.id)
	e.commands.Terminate(ctx)
	f.captureEnd(ctx, e, box)
	f.mu.Lock()
	h := e.record.Handle
	f.mu.Unlock()
	fault.Point("sandbox.stopping")
	e.files.Quiet(ctx)
	e.meter.Last(ctx, f.source(e, box))
	err := f.leftovers.Release(ctx, h, box)
	fault.Point("sandbox.released")
	e.files.End(ctx)
	e.files.UnmountEnding(ctx)
	forget(ctx, f, e)
	f.finish(ctx, e, err, func(sb *record.Sandbox) error {
		if err := sb.RequireStatus(record.Stopping); err != nil {
			return err
		}
		sb.Status = record.Terminated
		if err != nil {
			sb.Status, sb.FailedStage = record.Failed, cmp.Or(errors.StageOf(err), "destroy")
			sb.Reason = "not everything could be released: " + errors.Message(err)
			f.leftovers.Retry(e.id, h)
		}
		return nil
	}, map[bool]record.EventType{true: record.EventTerminated, false: record.EventFailed}[err == nil])
}

// pause waits, and reports whether the Fleet is still open.
func (f *Fleet) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-f.ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// watch waits for a running sandbox to end without a request.
func (f *Fleet) watch(e *entry, box engine.Sandbox) {
	f.mu.Lock()
	again := e.watched == box // its carry-over failed, and it continues
	e.watched = box
	f.mu.Unlock()
	if again {
		return
	}
	end, err := box.Wait(f.ctx)
	f.mu.Lock()
	if e.watched == box {
		e.watched = nil
	}
	f.mu.Unlock()
	if f.ctx.Err() != nil {
		return
	}
	ctx := logf.With(context.WithoutCancel(f.ctx), "sandbox_id", e.id)
	switch {
	case err != nil:
		f.lose(ctx, e, box, lookedFor, err)
		return
	case end.Lost:
		f.lose(ctx, e, box, cmp.Or(end.Detail, "it was ended by something else than Harvest"),
			errors.Newf(errors.Gone, "it has ended"))
		return
	}
	f.mu.Lock()
	h := e.record.Handle
	running := e.record.Status == record.Running && e.box == box // and not carried over to a new one
	f.mu.Unlock()
	if running {
		f.captureEnd(ctx, e, box) // some engines keep the files for it after running out of memory
		e.files.NoteEnd(ctx)
	}
	events := []record.EventType{record.EventFailed}
	if end.OutOfMemory {
		events = []record.EventType{record.EventOOM, record.EventFailed}
	}
	finished := f.finish(ctx, e, nil, func(sb *record.Sandbox) error {
		if err := e.requireBox(sb, box); err != nil {
			return err
		}
		sb.Status, sb.OutOfMemory, sb.Reason = record.Failed, end.OutOfMemory, sb.EndReason(end)
		return nil
	}, events...)
	if finished { // otherwise Destroy was faster and releases it
		e.files.Quiet(ctx)
		f.leftovers.Discard(ctx, e.id, h, box)
		f.saveLater(ctx, e)
		forget(ctx, f, e)
	}
}

// saveLater sends the files of a sandbox that ended without a request to S3, in the background.
func (f *Fleet) saveLater(ctx context.Context, e *entry) {
	f.tasks.Go(func() { e.files.End(ctx) })
	f.tasks.Go(func() { _ = e.files.Unmount(ctx) }) // which logs and reports
}

// lookedFor is the reason of a lost sandbox if nothing else is known.
const lookedFor = "the connection to it broke; it is looked for"

// lose records that the engine cannot reach a running sandbox, and searches until the sandbox is found or known to be
// gone.
func (f *Fleet) lose(ctx context.Context, e *entry, box engine.Sandbox, reason string, cause error) {
	changed, err := f.update(ctx, e, func(sb *record.Sandbox) error {
		if err := e.requireBox(sb, box); err != nil {
			return err
		}
		e.box = nil
		sb.Status, sb.Reason = record.Lost, reason
		return nil
	}, record.EventLost)
	if !changed {
		return
	}
	logf.Warnf(ctx, "sandbox lost (%s): %v", reason, errors.Join(cause, err))
	f.tasks.Go(func() { f.search(ctx, e) })
}

// search searches for a lost sandbox.
func (f *Fleet) search(ctx context.Context, e *entry) {
	const firstLook = 50 * time.Millisecond
	for pause := firstLook; f.pause(pause); pause = min(2*pause, longestPause) {
		f.mu.Lock()
		h, status := e.record.Handle, e.record.Status
		f.mu.Unlock()
		if status != record.Lost {
			return
		}
		box, err := f.opts.Engine.Open(f.ctx, h)
		switch {
		case err == nil:
			f.adopt(ctx, e, box)
			return
		case errors.Is(err, errors.NotFound):
			f.gone(ctx, e)
			return
		}
	}
}

// requireBox returns Conflict unless the sandbox is running as box. Fleet.mu is held.
func (e *entry) requireBox(sb *record.Sandbox, box engine.Sandbox) error {
	if e.box != nil && e.box != box {
		return errors.Newf(errors.Conflict, "sandbox %s was carried over", e.id)
	}
	return sb.RequireStatus(record.Running)
}

// adopt sets a lost sandbox that was found to running, and reports whether it was still lost.
func (f *Fleet) adopt(ctx context.Context, e *entry, box engine.Sandbox) bool {
	changed, err := f.update(ctx, e, func(sb *record.Sandbox) error {
		if err := sb.RequireStatus(record.Lost); err != nil {
			return err
		}
		e.box = box
		sb.Status, sb.Reason, sb.LastUsed, sb.Handle = record.Running, "", f.now(), box.Handle()
		return nil
	}, record.EventReady)
	if !changed {
		return false
	}
	if err != nil {
		logf.Errorf(ctx, "a sandbox that was found: %v", err)
	}
	logf.Infof(ctx, "sandbox found")
	if err := f.putInForce(ctx, e, box); err != nil {
		logf.Errorf(ctx, "the network of a sandbox that was found: %v", err)
	}
	f.adoptCommands(ctx, e, box)
	f.tasks.Go(func() { f.watch(e, box) })
	f.tasks.Go(func() { f.measure(e, box) })
	f.wakeReaper()
	return true
}

// gone ends a lost sandbox that no longer exists. Its record keeps the reason of the loss, if it is known.
func (f *Fleet) gone(ctx context.Context, e *entry) {
	e.files.NoteEnd(ctx)
	finished := f.finish(ctx, e, nil, func(sb *record.Sandbox) error {
		if err := sb.RequireStatus(record.Lost); err != nil {
			return err
		}
		sb.Status = record.Terminated
		if sb.Reason == "" || strings.HasSuffix(sb.Reason, "it is looked for") {
			sb.Reason = "it was gone when it was looked for"
		}
		return nil
	}, record.EventTerminated)
	if finished {
		f.saveLater(ctx, e)
		forget(ctx, f, e)
	}
}
