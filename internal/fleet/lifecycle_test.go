package fleet_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// wantEnd checks how a sandbox ended, and that it left nothing.
func (w *world) wantEnd(t *testing.T, f *fleet.Fleet, id string, status record.Status, reason,
	events string) record.Sandbox {
	t.Helper()
	sb := get(t, f, id)
	if sb.Status != status || !strings.Contains(sb.Reason, reason) || sb.Ended.IsZero() {
		t.Errorf("it is %s (%s), ended at %s; want %s (%s)", sb.Status, sb.Reason, sb.Ended, status, reason)
	}
	stored, err := w.store.Get(t.Context(), id)
	if err != nil || stored.Status != status {
		t.Errorf("its record says %s, %v, want %s", stored.Status, err, status)
	}
	if got := w.seen(id); got != events {
		t.Errorf("events: %q, want %q", got, events)
	}
	if len(w.refs()) != 0 || len(w.uses) != 0 {
		t.Errorf("left: sandboxes %v, in use %v", w.refs(), w.uses)
	}
	return sb
}

// mission: A5
func TestLifetime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.open(t)
		sb := create(t, f, spec.Request{TimeoutSeconds: 3600})
		x := start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"polite"}, Timeout: 5 * time.Hour})
		time.Sleep(time.Hour - time.Second)
		if _, err := f.Extend(t.Context(), account, sb.ID, time.Hour, 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour - time.Second)
		if got := get(t, f, sb.ID).Status; got != record.Running {
			t.Fatalf("before its time it is %s", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		w.wantEnd(t, f, sb.ID, record.Terminated, "its lifetime was over", "starting ready terminated")
		if r := wait(t, x); r.ReturnCode != 143 || !strings.Contains(r.Reason, "its lifetime was over") {
			t.Errorf("the running command: %+v", r)
		}
	})
}

// TestClockIsSetBack checks that setting the clock back or forward by an hour neither prolongs lifetimes nor ends them
// early.
// mission: A5
func TestClockIsSetBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var set atomic.Int64 // by how much, in nanoseconds
		w.opts.Clock = func() time.Time { return time.Now().Add(time.Duration(set.Load())) }
		f := w.open(t)
		one := create(t, f, spec.Request{Name: "one", TimeoutSeconds: 7200})
		idle := create(t, f, spec.Request{Name: "idle", TimeoutSeconds: 7200, IdleTimeoutSeconds: 1200})
		time.Sleep(10*time.Minute + 30*time.Second)
		set.Store(-int64(time.Hour))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		later := create(t, f, spec.Request{Name: "later", TimeoutSeconds: 600})
		if got := get(t, f, later.ID); !got.Created.Before(one.Created) || got.ID == one.ID {
			t.Errorf("made after the clock was set: %+v", got)
		}
		time.Sleep(8*time.Minute + 30*time.Second) // 21 minutes
		synctest.Wait()
		if got := get(t, f, later.ID); got.Status != record.Running {
			t.Errorf("made after the clock was set, it ended early: %s %s", got.Status, got.Reason)
		}
		if got := get(t, f, idle.ID); got.Status != record.Terminated || !strings.Contains(got.Reason, "idle") {
			t.Errorf("idle for 21 minutes: %s %s", got.Status, got.Reason)
		}
		time.Sleep(98 * time.Minute) // 119
		synctest.Wait()
		if got := get(t, f, one.ID).Status; got != record.Running {
			t.Errorf("before its time it is %s", got)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		got := get(t, f, one.ID)
		if got.Status != record.Terminated || !strings.Contains(got.Reason, "lifetime") {
			t.Errorf("after its time: %s %s", got.Status, got.Reason)
		}
		if got := get(t, f, later.ID).Status; got != record.Terminated {
			t.Errorf("what was made later is %s", got)
		}
	})
}

// mission: A5
func TestIdleLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.open(t)
		sb := create(t, f, spec.Request{IdleTimeoutSeconds: 60})
		alive := func(when string) {
			t.Helper()
			synctest.Wait()
			if got := get(t, f, sb.ID); got.Status != record.Running {
				t.Fatalf("%s it is %s: %s", when, got.Status, got.Reason)
			}
		}
		time.Sleep(59 * time.Second)
		if err := f.CopyIn(t.Context(), account, sb.ID, "/x", strings.NewReader("")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Second)
		alive("after a copy")
		x := start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"run"}})
		time.Sleep(10 * time.Minute)
		alive("during a command")
		if err := x.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		wait(t, x)
		time.Sleep(59 * time.Second)
		alive("after a command")
		stream, err := f.CopyOut(t.Context(), account, sb.ID, "/x")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		alive("during a copy")
		for range 2 {
			if err := stream.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := f.Extend(t.Context(), account, sb.ID, 0, 2*time.Minute); err != nil {
			t.Fatal(err)
		}
		time.Sleep(119 * time.Second)
		alive("with a longer limit")
		x = start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"run"}, Detach: true})
		time.Sleep(10 * time.Minute)
		alive("during a detached command")
		if err := x.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		wait(t, x)
		time.Sleep(119 * time.Second)
		alive("after a detached command")
		release, err := f.Hold(t.Context(), account, sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		alive("while it is held")
		release()
		time.Sleep(119 * time.Second)
		release() // once more is nothing
		if _, err := f.Hold(t.Context(), account, "nosuch"); errors.KindOf(err) != errors.NotFound {
			t.Errorf("hold no sandbox: %v", err)
		}
		alive("after it was held")
		x = start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"run"}, Terminal: &engine.Size{Rows: 24, Cols: 80},
			Detach: true})
		time.Sleep(10 * time.Minute)
		alive("while a terminal is open")
		if err := x.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		wait(t, x)
		time.Sleep(119 * time.Second)
		alive("after a terminal")
		start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"run"}, Detach: true, Background: true})
		time.Sleep(119 * time.Second)
		alive("after a background command started")
		time.Sleep(time.Second)
		time.Sleep(2 * time.Second) // the grace period, which "run" lets pass
		synctest.Wait()
		w.wantEnd(t, f, sb.ID, record.Terminated, "it was idle for 2m0s", "starting ready terminated")
	})
}

func TestExtendRefuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.open(t)
		sb := create(t, f, spec.Request{})
		_, err := f.Extend(t.Context(), account, sb.ID, 0, 0)
		wantError(t, err, errors.Invalid, "nothing to extend")
		_, err = f.Extend(t.Context(), account, sb.ID, -1, 8*24*time.Hour)
		wantError(t, err, errors.Invalid, "2 things", "timeout_seconds", "idle_timeout_seconds", "604800")
		_, err = f.Extend(t.Context(), account, sb.ID, 7*24*time.Hour, 0)
		if err != nil {
			t.Errorf("a week: %v", err)
		}
		if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
			t.Fatal(err)
		}
		_, err = f.Extend(t.Context(), account, sb.ID, time.Hour, 0)
		wantError(t, err, errors.Gone, "terminated", "create a new sandbox")
	})
}

// mission: A8, 5.1, 5.2, 5.3
func TestDestroy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.open(t)
		sb := create(t, f, spec.Request{Volumes: []spec.Mount{{Name: "v", Path: "/v"}}})
		polite := start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"polite"}})
		shell := start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"polite"},
			Terminal: &engine.Size{Rows: 24, Cols: 80}, Detach: true})
		deaf := start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"run"}})
		b := w.box(t, sb.ID)
		procs := []*proc{b.proc(t, polite.ID()), b.proc(t, shell.ID()), b.proc(t, deaf.ID())}
		before := time.Now()
		if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(before); took != 2*time.Second {
			t.Errorf("it took %s, want the grace period of 2 s", took)
		}
		w.wantEnd(t, f, sb.ID, record.Terminated, "on request", "starting ready terminated")
		for i, want := range []string{"TERM", "HUP", "TERM"} {
			if got := strings.Join(procs[i].signals, " "); got != want {
				t.Errorf("command %d got the signals %q, want %s", i, got, want)
			}
		}
		if r := wait(t, polite); r.ReturnCode != 143 || !strings.Contains(r.Reason, "the sandbox ended") {
			t.Errorf("the polite command: %+v", r)
		}
		if r := wait(t, deaf); r.ReturnCode != 137 || r.Signal != "KILL" ||
			!strings.Contains(r.Reason, "the sandbox ended") {
			t.Errorf("the deaf command: %+v", r)
		}
		for range 2 {
			if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
				t.Errorf("destroy again: %v", err)
			}
		}
		_, err := f.Exec(t.Context(), account, sb.ID, fleet.ExecRequest{Args: []string{"run"}})
		wantError(t, err, errors.Gone, "terminated", "on request")
	})
}

func TestDestroysJoin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.open(t)
		sb := create(t, f, spec.Request{})
		var calls atomic.Int32
		w.hooks["destroy"] = func() { calls.Add(1) }
		unblock := w.block("destroy")
		w.fail("destroy", errors.Newf(errors.Unavailable, "stuck"))
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		results := make(chan error, 3)
		for _, ctx := range []context.Context{impatient, t.Context(), t.Context()} {
			go func() { results <- f.Destroy(ctx, account, sb.ID) }()
		}
		synctest.Wait()
		if got := get(t, f, sb.ID).Status; got != record.Stopping {
			t.Errorf("meanwhile it is %s", got)
		}
		_, err := f.Exec(t.Context(), account, sb.ID, fleet.ExecRequest{Args: []string{"run"}})
		wantError(t, err, errors.Conflict, "stopping")
		_, err = f.Extend(t.Context(), account, sb.ID, time.Hour, 0)
		wantError(t, err, errors.Conflict, "stopping")
		wantError(t, <-results, errors.Timeout, "| destroy") // and the destruction continues
		unblock()
		for range 2 {
			wantError(t, <-results, errors.Unavailable, "stuck", "| destroy")
		}
		if got := calls.Load(); got != 1 {
			t.Errorf("the engine was asked %d times, want once", got)
		}
		time.Sleep(time.Minute)
	})
}

// mission: A8, 5.5
func TestFailedDestroyIsReportedAndTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.open(t)
		stuck := errors.Newf(errors.Unavailable, "a mount is busy")
		w.fail("destroy", stuck, stuck, nil)
		sb := create(t, f, spec.Request{})
		wantError(t, f.Destroy(t.Context(), account, sb.ID), errors.Unavailable, "a mount is busy", "| destroy")
		got := get(t, f, sb.ID)
		if got.Status != record.Failed || got.FailedStage != "destroy" ||
			!strings.Contains(got.Reason, "not everything could be released: a mount is busy") {
			t.Errorf("record: %+v", got)
		}
		if s := f.Stats(); s.Leftover != 1 || len(s.Sandboxes) != 0 {
			t.Errorf("stats: %+v", s)
		}
		time.Sleep(time.Second) // the Fleet's own second attempt, which fails too
		synctest.Wait()
		if len(w.refs()) != 1 {
			t.Fatalf("the engine has %v", w.refs())
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if s := f.Stats(); s.Leftover != 0 || len(w.refs()) != 0 {
			t.Errorf("after the third attempt: %+v, the engine has %v", s, w.refs())
		}
		if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
			t.Errorf("destroy when all is released: %v", err)
		}
	})
}

func TestDestroyAgainReleasesWhatWasLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.open(t)
		stuck := errors.Newf(errors.Unavailable, "a mount is busy")
		w.fail("destroy", stuck, stuck)
		sb := create(t, f, spec.Request{})
		for range 2 {
			wantError(t, f.Destroy(t.Context(), account, sb.ID), errors.Unavailable, "a mount is busy", "| destroy")
		}
		if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
			t.Fatal(err)
		}
		if s := f.Stats(); s.Leftover != 0 || len(w.refs()) != 0 {
			t.Errorf("%+v, the engine has %v", s, w.refs())
		}
		time.Sleep(time.Minute) // the background attempt finds nothing to do
	})
}

// mission: A3
func TestDestroyDuringCreate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, call := range []string{"build", "create", "late"} {
			w := newWorld(t)
			w.absent = call == "build"
			f := w.open(t)
			if call != "late" {
				w.block(call)
			} else { // the engine does not notice that it was canceled
				w.hooks["create"] = func() { time.Sleep(time.Hour) }
			}
			type result struct {
				sb  record.Sandbox
				err error
			}
			created := make(chan result, 1)
			go func() {
				sb, err := f.Create(t.Context(), account, spec.Request{Name: "n"})
				created <- result{sb, err}
			}()
			synctest.Wait()
			sb := get(t, f, "n")
			if sb.Status != record.Creating {
				t.Fatalf("%s: it is %s", call, sb.Status)
			}
			_, err := f.Exec(t.Context(), account, "n", fleet.ExecRequest{Args: []string{"run"}})
			wantError(t, err, errors.Conflict, "creating", "wait until it is running")
			if err := f.Destroy(t.Context(), account, "n"); err != nil {
				t.Errorf("%s: destroy: %v", call, err)
			}
			r := <-created
			wantError(t, r.err, errors.Canceled, "destroyed while it was created")
			if r.sb.Status != record.Failed {
				t.Errorf("%s: record: %+v", call, r.sb)
			}
			w.wantEnd(t, f, sb.ID, record.Failed, "destroyed while it was created", "starting failed")
		}
	})
}

// mission: A3
func TestCanceledCreateLeavesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.open(t)
		w.block("create")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		sb, err := f.Create(ctx, account, spec.Request{})
		wantError(t, err, errors.Timeout, "| create")
		w.wantEnd(t, f, sb.ID, record.Failed, "time limit", "starting failed")
	})
}

func TestCloseCancelsCreation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.open(t)
		w.block("create")
		created := make(chan error, 1)
		go func() {
			_, err := f.Create(t.Context(), account, spec.Request{})
			created <- err
		}()
		synctest.Wait()
		if err := f.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantError(t, <-created, errors.Unavailable, "shutting down")
	})
}

func TestCloseIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.open(t)
		sb := create(t, f, spec.Request{})
		unblock := w.block("destroy")
		go func() { _ = f.Destroy(t.Context(), account, sb.ID) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantError(t, f.Close(ctx), errors.Timeout)
		unblock()
	})
}

func TestUnexpectedEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		end            engine.End
		reason, events string
	}{
		{"out of memory", engine.End{OutOfMemory: true}, "it exceeded its memory limit of 64MiB",
			"starting ready oom failed"},
		{"by itself", engine.End{}, "it ended by itself", "starting ready failed"},
		{"with a detail", engine.End{Detail: "The kernel panicked."}, "The kernel panicked.", "starting ready failed"},
		{"by somebody else", engine.End{Destroyed: true}, "another program than Harvest's server",
			"starting ready failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				f := w.open(t)
				sb := create(t, f, spec.Request{Memory: 64 << 20})
				x := start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"run"}})
				w.box(t, sb.ID).die(c.end)
				synctest.Wait()
				got := w.wantEnd(t, f, sb.ID, record.Failed, c.reason, c.events)
				if got.OutOfMemory != c.end.OutOfMemory {
					t.Errorf("out of memory is %t", got.OutOfMemory)
				}
				if r := wait(t, x); r.ReturnCode != 137 || r.OutOfMemory != c.end.OutOfMemory {
					t.Errorf("the running command: %+v", r)
				}
				if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
					t.Errorf("destroy afterwards: %v", err)
				}
			})
		})
	}
}

func TestOutOfMemoryWithoutALimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.caps.Limits = nil
		f := w.open(t)
		sb := create(t, f, spec.Request{})
		w.box(t, sb.ID).die(engine.End{OutOfMemory: true})
		synctest.Wait()
		w.wantEnd(t, f, sb.ID, record.Failed, "exceeded the memory of the machine", "starting ready oom failed")
	})
}

func TestLostSandboxIsFoundAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.open(t)
		sb := create(t, f, spec.Request{})
		x := start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"run"}, Timeout: time.Minute, Detach: true})
		away := errors.Newf(errors.Unavailable, "away")
		w.fail("open", away, away)
		w.box(t, sb.ID).lose()
		synctest.Wait()
		if got := get(t, f, sb.ID); got.Status != record.Lost || got.Reason == "" {
			t.Errorf("it is %s (%s), want lost", got.Status, got.Reason)
		}
		_, err := f.Exec(t.Context(), account, sb.ID, fleet.ExecRequest{Args: []string{"run"}})
		wantError(t, err, errors.Conflict, "lost", "wait until it is running")
		time.Sleep(time.Second)
		synctest.Wait()
		if got := get(t, f, sb.ID); got.Status != record.Running || got.Reason != "" {
			t.Errorf("it is %s (%s), want running", got.Status, got.Reason)
		}
		if got := w.seen(sb.ID); got != "starting ready lost ready" {
			t.Errorf("events: %s", got)
		}
		_, err = x.Wait(t.Context())
		wantError(t, err, errors.Unavailable, "the result of the command is unknown")
		p := w.box(t, sb.ID).proc(t, x.ID())
		time.Sleep(time.Minute)
		synctest.Wait()
		if !p.gotKilled() {
			t.Error("the time limit of the command was forgotten")
		}
		w.box(t, sb.ID).die(engine.End{}) // it is watched again
		synctest.Wait()
		w.wantEnd(t, f, sb.ID, record.Failed, "by itself", "starting ready lost ready failed")
	})
}

func TestLostSandboxIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.open(t)
		sb := create(t, f, spec.Request{})
		w.box(t, sb.ID).vanish()
		time.Sleep(time.Second)
		synctest.Wait()
		w.wantEnd(t, f, sb.ID, record.Terminated, "it was gone", "starting ready lost terminated")
	})
}

// TestSandboxEndedElsewhere checks that a sandbox that the engine's provider has ended is lost, and that the reason
// stays recorded.
//
// mission: A8
func TestSandboxEndedElsewhere(t *testing.T) {
	t.Parallel()
	for detail, reason := range map[string]string{"The provider ended it.": "The provider ended it.",
		"": "by something else than Harvest"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			f := w.open(t)
			sb := create(t, f, spec.Request{})
			x := start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"run"}})
			b := w.box(t, sb.ID)
			away := errors.Newf(errors.Unavailable, "away")
			w.fail("open", away)
			b.die(engine.End{Lost: true, Detail: detail})
			synctest.Wait()
			if got := get(t, f, sb.ID); got.Status != record.Lost || !strings.Contains(got.Reason, reason) {
				t.Errorf("it is %s (%s), want lost", got.Status, got.Reason)
			}
			if r := wait(t, x); r.ReturnCode == 0 {
				t.Errorf("the running command: %+v", r)
			}
			b.vanish()
			time.Sleep(time.Minute)
			synctest.Wait()
			w.wantEnd(t, f, sb.ID, record.Terminated, reason, "starting ready lost terminated")
		})
	}
}

func TestDestroyOfALostSandbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		away := errors.Newf(errors.Unavailable, "away")
		for _, reachable := range []bool{true, false} {
			w := newWorld(t)
			f := w.open(t)
			sb := create(t, f, spec.Request{})
			w.box(t, sb.ID).lose()
			synctest.Wait()
			if !reachable {
				w.fail("open", away)
			}
			err := f.Destroy(t.Context(), account, sb.ID)
			if reachable && err != nil {
				t.Errorf("destroy: %v", err)
			} else if !reachable {
				wantError(t, err, errors.Unavailable, "away", "| destroy")
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if len(w.refs()) != 0 || f.Stats().Leftover != 0 {
				t.Errorf("left: %v, %+v", w.refs(), f.Stats())
			}
		}
	})
}

func TestOldRecordsAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.opts.Retention = 24 * time.Hour
		f := w.open(t)
		sb := create(t, f, spec.Request{})
		kept := create(t, f, spec.Request{TimeoutSeconds: 7 * 24 * 3600})
		if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(23 * time.Hour)
		get(t, f, sb.ID)
		time.Sleep(2*time.Hour + time.Minute)
		synctest.Wait()
		_, err := f.Get(t.Context(), account, sb.ID)
		wantError(t, err, errors.NotFound)
		get(t, f, kept.ID)
	})
}
