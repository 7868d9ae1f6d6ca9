package commands

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// proc is a command that ends when it is told to, or at a signal in ends.
type proc struct {
	engine.Process
	id   string
	ends string // signals, such as "TERM KILL"
	done chan engine.Exit

	mu   sync.Mutex
	got  []string // guarded by mu; signals
	once sync.Once
}

func newProc(id, ends string) *proc {
	return &proc{id: id, ends: ends, done: make(chan engine.Exit, 1)}
}

func (p *proc) ID() string { return p.id }

func (p *proc) Wait(ctx context.Context) (engine.Exit, error) {
	select {
	case exit := <-p.done:
		return exit, nil
	case <-ctx.Done():
		return engine.Exit{}, ctx.Err()
	}
}

func (p *proc) exit(exit engine.Exit) { p.once.Do(func() { p.done <- exit }) }

func (p *proc) Signal(_ context.Context, sig string) error {
	p.mu.Lock()
	p.got = append(p.got, sig)
	p.mu.Unlock()
	if strings.Contains(p.ends, sig) {
		p.exit(engine.Exit{Code: 128 + 15, Signal: sig})
	}
	return nil
}

func (p *proc) Kill(ctx context.Context) error { return p.Signal(ctx, "KILL") }

func (p *proc) signals() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.got, " ")
}

// box is a sandbox whose next command is next, and that finds the commands in there again.
type box struct {
	engine.Sandbox
	next *proc
	// missing is the number of bytes that are missing in the output of the next command.
	missing int64
	there   []engine.ProcessInfo
	procs   map[string]*proc // of there
}

func (b *box) Start(_ context.Context, cmd engine.Command) (engine.Process, error) {
	if cmd.Stdout != nil {
		_, _ = io.WriteString(cmd.Stdout, "out")
	}
	if b.missing > 0 {
		cmd.Truncated(b.missing)
	}
	return b.next, nil
}

func (b *box) Processes(context.Context) ([]engine.ProcessInfo, error) { return b.there, nil }

func (b *box) OpenProcess(_ context.Context, id string, _ engine.Stdio) (engine.Process, error) {
	if p := b.procs[id]; p != nil {
		return p, nil
	}
	return nil, errors.Newf(errors.NotFound, "no process %s", id)
}

// room has a Set, and what it told its sandbox.
type room struct {
	*Set
	box   *box
	tasks sync.WaitGroup
	ended chan struct{}

	mu      sync.Mutex
	sb      record.Sandbox // guarded by mu
	saves   []string       // guarded by mu; IDs of the commands in each record that was stored
	leaves  int            // guarded by mu
	carried bool           // guarded by mu
}

func newRoom(ctx context.Context) *room {
	r := &room{box: &box{procs: map[string]*proc{}}, ended: make(chan struct{}),
		sb: record.Sandbox{ID: "sbx_1", Status: record.Running}}
	locked := func(do func()) {
		r.mu.Lock()
		defer r.mu.Unlock()
		do()
	}
	r.Set = New(Sandbox{ID: "sbx_1", Capture: 100, Grace: 2 * time.Second, Context: ctx, Tasks: &r.tasks,
		Ended:   r.ended,
		Record:  func() (sb record.Sandbox) { locked(func() { sb = r.sb }); return sb },
		Carried: func() (is bool) { locked(func() { is = r.carried }); return is },
		Leave: func() {
			locked(func() { r.leaves++ })
			r.Set.Leave()
		},
		Save: func(context.Context) {
			var ids []string
			for _, c := range r.Records() {
				ids = append(ids, c.ID)
			}
			locked(func() { r.saves = append(r.saves, strings.Join(ids, " ")) })
		},
	})
	return r
}

func (r *room) start(t *testing.T, p *proc, opts Options) *Execution {
	t.Helper()
	r.box.next = p
	x, err := r.Start(t.Context(), r.box, engine.Command{Args: []string{"x"}}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func result(t *testing.T, x *Execution) Result {
	t.Helper()
	res, err := x.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// TestBackgroundCommandsLeaveTheSandboxIdle checks which activities count, and that records list all commands.
func TestBackgroundCommandsLeaveTheSandboxIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t.Context())
		busy := func(want bool, commands int) {
			t.Helper()
			if r.Busy() != want || r.Len() != commands || len(r.Records()) != commands {
				t.Errorf("busy %t, %d commands, %+v", r.Busy(), r.Len(), r.Records())
			}
		}
		busy(false, 0)
		if r.Records() != nil {
			t.Error("a record without commands has an empty list")
		}
		r.Enter()
		busy(true, 0)
		r.Leave()
		b, a := newProc("p2", ""), newProc("p1", "")
		r.start(t, b, Options{Limit: time.Hour, Background: true, Detach: true})
		busy(false, 1)
		x := r.start(t, a, Options{Limit: time.Minute})
		busy(true, 2)
		want := []record.Command{{ID: "p1", Deadline: time.Now().Add(time.Minute).UTC()},
			{ID: "p2", Deadline: time.Now().Add(time.Hour).UTC(), Detached: true, Background: true}}
		if diff := cmp.Diff(want, r.Records()); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
		a.exit(engine.Exit{})
		if res := result(t, x); res.Stdout != "out" || res.SandboxID != "sbx_1" {
			t.Errorf("%+v", res)
		}
		busy(false, 1)
		b.exit(engine.Exit{})
		r.tasks.Wait()
		busy(false, 0)
		if r.leaves != 1 {
			t.Errorf("%d activities ended, want that of the command in the foreground", r.leaves)
		}
	})
}

// TestLongCommandsAreRecorded checks that a command is in the record from a tenth of a second on, and no longer than
// it runs.
func TestLongCommandsAreRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t.Context())
		for i, takes := range []time.Duration{longEnough - 1, longEnough + 1} {
			p := newProc(fmt.Sprint("p", i), "")
			time.AfterFunc(takes, func() { p.exit(engine.Exit{}) })
			result(t, r.start(t, p, Options{Limit: time.Hour}))
		}
		r.tasks.Wait()
		if diff := cmp.Diff([]string{"p1", ""}, r.saves); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
	})
}

// TestLimitsOfRestoredCommands checks that time limits count from the start of the sandbox for commands that are older
// than it.
func TestLimitsOfRestoredCommands(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t.Context())
		began := time.Now()
		old := began.Add(-time.Hour)
		r.box.there = []engine.ProcessInfo{{ID: "known", Started: old}, {ID: "new", Started: old},
			{ID: "ended", Started: old, Exit: &engine.Exit{}}, {ID: "lost", Started: old}}
		r.box.procs["known"], r.box.procs["new"] = newProc("known", "KILL"), newProc("new", "KILL")
		sb := record.Sandbox{Started: began, Commands: []record.Command{{ID: "known",
			Deadline: began.Add(time.Minute), Background: true}}}
		r.Adopt(t.Context(), r.box, sb, 10*time.Minute)
		// A sandbox that was made ahead begins when it is taken.
		if later, _ := r.Limits(began.Add(20 * time.Second)); later["known"] != 40*time.Second {
			t.Errorf("limits from a later start: %v", later)
		}
		limits, background := r.Limits(began)
		want := map[string]time.Duration{"known": time.Minute, "new": 10 * time.Minute}
		if diff := cmp.Diff(want, limits); diff != "" || len(background) != 1 || background[0] != "known" {
			t.Errorf("in the background: %v, limits (-want +got):\n%s", background, diff)
		}
		r.tasks.Wait() // both are killed when their time is over
		if took := time.Since(began); took != 10*time.Minute {
			t.Errorf("the last one ended after %v", took)
		}
	})
}

// TestMissingOutput checks that a Result and the caller report output that the engine lost.
func TestMissingOutput(t *testing.T) {
	t.Parallel()
	r := newRoom(t.Context())
	reported := int64(0)
	for name, c := range map[string]struct {
		missing int64
		report  func(int64)
	}{"nothing": {}, "for the result": {missing: 7}, "for both": {8, func(n int64) { reported += n }}} {
		p := newProc("p1", "")
		r.box.next, r.box.missing = p, c.missing
		x, err := r.Start(t.Context(), r.box, engine.Command{Args: []string{"x"}, Truncated: c.report},
			Options{Limit: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		p.exit(engine.Exit{})
		if res := result(t, x); res.Truncated != (c.missing > 0) || res.Stdout != "out" {
			t.Errorf("%s: %+v", name, res)
		}
	}
	if reported != 8 {
		t.Errorf("%d bytes are reported", reported)
	}
	r.tasks.Wait()
}

// TestSettle checks that all commands end, with SIGKILL after the grace period, and that copies of files are awaited,
// but no longer than the limit.
func TestSettle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t.Context())
		polite, stubborn := newProc("p1", "TERM"), newProc("p2", "KILL")
		r.start(t, polite, Options{Limit: time.Hour, Detach: true})
		r.start(t, stubborn, Options{Limit: time.Hour, Detach: true})
		r.Enter()
		time.AfterFunc(10*time.Second, r.Leave)
		start := time.Now()
		r.Settle(t.Context(), time.Minute)
		if took := time.Since(start); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("settled after %v", took)
		}
		if polite.signals() != "TERM" || stubborn.signals() != "TERM KILL" {
			t.Errorf("signals %q and %q", polite.signals(), stubborn.signals())
		}
		r.Enter()
		start = time.Now()
		r.Settle(t.Context(), time.Minute)
		if took := time.Since(start); took != time.Minute {
			t.Errorf("waited %v for a copy that does not end", took)
		}
	})
}

// TestReasonsOfEnds checks that a Result blames the sandbox or the server for the end of a command.
func TestReasonsOfEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*room)
		exit   engine.Exit
		want   Result
	}{
		"by itself": {func(*room) {}, engine.Exit{Code: 3}, Result{ReturnCode: 3}},
		"carried over": {func(r *room) { r.carried = true }, engine.Exit{Code: 143, Signal: "TERM"},
			Result{ReturnCode: 143, Signal: "TERM", Reason: carriedReason}},
		"the sandbox ended": {func(r *room) { r.sb.Status, r.sb.Reason = record.Failed, "it ended by itself" },
			engine.Exit{Code: 137, Signal: "KILL"},
			Result{ReturnCode: 137, Signal: "KILL", Reason: "the sandbox ended: it ended by itself"}},
		"no memory": {func(*room) {}, engine.Exit{Code: 137, Signal: "KILL", OutOfMemory: true},
			Result{ReturnCode: 137, Signal: "KILL", OutOfMemory: true, Reason: "it ran out of memory", Duration: 5}},
		"no input": {func(*room) {}, engine.Exit{Code: 137, Signal: "KILL", InputLost: true},
			Result{ReturnCode: 137, Signal: "KILL", Reason: inputLostReason}},
		"no space": {func(*room) {}, engine.Exit{Code: 1, OutOfSpace: true},
			Result{ReturnCode: 1, Reason: "a volume grew beyond the limit of disk or of files"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRoom(t.Context())
				c.change(r)
				p := newProc("p1", "")
				x := r.start(t, p, Options{Limit: time.Hour})
				p.exit(c.exit)
				want := c.want
				want.SandboxID, want.Stdout, want.Duration = "sbx_1", "out", 0
				if diff := cmp.Diff(want, result(t, x)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestCommandsContinueWhenTheServerCloses checks that the record keeps a command, which is neither killed nor
// forgotten.
func TestCommandsContinueWhenTheServerCloses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		r := newRoom(ctx)
		p := newProc("p1", "KILL")
		x := r.start(t, p, Options{Limit: time.Hour})
		time.Sleep(time.Second)
		stop()
		_, err := x.Wait(t.Context())
		if !errors.Is(err, errors.Unavailable) || !strings.Contains(errors.Message(err), "the command continues") {
			t.Errorf("%v", err)
		}
		r.tasks.Wait()
		if p.signals() != "" || r.Len() != 1 || r.leaves != 0 || len(r.saves) != 1 {
			t.Errorf("signals %q, %d commands, %d ended, records %v", p.signals(), r.Len(), r.leaves, r.saves)
		}
	})
}
