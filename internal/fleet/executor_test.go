package fleet_test

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/python"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/store"
)

// house is the fake engine, which runs real commands, with records in SQLite.
type house struct {
	*fake.Engine
	db    *store.DB
	dir   string
	grace time.Duration // that commands have when the sandbox ends
	fleet *fleet.Fleet
}

// capable makes the fake claim to enforce limits, which Fleet does not check.
type capable struct{ *fake.Engine }

func (c capable) Capabilities() engine.Capabilities {
	caps := c.Engine.Capabilities()
	caps.Limits = []string{"cpu", "memory", "processes", "disk", "files"}
	return caps
}

func newHouse(t *testing.T, set ...func(*house)) *house {
	t.Helper()
	h := &house{dir: t.TempDir(), grace: 100 * time.Millisecond}
	for _, f := range set {
		f(h)
	}
	h.start(t)
	t.Cleanup(func() {
		ctx := context.Background()
		if all, err := h.fleet.List(ctx, account, record.Filter{}); err != nil {
			t.Error(err)
		} else {
			for _, sb := range all {
				if err := h.fleet.Destroy(ctx, account, sb.ID); err != nil {
					t.Error(err)
				}
			}
		}
		h.stop(t)
		if left, err := h.List(ctx); err != nil || len(left) != 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	})
	return h
}

// start starts a server in the house.
func (h *house) start(t *testing.T) {
	t.Helper()
	var err error
	if h.Engine, err = fake.Open(filepath.Join(h.dir, "engine"), fake.Options{}); err != nil {
		t.Fatal(err)
	}
	if h.db, err = store.Open(t.Context(), filepath.Join(h.dir, "db")); err != nil {
		t.Fatal(err)
	}
	opts := fleet.Options{Engine: capable{h.Engine}, Store: h.db.Sandboxes(),
		Timeouts: spec.Timeouts{Grace: h.grace}, Capture: 1 << 20}
	if h.fleet, err = fleet.Open(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
}

func (h *house) stop(t *testing.T) {
	t.Helper()
	if err := h.fleet.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if err := h.db.Close(); err != nil {
		t.Error(err)
	}
	if err := h.Engine.Close(); err != nil {
		t.Error(err)
	}
}

func (h *house) executor() python.Executor {
	return python.Executor{Fleet: h.fleet, Account: account}
}

// mission: A1
func TestExecute(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	big := "x = '''" + strings.Repeat("0123456789abcdef",
		10<<20/16) + "'''\nimport sys\nprint(len(x), sys.stdin.read() == '', __name__, '_' in globals())"
	for name, c := range map[string]struct {
		code           string
		rc             int
		stdout, stderr string
	}{
		"the answer":          {"print(6*7)", 0, "42\n", ""},
		"its own exit code":   {"raise SystemExit(3)", 3, "", ""},
		"an exception":        {"1/0", 1, "", "ZeroDivisionError"},
		"a syntax error":      {"print(", 1, "", "SyntaxError"},
		"both streams":        {"import sys\nprint('out')\nprint('err', file=sys.stderr)", 0, "out\n", "err\n"},
		"UTF-8":               {"print('größe 尺寸')", 0, "größe 尺寸\n", ""},
		"a signal":            {"import os\nos.kill(os.getpid(), 9)", 137, "", ""},
		"10 MB of code":       {big, 0, "10485760 True __main__ False\n", ""},
		"an empty input":      {"import sys\nprint(repr(sys.stdin.read()))", 0, "''\n", ""},
		"error in large code": {"#" + strings.Repeat("x", 100_000) + "\n1/0", 1, "", "line 2, in <module>"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := h.executor().Execute(t.Context(), c.code, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if r.ReturnCode != c.rc || r.Stdout != c.stdout || !strings.Contains(r.Stderr, c.stderr) ||
				(c.stderr == "") != (r.Stderr == "") {
				t.Errorf("result: %+v, want %d, %q, %q", r, c.rc, c.stdout, c.stderr)
			}
			if r.Duration <= 0 || r.TimedOut || !strings.HasPrefix(r.SandboxID, "sbx_") {
				t.Errorf("result: %+v", r)
			}
			if sb := get(t, h.fleet, r.SandboxID); sb.Status != record.Terminated ||
				sb.Expires.Sub(sb.Started) != 11*time.Minute {
				t.Errorf("the sandbox is %s and would have lived until %s", sb.Status, sb.Expires)
			}
		})
	}
}

// mission: A3
func TestExecuteTimesOutWithEverythingItStarted(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	code := `
import os, subprocess, sys, time
for _ in range(2):
    subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("started", flush=True)
time.sleep(1000)`
	r, err := h.executor().Execute(t.Context(), code, 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if !r.TimedOut || r.ReturnCode != 124 || r.Stdout != "started\n" ||
		!strings.Contains(r.Reason, "time limit of 30s") {
		t.Errorf("result: %+v", r)
	}
	environ, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range environ {
		if env, err := os.ReadFile(name); err == nil && bytes.Contains(env, []byte(h.dir)) {
			t.Errorf("process %s of the sandbox is left", filepath.Dir(name))
		}
	}
}

// mission: A3
func TestExecuteCanceled(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	e := h.executor()
	go func() {
		for ctx.Err() == nil {
			if h.fleet.Stats().Commands > 0 {
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	r, err := e.Execute(ctx, "import time\ntime.sleep(1000)", 0)
	if err != nil || r.ReturnCode != 137 || r.Reason != "it was canceled" {
		t.Errorf("result: %+v, %v", r, err)
	}
	if _, err := e.Execute(ctx, "print(1)", 0); !errors.Is(err, errors.Canceled) {
		t.Errorf("with a context that has ended: %v, want Canceled", err)
	}
}

func TestExecuteRefuses(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	elf, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		code    string
		timeout time.Duration
		words   []string
	}{
		"empty code":       {"", 0, []string{"no code"}},
		"only blanks":      {" \n\t", 0, []string{"no code"}},
		"a binary":         {string(elf[:1<<20]), 0, []string{"binary data", "UTF-8"}},
		"NUL":              {"print(1)\x00", 0, []string{"binary data"}},
		"another encoding": {"print('gr\xf6\xdfe')", 0, []string{"binary data", "UTF-8"}},
		"too much": {strings.Repeat("#", 64<<20+1), 0,
			[]string{"67108865 bytes, more than the maximum of 67108864"}},
		"a negative time limit": {"print(1)", -1, []string{"timeout_seconds"}},
		"more than a week":      {"print(1)", 7*24*time.Hour + time.Second, []string{"timeout_seconds", "604800"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := h.executor().Execute(t.Context(), c.code, c.timeout)
			wantError(t, err, errors.Invalid, append(c.words, "| validate")...)
			if errors.RemedyOf(err) == "" {
				t.Errorf("%v has no remedy", err)
			}
		})
	}
	e := h.executor()
	e.Request.Image = "none"
	_, err = e.Execute(t.Context(), "print(1)", 0)
	wantError(t, err, errors.NotFound, "none", "| image")
	h.FailNext(fake.OpStart, errors.Newf(errors.Invalid, "there is no python3"))
	r, err := h.executor().Execute(t.Context(), "print(1)", 7*24*time.Hour)
	wantError(t, err, errors.Invalid, "no python3", "| exec")
	if sb := get(t, h.fleet, r.SandboxID); sb.Status != record.Terminated {
		t.Errorf("the sandbox is %s", sb.Status)
	}
}

func TestExecuteOutOfMemory(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	e := h.executor()
	e.Request = spec.Request{Name: "victim", Memory: 64 << 20}
	go func() {
		for h.fleet.Stats().Commands == 0 && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
		if sb, err := h.fleet.Get(context.Background(), account, "victim"); err != nil {
			t.Error(err)
		} else if err := h.EndOOM(sb.ID); err != nil {
			t.Error(err)
		}
	}()
	r, err := e.Execute(t.Context(), "import time\ntime.sleep(1000)", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if r.ReturnCode != 137 || !r.OutOfMemory || r.TimedOut {
		t.Errorf("result: %+v", r)
	}
	if sb := get(t, h.fleet, r.SandboxID); sb.Status != record.Failed || !sb.OutOfMemory ||
		!strings.Contains(sb.Reason, "64MiB") {
		t.Errorf("record: %+v", sb)
	}
}

// mission: A8
func TestExecuteReturnsItsResultEvenIfDestroyFails(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.FailNext(fake.OpDestroy, errors.Newf(errors.Unavailable, "busy"))
	r, err := h.executor().Execute(t.Context(), "print(1)", 0)
	if err != nil || r.Stdout != "1\n" {
		t.Errorf("result: %+v, %v", r, err)
	}
	if sb := get(t, h.fleet, r.SandboxID); sb.Status != record.Failed || h.fleet.Stats().Leftover != 1 {
		t.Errorf("record: %+v, stats %+v", sb, h.fleet.Stats())
	}
	if err := h.fleet.Destroy(t.Context(), account, r.SandboxID); err != nil {
		t.Error(err)
	}
}

func TestExecCodeLeavesStandardInput(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	sb := create(t, h.fleet, spec.Request{})
	for _, padding := range []string{"", "#" + strings.Repeat("x", 1<<20) + "\n"} {
		code := padding + "import sys\nprint(sys.argv[1:], sys.stdin.read())"
		x, err := python.Exec(t.Context(), h.fleet, account, sb.ID, code, fleet.ExecRequest{Args: []string{"a", "b"},
			Stdin: strings.NewReader("input")})
		if err != nil {
			t.Fatal(err)
		}
		if r := wait(t, x); r.Stdout != "['a', 'b'] input\n" {
			t.Errorf("with %d bytes: %+v", len(code), r)
		}
	}
	_, err := python.Exec(t.Context(), h.fleet, account, sb.ID, "", fleet.ExecRequest{})
	wantError(t, err, errors.Invalid, "no code")
	_, err = python.Exec(t.Context(), h.fleet, account, sb.ID, strings.Repeat("#", 100_000),
		fleet.ExecRequest{Terminal: &engine.Size{Rows: 1, Cols: 1}})
	wantError(t, err, errors.Invalid, "on a terminal", "as a file")
}

func TestLongOutputIsBounded(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	h := newHouse(t)
	r, err := h.executor().Execute(t.Context(),
		"import sys\nprint('first')\nsys.stdout.write('x' * 5000000)\nprint('last')", 0)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Truncated || len(r.Stdout) > 1<<20+100 || !strings.HasPrefix(r.Stdout, "first\nxxx") ||
		!strings.HasSuffix(r.Stdout, "xxxlast\n") ||
		!strings.Contains(r.Stdout, "bytes left out …]") {
		t.Errorf("%d bytes, truncated %t", len(r.Stdout), r.Truncated)
	}
}

// mission: C1
func TestVolumeIsReadByTheNextSandbox(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	e := h.executor()
	req := spec.Request{Volumes: []spec.Mount{{Name: "shared", Path: "/mnt/shared"}}}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "f", Mode: 0o644, Size: 5}), second(w.Write([]byte("hello"))),
		w.Close()); err != nil {
		t.Fatal(err)
	}
	one := create(t, e.Fleet, req)
	if err := e.Fleet.CopyIn(t.Context(), account, one.ID, "/mnt/shared", &archive); err != nil {
		t.Fatal(err)
	}
	if err := e.Fleet.Destroy(t.Context(), account, one.ID); err != nil {
		t.Fatal(err)
	}
	two := create(t, e.Fleet, req)
	stream, err := e.Fleet.CopyOut(t.Context(), account, two.ID, "/mnt/shared/f")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	r := tar.NewReader(stream)
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != "hello" {
		t.Errorf("the next sandbox reads %q, %v", got, err)
	}
}

func second[T any](_ T, err error) error { return err }

// mission: A11
func TestHundredAtOnce(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	h := newHouse(t)
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			sb, err := h.fleet.Create(t.Context(), account, spec.Request{})
			if err != nil {
				t.Errorf("create: %v", err)
				return
			}
			x, err := h.fleet.Exec(t.Context(), account, sb.ID, fleet.ExecRequest{Args: []string{"echo", sb.ID}})
			if err != nil {
				t.Errorf("exec: %v", err)
				return
			}
			if r, err := x.Wait(t.Context()); err != nil || r.Stdout != sb.ID+"\n" {
				t.Errorf("%s printed %q, %v", sb.ID, r.Stdout, err)
			}
			if err := h.fleet.Destroy(t.Context(), account, sb.ID); err != nil {
				t.Errorf("destroy: %v", err)
			}
		})
	}
	wg.Wait()
	all, err := h.fleet.List(t.Context(), account, record.Filter{Statuses: []record.Status{record.Terminated}})
	if err != nil || len(all) != 100 {
		t.Errorf("%d records, %v, want 100", len(all), err)
	}
}

// mission: A4
func TestCommandsAndTheirOutputSurviveARestart(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	sb := create(t, h.fleet, spec.Request{Name: "n"})
	gate := filepath.Join(t.TempDir(), "gate")
	script := `echo before; while [ ! -e "$0" ]; do sleep 0.01; done; echo after; exit 5`
	x := start(t, h.fleet, sb.ID, fleet.ExecRequest{Args: []string{"sh", "-c", script, gate}, Detach: true})
	h.stop(t)
	h.start(t)
	if got := get(t, h.fleet, "n"); got.ID != sb.ID || got.Status != record.Running {
		t.Fatalf("after the restart: %+v", got)
	}
	var out testenv.Output
	again, err := h.fleet.Attach(t.Context(), account, "n", x.ID(), engine.Stdio{Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := wait(t, again); r.ReturnCode != 5 || out.String() != "before\nafter\n" {
		t.Errorf("result %+v, output %q", r, out.String())
	}
	infos, err := h.fleet.Processes(t.Context(), account, "n")
	if err != nil || len(infos) != 1 || infos[0].Exit == nil || infos[0].Exit.Code != 5 {
		t.Errorf("commands: %+v, %v", infos, err)
	}
}

func TestDestroyDuringExec(t *testing.T) {
	t.Parallel()
	h := newHouse(t, func(h *house) { h.grace = 5 * time.Second }) // the polite one has to end within it
	sb := create(t, h.fleet, spec.Request{})
	deaf := start(t, h.fleet, sb.ID, fleet.ExecRequest{Args: []string{"sh", "-c",
		"trap '' TERM; while :; do sleep 1; done"}})
	polite := start(t, h.fleet, sb.ID, fleet.ExecRequest{Args: []string{"sleep", "1000"}})
	if err := h.fleet.Destroy(t.Context(), account, sb.ID); err != nil {
		t.Fatal(err)
	}
	if r := wait(t, deaf); r.ReturnCode != 137 ||
		!strings.Contains(r.Reason, "the sandbox ended: it was destroyed on request") {
		t.Errorf("the deaf command: %+v", r)
	}
	if r := wait(t, polite); r.ReturnCode != 143 || r.Signal != "TERM" {
		t.Errorf("the polite command: %+v", r)
	}
}

func TestTerminalCommand(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	sb := create(t, h.fleet, spec.Request{})
	x := start(t, h.fleet, sb.ID, fleet.ExecRequest{Args: []string{"sh", "-c", "stty size; tty >/dev/null && exit 7"},
		Terminal: &engine.Size{Rows: 24, Cols: 80}, Stdin: blocked{t.Context()}})
	if r := wait(t, x); r.ReturnCode != 7 || r.Stdout != "24 80\r\n" {
		t.Errorf("result: %+v", r)
	}
}

// blocked is an input that never arrives.
type blocked struct{ ctx context.Context }

func (b blocked) Read([]byte) (int, error) {
	<-b.ctx.Done()
	return 0, io.EOF
}
