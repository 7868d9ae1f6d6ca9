package fleet

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/fault"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
)

const (
	// startingLimit is how long after the start of a sandbox Dial waits for its start command.
	startingLimit = 30 * time.Second
	startingPause = 50 * time.Millisecond
	// startLimit is the time limit of start commands: none, since a sandbox's lifetime may be extended again and again.
	startLimit = 100 * 365 * 24 * time.Hour
)

// waking is the wake of a sandbox, for which any number of operations wait.
type waking struct {
	done chan struct{}
	err  error // valid once done is closed
}

func (w *waking) wait(ctx context.Context, id string) error {
	select {
	case <-w.done:
		return errors.Stage(w.err, "wake")
	case <-ctx.Done():
		return errors.Wrapf(ctx.Err(), "wait until sandbox %s is awake", id)
	}
}

// Wake wakes a suspended sandbox, as every operation on it does. It does nothing if the sandbox runs. Kinds: NotFound,
// Gone, Conflict (it does not run), Exhausted (quota), and those of engine.Create. If it fails, the sandbox stays
// suspended.
func Wake(ctx context.Context, f *Fleet, account, ref string) (record.Sandbox, error) {
	if err := f.begin(); err != nil {
		return record.Sandbox{}, err
	}
	defer f.tasks.Done()
	e, _, leave, err := f.enter(ctx, account, ref)
	if err != nil {
		return record.Sandbox{}, err
	}
	defer leave()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.snapshot(e), nil
}

// beginWake begins to wake a suspended sandbox. Fleet.mu is held.
func beginWake(f *Fleet, e *entry) (*waking, error) {
	if f.closed {
		return nil, errors.Remedy(errors.Newf(errors.Unavailable, "Harvest is shutting down"), "try again when it runs")
	}
	needed := plan{Plan: spec.Plan{ReservedCPU: e.cpu, ReservedMemory: e.memory}}
	if err := f.checkQuotas(e.record.Account, needed, e); err != nil {
		return nil, errors.Stage(err, "wake")
	}
	w := &waking{done: make(chan struct{})}
	e.waking = w
	done := e.carry.Begin()
	f.tasks.Go(func() {
		ctx := logf.With(f.ctx, "sandbox_id", e.id)
		if w.err = wake(ctx, f, e); w.err != nil {
			logf.Errorf(ctx, "a suspended sandbox could not be woken: %v", w.err)
		}
		f.mu.Lock()
		e.waking = nil
		f.mu.Unlock()
		done()
		close(w.done)
		f.wakeReaper()
	})
	return w, nil
}

// wake makes the engine's sandbox of e again.
func wake(ctx context.Context, f *Fleet, e *entry) (err error) {
	defer f.pool.Refill()
	// The last one must be gone, with the last changes of its volumes.
	if err := f.leftovers.ReleaseLeft(ctx, e.id); err != nil {
		return err
	}
	f.mu.Lock()
	e.record.Stages = []record.Stage{}
	f.mu.Unlock()
	made, err := specOf(ctx, f, e)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = e.files.Unmount(context.WithoutCancel(ctx)) // which logs
		}
	}()
	kept := f.current(e).Suspension
	box, warm, restored, err := wakeBox(ctx, f, e, made, kept)
	if err != nil {
		return err
	}
	if f.caps.Usage {
		e.meter.Renew(ctx)
	}
	fault.Point("sandbox.made")
	stored, err := awake(ctx, f, e, box, warm, restored)
	if err != nil {
		f.leftovers.Discard(ctx, e.id, box.Handle(), box)
		return err
	}
	fault.Point("sandbox.woken")
	f.tasks.Go(func() { f.watch(e, box) })
	f.tasks.Go(func() { f.measure(e, box) })
	f.follow(e, box)
	// A secret may have been bound to other hosts meanwhile.
	if hosts, err := e.loan.Hosts(ctx); err != nil || !slices.Equal(hosts, made.Network.Intercept) {
		if err := errors.Join(err, f.enforce(ctx, e, box)); err != nil {
			logf.Errorf(ctx, "the network of a sandbox that woke: %v", err)
		}
	}
	if stored { // otherwise the next server may have to wake it again
		if restored {
			drop(ctx, f, e, kept.Checkpoint, kept.Image)
		} else {
			dropImage(ctx, f, e, kept.Base)
			drop(ctx, f, e, kept.Checkpoint, "")
		}
	}
	f.mu.Lock()
	woken := f.snapshot(e)
	f.mu.Unlock()
	logf.Infof(ctx, "sandbox woken, its processes kept: %t, warm: %t, stages %v", restored, warm, woken.Stages)
	return nil
}

// wakeBox creates the engine's sandbox, from the checkpoint or, if that is of no use, from the files. restored says
// which. Its commands run.
func wakeBox(ctx context.Context, f *Fleet, e *entry, made engine.Spec,
	kept record.Suspension) (box engine.Sandbox, warm, restored bool, err error) {
	if kept.Checkpoint != "" {
		box, err = restoreBox(ctx, f, e, made, kept)
		if err == nil || ctx.Err() != nil || errors.Is(err, errors.Exhausted) || errors.Is(err, errors.Unavailable) {
			return box, false, true, err
		}
		logf.Warnf(ctx, "the processes of a suspended sandbox cannot continue, and it wakes without them: %v", err)
	}
	img, err := f.opts.Engine.Images().Find(ctx, kept.Image)
	if err != nil {
		return nil, false, false, errors.Stage(err, "image")
	}
	made.Image = img.ID
	if made.Mounts, err = mountAgain(ctx, f, e, made.Mounts); err != nil {
		return nil, false, false, err
	}
	p, err := planOf(f, e, made)
	if err != nil {
		return nil, false, false, err
	}
	if box, warm, err = f.box(ctx, e, p, img, made); err != nil {
		return nil, false, false, err
	}
	if err := begin(ctx, f, e, box, made.Env, img); err != nil {
		f.leftovers.Discard(ctx, e.id, box.Handle(), box)
		return nil, false, false, err
	}
	return box, warm, false, nil
}

// restoreBox creates the engine's sandbox from the checkpoint, with its commands.
func restoreBox(ctx context.Context, f *Fleet, e *entry, made engine.Spec,
	kept record.Suspension) (engine.Sandbox, error) {
	defer f.checkpoints.Hold(kept.Checkpoint)()
	p, err := planOf(f, e, made)
	if err != nil {
		return nil, err
	}
	p.Cold = true
	sb := f.current(e)
	made.Image, made.Checkpoint = sb.ImageID, f.checkpoints.State(kept.Checkpoint)
	box, _, err := f.box(ctx, e, p, image.Image{ID: sb.ImageID}, made)
	if err != nil {
		return nil, err
	}
	slept := f.now().Sub(sb.Suspended)
	var running []record.Command
	for _, c := range kept.Commands {
		c.Deadline = c.Deadline.Add(slept)
		running = append(running, c)
	}
	f.mu.Lock()
	e.record.Commands = running
	f.mu.Unlock()
	f.adoptCommands(ctx, e, box)
	return box, nil
}

// planOf returns the plan of a sandbox that wakes, as far as box needs it. Unsupported: its kind of isolation is no
// longer allowed.
func planOf(f *Fleet, e *entry, made engine.Spec) (plan, error) {
	p := plan{Plan: spec.Plan{Limits: made.Limits}}
	if kind := f.current(e).Engine; len(f.kinds) > 0 {
		if f.kinds[kind] == nil {
			err := errors.Newf(errors.Unsupported, "the isolation %q of the sandbox is no longer allowed", kind)
			return p, errors.Remedy(err, "allow it again: isolation.allowed of the configuration")
		}
		p.Isolation = kind
	}
	return p, nil
}

// specOf returns the Spec of a suspended sandbox, with the network policy of its record.
func specOf(ctx context.Context, f *Fleet, e *entry) (made engine.Spec, err error) {
	var kept secret.Pairs
	if f.opts.Secrets == nil {
		err = errors.Errorf("the server stores no secrets")
	} else {
		kept, err = secret.Kept(ctx, f.opts.Secrets, e.id)
	}
	if err == nil && json.Unmarshal([]byte(kept[specKey]), &made) != nil {
		err = errors.Errorf("the spec of %s is damaged", e.id) // the cause could quote it
	}
	sb := f.current(e)
	if err != nil {
		err = errors.Explainf(err, errors.Internal, "the kept state of the suspended sandbox %s cannot be read", e.id)
		return made, errors.Remedy(err, "create another one with its files: harvest sandbox create --image %s",
			sb.Suspension.Image)
	}
	made.Network, made.KeepOnOOM, made.Checkpoint = sb.Network.Engine(), sb.SnapshotOnEnd, ""
	made.Network.Intercept, err = e.loan.Hosts(ctx)
	return made, errors.Stage(err, "secrets")
}

// mountAgain mounts the bucket of a sandbox that wakes, if the server mounts buckets, and returns the sandbox's mounts.
// What the last mount could not store must be stored first.
func mountAgain(ctx context.Context, f *Fleet, e *entry, before []engine.Mount) ([]engine.Mount, error) {
	sb := f.current(e)
	if sb.S3 == nil || !sb.S3.Mount || f.caps.Buckets {
		return before, nil
	}
	if err := e.files.Unmount(ctx); err != nil {
		return nil, errors.Stage(err, "s3 mount")
	}
	again := slices.DeleteFunc(slices.Clone(before), func(m engine.Mount) bool { return m.Dir != "" })
	err := f.stage(e, "s3 mount", func() error {
		m, _, err := e.files.Mount(ctx, sb.Limits.Disk)
		again = append(again, m)
		return err
	})
	return again, err
}

// awake records that e runs again as box. restored means that its processes continue. If it could not be stored, which
// is logged, the next server may find the sandbox suspended.
func awake(ctx context.Context, f *Fleet, e *entry, box engine.Sandbox, warm, restored bool) (stored bool, err error) {
	changed, err := f.update(ctx, e, func(sb *record.Sandbox) error {
		if err := sb.RequireStatus(record.Suspended); err != nil {
			return err
		}
		now := f.now()
		sb.Woken(now)
		sb.Status, sb.Reason, sb.Handle, sb.Warm = record.Running, "", box.Handle(), warm
		sb.LastUsed, sb.Denied, sb.Expires = now, 0, f.fit(box, sb.Expires, sb.SnapshotOnEnd)
		base := sb.Suspension.Base
		if !restored {
			base = sb.Suspension.Image
			sb.ImageID = base
		}
		sb.Suspension = record.Suspension{Base: base}
		e.box, e.up = box, time.Now()
		if warm {
			f.warmUsed++
		}
		return nil
	}, record.EventWoken)
	if !changed {
		return false, err
	}
	if err != nil {
		logf.Errorf(ctx, "a sandbox that woke: %v", err)
	}
	return err == nil, nil
}

// start starts the start command of e in box, if there is one.
func start(ctx context.Context, f *Fleet, e *entry, box engine.Sandbox) error {
	args := f.current(e).StartCommand
	if len(args) == 0 {
		return nil
	}
	_, err := e.commands.Start(ctx, box, engine.Command{Args: args},
		commands.Options{Limit: startLimit, Detach: true, Background: true})
	return err
}

// starting reports whether the start command of e may not listen yet.
func starting(f *Fleet, e *entry) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(e.record.StartCommand) > 0 && time.Since(e.up) < startingLimit && e.commands.Len() > 0
}
