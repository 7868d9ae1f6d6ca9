package fleet

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/fault"
	"github.com/RelevanceAI/harvest/internal/base/ids"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet/checkpoint"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/fleet/denials"
	"github.com/RelevanceAI/harvest/internal/fleet/lending"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/reserve"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/fleet/transfer"
	"github.com/RelevanceAI/harvest/internal/image"
)

// user is implemented by stores of images and volumes that must not be deleted while a sandbox uses them.
type user interface {
	// Use prevents the deletion of name until release is called. An attempt to delete it reports who as the user.
	Use(name, who string) (release func(), err error)
}

// plan is a validated request, or a checkpoint to restore.
type plan struct {
	spec.Plan
	from *checkpoint.Checkpoint // to restore; nil for none
}

// volume returns the state of the request's S3 in the record.
func (p plan) volume() *record.S3Volume {
	if p.S3 == nil {
		return nil
	}
	return &record.S3Volume{S3: *p.S3, Volume: p.Synced}
}

// Create creates a sandbox that is ready for commands. On failure, the error names the stage. If the stage is "image"
// or later, the failure is recorded, and Create returns the record too. Kinds: Invalid, Unsupported, NotFound
// (image), Conflict (name), Exhausted (quota), and those of engine.Create.
func (f *Fleet) Create(ctx context.Context, account string, req spec.Request) (record.Sandbox, error) {
	if err := f.begin(); err != nil {
		return record.Sandbox{}, err
	}
	defer f.tasks.Done()
	defer f.pool.Refill()
	planned, err := f.rules.Plan(req)
	if err == nil {
		err = spec.CheckProvided(cmp.Or(planned.Owner, account), planned)
	}
	if err != nil {
		return record.Sandbox{}, errors.Stage(err, "validate")
	}
	return f.make(ctx, account, plan{Plan: planned})
}

// make creates the planned sandbox.
func (f *Fleet) make(ctx context.Context, account string, p plan) (record.Sandbox, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(f.ctx, func() { cancel(errors.Newf(errors.Unavailable, "Harvest is shutting down")) })()
	e, err := f.admit(ctx, cancel, account, p)
	if err != nil {
		return record.Sandbox{}, errors.Stage(err, "admit")
	}
	ctx = logContext(ctx, e.record)
	if err := f.build(ctx, e, p); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Explainf(err, errors.KindOf(cause), "%s", errors.Message(cause))
		}
		return f.failCreate(ctx, e, err), err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	sb := f.snapshot(e)
	logf.Infof(ctx, "sandbox ready in %s: image %s, warm %t", sb.Started.Sub(sb.Created).Round(time.Millisecond),
		sb.ImageID, sb.Warm)
	return sb, nil
}

// admit checks quotas and the name, and records the sandbox, in one atomic step.
func (f *Fleet) admit(ctx context.Context, cancel context.CancelCauseFunc, account string, p plan) (*entry, error) {
	created, eng := f.now(), isolated(f, p.Isolation)
	borrows := p.Borrows && f.opts.Secrets != nil && eng.Capabilities().Intercept
	if p.PerTurn && !borrows {
		return nil, errors.Remedy(errors.Newf(errors.Unsupported,
			"the engine %s cannot lend credentials for a turn", eng.Name()),
			"use another engine, or credentials for the session")
	}
	e := f.newEntry(record.Sandbox{
		ID: spec.IDPrefix + ids.New(), Account: account, Owner: p.Owner, Name: p.Name, Tags: p.Tags,
		Engine: eng.Name(), Isolation: eng.Capabilities().Isolation, Image: p.Image, Workdir: p.Workdir, User: p.User,
		Volumes: p.Volumes, Secrets: p.Secrets, Withheld: p.Withhold, Reveal: p.Reveal,
		Borrows: borrows, PerTurn: p.PerTurn, Network: p.Network, Ports: p.Ports, PortDetails: p.PortDetails,
		Limits: p.Limits, GPU: p.GPU, Status: record.Creating,
		S3: p.volume(), Created: created, Expires: created.Add(p.Life), LastUsed: created,
		IdleTimeoutSeconds: p.Idle.Seconds(), IdleAction: p.IdleAction, StartCommand: p.StartCommand,
		Stages: []record.Stage{}, SnapshotOnEnd: p.SnapshotOnEnd,
	}, p.ReservedCPU, p.ReservedMemory)
	e.loan.LendNow(true) // until its creator says otherwise
	if ctx.Err() != nil {
		return nil, errors.Wrapf(context.Cause(ctx), "before the sandbox was recorded")
	}
	e.cancel = cancel
	e.save.Lock() // until it is recorded, no other goroutine writes it
	defer e.save.Unlock()
	f.mu.Lock()
	err := f.checkQuotas(account, p, nil)
	if err == nil {
		f.live[e.record.ID] = e
		f.created++
	}
	sb := e.record.Clone()
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	// Do not interrupt the write: the caller must know whether the record exists.
	if err := f.opts.Store.Put(context.WithoutCancel(ctx), sb); err != nil {
		f.mu.Lock()
		delete(f.live, sb.ID)
		f.mu.Unlock()
		return nil, errors.Wrapf(err, "record the new sandbox")
	}
	fault.Point("sandbox.recorded")
	f.emit(record.Event{Type: record.EventStarting, Sandbox: sb})
	return e, nil
}

func (f *Fleet) newEntry(sb record.Sandbox, cpu float64, memory int64) *entry {
	e := &entry{id: sb.ID, cpu: cpu, memory: memory, record: sb.Clone(), ended: make(chan struct{}),
		meter: f.meters.Of(sb.ID)}
	current := func() record.Sandbox { return f.current(e) }
	e.commands = commands.New(commands.Sandbox{ID: sb.ID, Capture: f.opts.Capture, Grace: f.opts.Timeouts.Grace,
		Context: f.ctx, Tasks: &f.tasks, Ended: e.ended, Record: current, Carried: e.carry.UnderWay,
		Save: func(ctx context.Context) { f.saveCommands(ctx, e) }, Leave: func() { f.leave(e) }})
	e.denials = denials.New(denials.Sandbox{ID: sb.ID, Context: f.ctx, Tasks: &f.tasks, Pause: f.pause,
		Publish: func(d engine.Denial) { f.denied(e, d) },
		Save:    func(ctx context.Context, change func(*record.Sandbox)) { f.saveDenials(ctx, e, change) }})
	e.loan = f.lending.Of(borrower(f, e))
	e.files = f.transfers.Of(transfer.Sandbox{Record: current,
		Update: func(ctx context.Context, change func(*record.S3Volume)) error { return f.updateS3(ctx, e, change) }})
	return e
}

// saveCommands stores the list of running commands, for recovery.
func (f *Fleet) saveCommands(ctx context.Context, e *entry) {
	_, err := f.update(ctx, e, func(sb *record.Sandbox) error {
		return sb.RequireStatus(record.Running, record.Stopping, record.Lost)
	})
	if err != nil && !errors.Is(err, errors.Conflict) {
		logf.Errorf(ctx, "record the commands: %v", err)
	}
}

// checkQuotas returns Conflict if the name is taken, and Exhausted if the account has reached a quota. wakes is the
// suspended sandbox that is to reserve again, nil for a new one. f.mu is held.
func (f *Fleet) checkQuotas(account string, p plan, wakes *entry) error {
	if record.Internal(account) {
		return nil
	}
	var inUse reserve.Use
	for _, e := range f.live {
		if e.record.Account != account {
			continue
		}
		if p.Name != "" && e.record.Name == p.Name {
			return record.NameTaken(p.Name)
		}
		switch {
		case e.reserves():
			inUse.Add(e.cpu, e.memory)
		case e != wakes:
			inUse.Sandboxes++ // its kept state needs the disk
		}
	}
	return f.opts.Quotas.Admit(inUse, p.ReservedCPU, p.ReservedMemory)
}

// build runs the stages of Create.
func (f *Fleet) build(ctx context.Context, e *entry, p plan) error {
	if p.from != nil {
		return f.restore(ctx, e, p)
	}
	if p.S3 != nil {
		if err := e.files.Check(ctx); err != nil {
			return errors.Stage(err, "s3")
		}
	}
	if len(p.Stored) > 0 { // first, since it is quick and the other stages may be slow
		if err := f.stage(e, "secrets", func() (err error) {
			p.Env, err = f.secrets(ctx, e, p)
			return err
		}); err != nil {
			return err
		}
	}
	borrows := f.current(e).MayBorrow()
	if borrows {
		env := lending.Env()
		maps.Copy(env, p.Env)
		p.Env = env
	}
	var img image.Image
	if err := f.stage(e, "image", func() (err error) {
		img, err = f.image(ctx, e, p)
		return err
	}); err != nil {
		return err
	}
	if len(p.Volumes) > 0 {
		if err := f.stage(e, "volumes", func() error { return f.volumes(ctx, e, p) }); err != nil {
			return err
		}
	}
	if p.S3 != nil {
		if err := f.fill(ctx, e, p); err != nil {
			return err
		}
	}
	spec := engine.Spec{
		ID: e.id, Account: e.record.Holder(), Image: img.ID,
		Hostname: cmp.Or(p.Hostname, engine.HostName(cmp.Or(e.record.Name, e.id))), Env: p.Env,
		Dir: p.Workdir, User: p.User,
		Limits: p.Limits, GPU: p.GPU, Secrets: p.Provided, Network: p.Network.Engine(), KeepOnOOM: p.SnapshotOnEnd,
	}
	for _, m := range p.Volumes {
		spec.Mounts = append(spec.Mounts, engine.Mount{Volume: volume.Stored(account.Owner(e.record.Holder()), m.Name),
			Path: m.Path, ReadOnly: m.ReadOnly})
	}
	live, err := f.mountS3(ctx, e, p)
	if err != nil {
		return err
	}
	spec.Mounts = append(spec.Mounts, live...)
	if spec.Network.Intercept, err = e.loan.Hosts(ctx); err != nil {
		return errors.Stage(err, "secrets")
	}
	notes, err := e.loan.Notes(ctx, spec.Network)
	if err != nil {
		return errors.Stage(err, "secrets")
	}
	f.mu.Lock()
	e.record.Notes = notes
	f.mu.Unlock()
	box, warm, err := f.box(ctx, e, p, img, spec)
	if err != nil {
		return err
	}
	fault.Point("sandbox.made")
	if err := begin(ctx, f, e, box, p.Env, img); err != nil {
		f.leftovers.Discard(ctx, e.id, box.Handle(), box)
		return err
	}
	return f.ready(ctx, e, p, box, warm)
}

// begin runs the last stages of a new box: programs in it trust the authority of borrowed credentials, and the start
// command runs. env is the environment of its commands, over that of img.
func begin(ctx context.Context, f *Fleet, e *entry, box engine.Sandbox, env map[string]string, img image.Image) error {
	sb := f.current(e)
	if sb.MayBorrow() {
		java := cmp.Or(env["JAVA_HOME"], img.Config.Env["JAVA_HOME"])
		if err := f.stage(e, "trust", func() error { return e.loan.Install(ctx, box, java) }); err != nil {
			return err
		}
	}
	if len(sb.StartCommand) == 0 {
		return nil
	}
	return f.stage(e, "start command", func() error { return start(ctx, f, e, box) })
}

// ready marks the sandbox as running. If its creation was canceled meanwhile, the sandbox is destroyed.
func (f *Fleet) ready(ctx context.Context, e *entry, p plan, box engine.Sandbox, warm bool) error {
	changed, err := f.update(ctx, e, func(sb *record.Sandbox) error {
		if ctx.Err() != nil {
			return errors.Stage(context.Cause(ctx), "ready")
		}
		e.box, e.cancel, e.up = box, nil, time.Now()
		if warm {
			f.warmUsed++
		}
		sb.Status, sb.Started, sb.Handle, sb.Warm = record.Running, f.now(), box.Handle(), warm
		sb.Expires, sb.LastUsed = f.fit(box, sb.Started.Add(p.Life), sb.SnapshotOnEnd), sb.Started
		return nil
	}, record.EventReady)
	if !changed {
		f.leftovers.Discard(ctx, e.id, box.Handle(), box)
		return err
	}
	if err != nil { // after a crash, recovery would remove it as incomplete, but it runs
		logf.Errorf(ctx, "a sandbox that is ready: %v", err)
	}
	f.tasks.Go(func() { f.watch(e, box) })
	f.tasks.Go(func() { f.measure(e, box) })
	f.follow(e, box)
	f.wakeReaper()
	return nil
}

// image finds or makes the image, and prevents its deletion.
func (f *Fleet) image(ctx context.Context, e *entry, p plan) (image.Image, error) {
	img, err := f.images.Find(ctx, e.record.Account, e.record.Holder(), p.Plan)
	if err != nil {
		return img, err
	}
	f.mu.Lock()
	e.record.ImageID = img.ID
	f.mu.Unlock()
	return img, f.use(e, f.opts.Engine.Images(), img.ID)
}

// Credentials returns a function that looks up an account's login for a registry, in the secret with this name or, if
// it is "", in all secrets of the account. The user's Docker configuration is for the personal account only.
func (f *Fleet) Credentials(owner, name string) func(context.Context, string) (image.Credential, error) {
	return f.images.Credentials(owner, name)
}

// secrets returns the environment of commands, with Harvest's secrets that p names. Their values are redacted until
// the sandbox has ended, even if the secrets are deleted and the server restarts meanwhile.
func (f *Fleet) secrets(ctx context.Context, e *entry, p plan) (map[string]string, error) {
	terms := secret.Bound
	switch {
	case p.Reveal:
		terms = secret.Revealed
	case f.current(e).Borrows:
		terms = secret.Brokered
	}
	pairs, lent, err := f.opts.Secrets.Lend(ctx, e.record.Holder(), e.id, terms, p.Stored...)
	if err != nil {
		return nil, err
	}
	f.returnSecrets(e)
	env := map[string]string(pairs)
	if len(lent) > 0 {
		if err := lending.Check(lent, isolated(f, p.Isolation)); err != nil {
			return nil, err
		}
		f.mu.Lock()
		e.record.Lent = lent
		f.mu.Unlock()
	}
	for _, key := range p.Withhold {
		delete(env, key)
	}
	maps.Copy(env, p.Env)
	var ps spec.Problems
	spec.CheckEnv(&ps, env)
	return env, ps.Err()
}

// returnSecrets makes the end of the sandbox return its secrets.
func (f *Fleet) returnSecrets(e *entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e.releases = append(e.releases, func() { f.opts.Secrets.Return(context.WithoutCancel(f.ctx), e.id) })
}

// volumes creates missing volumes.
func (f *Fleet) volumes(ctx context.Context, e *entry, p plan) error {
	for _, m := range p.Volumes {
		owner := account.Owner(e.record.Holder())
		if p.S3 != nil && p.SyncedOwn && p.Synced == m.Name {
			f.undoVolume(ctx, e, m.Name)
		}
		if _, err := volume.Of(f.opts.Engine.Volumes(), owner).Create(ctx, m.Name); err != nil {
			return errors.Wrapf(err, "volume %s", m.Name)
		}
		if err := f.use(e, f.opts.Engine.Volumes(), volume.Stored(owner, m.Name)); err != nil {
			return err
		}
	}
	return nil
}

// use prevents the deletion of an image or volume until e's sandbox has ended.
func (f *Fleet) use(e *entry, keeper any, name string) error {
	u, ok := keeper.(user)
	if !ok {
		return nil
	}
	release, err := u.Use(name, engine.Holder(e.id))
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	e.releases = append(e.releases, release)
	return nil
}

// warm returns a suitable warm sandbox, or nil.
func (f *Fleet) warm(p plan, owner string, img image.Image, mounts bool) engine.Warm {
	if p.Cold || p.Isolation != f.rules.Isolation {
		return nil
	}
	return f.pool.Take(p.Limits, owner, img, mounts)
}

// box creates the sandbox on the engine, or claims a suitable one from the pool.
func (f *Fleet) box(ctx context.Context, e *entry, p plan, img image.Image,
	spec engine.Spec) (box engine.Sandbox, warm bool, err error) {
	if w := f.warm(p, account.Owner(e.record.Holder()), img, len(spec.Mounts) > 0); w != nil {
		err = f.stage(e, "claim", func() error {
			spec.Stage = f.stages(e)
			box, err = w.Claim(ctx, spec)
			return err
		})
		if err == nil {
			return box, true, nil
		}
		// The warm sandbox may have died in the pool; then boot a new one.
		if ctx.Err() != nil || errors.Is(err, errors.Invalid) || errors.Is(err, errors.NotFound) {
			return nil, false, err
		}
		logf.Warnf(ctx, "a warm sandbox was of no use: %v", err)
	}
	done, err := f.admitBoot(ctx, e, p)
	if err != nil {
		return nil, false, err
	}
	defer done()
	err = f.stage(e, "create", func() error {
		spec.Stage = f.stages(e)
		box, err = isolated(f, p.Isolation).Create(ctx, spec)
		return err
	})
	return box, false, err
}

// StepQueue is the step that Request.Progress reports while a sandbox is queued for its boot.
const StepQueue = "queue"

// admitBoot waits until the sandbox may boot. If it has to wait, it records the stage "queue". The caller calls done
// after the boot.
func (f *Fleet) admitBoot(ctx context.Context, e *entry, p plan) (done func(), err error) {
	if done = f.boots.Try(); done != nil {
		return done, nil
	}
	ahead := f.boots.Waiting()
	f.mu.Lock()
	sb := f.snapshot(e)
	f.mu.Unlock()
	f.emit(record.Event{Type: record.EventQueued, Sandbox: sb})
	if p.Progress != nil {
		p.Progress(image.Progress{Step: StepQueue, Done: -1, Message: fmt.Sprintf("%d wait before it", ahead)})
	}
	err = f.stage(e, StepQueue, func() (err error) {
		done, err = f.boots.Wait(ctx)
		return err
	})
	return done, err
}

// stage runs a step of Create, and adds its name to its error and to the record.
func (f *Fleet) stage(e *entry, name string, run func() error) error {
	start := time.Now()
	f.mu.Lock()
	inner := len(e.record.Stages)
	f.mu.Unlock()
	if err := run(); err != nil {
		return errors.Stage(err, name)
	}
	took := time.Since(start)
	f.mu.Lock()
	for _, s := range e.record.Stages[inner:] {
		took -= time.Duration(s.MS * float64(time.Millisecond))
	}
	f.mu.Unlock()
	f.stages(e)(name, max(0, took))
	return nil
}

// stages returns a function that records completed steps.
func (f *Fleet) stages(e *entry) func(string, time.Duration) {
	return func(name string, took time.Duration) {
		s := record.Stage{Name: name, MS: float64(took.Microseconds()) / 1000}
		f.mu.Lock()
		e.record.Stages = append(e.record.Stages, s)
		sb := f.snapshot(e)
		f.mu.Unlock()
		f.emit(record.Event{Type: record.EventStage, Sandbox: sb, Stage: s})
	}
}

// failCreate records why the creation failed.
func (f *Fleet) failCreate(ctx context.Context, e *entry, cause error) record.Sandbox {
	f.finish(ctx, e, nil, func(sb *record.Sandbox) error {
		sb.Status, sb.Reason, sb.FailedStage = record.Failed, errors.Message(cause), errors.StageOf(cause)
		return nil
	}, record.EventFailed)
	return f.current(e)
}
