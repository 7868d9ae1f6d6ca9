// Package jobs has the work of users' schedules: a command in a new sandbox, or a prompt in a new session. The
// arguments of both are requests of the API.
package jobs

import (
	"context"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/fleet/python"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/schedule"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/server/edge"
	"github.com/RelevanceAI/harvest/internal/server/sessions"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// Tag marks the sandboxes of runs that end them; its value is the name of the schedule.
const Tag = "harvest.schedule"

const (
	// orphaned is the idle limit, in seconds, of a sandbox for one command.
	orphaned = 60
	// maxOutput is the size limit of a result as JSON. It is below the limit of package schedule.
	maxOutput = 60 << 10
	look      = time.Second      // interval between looks at a session
	patience  = 30 * time.Second // for the end of a sandbox or session
)

// Jobs does the work of users' schedules.
type Jobs struct {
	Fleet    *fleet.Fleet
	Sessions *session.Manager
}

// run is api.RunRequest with the sandbox undecoded.
type run struct {
	api.ExecRequest
	Sandbox json.RawMessage `json:"sandbox"`
	Keep    bool            `json:"keep"`
}

func decodeRun(job schedule.Job) (run, spec.Request, error) {
	var in run
	var box spec.Request
	if err := edge.Decode(job.Args, &in); err != nil {
		return in, box, err
	}
	if in.Detach || in.Terminal != nil || in.Capture {
		return in, box, errors.Remedy(errors.Newf(errors.Invalid,
			"a scheduled command has no terminal, and cannot be detached"), "omit detach, terminal and capture")
	}
	if in.Code == "" && len(in.Args) == 0 {
		return in, box, errors.Remedy(errors.Newf(errors.Invalid, "the schedule has nothing to run"),
			"give a command, or Python code")
	}
	if len(in.Sandbox) > 0 {
		var err error
		if box, err = spec.Decode(in.Sandbox); err != nil {
			return in, box, err
		}
	}
	if !in.Keep {
		box.Tags = tagged(box.Tags, job.Name)
		if box.IdleTimeoutSeconds == 0 {
			box.IdleTimeoutSeconds = orphaned
		}
	}
	return in, box, nil
}

func tagged(tags map[string]string, name string) map[string]string {
	all := map[string]string{Tag: name}
	for key, value := range tags {
		all[key] = value
	}
	return all
}

// CheckRun returns an error if the arguments of a job are not those of Run.
func (j Jobs) CheckRun(job schedule.Job) error {
	in, box, err := decodeRun(job)
	if err != nil {
		return err
	}
	if _, err := j.Fleet.Rules().Plan(box); err != nil {
		return err
	}
	if in.Code != "" {
		return python.Check(in.Code)
	}
	_, err = j.Fleet.Rules().Command(engine.Command{Args: in.Args, Env: in.Env, Dir: in.Workdir, User: in.User},
		seconds(in.TimeoutSeconds))
	return err
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Run runs a command in a new sandbox. The arguments of the job are an api.RunRequest, and its output is an api.Result.
// A command whose exit code is not 0 has failed.
func (j Jobs) Run(ctx context.Context, job schedule.Job) (any, error) {
	in, box, err := decodeRun(job)
	if err != nil {
		return nil, err
	}
	sb, err := j.Fleet.Create(ctx, job.Account, box)
	if err != nil {
		return nil, err
	}
	if !in.Keep {
		defer j.destroy(ctx, sb)
	}
	command := fleet.ExecRequest{Args: in.Args, Env: in.Env, Workdir: in.Workdir, User: in.User,
		Stdin: strings.NewReader(in.Stdin), Timeout: seconds(in.TimeoutSeconds)}
	if command.Timeout == 0 { // the limit of the attempt counts, not the default of commands
		command.Timeout = seconds(job.TimeoutSeconds)
	}
	x, err := j.exec(ctx, job.Account, sb.ID, in.Code, command)
	if err != nil {
		return nil, err
	}
	res, err := x.Wait(context.WithoutCancel(ctx)) // when ctx ends, the command is killed, which is a Result
	if err != nil {
		return nil, err
	}
	return fit(res), verdict(ctx, res)
}

func (j Jobs) exec(ctx context.Context, account, id, code string, command fleet.ExecRequest) (*commands.Execution,
	error) {
	if code != "" {
		return python.Exec(ctx, j.Fleet, account, id, code, command)
	}
	return j.Fleet.Exec(ctx, account, id, command)
}

// verdict returns why a command has failed, nil if it has not.
func verdict(ctx context.Context, res commands.Result) error {
	switch {
	case ctx.Err() != nil:
		return errors.Explainf(ctx.Err(), errors.KindOf(ctx.Err()), "the command was killed")
	case res.TimedOut:
		return errors.Newf(errors.Timeout, "the time limit of the command was reached")
	case res.ReturnCode == 0:
		return nil
	case res.Why() != "":
		return errors.Newf(errors.Unavailable, "exit code %d: %s", res.ReturnCode, res.Why())
	}
	return errors.Newf(errors.Unavailable, "exit code %d", res.ReturnCode)
}

// fit returns a result whose JSON is at most maxOutput: of each stream it keeps the beginning and the end.
func fit(res commands.Result) api.Result {
	out := api.Result{ReturnCode: res.ReturnCode, Stdout: res.Stdout, Stderr: res.Stderr, Duration: res.Duration,
		SandboxID: res.SandboxID, TimedOut: res.TimedOut, Signal: res.Signal, OutOfMemory: res.OutOfMemory,
		Truncated: res.Truncated, Reason: res.Reason, Crashed: res.Crashed}
	for most := maxOutput / 2; ; most /= 2 {
		if text, err := json.Marshal(out); err == nil && len(text) <= maxOutput {
			return out
		}
		out.Stdout, out.Stderr, out.Truncated = shorten(res.Stdout, most), shorten(res.Stderr, most), true
	}
}

// shorten cuts the middle out of a text that is longer than most bytes.
func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	head, tail := most/2, len(text)-most/2
	for head > 0 && !utf8.RuneStart(text[head]) {
		head--
	}
	for tail < len(text) && !utf8.RuneStart(text[tail]) {
		tail++
	}
	return text[:head] + "\n[the middle is missing]\n" + text[tail:]
}

func (j Jobs) destroy(ctx context.Context, sb record.Sandbox) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := j.Fleet.Destroy(ctx, sb.Account, sb.ID); err != nil && !errors.Is(err, errors.Gone) {
		logf.Errorf(ctx, "destroy %s, the sandbox of a schedule: %v", sb.ID, err)
	}
}

// RemoveOrphans destroys the sandboxes of runs that an earlier server could not end. No job may run meanwhile.
func (j Jobs) RemoveOrphans(ctx context.Context) error {
	live, err := j.Fleet.List(ctx, "", record.Filter{})
	if err != nil {
		return err
	}
	for _, sb := range live {
		if name, ok := sb.Tags[Tag]; ok {
			logf.Infof(ctx, "sandbox %s is left from a run of the schedule %s, and ends", sb.ID, name)
			j.destroy(ctx, sb)
		}
	}
	return nil
}

// prompt is api.PromptJob with the session undecoded.
type prompt struct {
	Session json.RawMessage `json:"session"`
	Keep    bool            `json:"keep"`
}

func decodePrompt(job schedule.Job) (prompt, session.Request, error) {
	var in prompt
	if err := edge.Decode(job.Args, &in); err != nil {
		return in, session.Request{}, err
	}
	req, err := sessions.Decode(in.Session)
	if err != nil {
		return in, req, err
	}
	if strings.TrimSpace(req.Prompt) == "" {
		return in, req, errors.Remedy(errors.Newf(errors.Invalid, "the schedule has no prompt"), "give a prompt")
	}
	if !in.Keep {
		req.Sandbox.Tags = tagged(req.Sandbox.Tags, job.Name)
	}
	return in, req, nil
}

// CheckPrompt returns an error if the arguments of a job are not those of Prompt.
func (j Jobs) CheckPrompt(job schedule.Job) error {
	_, req, err := decodePrompt(job)
	if err != nil {
		return err
	}
	return session.Check(j.Sessions, job.Account, req)
}

// Prompt sends a prompt to a new session, waits for the end of the turn, and ends the session unless the job keeps it.
// The arguments of the job are an api.PromptJob, and its output is an api.PromptResult.
func (j Jobs) Prompt(ctx context.Context, job schedule.Job) (any, error) {
	in, req, err := decodePrompt(job)
	if err != nil {
		return nil, err
	}
	s, err := j.Sessions.Create(ctx, job.Account, req)
	if err != nil {
		return nil, err
	}
	out := api.PromptResult{SessionID: s.ID}
	msg, err := j.turn(ctx, job.Account, s.ID)
	out.State, out.Reply, out.Usage = string(msg.State), shorten(msg.Reply, maxOutput/8), api.Usage(msg.Usage)
	if in.Keep && ctx.Err() == nil {
		return out, err
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	end := j.Sessions.EndKeeping
	if ctx.Err() != nil {
		end = j.Sessions.End
	}
	if ended := end(ending, job.Account, s.ID); errors.Is(ended, errors.Conflict) {
		out.Kept = errors.Message(ended)
	} else if ended != nil && !errors.Is(ended, errors.Gone) {
		logf.Errorf(ctx, "end %s, the session of a schedule: %v", s.ID, ended)
	}
	return out, err
}

// turn waits for the end of a session's first turn.
func (j Jobs) turn(ctx context.Context, account, id string) (records.Message, error) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	var last records.Message
	for {
		all, err := j.Sessions.Messages(ctx, account, id)
		if err != nil {
			return last, err
		}
		s, err := j.Sessions.Get(ctx, account, id)
		if err != nil {
			return last, err
		}
		if len(all) > 0 {
			last = all[0]
		}
		switch {
		case last.State == records.Completed:
			return last, nil
		case last.State == records.Stopped, last.State == records.Cancelled:
			return last, errors.Newf(errors.Unavailable, "the turn was stopped")
		case last.State == records.Broken, s.Status == records.Failed, s.Status == records.Ended:
			return last, errors.Newf(errors.Unavailable, "the turn failed: %s", s.Reason)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return last, errors.Explainf(ctx.Err(), errors.KindOf(ctx.Err()), "the turn was not at its end")
		}
	}
}
