package commands

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

const (
	timedOutCode = 124
	killedCode   = 128 + 9

	killLimit  = 10 * time.Second       // until a killed command must be gone
	endLimit   = 5 * time.Second        // between the end of a command and the report that its sandbox ended
	longEnough = 100 * time.Millisecond // longer commands are recorded, so that recovery knows their time limit
)

// carriedReason is the reason in the results of commands that ended because their sandbox was carried over or
// suspended.
const carriedReason = "the sandbox was suspended, or carried over to a new one because its engine ended the old one: " +
	"its files are kept, and commands end"

// inputLostReason is the reason in the results of commands that were killed because the rest of their input was lost.
const inputLostReason = "the rest of its standard input was lost when the server ended, so it was killed"

// Execution is a command that was started or attached to. All methods may be called concurrently.
type Execution struct {
	set      *Set
	proc     engine.Process
	ctx      context.Context // of the caller; nil if its end has no effect
	started  time.Time
	deadline time.Time // zero when attached: the first Execution enforces the time limit
	terminal bool
	detached bool
	// background commands do not keep the sandbox from becoming idle.
	background bool
	attached   bool

	stdout, stderr *capture // nil if the caller supplied a writer
	incomplete     atomic.Bool

	done   chan struct{} // closed once result and err are set
	result Result
	err    error
}

// ID identifies the process within its sandbox, for Attach.
func (x *Execution) ID() string { return x.proc.ID() }

// SandboxID returns the ID of the sandbox.
func (x *Execution) SandboxID() string { return x.set.sandbox.ID }

// Signal sends a signal by its name, such as "TERM". Invalid for an unknown name.
func (x *Execution) Signal(ctx context.Context, name string) error {
	if _, err := engine.ParseSignal(name); err != nil {
		return err
	}
	return x.proc.Signal(ctx, name)
}

// Resize sets the size of the terminal. It returns Conflict if the command has no terminal.
func (x *Execution) Resize(ctx context.Context, size engine.Size) error {
	if err := engine.CheckSize(size); err != nil {
		return err
	}
	return x.proc.Resize(ctx, size)
}

// Kill kills the command and all its descendants.
func (x *Execution) Kill(ctx context.Context) error { return x.proc.Kill(ctx) }

// Wait returns the result of the command. Time limits, cancellation and the end of the sandbox are Results too; an
// error means that the result is unknown. When ctx ends, only the waiting ends.
func (x *Execution) Wait(ctx context.Context) (Result, error) {
	select {
	case <-x.done:
		return x.result, x.err
	case <-ctx.Done():
		return Result{}, errors.Wrapf(ctx.Err(), "wait for command %s", x.ID())
	}
}

// capture sets up buffers for the output streams of cmd that have no writer.
func (x *Execution) capture(cmd *engine.Command) {
	if cmd.Stdout == nil {
		x.stdout = &capture{limit: x.set.sandbox.Capture}
		cmd.Stdout = x.stdout
	}
	if cmd.Stderr == nil {
		x.stderr = &capture{limit: x.set.sandbox.Capture}
		cmd.Stderr = x.stderr
	}
}

// noteMissing remembers for the Result that output of cmd is missing.
func (x *Execution) noteMissing(cmd *engine.Command) {
	report := cmd.Truncated
	cmd.Truncated = func(bytes int64) {
		x.incomplete.Store(true)
		if report != nil {
			report(bytes)
		}
	}
}

// follow waits for the command to end, kills it when that is due, and sets the result.
func (x *Execution) follow(ctx context.Context) (recorded bool) {
	type ending struct {
		exit engine.Exit
		err  error
	}
	waiting, stop := context.WithCancel(x.set.sandbox.Context)
	defer stop()
	ended := make(chan ending, 1)
	go func() {
		exit, err := x.proc.Wait(waiting)
		ended <- ending{exit, err}
	}()
	var overdue, long, gaveUp <-chan time.Time
	if !x.attached {
		overdue, long = time.After(time.Until(x.deadline)), time.After(longEnough)
	}
	var canceled <-chan struct{}
	if x.ctx != nil {
		canceled = x.ctx.Done()
	}
	why := ""
	kill := func(reason string) {
		why, overdue, canceled, gaveUp = reason, nil, nil, time.After(killLimit)
		go x.kill(ctx)
	}
	for {
		select {
		case end := <-ended:
			x.finish(end.exit, end.err, why)
			return recorded
		case <-long:
			long, recorded = nil, true
			x.set.sandbox.Save(ctx)
		case <-overdue:
			reason := "its time limit of " + x.deadline.Sub(x.started).String() + " was reached"
			x.exceed(ctx, reason)
			recorded = true
			kill(reason)
		case <-canceled:
			if x.attached {
				stop()
				canceled = nil
				continue
			}
			kill("it was canceled")
		case <-gaveUp:
			logf.Errorf(ctx, "command %s still runs after SIGKILL", x.ID())
			x.finish(engine.Exit{Code: killedCode}, nil, why+", but it could not be ended")
			return recorded
		}
	}
}

// exceed records that the time limit of the command ends it, for the Executions that are attached to it and for the
// next server.
func (x *Execution) exceed(ctx context.Context, reason string) {
	x.result.TimedOut = true
	x.set.mu.Lock()
	x.set.remember(record.Command{ID: x.ID(), Deadline: x.deadline, Overdue: reason, Detached: x.detached,
		Background: x.background})
	x.set.mu.Unlock()
	x.set.sandbox.Save(ctx)
}

func (x *Execution) kill(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, killLimit)
	defer cancel()
	if err := x.proc.Kill(ctx); err != nil {
		logf.Errorf(ctx, "kill command %s: %v", x.ID(), err)
	}
}

// finish sets the result. why is the reason if the Fleet killed the command.
func (x *Execution) finish(exit engine.Exit, err error, why string) {
	r := &x.result
	if x.attached {
		x.set.mu.Lock()
		why, r.TimedOut = x.set.reason(x.ID())
		x.set.mu.Unlock()
	}
	r.SandboxID, r.Duration = x.SandboxID(), max(0, time.Since(x.started).Seconds())
	r.ReturnCode, r.Signal, r.OutOfMemory, r.Reason, r.Crashed = exit.Code, exit.Signal, exit.OutOfMemory,
		why, exit.Crashed
	if r.Crashed != "" {
		logf.Warnf(x.set.sandbox.Context, "command %s of sandbox %s: %s", x.ID(), x.SandboxID(), r.Crashed)
	}
	r.Truncated = x.incomplete.Load()
	if x.stdout != nil {
		r.Stdout = x.stdout.text()
		r.Truncated = r.Truncated || x.stdout.truncated()
	}
	if x.stderr != nil {
		r.Stderr = x.stderr.text()
		r.Truncated = r.Truncated || x.stderr.truncated()
	}
	if x.set.sandbox.Carried() && !r.TimedOut {
		r.Reason = cmp.Or(why, carriedReason)
	}
	if exit.InputLost {
		r.Reason = cmp.Or(r.Reason, inputLostReason)
	}
	if exit.OutOfSpace {
		r.Reason = cmp.Or(r.Reason, "a volume grew beyond the limit of disk or of files")
	}
	switch {
	case r.TimedOut:
		r.ReturnCode = timedOutCode
	case err != nil && x.attached && x.ctx.Err() != nil:
		x.err = errors.Wrapf(x.ctx.Err(), "the attachment ended")
	case err != nil && x.set.sandbox.Context.Err() != nil:
		x.err = errors.Remedy(errors.Explainf(err, errors.Unavailable,
			"Harvest is shutting down; the command continues"), "attach to it when Harvest runs again")
	case err != nil || exit.Signal != "":
		x.blameSandbox(err)
	}
}

// blameSandbox determines whether the command ended because its sandbox did.
func (x *Execution) blameSandbox(err error) {
	if err != nil || x.result.OutOfMemory { // the end of the sandbox may become known a moment later
		timer := time.NewTimer(endLimit)
		defer timer.Stop()
		select {
		case <-x.set.sandbox.Ended:
		case <-x.set.sandbox.Context.Done():
		case <-timer.C:
		}
	}
	sb, r := x.set.sandbox.Record(), &x.result
	switch {
	case sb.Status != record.Running && sb.Status != record.Lost:
		if err != nil {
			r.ReturnCode, r.Signal = killedCode, "KILL"
		}
		r.OutOfMemory = r.OutOfMemory || sb.OutOfMemory
		r.Reason = cmp.Or(r.Reason, "the sandbox ended: "+sb.Reason)
	case err != nil:
		x.err = errors.Explainf(err, errors.KindOf(err), "the result of the command is unknown: %s",
			errors.Message(err))
	case r.OutOfMemory:
		r.Reason = cmp.Or(r.Reason, "it ran out of memory")
	}
}
