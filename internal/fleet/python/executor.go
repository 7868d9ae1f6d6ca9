package python

import (
	"context"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// Executor runs Python code, each run in a fresh sandbox.
type Executor struct {
	Fleet   *fleet.Fleet
	Account string
	Request spec.Request // for every sandbox; may be zero
}

// outlive is how much longer than its code a sandbox may live, in case its owner does not destroy it.
const outlive = 10 * time.Minute

// Execute runs Python code and returns its result. Failures of the code, time limits and out-of-memory kills are
// Results; an error means that the code did not run. The sandbox is always destroyed. timeout 0 means 30 minutes. The
// Result keeps 4 MiB of each stream, its beginning and its end, unless Options.Capture is set.
func (e Executor) Execute(ctx context.Context, code string, timeout time.Duration) (commands.Result, error) {
	limits, err := e.Fleet.Rules().Timeouts, Check(code)
	if err == nil { // before a sandbox is created
		var p spec.Problems
		timeout = spec.CheckTime(&p, "timeout_seconds", timeout.Seconds(), limits.Exec, limits.MaxLife)
		err = p.Err()
	}
	if err != nil {
		return commands.Result{}, errors.Stage(err, "validate")
	}
	req := e.Request
	if req.TimeoutSeconds == 0 {
		req.TimeoutSeconds = min(timeout+outlive, limits.MaxLife).Seconds()
	}
	sb, err := e.Fleet.Create(ctx, e.Account, req)
	if err != nil {
		return commands.Result{}, err
	}
	defer func() {
		ctx := logf.With(context.WithoutCancel(ctx), "sandbox_id", sb.ID, "account", sb.Account)
		if err := e.Fleet.Destroy(ctx, e.Account, sb.ID); err != nil {
			logf.Errorf(ctx, "destroy the sandbox of an execution: %v", err)
		}
	}()
	x, err := Exec(ctx, e.Fleet, e.Account, sb.ID, code, fleet.ExecRequest{Timeout: timeout})
	if err != nil {
		return commands.Result{SandboxID: sb.ID}, err
	}
	return x.Wait(context.WithoutCancel(ctx)) // when ctx ends, the command is killed, which is a Result
}
