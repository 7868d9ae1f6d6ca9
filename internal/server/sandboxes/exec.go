package sandboxes

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"runtime/debug"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/fleet/python"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// exec runs a command. The response is its Result, or events, or, if detached, the IDs for a later attach.
func (s *Service) exec(w http.ResponseWriter, r *http.Request) error {
	var req api.ExecRequest
	if err := edge.DecodeBody(w, r, api.MaxExec, &req); err != nil {
		return err
	}
	ctx, cancel := s.CommandContext(r)
	defer cancel()
	ref := r.PathValue("id")
	if req.Detach {
		x, err := s.start(ctx, ref, req, engine.Stdio{Stdin: stdinOf(req)})
		return edge.Send(w, http.StatusAccepted, started, x, err)
	}
	return s.answer(w, r, func(stdio engine.Stdio, tell func(*commands.Execution)) (commands.Result, error) {
		stdio.Stdin = stdinOf(req)
		x, err := s.start(ctx, ref, req, stdio)
		if err != nil {
			return commands.Result{}, err
		}
		tell(x)
		return s.wait(ctx, x)
	})
}

// run runs a command in a new sandbox.
func (s *Service) run(w http.ResponseWriter, r *http.Request) error {
	data, err := edge.Body(w, r, api.MaxExec)
	if err != nil {
		return err
	}
	req, err := decodeRun(data)
	if err != nil {
		return err
	}
	ctx, cancel := s.CommandContext(r)
	defer cancel()
	return s.answer(w, r, func(stdio engine.Stdio, tell func(*commands.Execution)) (commands.Result, error) {
		stdio.Stdin = stdinOf(req.ExecRequest)
		return s.runOnce(ctx, req, stdio, tell)
	})
}

// stdinOf returns the input in a request, or nil for none.
func stdinOf(req api.ExecRequest) io.Reader {
	if req.Stdin == "" {
		return nil
	}
	return strings.NewReader(req.Stdin)
}

// answer calls do and responds with its result: as JSON, or with the output as events if the client asks for them.
func (s *Service) answer(w http.ResponseWriter, r *http.Request,
	do func(stdio engine.Stdio, tell func(*commands.Execution)) (commands.Result, error)) error {
	if !edge.WantsEvents(r) {
		res, err := whileKey(r.Context(), func() (commands.Result,
			error) {
			return do(engine.Stdio{}, func(*commands.Execution) {})
		})
		return edge.Send(w, http.StatusOK, resultOut, res, err)
	}
	ev := s.NewEvents(w)
	defer ev.Close()
	stdout, stderr := &outputWriter{ev: ev, name: api.EventStdout}, &outputWriter{ev: ev, name: api.EventStderr}
	res, err := whileKey(r.Context(), func() (commands.Result, error) {
		return do(engine.Stdio{Stdout: stdout, Stderr: stderr},
			func(x *commands.Execution) { ev.Send(api.EventStarted, started(x)) })
	})
	if err != nil {
		ev.Send(api.EventProblem, edge.Problem(r.Context(), err))
		return nil
	}
	stdout.flush()
	stderr.flush()
	ev.Send(api.EventExit, resultOut(res))
	return nil
}

// whileKey returns the result of call. If the key of the request ends first, whileKey returns the reason at once and
// does not wait for call, because killing a command takes a while. call still completes, since its context ends, too.
func whileKey(ctx context.Context, call func() (commands.Result, error)) (commands.Result, error) {
	type result struct {
		commands.Result
		err error
	}
	done := make(chan result, 1)
	ended := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		if account.Ended(ctx) != nil {
			close(ended)
		}
	})()
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- result{err: errors.Errorf("panic: %v\n%s", p, debug.Stack())}
			}
		}()
		res, err := call()
		done <- result{res, err}
	}()
	select {
	case r := <-done:
		return r.Result, edge.EndedBy(ctx, r.err)
	case <-ended:
		return commands.Result{}, account.Ended(ctx)
	}
}

// runBody is api.RunRequest with the sandbox undecoded: package fleet decodes it.
type runBody struct {
	api.ExecRequest
	Sandbox json.RawMessage `json:"sandbox"`
	Keep    bool            `json:"keep"`
}

type runRequest struct {
	api.ExecRequest
	sandbox spec.Request
	keep    bool
}

func decodeRun(data []byte) (runRequest, error) {
	var b runBody
	if err := edge.Decode(data, &b); err != nil {
		return runRequest{}, err
	}
	if b.Detach {
		return runRequest{}, errors.Remedy(errors.Newf(errors.Invalid,
			"a command in a sandbox of its own cannot be detached"),
			"create a sandbox, and run the command in it")
	}
	req := runRequest{ExecRequest: b.ExecRequest, keep: b.Keep}
	if len(b.Sandbox) == 0 {
		return req, nil
	}
	var err error
	req.sandbox, err = spec.Decode(b.Sandbox)
	return req, err
}

// orphaned is the idle limit, in seconds, of a sandbox for one command: if the server is killed before it can destroy
// the sandbox, the next server does so after the command has ended.
const orphaned = 60

// runOnce creates a sandbox, runs the command in it, and destroys it in any case.
func (s *Service) runOnce(ctx context.Context, req runRequest, stdio engine.Stdio,
	tell func(*commands.Execution)) (commands.Result, error) {
	if !req.keep && req.sandbox.IdleTimeoutSeconds == 0 {
		req.sandbox.IdleTimeoutSeconds = orphaned
	}
	creating, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.Stopping, cancel)()
	made, err := s.Create(creating, req.sandbox)
	if err != nil {
		if s.Stopping.Err() != nil {
			return commands.Result{}, edge.ErrStopping()
		}
		return commands.Result{}, err
	}
	if !req.keep {
		defer s.discard(ctx, made.ID)
	}
	x, err := s.start(ctx, made.ID, req.ExecRequest, stdio)
	if err != nil {
		return commands.Result{}, err
	}
	tell(x)
	return s.wait(ctx, x)
}

// discard destroys a sandbox, unless the server is stopping: then the next server does.
func (s *Service) discard(ctx context.Context, id string) {
	if s.Stopping.Err() != nil {
		return
	}
	if err := s.Fleet.Destroy(context.WithoutCancel(ctx), edge.AccountOf(ctx), id); err != nil {
		logf.Errorf(ctx, "destroy %s: %v", id, err)
	}
}

// start starts a command or code.
func (s *Service) start(ctx context.Context, ref string, req api.ExecRequest,
	stdio engine.Stdio) (*commands.Execution, error) {
	timeout, err := edge.Seconds("timeout_seconds", req.TimeoutSeconds)
	if err != nil {
		return nil, err
	}
	command := fleet.ExecRequest{
		Args: req.Args, Env: req.Env, Workdir: req.Workdir, User: req.User, Timeout: timeout, Detach: req.Detach,
		Stdin: stdio.Stdin, InputOnce: true, Stdout: stdio.Stdout, Stderr: stdio.Stderr, Truncated: stdio.Truncated,
	}
	if req.Terminal != nil {
		size := engine.Size(*req.Terminal)
		command.Terminal = &size
	}
	if req.Code != "" {
		return python.Exec(ctx, s.Fleet, edge.AccountOf(ctx), ref, req.Code, command)
	}
	return s.Fleet.Exec(ctx, edge.AccountOf(ctx), ref, command)
}

// wait waits for the end of a command, even after ctx ends, since the end of ctx kills the command.
func (s *Service) wait(ctx context.Context, x *commands.Execution) (commands.Result, error) {
	return s.waitHere(context.WithoutCancel(ctx), x)
}

// waitHere waits for a command until the client disconnects; the command continues. It returns when the server stops.
func (s *Service) waitHere(ctx context.Context, x *commands.Execution) (commands.Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.Stopping, cancel)()
	res, err := x.Wait(ctx)
	if err != nil && s.Stopping.Err() != nil {
		return res, errors.Remedy(errors.Newf(errors.Unavailable, "the server is stopping; the command continues"),
			"see its output with: harvest sandbox logs %s %s", x.SandboxID(), x.ID())
	}
	return res, err
}

// CommandContext returns a context that ends when the client disconnects, but not when the server stops: commands
// outlive the server.
func (s *Service) CommandContext(r *http.Request) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	unlessStopping := func() {
		if s.Stopping.Err() == nil {
			cancel()
		}
	}
	release := context.AfterFunc(r.Context(), unlessStopping)
	return ctx, func() {
		release()
		unlessStopping()
	}
}

func resultOut(r commands.Result) api.Result {
	return api.Result{
		ReturnCode: r.ReturnCode, Stdout: r.Stdout, Stderr: r.Stderr, Duration: r.Duration, SandboxID: r.SandboxID,
		TimedOut: r.TimedOut, Signal: r.Signal, OutOfMemory: r.OutOfMemory, Truncated: r.Truncated, Reason: r.Reason,
		Crashed: r.Crashed,
	}
}

func started(x *commands.Execution) api.Started {
	return api.Started{SandboxID: x.SandboxID(), ProcessID: x.ID()}
}
