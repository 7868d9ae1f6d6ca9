package fleet_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/reserve"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// restart ends a server and starts the next one on the same engine and store.
func (w *world) restart(t *testing.T, f *fleet.Fleet) *fleet.Fleet {
	t.Helper()
	if err := f.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w.open(t)
}

func TestSandboxesSurviveARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.opts.Quotas = reserve.Quotas{Sandboxes: 1}
		f := w.open(t)
		sb := create(t, f, spec.Request{
			Name: "n", TimeoutSeconds: 3600, IdleTimeoutSeconds: 600, Volumes: []spec.Mount{{Name: "v", Path: "/v"}},
		})
		x := start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"run"}})
		w.uses = map[string]int{} // of the earlier process
		f = w.restart(t, f)
		_, err := x.Wait(t.Context())
		wantError(t, err, errors.Unavailable, "the command continues", "attach to it")
		if got := get(t, f, "n"); got.ID != sb.ID || got.Status != record.Running || got.Reason != "" {
			t.Fatalf("after the restart: %+v", got)
		}
		if w.uses["acme~v"] != 1 || w.uses[baseImage.ID] != 1 {
			t.Errorf("in use: %v", w.uses)
		}
		if _, err := f.Create(t.Context(), account, spec.Request{}); !errors.Is(err, errors.Exhausted) {
			t.Errorf("the quota was forgotten: %v", err)
		}
		again, err := f.Attach(t.Context(), account, "n", x.ID(), engine.Stdio{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Minute) // attached means not idle
		if err := again.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := wait(t, again); r.ReturnCode != 137 || r.Duration != 20*60 {
			t.Errorf("the command after the restart: %+v", r)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		w.wantEnd(t, f, sb.ID, record.Terminated, "idle for 10m0s", w.seen(sb.ID))
	})
}

// mission: A5
func TestCommandsKeepSandboxesFromBeingIdleAfterARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.opts.Timeouts.Exec = 10 * time.Hour
		f := w.open(t)
		made := func(req fleet.ExecRequest) (record.Sandbox, *commands.Execution) {
			sb := create(t, f, spec.Request{TimeoutSeconds: 24 * 3600, IdleTimeoutSeconds: 600})
			req.Args = []string{"run"}
			return sb, start(t, f, sb.ID, req)
		}
		detached, x := made(fleet.ExecRequest{Detach: true})
		attended, _ := made(fleet.ExecRequest{})
		terminal, _ := made(fleet.ExecRequest{Detach: true, Terminal: &engine.Size{Rows: 24, Cols: 80}})
		background, waits := made(fleet.ExecRequest{Detach: true, Background: true})
		time.Sleep(time.Second) // until all are in the records
		f = w.restart(t, f)
		if _, err := f.Attach(t.Context(), account, background.ID, waits.ID(),
			engine.Stdio{}); err != nil { // which does not make it count
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		for sb, want := range map[string]record.Status{detached.ID: record.Running, attended.ID: record.Running,
			terminal.ID: record.Running, background.ID: record.Terminated} {
			if got := get(t, f, sb); got.Status != want {
				t.Errorf("%s is %s (%s), want %s", sb, got.Status, got.Reason, want)
			}
		}
		again, err := f.Attach(t.Context(), account, detached.ID, x.ID(), engine.Stdio{})
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		wait(t, again)
		time.Sleep(599 * time.Second)
		if got := get(t, f, detached.ID); got.Status != record.Running {
			t.Errorf("less than 10 minutes after its command it is %s (%s)", got.Status, got.Reason)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := get(t, f, detached.ID); got.Status != record.Terminated || got.End != record.EndIdle {
			t.Errorf("10 minutes after its command it is %s (%s)", got.Status, got.Reason)
		}
	})
}

// mission: A3
func TestTimeLimitsOfCommandsSurviveARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.opts.Timeouts.Exec = 10 * time.Minute
		f := w.open(t)
		sb := create(t, f, spec.Request{})
		soon := start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"run"}, Timeout: time.Minute})
		later := start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"run"}, Timeout: time.Hour, Detach: true})
		start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"exit"}})
		time.Sleep(time.Second)
		young := start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"run"}, Timeout: time.Hour}) // not recorded yet
		b := w.box(t, sb.ID)
		procs := map[time.Duration]*proc{time.Minute: b.proc(t, soon.ID()), time.Hour: b.proc(t, later.ID()),
			10*time.Minute + time.Second: b.proc(t, young.ID())}
		begin := time.Now()
		f = w.restart(t, f)
		if got := f.Stats().Commands; got != 3 {
			t.Errorf("%d commands were taken up, want 3", got)
		}
		for _, limit := range []time.Duration{time.Minute, 10*time.Minute + time.Second, time.Hour} {
			time.Sleep(limit - 2*time.Second - time.Since(begin))
			synctest.Wait()
			if procs[limit].gotKilled() {
				t.Errorf("the command with %s was killed too early", limit)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if !procs[limit].gotKilled() {
				t.Errorf("the command with %s was not killed", limit)
			}
		}
		if got := f.Stats().Commands; got != 0 {
			t.Errorf("%d commands in the end", got)
		}
	})
}

// record stores a record as a crashed server leaves it.
func (w *world) record(t *testing.T, id string, status record.Status, h engine.Handle) record.Sandbox {
	t.Helper()
	sb := record.Sandbox{
		ID: id, Account: account, Name: "n-" + id[4:], Status: status, Engine: "stub", ImageID: baseImage.ID, Handle: h,
		Created: time.Now(), Started: time.Now(), Expires: time.Now().Add(time.Hour),
	}
	if status == record.Creating {
		sb.Started = time.Time{}
	}
	if status.Ended() {
		sb.Ended = time.Now()
	}
	if err := w.store.Put(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	return sb
}

// TestRecoveryFromEveryState checks that the server recovers from its death in each state, with and without the
// engine's sandbox.
func TestRecoveryFromEveryState(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status record.Status
		exists bool
		want   record.Status
		reason string
		left   int
		events string
	}{
		{record.Creating, false, record.Failed, "the server ended while it was created", 0, "failed"},
		{record.Creating, true, record.Failed, "the server ended while it was created", 0, "failed"},
		{record.Running, true, record.Running, "", 1, "ready"},
		{record.Running, false, record.Terminated, "it was gone", 0, "terminated"},
		{record.Stopping, true, record.Terminated, "", 0, "terminated"},
		{record.Stopping, false, record.Terminated, "", 0, "terminated"},
		{record.Lost, true, record.Running, "", 1, "ready"},
		{record.Lost, false, record.Terminated, "it was gone", 0, "terminated"},
		{record.Terminated, true, record.Terminated, "", 0, ""},
		{record.Failed, true, record.Failed, "", 0, ""},
	} {
		name := string(c.status) + map[bool]string{true: ", it exists", false: ", it is gone"}[c.exists]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				h := engine.Handle{ID: "sbx_1", Ref: "none"}
				if c.exists {
					h = w.add(engine.Handle{ID: "sbx_1"}).handle
				}
				if c.status == record.Creating { // its handle was not known yet
					w.record(t, "sbx_1", c.status, engine.Handle{})
				} else {
					w.record(t, "sbx_1", c.status, h)
				}
				f := w.open(t)
				synctest.Wait()
				sb := get(t, f, "sbx_1")
				stored, err := w.store.Get(t.Context(), "sbx_1")
				if err != nil {
					t.Fatal(err)
				}
				if sb.Status != c.want || stored.Status != c.want || !strings.Contains(sb.Reason, c.reason) {
					t.Errorf("it is %s (%s), recorded as %s; want %s (%s)", sb.Status, sb.Reason, stored.Status,
						c.want, c.reason)
				}
				if c.want.Ended() == sb.Ended.IsZero() {
					t.Errorf("it ended at %s", sb.Ended)
				}
				if len(w.refs()) != c.left {
					t.Errorf("the engine has %v, want %d", w.refs(), c.left)
				}
				if got := w.seen("sbx_1"); got != c.events {
					t.Errorf("events %q, want %q", got, c.events)
				}
				if c.want == record.Running {
					start(t, f, "sbx_1", fleet.ExecRequest{Args: []string{"echo"}})
					time.Sleep(time.Hour)
					time.Sleep(3 * time.Second)
					synctest.Wait()
					w.wantEnd(t, f, "sbx_1", record.Terminated, "its lifetime was over", c.events+" terminated")
				}
			})
		})
	}
}

func TestRecoveryRemovesWhatNoRecordKnows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add(engine.Handle{ID: "sbx_unknown"})
		w.add(engine.Handle{}) // warm and unclaimed
		w.add(engine.Handle{})
		kept := w.add(engine.Handle{ID: "sbx_1"})
		w.record(t, "sbx_1", record.Running, kept.handle)
		w.fail("destroy", errors.Newf(errors.Unavailable, "busy"))
		f := w.open(t)
		if s := f.Stats(); s.Leftover != 1 || s.Sandboxes[record.Running] != 1 {
			t.Errorf("stats: %+v", s)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if !slices.Equal(w.refs(), []string{kept.handle.Ref}) || f.Stats().Leftover != 0 {
			t.Errorf("the engine has %v, want %s; %+v", w.refs(), kept.handle.Ref, f.Stats())
		}
	})
}

func TestRecoveryWaitsForWhatCannotBeReached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		b := w.add(engine.Handle{ID: "sbx_1"})
		w.record(t, "sbx_1", record.Running, b.handle)
		away := errors.Newf(errors.Unavailable, "away")
		w.fail("open", away, away)
		f := w.open(t)
		if got := get(t, f, "sbx_1").Status; got != record.Lost {
			t.Errorf("it is %s, want lost", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := get(t, f, "sbx_1").Status; got != record.Running {
			t.Errorf("it is %s, want running", got)
		}
		if got := w.seen("sbx_1"); got != "lost ready" {
			t.Errorf("events: %s", got)
		}
	})
}

func TestRecoveryGoesOnWithoutDetails(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"use", "processes", "openprocess"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				f := w.open(t)
				sb := create(t, f, spec.Request{})
				start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"run"}, Detach: true})
				if err := f.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.fail(call, errors.Newf(errors.Unavailable, "not now"))
				f = w.open(t)
				if got := get(t, f, sb.ID).Status; got != record.Running {
					t.Errorf("it is %s, want running", got)
				}
			})
		})
	}
}

func TestOpenFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fail("list", errors.Newf(errors.Unavailable, "no list"))
	_, err := fleet.Open(t.Context(), fleet.Options{Engine: w.stub, Store: w.store})
	wantError(t, err, errors.Unavailable, "no list", "| recover")
	_, err = fleet.Open(t.Context(), fleet.Options{Engine: w.stub, Store: noList{w.store}})
	wantError(t, err, errors.Internal, "| recover")
}

type noList struct{ record.Store }

func (noList) List(context.Context, string, record.Filter) ([]record.Sandbox, error) {
	return nil, errors.Errorf("damaged")
}

func TestExpiredWhileTheServerWasDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.open(t)
		old := create(t, f, spec.Request{TimeoutSeconds: 60})
		idle := create(t, f, spec.Request{IdleTimeoutSeconds: 60})
		if err := f.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		f = w.open(t)
		synctest.Wait()
		if got := get(t, f, old.ID); got.Status != record.Terminated || !strings.Contains(got.Reason, "lifetime") {
			t.Errorf("the one whose lifetime is over is %s (%s)", got.Status, got.Reason)
		}
		// No client could use it in between, so its idle limit has not passed.
		if got := get(t, f, idle.ID); got.Status != record.Running {
			t.Errorf("the idle one is %s (%s)", got.Status, got.Reason)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := get(t, f, idle.ID); got.Status != record.Terminated {
			t.Errorf("a minute later the idle one is %s", got.Status)
		}
	})
}
