package sandbox

import (
	"context"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
)

// Executor runs code, each piece in a fresh sandbox (mission A1).
type Executor struct {
	Fleet   *Fleet
	Account string
	Request Request // of every sandbox; the zero value will do
}

// outlive is how much longer than its code a sandbox may live, for the case that nobody is left to destroy it.
const outlive = 10 * time.Minute

// Execute runs Python code and returns what it did. Whatever happens to the code, its failure, time limit and end for lack of
// memory included, is a Result; an error means that it did not run. Nothing of the sandbox is left behind.
// timeout 0 means 30 minutes. Of each stream the Result keeps 4 MiB, its beginning and its end, unless Options.Capture says
// otherwise.
func (e Executor) Execute(ctx context.Context, code string, timeout time.Duration) (Result, error) {
	err := CheckCode(code)
	if err == nil { // before a sandbox is made in vain
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
	return x.Wait(context.WithoutCancel(ctx)) // the end of ctx kills the command, which is a Result
}
