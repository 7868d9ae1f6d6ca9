package fleet_test

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

func attach(t *testing.T, f *fleet.Fleet, sandbox, command string) *commands.Execution {
	t.Helper()
	x, err := f.Attach(t.Context(), account, sandbox, command, engine.Stdio{})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// mission: A3
func TestTimeLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.open(t)
		sb := create(t, f, spec.Request{})
		for _, c := range []struct {
			req   fleet.ExecRequest
			limit time.Duration
		}{
			{fleet.ExecRequest{Args: []string{"run"}, Timeout: 2 * time.Second}, 2 * time.Second},
			{fleet.ExecRequest{Args: []string{"run"}, Timeout: 2 * time.Second, Detach: true}, 2 * time.Second},
			{fleet.ExecRequest{Args: []string{"run"}}, 30 * time.Minute},
		} {
			first := start(t, f, sb.ID, c.req)
			during := attach(t, f, sb.ID, first.ID())
			wait(t, first)
			for who, x := range map[string]*commands.Execution{"the first": first, "attached": during,
				"attached later": attach(t, f, sb.ID, first.ID())} {
				r := wait(t, x)
				if !r.TimedOut || r.ReturnCode != 124 || r.Duration != c.limit.Seconds() ||
					!strings.Contains(r.Reason, "its time limit of "+c.limit.String()) {
					t.Errorf("%+v, %s: %+v", c.req, who, r)
				}
			}
		}
		// A server that starts later knows it, too.
		x := start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"run"}, Timeout: time.Second, Detach: true})
		wait(t, x)
		f = w.restart(t, f)
		if r := wait(t, attach(t, f, sb.ID, x.ID())); !r.TimedOut || r.ReturnCode != 124 ||
			r.Reason != "its time limit of 1s was reached" {
			t.Errorf("after a restart: %+v", r)
		}
		// A command that cannot be killed is given up, and does not hang.
		w.fail("kill", errors.Newf(errors.Unavailable, "no"))
		x = start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"stubborn"}, Timeout: time.Second})
		if r := wait(t, x); !r.TimedOut || r.ReturnCode != 124 || r.Duration != 11 ||
			!strings.Contains(r.Reason, "could not be ended") {
			t.Errorf("a command that cannot be killed: %+v", r)
		}
	})
}

func TestCancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.open(t)
		sb := create(t, f, spec.Request{})
		ctx, cancel := context.WithCancel(t.Context())
		foreground, err := f.Exec(ctx, account, sb.ID, fleet.ExecRequest{Args: []string{"run"}})
		if err != nil {
			t.Fatal(err)
		}
		detached, err := f.Exec(ctx, account, sb.ID, fleet.ExecRequest{Args: []string{"run"}, Detach: true})
		if err != nil {
			t.Fatal(err)
		}
		attached, err := f.Attach(ctx, account, sb.ID, detached.ID(), engine.Stdio{})
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if r := wait(t, foreground); r.ReturnCode != 137 || r.Reason != "it was canceled" {
			t.Errorf("the foreground command: %+v", r)
		}
		_, err = attached.Wait(t.Context())
		wantError(t, err, errors.Canceled)
		synctest.Wait()
		if w.box(t, sb.ID).proc(t, detached.ID()).gotKilled() {
			t.Error("the detached command was killed")
		}
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		_, err = detached.Wait(short)
		wantError(t, err, errors.Timeout)
		if err := detached.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := wait(t, detached); r.ReturnCode != 137 || r.Signal != "KILL" || r.Reason != "" {
			t.Errorf("the detached command in the end: %+v", r)
		}
	})
}

func TestExecutionControl(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.open(t)
	sb := create(t, f, spec.Request{})
	x := start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"polite"}, Terminal: &engine.Size{Rows: 24, Cols: 80}})
	if x.SandboxID() != sb.ID || x.ID() == "" {
		t.Errorf("it is command %q of sandbox %q", x.ID(), x.SandboxID())
	}
	if err := x.Resize(t.Context(), engine.Size{Rows: 1, Cols: 2}); err != nil {
		t.Error(err)
	}
	wantError(t, x.Resize(t.Context(), engine.Size{}), errors.Invalid, "0 rows")
	wantError(t, x.Signal(t.Context(), "ODD"), errors.Invalid, "ODD")
	infos, err := f.Processes(t.Context(), account, sb.ID)
	if err != nil || len(infos) != 1 || infos[0].ID != x.ID() || !infos[0].Terminal {
		t.Errorf("commands: %+v, %v", infos, err)
	}
	if err := x.Signal(t.Context(), "TERM"); err != nil {
		t.Error(err)
	}
	if r := wait(t, x); r.ReturnCode != 143 || r.Signal != "TERM" || r.Reason != "" {
		t.Errorf("result: %+v", r)
	}
	_, err = f.Attach(t.Context(), account, sb.ID, "none", engine.Stdio{})
	wantError(t, err, errors.NotFound, "none", "| attach")
	w.fail("processes", errors.Newf(errors.Unavailable, "no list"))
	_, err = f.Attach(t.Context(), account, sb.ID, x.ID(), engine.Stdio{})
	wantError(t, err, errors.Unavailable, "no list", "| attach")
}

func TestOutputGoesToTheCallerOrIntoTheResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.open(t)
	sb := create(t, f, spec.Request{})
	echo := []string{"echo", "hello"}
	if r := wait(t, start(t, f, sb.ID, fleet.ExecRequest{Args: echo})); r.Stdout != "hello\n" || r.ReturnCode != 0 ||
		r.SandboxID != sb.ID {
		t.Errorf("captured: %+v", r)
	}
	var out bytes.Buffer
	if r := wait(t, start(t, f, sb.ID, fleet.ExecRequest{Args: echo, Stdout: &out,
		Stderr: io.Discard})); r.Stdout != "" || out.String() != "hello\n" {
		t.Errorf("streamed: %+v, the caller got %q", r, out.String())
	}
	if r := wait(t, start(t, f, sb.ID, fleet.ExecRequest{Args: echo, Detach: true})); r.Stdout != "" {
		t.Errorf("detached: %+v", r)
	}
}

func TestExecRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.open(t)
	sb := create(t, f, spec.Request{})
	run := []string{"run"}
	for name, c := range map[string]struct {
		req   fleet.ExecRequest
		words []string
	}{
		"nothing":            {fleet.ExecRequest{}, []string{"the command is empty"}},
		"NUL in an argument": {fleet.ExecRequest{Args: []string{"run", "a\x00b"}}, []string{"NUL"}},
		"bad env": {fleet.ExecRequest{Args: run, Env: map[string]string{"A=B": ""}},
			[]string{`"A=B"`, "'='"}},
		"relative workdir": {fleet.ExecRequest{Args: run, Workdir: "x"}, []string{`"x"`, "absolute"}},
		"several": {fleet.ExecRequest{Args: run, Workdir: "x", User: "a b", Timeout: -1},
			[]string{"3 things", `"x"`, `"a b"`, "timeout_seconds"}},
		"a time limit of more than a week": {fleet.ExecRequest{Args: run, Timeout: 7*24*time.Hour + 1},
			[]string{"timeout_seconds", "604800"}},
	} {
		_, err := f.Exec(t.Context(), account, sb.ID, c.req)
		if !errors.Is(err, errors.Invalid) {
			t.Errorf("%s: %v, want Invalid", name, err)
		}
		wantError(t, err, errors.Invalid, append(c.words, "| validate")...)
	}
	x, err := f.Exec(t.Context(), account, sb.ID, fleet.ExecRequest{Args: []string{"exit"},
		Timeout: 7 * 24 * time.Hour})
	if err != nil {
		t.Fatalf("a time limit of a week: %v", err)
	}
	if r := wait(t, x); r.ReturnCode != 3 {
		t.Errorf("result: %+v", r)
	}
	w.fail("start", errors.Newf(errors.Invalid, "there is no program \"run\""))
	_, err = f.Exec(t.Context(), account, sb.ID, fleet.ExecRequest{Args: run})
	wantError(t, err, errors.Invalid, "no program", "| exec")
	if got := f.Stats().Commands; got != 0 {
		t.Errorf("%d commands run, want none", got)
	}
	wantError(t, f.CopyIn(t.Context(), account, sb.ID, "rel", strings.NewReader("")), errors.Invalid,
		`"rel"`, "absolute")
	_, err = f.CopyOut(t.Context(), account, sb.ID, "/a\x00")
	wantError(t, err, errors.Invalid, "invalid path")
	w.fail("copyout", errors.Newf(errors.NotFound, "there is no /x"))
	_, err = f.CopyOut(t.Context(), account, sb.ID, "/x")
	wantError(t, err, errors.NotFound, "/x", "| copy")
	w.fail("copyin", errors.Newf(errors.Exhausted, "the disk is full"))
	wantError(t, f.CopyIn(t.Context(), account, sb.ID, "/x", strings.NewReader("")), errors.Exhausted,
		"the disk is full", "| copy")
}

func TestWhatTheEngineLacks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.caps.Users, w.caps.Terminal, w.caps.Volumes, w.caps.Limits = false, false, false, []string{"cpu"}
	f := w.open(t)
	sb := create(t, f, spec.Request{})
	if want := (engine.Limits{CPU: 1}); sb.Limits != want {
		t.Errorf("limits in force %+v, want only what the engine holds, %+v", sb.Limits, want)
	}
	_, err := f.Exec(t.Context(), account, sb.ID, fleet.ExecRequest{Args: []string{"run"}, User: "u",
		Terminal: &engine.Size{Rows: 1, Cols: 1}})
	wantError(t, err, errors.Unsupported, "2 things", "does not support users", "does not support terminals")
	_, err = f.Create(t.Context(), account, spec.Request{
		User: "u", Volumes: []spec.Mount{{Name: "v", Path: "/v"}}, CPU: 2, Memory: 1 << 30, Disk: 1 << 30,
		Processes: 5, Files: 5,
	})
	wantError(t, err, errors.Unsupported, "6 things", "does not support users", "does not support volumes",
		"limit memory", "limit disk", "limit processes", "limit files", "harvest doctor")
}

func TestEngineThatCannotFindCommandsAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	opts := w.opts
	opts.Engine, opts.Store = plainEngine{w.stub}, w.store
	f, err := fleet.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(context.Background())
	sb := create(t, f, spec.Request{})
	_, err = f.Processes(t.Context(), account, sb.ID)
	wantError(t, err, errors.Unsupported, "stub")
	_, err = f.Attach(t.Context(), account, sb.ID, "p1", engine.Stdio{})
	wantError(t, err, errors.Unsupported, "stub")
	if err := f.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f, err = fleet.Open(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	if got := get(t, f, sb.ID).Status; got != record.Running {
		t.Errorf("after a restart it is %s", got)
	}
}

// plainEngine has nothing that is optional.
type plainEngine struct{ engine.Engine }

type plainBox struct{ engine.Sandbox }

func (e plainEngine) Create(ctx context.Context, spec engine.Spec) (engine.Sandbox, error) {
	b, err := e.Engine.Create(ctx, spec)
	return plainBox{b}, err
}

func (e plainEngine) Open(ctx context.Context, h engine.Handle) (engine.Sandbox, error) {
	b, err := e.Engine.Open(ctx, h)
	return plainBox{b}, err
}
