package fleet

import (
	"cmp"
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

const recoverAtOnce = 16

// recover reconciles records and engine after an earlier server ended in an arbitrary state.
func (f *Fleet) recover(ctx context.Context) error {
	records, err := f.opts.Store.List(ctx, "", record.Filter{})
	if err != nil {
		return errors.Wrapf(err, "read the records")
	}
	handles, err := f.opts.Engine.List(ctx)
	if err != nil {
		return errors.Wrapf(err, "list the sandboxes of the engine")
	}
	exists := map[string]engine.Handle{}
	there := map[engine.Handle]bool{}
	for _, h := range handles {
		exists[h.ID], there[h] = h, true
	}
	// Add all records to f.live before processing the first, so that every existing sandbox is either known or to be
	// removed.
	var entries []*entry
	for _, sb := range records {
		e := f.newEntry(sb, cmp.Or(sb.Limits.CPU, f.opts.Defaults.CPU),
			cmp.Or(sb.Limits.Memory, f.opts.Defaults.Memory))
		h, next := e.record.Handle, exists[sb.ID]
		if sb.Status != record.Suspended && !there[h] && (h == (engine.Handle{}) || next != engine.Handle{}) {
			e.record.Handle = next // its creation or carry-over was interrupted
		}
		f.live[sb.ID] = e
		entries = append(entries, e)
	}
	f.keepSecrets(ctx, entries)
	sweepKept(ctx, f, entries)
	var g errgroup.Group
	g.SetLimit(recoverAtOnce)
	for _, h := range handles {
		// A handle that differs from the record's comes from an interrupted carry-over.
		if e := f.live[h.ID]; h.ID == "" || e == nil || e.record.Handle != h {
			g.Go(func() error {
				logf.Infof(ctx, "removing the sandbox %s %s, which no record knows", h.Ref, h.ID)
				f.leftovers.Discard(ctx, cmp.Or(h.ID, h.Ref), h, nil)
				return nil
			})
		}
	}
	for _, e := range entries {
		g.Go(func() error {
			f.recoverOne(logContext(context.WithoutCancel(ctx), e.record), e)
			return nil
		})
	}
	if err := g.Wait(); err != nil || f.opts.Mounts == nil {
		return err
	}
	f.opts.Mounts.Watch(func(id, reason string) { f.mountLost(context.WithoutCancel(ctx), id, reason) })
	return errors.Wrapf(f.opts.Mounts.Recover(ctx, f.lives), "adopt the mounts of S3")
}

// lives reports whether a sandbox has not ended, and is not suspended.
func (f *Fleet) lives(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.live[id] != nil && f.live[id].record.Status != record.Suspended
}

// keepSecrets keeps the values of secrets redacted that sandboxes and checkpoints still use, and releases all others.
func (f *Fleet) keepSecrets(ctx context.Context, entries []*entry) {
	if f.opts.Secrets == nil {
		return
	}
	borrowers := map[string]bool{}
	for _, id := range f.checkpoints.IDs() {
		borrowers[id] = true
	}
	for _, e := range entries {
		if len(e.record.Secrets) > 0 || e.record.Status == record.Suspended {
			borrowers[e.id] = true
			f.returnSecrets(e)
		}
	}
	f.opts.Secrets.ReturnAllBut(ctx, borrowers)
}

// recoverOne resumes the work of the earlier server on e.
func (f *Fleet) recoverOne(ctx context.Context, e *entry) {
	sb := f.current(e)
	// Their purpose was lost with the server.
	if record.Internal(sb.Account) && (sb.Status == record.Running || sb.Status == record.Lost) {
		if err := f.end(ctx, e, "", "the server that made it for later use has ended"); err != nil {
			logf.Errorf(ctx, "end a sandbox of the server's own: %v", err)
		}
		return
	}
	switch sb.Status {
	case record.Creating:
		f.finish(ctx, e, nil, func(r *record.Sandbox) error {
			r.Status, r.Reason, r.FailedStage = record.Failed, "the server ended while it was created", "recover"
			return nil
		}, record.EventFailed)
		if sb.Handle != (engine.Handle{}) {
			f.leftovers.Discard(ctx, sb.ID, sb.Handle, nil)
		}
	case record.Stopping:
		// This takes time, and no caller waits for it.
		if sb.SnapshotOnEnd && sb.SnapshotID == "" || sb.SyncsAtEnd() || sb.S3 != nil && sb.S3.Mount {
			f.tasks.Go(func() { f.halt(e, nil) })
			return
		}
		f.halt(e, nil)
	case record.Suspended:
		f.keep(ctx, e)
	case record.Running, record.Lost:
		f.keep(ctx, e)
		box, err := f.opts.Engine.Open(ctx, sb.Handle)
		if sb.Status == record.Running {
			// Whatever the result, e was not watched since the earlier server ended.
			if changed, err := f.update(ctx, e, func(r *record.Sandbox) error {
				r.Status, r.Reason = record.Lost, "the server ended; it is looked for"
				return nil
			}); !changed || err != nil {
				logf.Errorf(ctx, "recover a sandbox: %v", err)
			}
		}
		switch {
		case err == nil:
			f.adopt(ctx, e, box)
		case errors.Is(err, errors.NotFound):
			f.gone(ctx, e)
		default:
			logf.Warnf(ctx, "a sandbox cannot be reached: %v", err)
			f.emit(record.Event{Type: record.EventLost, Sandbox: sb})
			f.tasks.Go(func() { f.search(ctx, e) })
		}
	}
}

// keep marks the image and the volumes of the sandbox as used again.
func (f *Fleet) keep(ctx context.Context, e *entry) {
	var errs []error
	if e.record.ImageID != e.record.Suspension.Base {
		errs = append(errs, f.use(e, f.opts.Engine.Images(), e.record.ImageID))
	}
	for _, m := range e.record.Volumes {
		errs = append(errs, f.use(e, f.opts.Engine.Volumes(), volume.Stored(account.Owner(e.record.Holder()), m.Name)))
	}
	for _, id := range []string{e.record.Suspension.Base, e.record.Suspension.Image} {
		errs = append(errs, useOwn(f, e, id))
	}
	if err := errors.Join(errs...); err != nil {
		logf.Warnf(ctx, "what the sandbox uses: %v", err)
	}
}

// adoptCommands restores the time limits of commands that an earlier connection started.
func (f *Fleet) adoptCommands(ctx context.Context, e *entry, box engine.Sandbox) {
	e.commands.Adopt(ctx, box, f.current(e), f.opts.Timeouts.Exec)
}
