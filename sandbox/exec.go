package sandbox

import (
	"context"
	"io"
	"maps"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/fault"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox/record"
	"github.com/RelevanceAI/harvest/sandbox/spec"
)

// Exec starts a command. When ctx ends, the command is killed, unless it is detached. Kinds: Invalid, NotFound
// (sandbox), Conflict (it does not run), and those of engine.Sandbox.Start.
func (f *Fleet) Exec(ctx context.Context, account, ref string, req ExecRequest) (*Execution, error) {
	if err := f.begin(); err != nil {
		return nil, err
	}
	defer f.tasks.Done()
	cmd, limit, err := f.command(req)
	if err != nil {
		return nil, errors.Stage(err, "validate")
	}
	e, box, leave, err := f.enter(ctx, account, ref)
	if err != nil {
		return nil, err
	}
	defer leave()
	x := &Execution{fleet: f, entry: e, terminal: req.Terminal != nil, detached: req.Detach, background: req.Background,
		done: make(chan struct{})}
	if !req.Detach {
		x.ctx = ctx
		cmd.Stdout, cmd.Stderr = x.capture(req)
	}
	x.started = time.Now().UTC() // with the monotonic clock, which clock changes do not affect
	x.deadline = x.started.Add(limit)
	if x.proc, err = box.Start(ctx, cmd); err != nil {
		return nil, errors.Stage(err, "exec")
	}
	fault.Point("exec.started")
	logf.Infof(logf.With(ctx, "sandbox_id", e.id), "command %s started", x.proc.ID())
	f.run(ctx, x)
	return x, nil
}

// command validates req.
func (f *Fleet) command(req ExecRequest) (engine.Command, time.Duration, error) {
	var p spec.Problems
	cmd := engine.Command{
		Args: req.Args, Own: req.Own, Merged: req.Merged, Dir: req.Workdir, Env: maps.Clone(req.Env), User: req.User,
		Terminal: req.Terminal,
		Stdin:    req.Stdin, Stdout: req.Stdout, Stderr: req.Stderr,
	}
	spec.CheckWhere(&p, req.Workdir, req.User)
	if p.None() {
		p.Add(engine.CheckCommand(cmd))
	}
	if req.User != "" && !f.caps.Users {
		p.Addf(errors.Unsupported, "omit user", "the engine %s does not support users on this machine",
			f.opts.Engine.Name())
	}
	if req.Terminal != nil && !f.caps.Terminal {
		p.Addf(errors.Unsupported, "omit terminal", "the engine %s does not support terminals on this machine",
			f.opts.Engine.Name())
	}
	limit := spec.CheckTime(&p, "timeout_seconds", req.Timeout.Seconds(), f.opts.Timeouts.Exec, f.opts.Timeouts.MaxLife)
	return cmd, limit, p.Err()
}

// enter begins an activity in a running sandbox. The activity keeps the sandbox from becoming idle until leave is
// called.
func (f *Fleet) enter(ctx context.Context, account,
	ref string) (e *entry, box engine.Sandbox, leave func(), err error) {
	sb, e, err := f.find(ctx, account, ref)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := f.waitCarried(ctx, e); err != nil {
		return nil, nil, nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if e != nil {
		sb = e.record
	}
	if err := sb.RequireStatus(record.Running); err != nil {
		return nil, nil, nil, err
	}
	e.busy++
	e.record.LastUsed = f.now()
	return e, e.box, func() { f.leave(e) }, nil
}

// Hold keeps a running sandbox from becoming idle until release is called, like a command. The end of ctx does not
// release it.
func (f *Fleet) Hold(ctx context.Context, account, ref string) (release func(), err error) {
	if err := f.begin(); err != nil {
		return nil, err
	}
	defer f.tasks.Done()
	_, _, leave, err := f.enter(ctx, account, ref)
	if err != nil {
		return nil, err
	}
	return sync.OnceFunc(leave), nil
}

func (f *Fleet) leave(e *entry) {
	f.mu.Lock()
	e.busy--
	e.record.LastUsed = f.now()
	f.mu.Unlock()
	f.wakeReaper()
}

// opener returns the engine's ProcessOpener for a running sandbox.
func (f *Fleet) opener(box engine.Sandbox) (engine.ProcessOpener, error) {
	if o, ok := box.(engine.ProcessOpener); ok {
		return o, nil
	}
	return nil, errors.Newf(errors.Unsupported, "the engine %s cannot find commands again", f.opts.Engine.Name())
}

// Processes lists the commands started in the sandbox, including ended ones as long as their output is kept.
func (f *Fleet) Processes(ctx context.Context, account, ref string) ([]engine.ProcessInfo, error) {
	_, box, leave, err := f.enter(ctx, account, ref)
	if err != nil {
		return nil, err
	}
	defer leave()
	o, err := f.opener(box)
	if err != nil {
		return nil, err
	}
	return o.Processes(ctx)
}

// Attach connects to a command that was started earlier. It writes all output that is kept, and then new output. When
// ctx ends, the attachment ends, but the command continues. Result contains no output.
func (f *Fleet) Attach(ctx context.Context, account, ref, processID string, stdio engine.Stdio) (*Execution, error) {
	if err := f.begin(); err != nil {
		return nil, err
	}
	defer f.tasks.Done()
	e, box, leave, err := f.enter(ctx, account, ref)
	if err != nil {
		return nil, err
	}
	defer leave()
	o, err := f.opener(box)
	if err != nil {
		return nil, err
	}
	x := &Execution{fleet: f, entry: e, ctx: ctx, attached: true, started: time.Now().UTC(), done: make(chan struct{})}
	infos, err := o.Processes(ctx)
	if err != nil {
		return nil, errors.Stage(err, "attach")
	}
	for _, info := range infos {
		if info.ID == processID {
			x.started, x.terminal = info.Started, info.Terminal
		}
	}
	if x.proc, err = o.OpenProcess(ctx, processID, stdio); err != nil {
		return nil, errors.Stage(err, "attach")
	}
	f.mu.Lock()
	for other := range e.commands {
		x.background = x.background || other.background && other.ID() == processID
	}
	f.mu.Unlock()
	logf.Infof(logf.With(ctx, "sandbox_id", e.id), "attached to command %s", processID)
	f.run(ctx, x)
	return x, nil
}

// CopyIn unpacks a tar stream below dir, as described for engine.Sandbox.
func (f *Fleet) CopyIn(ctx context.Context, account, ref, dir string, tar io.Reader) error {
	var p spec.Problems
	spec.CheckPath(&p, dir)
	if err := p.Err(); err != nil {
		return errors.Stage(err, "validate")
	}
	_, box, leave, err := f.enter(ctx, account, ref)
	if err != nil {
		return err
	}
	defer leave()
	return errors.Stage(box.CopyIn(ctx, dir, tar), "copy")
}

// CopyOut returns a tar stream of path, as described for engine.Sandbox. The caller closes it.
func (f *Fleet) CopyOut(ctx context.Context, account, ref, path string) (io.ReadCloser, error) {
	var p spec.Problems
	spec.CheckPath(&p, path)
	if err := p.Err(); err != nil {
		return nil, errors.Stage(err, "validate")
	}
	_, box, leave, err := f.enter(ctx, account, ref)
	if err != nil {
		return nil, err
	}
	stream, err := box.CopyOut(ctx, path)
	if err != nil {
		leave()
		return nil, errors.Stage(err, "copy")
	}
	return &leaver{ReadCloser: stream, leave: leave}, nil
}
