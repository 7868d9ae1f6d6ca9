package mcp

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// Time limits of commands, in seconds.
const (
	runLimit        = 120
	maxRunLimit     = 3600
	backgroundLimit = 24 * 3600
)

type runIn struct {
	Environment    string  `json:"environment"`
	Command        string  `json:"command"`
	Explanation    string  `json:"explanation"`
	Directory      string  `json:"directory,omitempty"`
	TimeoutSeconds float64 `json:"timeout_seconds,omitempty"`
	Background     bool    `json:"background,omitempty"`
}

func (runIn) arguments() arguments {
	return arguments{
		"environment": "name of the environment",
		"command":     "command line for bash, or sh if the image has no bash",
		"explanation": "one line that says what the command is for; it becomes the message of the commit if files " +
			"change",
		"directory": "directory to run in, absolute or below the working directory (default: the working " +
			"directory)",
		"timeout_seconds": "time limit after which the command is killed (default: 120, at most 3600; in the " +
			"background 24 hours)",
		"background": "return at once, for servers and long tasks; read the output with run_output",
	}
}

type outputIn struct {
	Environment string  `json:"environment"`
	Command     string  `json:"command"`
	Offset      *int64  `json:"offset,omitempty"`
	WaitSeconds float64 `json:"wait_seconds,omitempty"`
	Stop        bool    `json:"stop,omitempty"`
}

func (outputIn) arguments() arguments {
	return arguments{
		"environment":  "name of the environment",
		"command":      "ID of the command, from the answer of run",
		"offset":       "position in the output, in bytes, to read from (default: the end of the output)",
		"wait_seconds": "how long to wait for the end of the command (default: 0, at most 3600)",
		"stop":         "kill the command and its children first",
	}
}

// commandTools are the tools that run commands.
type commandTools struct{ *server }

func (s commandTools) add(to tools) {
	add(to, "run", "Run a command",
		`Run a command line in an environment, as in a terminal without input: builds, tests, git, package `+
			`managers, servers (with background: true). Returns the output of both streams and the exit code. Long `+
			`output is shortened in the middle; the answer says how to read the rest. Each command starts in the `+
			`working directory: cd and exported variables do not last. Changed files are committed.`,
		changes, s.runCommand)
	add(to, "run_output", "Read a command's output",
		`Read the output of a command that run has started, from a position or the end, also while it runs and `+
			`after it has ended. Waits for its end if wait_seconds is given, and kills it if stop is true.`,
		changes, s.output)
}

// shell is the command line of a program that runs command in bash, or in sh. Both streams are one, as in a terminal:
// the order of two streams is lost on the way.
func shell(command string) []string {
	return []string{"/bin/sh", "-c",
		`exec 2>&1; if command -v bash >/dev/null; then exec bash -c "$1"; fi; exec sh -c "$1"`, "sh", command}
}

// commandOf is the inverse of shell, for people.
func commandOf(args []string) string {
	if len(args) == 5 && args[3] == "sh" {
		return args[4]
	}
	return strings.Join(args, " ")
}

func (s commandTools) runCommand(ctx context.Context, tell progress, in runIn) (answer, error) {
	at, err := s.enter(ctx, in.Environment)
	if err != nil {
		return answer{}, err
	}
	if strings.TrimSpace(in.Command) == "" {
		return answer{}, errors.Remedy(errors.Newf(errors.Invalid, "the command is empty"), "give a command line")
	}
	limit := in.TimeoutSeconds
	switch {
	case limit < 0 || limit > maxRunLimit && !in.Background:
		return answer{}, errors.Remedy(errors.Newf(errors.Invalid, "timeout_seconds: %g is not from 0 to %d", limit,
			maxRunLimit), "give a smaller limit, or run the command with background: true")
	case limit == 0 && in.Background:
		limit = backgroundLimit
	case limit == 0:
		limit = runLimit
	}
	started, err := s.Client.ExecDetached(ctx, at.box.ID, api.ExecRequest{Args: shell(in.Command),
		Workdir: at.path(in.Directory), TimeoutSeconds: limit})
	if err != nil {
		return answer{}, err
	}
	id := started.ProcessID
	if in.Background {
		return answer{at: at, text: fmt.Sprintf("Started the command %s in the background.", id), notes: []string{
			fmt.Sprintf(`its output: run_output {"environment": %q, "command": %q}`, at.name, id)}}, nil
	}
	w := &window{head: headBytes, tail: tailBytes, tell: tell}
	res, err := s.attend(ctx, at, id, w, tell)
	if err != nil {
		if ctx.Err() != nil {
			return answer{}, errors.Newf(errors.Canceled, "the call was cancelled, and the command with it")
		}
		return answer{}, err
	}
	a := answer{at: at}
	a.text, a.notes = w.text(at.name, id)
	a.notes = append(a.notes, ended(res), "command "+id)
	if a.failed = res.TimedOut; a.failed {
		a.notes[len(a.notes)-2] = fmt.Sprintf("killed after the time limit of %g s, exit code %d; next: give a larger "+
			"timeout_seconds, or run it with background: true", limit, res.ReturnCode)
	}
	defer s.Locks.lock(at.box.ID)()
	return s.after(ctx, a, in.Explanation, "run", detail(in.Command)), nil
}

// detail is the part of a commit message with the command line.
func detail(command string) string {
	if len(command) > 2000 {
		command = strings.ToValidUTF8(command[:2000], "") + " …"
	}
	return "$ " + command
}

// ended describes the end of a command.
func ended(res api.Result) string {
	text := fmt.Sprintf("exit code %d after %.1f s", res.ReturnCode, res.Duration)
	if why := res.Why(); why != "" {
		text += ": " + why
	}
	return text
}

// alive is the interval of signs of life: clients give up on calls that are silent.
const alive = 5 * time.Second

// attend follows a command to its end. If the call is cancelled, the command is killed; if its client has gone, the
// command continues.
func (s commandTools) attend(ctx context.Context, at *place, id string, w *window, tell progress) (api.Result, error) {
	follow, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	p, err := s.Client.Attach(follow, at.box.ID, id, client.Streams{Stdout: w, Stderr: w, Truncated: w.skip})
	if err != nil {
		return api.Result{}, err
	}
	begun := time.Now()
	tick := time.NewTicker(alive)
	defer tick.Stop()
	type result struct {
		api.Result
		err error
	}
	done := make(chan result, 1)
	go func() {
		res, err := p.Wait(follow)
		done <- result{res, err}
	}()
	for {
		select {
		case r := <-done:
			return r.Result, r.err
		case <-tick.C:
			tell(fmt.Sprintf("running for %d s", int(time.Since(begun).Seconds())))
		case <-s.Gone:
			return api.Result{}, errors.Newf(errors.Canceled, "the client has ended; the command continues")
		case <-ctx.Done():
			if !s.gone() {
				_ = p.Kill() // the connection may have broken; the time limit holds
			}
			return api.Result{}, errors.Newf(errors.Canceled, "the call was cancelled")
		}
	}
}

// gone reports whether the client has ended.
func (s *server) gone() bool {
	select {
	case <-s.Gone:
		return true
	default:
		return false
	}
}

// settled is how long a running command must be silent until its output counts as read.
const settled = 200 * time.Millisecond

func (s commandTools) output(ctx context.Context, tell progress, in outputIn) (answer, error) {
	at, err := s.enter(ctx, in.Environment)
	if err != nil {
		return answer{}, err
	}
	if in.WaitSeconds < 0 || in.WaitSeconds > maxRunLimit {
		return answer{}, errors.Newf(errors.Invalid, "wait_seconds: %g is not from 0 to %d", in.WaitSeconds,
			maxRunLimit)
	}
	found, err := s.process(ctx, at, in.Command)
	if err != nil {
		return answer{}, err
	}
	w := &window{tail: pageBytes, tell: tell}
	if in.Offset != nil {
		w = &window{from: *in.Offset, head: pageBytes, tell: tell}
	}
	res, over, err := s.look(ctx, at, found, w, tell, in)
	if err != nil {
		return answer{}, err
	}
	a := answer{at: at}
	a.text, a.notes = w.text(at.name, found.ID)
	if !over {
		a.notes = append(a.notes, "the command is running")
		return a, nil
	}
	a.notes = append(a.notes, ended(res))
	defer s.Locks.lock(at.box.ID)()
	command := commandOf(found.Args)
	return s.after(ctx, a, "Run in the background: "+firstLine(command), "run", detail(command)), nil
}

// process returns a command of an environment.
func (s *server) process(ctx context.Context, at *place, id string) (found api.Process, err error) {
	all, err := s.Client.Processes(ctx, at.box.ID)
	if err != nil {
		return found, err
	}
	for _, p := range all {
		if p.ID == id {
			return p, nil
		}
	}
	return found, errors.Remedy(errors.Newf(errors.NotFound, "command %q: not known in this environment", id),
		"give the ID from the answer of run; commands of an environment that has ended are gone")
}

// look reads the output of a command until its end, or until nothing new comes and the time is over.
func (s *server) look(ctx context.Context, at *place, found api.Process, w *window, tell progress,
	in outputIn) (res api.Result, over bool, err error) {
	follow, stop := context.WithCancel(ctx)
	defer stop()
	w.changed = time.Now()
	p, err := s.Client.Attach(follow, at.box.ID, found.ID, client.Streams{Stdout: w, Stderr: w, Truncated: w.skip})
	if err != nil {
		return res, false, err
	}
	if in.Stop && found.Exit == nil {
		if err := p.Kill(); err != nil {
			return res, false, err
		}
	}
	begun := time.Now()
	for {
		waited, cancel := context.WithTimeout(ctx, settled/2)
		res, err = p.Wait(waited)
		cancel()
		if err == nil {
			return res, true, nil
		}
		if ctx.Err() != nil || waited.Err() == nil {
			return res, false, err
		}
		ends := in.Stop || found.Exit != nil
		if time.Since(begun).Seconds() >= in.WaitSeconds && w.quiet() >= settled && !ends {
			return res, false, nil
		}
		if in.WaitSeconds > 0 {
			tell(fmt.Sprintf("waiting for %d s", int(time.Since(begun).Seconds())))
		}
	}
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if len(line) > 100 {
		line = strings.ToValidUTF8(line[:100], "") + " …"
	}
	return line
}
