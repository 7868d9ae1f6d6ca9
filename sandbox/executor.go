package sandbox

import (
	"context"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox/spec"
)

// Executor runs Python code, each run in a fresh sandbox (mission A1).
type Executor struct {
	Fleet   *Fleet
	Account string
	Request spec.Request // for every sandbox; may be zero
}

// outlive is how much longer than its code a sandbox may live, in case its owner does not destroy it.
const outlive = 10 * time.Minute

// Execute runs Python code and returns its result. Failures of the code, time limits and out-of-memory kills are
// Results; an error means that the code did not run. The sandbox is always destroyed. timeout 0 means 30 minutes. The
// Result keeps 4 MiB of each stream, its beginning and its end, unless Options.Capture is set.
func (e Executor) Execute(ctx context.Context, code string, timeout time.Duration) (Result, error) {
	err := CheckCode(code)
	if err == nil { // before a sandbox is created in vain
		_, timeout, err = e.Fleet.command(ExecRequest{Args: []string{python}, Timeout: timeout})
	}
	if err != nil {
		return Result{}, errors.Stage(err, "validate")
	}
	req := e.Request
	if req.TimeoutSeconds == 0 {
		req.TimeoutSeconds = min(timeout+outlive, e.Fleet.opts.Timeouts.MaxLife).Seconds()
	}
	sb, err := e.Fleet.Create(ctx, e.Account, req)
	if err != nil {
		return Result{}, err
	}
	defer func() {
		ctx := logContext(context.WithoutCancel(ctx), sb)
		if err := e.Fleet.Destroy(ctx, e.Account, sb.ID); err != nil {
			logf.Errorf(ctx, "destroy the sandbox of an execution: %v", err)
		}
	}()
	x, err := e.Fleet.ExecCode(ctx, e.Account, sb.ID, code, ExecRequest{Timeout: timeout})
	if err != nil {
		return Result{SandboxID: sb.ID}, err
	}
	return x.Wait(context.WithoutCancel(ctx)) // when ctx ends, the command is killed, which is a Result
}
