package sandbox

import (
	"cmp"
	"context"
	"maps"
	"strconv"
	"time"

	"github.com/docker/go-units"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/internal/fault"
	"github.com/RelevanceAI/harvest/internal/ids"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/volume"
)

// user is what images and volumes that must not be deleted while a sandbox uses them offer.
type user interface {
	// Use keeps name until release is called; who is named when somebody wants to delete it.
	Use(name, who string) (release func(), err error)
}

// Create makes a sandbox that is ready for commands. On failure the error names the stage, and from the stage "image" on there
// is a record that says so, which is returned too.
// Kinds: Invalid, Unsupported, NotFound (image), Conflict (name), Exhausted (quota), and those of engine.Create.
func (f *Fleet) Create(ctx context.Context, account string, req Request) (Sandbox, error) {
	if err := f.begin(); err != nil {
		return Sandbox{}, err
	}
	defer f.tasks.Done()
	defer f.pool.refill()
	p, err := f.plan(req)
	if err == nil {
		err = checkProvided(account, p)
	}
	if err != nil {
		return Sandbox{}, errors.Stage(err, "validate")
	}
	return f.make(ctx, account, p)
}

// make makes the sandbox that was planned.
func (f *Fleet) make(ctx context.Context, account string, p plan) (Sandbox, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(f.ctx, func() { cancel(errors.Newf(errors.Unavailable, "Harvest is shutting down")) })()
	e, err := f.admit(ctx, cancel, account, p)
	if err != nil {
		return Sandbox{}, errors.Stage(err, "admit")
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
	logf.Infof(ctx, "sandbox ready in %s: image %s, warm %t", sb.Started.Sub(sb.Created).Round(time.Millisecond), sb.ImageID, sb.Warm)
	return sb, nil
}

// admit checks quotas and the name, and records the sandbox, all as one step.
func (f *Fleet) admit(ctx context.Context, cancel context.CancelCauseFunc, account string, p plan) (*entry, error) {
	created := f.now()
	e := newEntry(Sandbox{
		ID: idPrefix + ids.New(), Account: account, Name: p.Name, Tags: p.Tags,
		Engine: f.opts.Engine.Name(), Isolation: f.caps.Isolation, Image: p.Image, Workdir: p.Workdir, User: p.User,
		Volumes: p.Volumes, Secrets: p.Secrets, Withheld: p.Withhold, Network: p.Network, Ports: p.Ports, Limits: p.limits, GPU: p.GPU, Status: Creating,
		S3: p.s3, Created: created, Expires: created.Add(p.life), LastUsed: created, IdleTimeoutSeconds: p.idle.Seconds(),
		Stages: []Stage{}, SnapshotOnEnd: p.SnapshotOnEnd,
	}, p.cpu, p.memory)
	if ctx.Err() != nil {
		return nil, errors.Wrapf(context.Cause(ctx), "before the sandbox was recorded")
	}
	e.cancel = cancel
	e.save.Lock() // until it is recorded, nobody else writes it
	defer e.save.Unlock()
	f.mu.Lock()
	err := f.checkQuotas(account, p)
	if err == nil {
		f.live[e.record.ID] = e
		f.created++
	}
	sb := e.record.Clone()
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	// Not interrupted half-way: whether the record is there must be known.
	if err := f.opts.Store.Put(context.WithoutCancel(ctx), sb); err != nil {
		f.mu.Lock()
		delete(f.live, sb.ID)
		f.mu.Unlock()
		return nil, errors.Wrapf(err, "record the new sandbox")
	}
	fault.Point("sandbox.recorded")
	f.emit(Event{Type: EventStarting, Sandbox: sb})
	return e, nil
}

func newEntry(sb Sandbox, cpu float64, memory int64) *entry {
	return &entry{id: sb.ID, cpu: cpu, memory: memory, record: sb.Clone(), commands: map[*Execution]struct{}{}, ended: make(chan struct{})}
}

// checkQuotas returns Conflict if the name is taken, and Exhausted if the account may have no more. f.mu is held.
func (f *Fleet) checkQuotas(account string, p plan) error {
	if account == buildAccount {
		return nil
	}
	count, cpu, memory := 0, 0.0, int64(0)
	for _, e := range f.live {
		if e.record.Account != account {
			continue
		}
		if p.Name != "" && e.record.Name == p.Name {
			return NameTaken(p.Name)
		}
		count++
		cpu += e.cpu
		memory += e.memory
	}
	q := f.opts.Quotas
	var ps problems
	exceeded := func(quota, inUse, asked string) {
		ps.addf(errors.Exhausted, "remove sandboxes that are not needed any more, ask for less, or have the quota raised",
			"the account may have %s at once; %s in use, %s asked for", quota, inUse, asked)
	}
	size := func(n int64) string { return units.BytesSize(float64(n)) }
	if q.Sandboxes > 0 && count+1 > q.Sandboxes {
		exceeded(plural(float64(q.Sandboxes), "sandbox", "sandboxes"), plural(float64(count), "is", "are"), "1 more is")
	}
	const rounding = 1e-9 // tenths of cores do not add up exactly
	if q.CPU > 0 && cpu+p.cpu > q.CPU+rounding {
		exceeded(plural(q.CPU, "core", "cores"), plural(cpu, "is", "are"), plural(p.cpu, "more is", "more are"))
	}
	if q.Memory > 0 && memory+p.memory > q.Memory {
		exceeded(size(q.Memory)+" of memory", size(memory)+" are", size(p.memory)+" more are")
	}
	return ps.err()
}

// build carries out the stages of Create.
func (f *Fleet) build(ctx context.Context, e *entry, p plan) error {
	if p.from != nil {
		return f.restore(ctx, e, p)
	}
	if p.s3 != nil {
		if err := f.opts.S3.Check(ctx, f.s3Job(e)); err != nil {
			return errors.Stage(err, "s3")
		}
	}
	if len(p.own) > 0 { // first, since it is quick and the rest may be not
		if err := f.stage(e, "secrets", func() (err error) {
			p.Env, err = f.secrets(ctx, e, p)
			return err
		}); err != nil {
			return err
		}
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
	if p.s3 != nil {
		if err := f.fill(ctx, e, p); err != nil {
			return err
		}
	}
	spec := engine.Spec{
		ID: e.id, Account: e.record.Account, Image: img.ID, Hostname: cmp.Or(p.Hostname, engine.HostName(cmp.Or(e.record.Name, e.id))), Env: p.Env, Dir: p.Workdir, User: p.User,
		Limits: p.limits, GPU: p.GPU, Secrets: p.provided, Network: p.Network.engine(), KeepOnOOM: p.SnapshotOnEnd,
	}
	for _, m := range p.Volumes {
		spec.Mounts = append(spec.Mounts, engine.Mount{Volume: volume.Stored(account.Owner(e.record.Account), m.Name), Path: m.Path, ReadOnly: m.ReadOnly})
	}
	live, err := f.mountS3(ctx, e, p)
	if err != nil {
		return err
	}
	spec.Mounts = append(spec.Mounts, live...)
	box, warm, err := f.box(ctx, e, p, img, spec)
	if err != nil {
		return err
	}
	fault.Point("sandbox.made")
	return f.ready(ctx, e, p, box, warm)
}

// ready makes the sandbox known as running, unless nobody waits for it any more: then it is destroyed.
func (f *Fleet) ready(ctx context.Context, e *entry, p plan, box engine.Sandbox, warm bool) error {
	changed, err := f.update(ctx, e, func(sb *Sandbox) error {
		if ctx.Err() != nil {
			return errors.Stage(context.Cause(ctx), "ready")
		}
		e.box, e.cancel = box, nil
		if warm {
			f.warmUsed++
		}
		sb.Status, sb.Started, sb.Handle, sb.Warm = Running, f.now(), box.Handle(), warm
		sb.Expires, sb.LastUsed = fit(box, sb.Started.Add(p.life), sb.SnapshotOnEnd), sb.Started
		return nil
	}, EventReady)
	if !changed {
		f.discard(ctx, e.id, box.Handle(), box)
		return err
	}
	if err != nil { // after a crash it would be removed as half-made, but it runs
		logf.Errorf(ctx, "a sandbox that is ready: %v", err)
	}
	f.tasks.Go(func() { f.watch(e, box) })
	f.tasks.Go(func() { f.meter(e, box) })
	f.follow(e, box)
	f.wakeReaper()
	return nil
}

// image finds the image. One that is not there is built, if it is the base image, or fetched from its registry.
func (f *Fleet) image(ctx context.Context, e *entry, p plan) (image.Image, error) {
	images := image.Of(f.opts.Engine.Images(), account.Owner(e.record.Account))
	if e.record.Account == buildAccount { // its images are those of whoever builds
		images = f.opts.Engine.Images()
	}
	opts := image.BuildOptions{Progress: p.Progress, Credentials: f.Credentials(e.record.Account, "")}
	var img image.Image
	var err error
	if len(p.Commands) > 0 {
		img, err = images.Build(ctx, image.Spec{Base: p.Image, Commands: p.Commands}, opts)
	} else if img, err = images.Find(ctx, p.Image); errors.Is(err, errors.NotFound) {
		img, err = images.Build(ctx, image.Spec{Base: p.Image}, opts)
	}
	if errors.Is(err, errors.NotFound) {
		err = errors.Remedy(err, "name an image that \"harvest image ls\" shows, or one of a registry")
	}
	if err != nil {
		return img, err
	}
	f.mu.Lock()
	e.record.ImageID = img.ID
	f.mu.Unlock()
	return img, f.use(e, f.opts.Engine.Images(), img.ID)
}

// Credentials looks for who an account is at a registry in the secret of that name, or, if it is "", in all of the account's. The user's
// Docker configuration is for the personal account only.
func (f *Fleet) Credentials(owner, name string) func(context.Context, string) (image.Credential, error) {
	return func(ctx context.Context, host string) (image.Credential, error) {
		nobody := image.Credential{Anonymous: owner != account.Personal}
		if f.opts.Secrets == nil {
			return nobody, nil
		}
		login, ok, err := f.opts.Secrets.Registry(ctx, owner, name, host)
		switch {
		case err != nil:
			return image.Credential{}, err
		case ok:
			return image.Credential{User: login.User, Password: string(login.Password)}, nil
		case name != "":
			err := errors.Newf(errors.Invalid, "the secret %s has no login for the registry %s", name, host)
			return image.Credential{}, errors.Remedy(err, "give it REGISTRY_SERVER=%s, REGISTRY_USERNAME and REGISTRY_PASSWORD", host)
		}
		return nobody, nil
	}
}

// secrets returns the environment of commands with the secrets of Harvest that p names. Their values stay hidden until the sandbox has ended,
// also if they are deleted and the server is restarted meanwhile.
func (f *Fleet) secrets(ctx context.Context, e *entry, p plan) (map[string]string, error) {
	pairs, err := f.opts.Secrets.Lend(ctx, e.record.Account, e.id, p.own...)
	if err != nil {
		return nil, err
	}
	f.returnSecrets(e)
	env := map[string]string(pairs)
	for _, key := range p.Withhold {
		delete(env, key)
	}
	maps.Copy(env, p.Env)
	var ps problems
	checkEnv(&ps, env)
	return env, ps.err()
}

// returnSecrets has secrets given back when the sandbox has ended.
func (f *Fleet) returnSecrets(e *entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e.releases = append(e.releases, func() { f.opts.Secrets.Return(context.WithoutCancel(f.ctx), e.id) })
}

// volumes makes the volumes that are missing (mission C1).
func (f *Fleet) volumes(ctx context.Context, e *entry, p plan) error {
	for _, m := range p.Volumes {
		owner := account.Owner(e.record.Account)
		if p.s3 != nil && p.s3.own && p.s3.Volume == m.Name {
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

// use keeps what e's sandbox needs from being deleted until it has ended.
func (f *Fleet) use(e *entry, keeper any, name string) error {
	u, ok := keeper.(user)
	if !ok {
		return nil
	}
	release, err := u.Use(name, e.id)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	e.releases = append(e.releases, release)
	return nil
}

// box has the engine make the sandbox, from the pool if there is one that fits.
func (f *Fleet) box(ctx context.Context, e *entry, p plan, img image.Image, spec engine.Spec) (box engine.Sandbox, warm bool, err error) {
	if w := f.pool.take(p, account.Owner(e.record.Account), img, len(spec.Mounts) > 0); w != nil {
		err = f.stage(e, "claim", func() error {
			spec.Stage = f.stages(e)
			box, err = w.Claim(ctx, spec)
			return err
		})
		if err == nil {
			return box, true, nil
		}
		// It may have died while it waited, which is no reason to refuse the request.
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
		box, err = f.opts.Engine.Create(ctx, spec)
		return err
	})
	return box, false, err
}

// stage runs a step of Create, and names it in its error and in the record.
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

// stages returns what takes note of steps that are done.
func (f *Fleet) stages(e *entry) func(string, time.Duration) {
	return func(name string, took time.Duration) {
		s := Stage{Name: name, MS: float64(took.Microseconds()) / 1000}
		f.mu.Lock()
		e.record.Stages = append(e.record.Stages, s)
		sb := f.snapshot(e)
		f.mu.Unlock()
		f.emit(Event{Type: EventStage, Sandbox: sb, Stage: s})
	}
}

// failCreate records why there is no sandbox.
func (f *Fleet) failCreate(ctx context.Context, e *entry, cause error) Sandbox {
	f.finish(ctx, e, nil, func(sb *Sandbox) error {
		sb.Status, sb.Reason, sb.FailedStage = Failed, errors.Message(cause), errors.StageOf(cause)
		return nil
	}, EventFailed)
	f.mu.Lock()
	defer f.mu.Unlock()
	return e.record.Clone()
}

// plural puts the right word behind a number.
func plural(n float64, one, many string) string {
	word := many
	if n == 1 {
		word = one
	}
	return strconv.FormatFloat(n, 'g', 6, 64) + " " + word
}
