package fleet

import (
	"context"
	"io"
	"maps"
	"sync"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// Exec starts a command. When ctx ends, the command is killed, unless it is detached. Kinds: Invalid, NotFound
// (sandbox), Conflict (it does not run), and those of engine.Sandbox.Start.
func (f *Fleet) Exec(ctx context.Context, account, ref string, req ExecRequest) (*commands.Execution, error) {
	if err := f.begin(); err != nil {
		return nil, err
	}
	defer f.tasks.Done()
	cmd := engine.Command{
		Args: req.Args, Own: req.Own, Merged: req.Merged, Dir: req.Workdir, Env: maps.Clone(req.Env), User: req.User,
		Terminal: req.Terminal,
		Stdin:    req.Stdin, InputOnce: req.InputOnce, Stdout: req.Stdout, Stderr: req.Stderr, Truncated: req.Truncated,
	}
	limit, err := f.rules.Command(cmd, req.Timeout)
	if err != nil {
		return nil, errors.Stage(err, "validate")
	}
	e, box, leave, err := f.enter(ctx, account, ref)
	if err != nil {
		return nil, err
	}
	defer leave()
	return e.commands.Start(ctx, box, cmd,
		commands.Options{Limit: limit, Detach: req.Detach, Background: req.Background})
}

// enter begins an activity in a running sandbox. It wakes a suspended one first. The activity keeps the sandbox from
// becoming idle until leave is called.
func (f *Fleet) enter(ctx context.Context, account,
	ref string) (e *entry, box engine.Sandbox, leave func(), err error) {
	sb, e, err := f.find(ctx, account, ref)
	if err != nil {
		return nil, nil, nil, err
	}
	if e == nil {
		return nil, nil, nil, sb.RequireStatus(record.Running)
	}
	if err := settled(ctx, f, e, true); err != nil {
		return nil, nil, nil, err
	}
	defer f.mu.Unlock()
	if err := e.record.RequireStatus(record.Running); err != nil {
		return nil, nil, nil, err
	}
	e.commands.Enter()
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
	e.commands.Leave()
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
func (f *Fleet) Attach(ctx context.Context, account, ref, processID string,
	stdio engine.Stdio) (*commands.Execution, error) {
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
	return e.commands.Attach(ctx, o, processID, stdio)
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
	return commands.HeldStream{ReadCloser: stream, Leave: sync.OnceFunc(leave)}, nil
}
