package fleet

import (
	"context"
	"encoding/json"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/fault"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// A suspended sandbox has no resources of the engine and reserves none. Its record names the kept state: always an
// image of its files, and a checkpoint with its processes if the engine can make one. What no record has, its Spec with
// the environment, is sealed in the vault.
//
// The order of the steps decides that nothing is lost: everything is kept before the record says that the sandbox is
// suspended, and the record says so before the engine's sandbox is destroyed. The next server finds a running sandbox,
// or a suspended one, and removes what belongs to the other.

const (
	// settleLimit is how long a suspension waits for the commands that it ends.
	settleLimit = 30 * time.Second
	// checkpointKeep is the lifetime of the checkpoints of suspended sandboxes: a wake or an end removes them.
	checkpointKeep = 100 * 365 * 24 * time.Hour
	// specKey is the key under which the vault has a sandbox's Spec.
	specKey = "spec"
)

// suspensionNote marks the checkpoints of suspended sandboxes.
var suspensionNote = []byte(`{"suspension":true}`)

// reserves reports whether the sandbox reserves resources. Fleet.mu is held.
func (e *entry) reserves() bool { return e.record.Status != record.Suspended || e.waking != nil }

// Suspend ends the engine's sandbox, and keeps what the next operation needs to wake it: its files, and if the engine
// can its processes. Volumes stay as they are. It does nothing if the sandbox is suspended. If it fails, the sandbox
// continues. Kinds: NotFound, Gone, Conflict (it does not run, is in use, or belongs to a session), Unsupported (the
// engine has no snapshots), Exhausted (the disk is full).
func Suspend(ctx context.Context, f *Fleet, account, ref string) (record.Sandbox, error) {
	if err := f.begin(); err != nil {
		return record.Sandbox{}, err
	}
	defer f.tasks.Done()
	sb, e, err := f.find(ctx, account, ref)
	if err != nil {
		return record.Sandbox{}, err
	}
	if e == nil {
		return record.Sandbox{}, sb.RequireStatus(record.Running)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.ctx, cancel)()
	if err := suspend(ctx, f, e, "it was suspended on request", nil); err != nil {
		return record.Sandbox{}, errors.Stage(err, "suspend")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.snapshot(e), nil
}

// suspendIdle suspends a sandbox that has reached its idle limit. If it cannot be suspended, it is tried again after
// another idle time.
func suspendIdle(f *Fleet, e *entry) {
	ctx := logf.With(f.ctx, "sandbox_id", e.id)
	err := suspend(ctx, f, e, "it was idle for "+seconds(f.current(e).IdleTimeoutSeconds).String(), func() bool {
		left, end, _ := e.left(f.now(), time.Now(), f.opts.Suspended)
		return end == record.EndIdle && left <= 0
	})
	switch {
	case err == nil || f.ctx.Err() != nil:
		return
	case errors.Is(err, errors.Conflict):
		logf.Debugf(ctx, "the idle sandbox is not suspended: %v", err)
	default:
		logf.Errorf(ctx, "the idle sandbox could not be suspended, and continues: %v", err)
	}
	f.mu.Lock()
	e.record.LastUsed = f.now()
	f.mu.Unlock()
	f.wakeReaper()
}

// settled waits until e is not being carried over, suspended or woken. With wakeIt it wakes a suspended sandbox. If it
// returns no error, Fleet.mu is held.
func settled(ctx context.Context, f *Fleet, e *entry, wakeIt bool) error {
	for {
		f.mu.Lock()
		w := e.waking
		var err error
		if w == nil && !e.carry.UnderWay() {
			if !wakeIt || e.record.Status != record.Suspended {
				return nil
			}
			w, err = beginWake(f, e)
		}
		f.mu.Unlock()
		switch {
		case err != nil:
		case w == nil || !wakeIt:
			err = e.carry.Wait(ctx, e.id)
		default:
			err = w.wait(ctx, e.id)
		}
		if err != nil {
			return err
		}
	}
}

// suspendable returns Conflict if e cannot be suspended now. Fleet.mu is held.
func suspendable(e *entry) error {
	if err := e.record.RequireStatus(record.Running); err != nil {
		return err
	}
	if e.record.Account == record.SpareAccount || len(spec.UserTags(e.record.Tags)) < len(e.record.Tags) {
		err := errors.Newf(errors.Conflict, "the sandbox %s belongs to a session or another object of Harvest", e.id)
		return errors.Remedy(err, "end that; the files of a session are kept")
	}
	if held, _ := e.commands.Held(); held > 0 {
		err := errors.Newf(errors.Conflict, "the sandbox %s is in use: a command, a terminal, a connection or a copy",
			e.id)
		return errors.Remedy(err, "wait until that ends, or end it: harvest sandbox ps %s", e.id)
	}
	return nil
}

// preserved is the kept state of a sandbox that is not suspended yet.
type preserved struct {
	image, checkpoint string // IDs; "" for none
	commands          []record.Command
	settled           bool // the start command was ended
}

// suspend suspends e, for a reason. due, if it is set, is asked whether that still holds, under Fleet.mu.
func suspend(ctx context.Context, f *Fleet, e *entry, reason string, due func() bool) (err error) {
	if err := settled(ctx, f, e, false); err != nil {
		return err
	}
	box, base := e.box, e.record.Suspension.Base
	idle := e.record.Status == record.Suspended || due != nil && !due()
	if !idle {
		err = suspendable(e)
	}
	if idle || err != nil {
		f.mu.Unlock()
		return err
	}
	done := e.carry.Begin()
	f.mu.Unlock()
	defer func() {
		done()
		f.wakeReaper()
	}()
	e.meter.Last(ctx, f.source(e, box)) // before its processes are kept: until it is destroyed, they run on in vain
	var kept preserved
	err = preserve(ctx, f, e, box, &kept)
	fault.Point("sandbox.preserved")
	if err == nil {
		err = fallAsleep(ctx, f, e, box, kept, reason)
	} else {
		drop(ctx, f, e, kept.checkpoint, kept.image)
	}
	if err != nil {
		if kept.settled {
			if again := start(context.WithoutCancel(ctx), f, e, box); again != nil {
				logf.Errorf(ctx, "start the start command of a sandbox again: %v", again)
			}
		}
		return err
	}
	fault.Point("sandbox.suspended")
	ctx = context.WithoutCancel(ctx)
	e.meter.Save(ctx)
	e.files.Quiet(ctx)
	f.leftovers.Discard(ctx, e.id, box.Handle(), box)
	e.files.UnmountEnding(ctx)
	e.files.SendAsleep()
	if kept.checkpoint == "" && base != "" {
		dropImage(ctx, f, e, base)
	}
	logf.Infof(ctx, "sandbox suspended (%s): image %s, checkpoint %q", reason, kept.image, kept.checkpoint)
	return nil
}

// fallAsleep records that e, which runs as box, is suspended. If that fails, the sandbox still runs.
func fallAsleep(ctx context.Context, f *Fleet, e *entry, box engine.Sandbox, kept preserved, reason string) error {
	var before record.Suspension
	changed, err := f.update(ctx, e, func(sb *record.Sandbox) error {
		if err := e.requireBox(sb, box); err != nil {
			return err
		}
		before, e.box = sb.Suspension, nil
		sb.Status, sb.Reason, sb.Suspended, sb.Handle = record.Suspended, reason, f.now(), engine.Handle{}
		sb.Suspension = record.Suspension{Image: kept.image, Checkpoint: kept.checkpoint, Commands: kept.commands}
		if kept.checkpoint != "" { // which does not have the image that it runs from
			sb.Suspension.Base = before.Base
		}
		return nil
	}, record.EventSuspended)
	// If that fails too, the state on the disk is unknown, and the kept state must stay.
	if changed && err != nil {
		_, undone := f.update(ctx, e, func(sb *record.Sandbox) error {
			if err := sb.RequireStatus(record.Suspended); err != nil {
				return err
			}
			e.box = box
			sb.Status, sb.Reason, sb.Suspension, sb.Suspended = record.Running, "", before, time.Time{}
			sb.Handle = box.Handle()
			return nil
		}, record.EventWoken)
		if undone != nil {
			if f.current(e).Status != record.Running { // it was ended meanwhile
				f.leftovers.Discard(ctx, e.id, box.Handle(), box)
			}
			return errors.Join(err, undone)
		}
	}
	if err != nil {
		drop(ctx, f, e, kept.checkpoint, kept.image)
	}
	return err
}

// preserve keeps what another sandbox needs to continue as e, which runs as box and has no activity but detached
// commands. It fills kept step by step, also on failure.
func preserve(ctx context.Context, f *Fleet, e *entry, box engine.Sandbox, kept *preserved) error {
	described, ok := box.(engine.Described)
	if !ok || f.opts.Secrets == nil {
		return errors.Newf(errors.Unsupported, "the engine %s cannot suspend sandboxes here", f.opts.Engine.Name())
	}
	made, err := described.Spec(ctx)
	if err != nil {
		return err
	}
	text, err := json.Marshal(made)
	if err != nil {
		return errors.Errorf("encode the spec of %s", e.id) // err could quote it
	}
	if err := keepProcesses(ctx, f, e, box, kept); err != nil {
		return err
	}
	if kept.checkpoint == "" {
		if _, detached := e.commands.Held(); detached > 0 {
			err := errors.Newf(errors.Conflict,
				"%d detached commands run in the sandbox %s, whose processes cannot be kept", detached, e.id)
			return errors.Remedy(err, "end them first: harvest sandbox ps %s", e.id)
		}
		kept.settled = true
		e.commands.Settle(ctx, settleLimit)
	}
	// Also beside a checkpoint, which another version of the engine cannot restore.
	img, err := f.images.Suspend(ctx, f.current(e), box)
	if err != nil {
		return err
	}
	kept.image = img.ID
	if err := useOwn(f, e, img.ID); err != nil {
		return err
	}
	return secret.Keep(ctx, f.opts.Secrets, f.current(e).Holder(), e.id, secret.Pairs{specKey: string(text)})
}

// keepProcesses makes a checkpoint of e if the engine can.
func keepProcesses(ctx context.Context, f *Fleet, e *entry, box engine.Sandbox, kept *preserved) error {
	if _, err := f.checkpointer(e, box); err != nil {
		return nil
	}
	c, err := f.checkpoint(ctx, e, box, CheckpointOptions{Keep: checkpointKeep, Note: suspensionNote})
	switch errors.KindOf(err) {
	case errors.Conflict, errors.Unsupported: // it has a terminal, for example
		logf.Infof(ctx, "no checkpoint of a sandbox that is suspended: %v", err)
		return nil
	}
	if err == nil {
		kept.checkpoint, kept.commands = c.ID, e.commands.Records()
	}
	return err
}

// useOwn prevents the deletion of an image of e's Suspension, until dropImage. "" is no image.
func useOwn(f *Fleet, e *entry, id string) error {
	u, ok := f.opts.Engine.Images().(user)
	if !ok || id == "" {
		return nil
	}
	release, err := u.Use(id, engine.Holder(e.id))
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if e.own == nil {
		e.own = map[string]func(){}
	}
	e.own[id] = release
	return nil
}

// drop removes the kept state of e: its Spec, a checkpoint and an image.
func drop(ctx context.Context, f *Fleet, e *entry, checkpoint, img string) {
	ctx = context.WithoutCancel(ctx)
	dropImage(ctx, f, e, img)
	var err error
	if f.opts.Secrets != nil {
		err = secret.Discard(ctx, f.opts.Secrets, e.id)
	}
	if checkpoint != "" {
		err = errors.Join(err, f.checkpoints.Remove(ctx, checkpoint))
	}
	if err != nil {
		logf.Warnf(ctx, "remove the kept state of a suspended sandbox: %v", err)
	}
}

// dropImage removes an image of e's Suspension, unless its user has named it or e has ended with it. If another sandbox
// uses it, the collection of unused images removes it later.
func dropImage(ctx context.Context, f *Fleet, e *entry, id string) {
	f.mu.Lock()
	release := e.own[id]
	delete(e.own, id)
	ended := e.record.SnapshotID == id
	f.mu.Unlock()
	if release != nil {
		release()
	}
	if id == "" || ended {
		return
	}
	images := f.opts.Engine.Images()
	img, err := images.Find(ctx, id)
	if err == nil && len(img.Names) == 0 {
		err = images.Delete(ctx, id)
	}
	if err != nil && !errors.Is(err, errors.NotFound) && !errors.Is(err, errors.Conflict) {
		logf.Warnf(ctx, "remove the image of a suspended sandbox: %v", err)
	}
}

// giveImage gives the image of a suspended sandbox to its user, so that the collection of unused images spares it.
func giveImage(ctx context.Context, f *Fleet, id string) error {
	keeper, ok := f.opts.Engine.Images().(interface {
		Keep(ctx context.Context, id string) error
	})
	if !ok {
		return nil // that engine has no such collection
	}
	return keeper.Keep(ctx, id)
}

// forget removes the kept state of a sandbox that ends.
func forget(ctx context.Context, f *Fleet, e *entry) {
	s := f.current(e).Suspension
	if s.Base != "" {
		dropImage(ctx, f, e, s.Base)
	}
	if s.Image != "" {
		drop(ctx, f, e, s.Checkpoint, s.Image)
	}
}

// sweepKept removes what an earlier server kept of sandboxes that are not suspended.
func sweepKept(ctx context.Context, f *Fleet, entries []*entry) {
	asleep, checkpoints := map[string]bool{}, map[string]bool{}
	for _, e := range entries {
		if e.record.Status == record.Suspended {
			asleep[e.id], checkpoints[e.record.Suspension.Checkpoint] = true, true
		}
	}
	f.checkpoints.RemoveOthers(ctx, suspensionNote, checkpoints)
	if f.opts.Secrets == nil {
		return
	}
	if err := secret.KeepOnlyFor(ctx, f.opts.Secrets, asleep); err != nil {
		logf.Errorf(ctx, "remove the kept state of earlier sandboxes: %v", err)
	}
}
