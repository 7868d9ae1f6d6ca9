package fleet_test

import (
	"context"
	"io"
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
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

const day = 24 * time.Hour

// TestCarriedOver checks that a sandbox whose lifetime exceeds its engine's limit is carried over: it stays the same
// sandbox, and its commands' records give the reason for their end.
//
// mission: A5
func TestCarriedOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.life = day
		f := w.open(t)
		sb := create(t, f, spec.Request{
			Name: "n", Tags: map[string]string{"a": "b"}, TimeoutSeconds: (3 * day).Seconds(),
			Volumes: []spec.Mount{{Name: "v", Path: "/v"}},
		})
		done := start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"echo", "x"}})
		polite := start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"polite"}, Timeout: 2 * day})
		run := start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"run"}, Timeout: 2 * day, Detach: true})
		time.Sleep(day - time.Hour - time.Second)
		synctest.Wait()
		if got := get(t, f, "n"); got.Handle.Ref != "ref1" || w.seen(sb.ID) != "starting ready" {
			t.Fatalf("too early: %+v, %s", got, w.seen(sb.ID))
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		got := get(t, f, "n")
		if got.ID != sb.ID || got.Status != record.Running || got.Reason != "" || got.Handle.Ref != "ref2" ||
			got.Tags["a"] != "b" || !got.Expires.Equal(sb.Expires) {
			t.Errorf("carried over: %+v", got)
		}
		if seen := w.seen(sb.ID); seen != "starting ready ready carried" {
			t.Errorf("events: %s", seen)
		}
		if refs := w.refs(); !slices.Equal(refs, []string{"ref2"}) {
			t.Errorf("the engine has %v", refs)
		}
		if w.uses["acme~v"] != 1 {
			t.Errorf("in use: %v", w.uses)
		}
		if r := wait(t, done); r.ReturnCode != 0 || r.Reason != "" {
			t.Errorf("a command that had ended: %+v", r)
		}
		for x, code := range map[*commands.Execution]int{polite: 143, run: 137} {
			if r := wait(t, x); r.ReturnCode != code || !strings.Contains(r.Reason, "carried over") {
				t.Errorf("a command that ran: %+v", r)
			}
		}
		wait(t, start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"echo", "again"}}))
		time.Sleep(2*day + time.Hour) // twice more, and the lifetime is over
		synctest.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		w.wantEnd(t, f, sb.ID, record.Terminated, "its lifetime was over",
			"starting ready ready carried ready carried ready carried terminated")
		if refs := w.refs(); len(refs) != 0 {
			t.Errorf("the engine has %v", refs)
		}
	})
}

// TestAnnouncedEnd has an engine that says while a sandbox runs that it ends it within a minute.
func TestAnnouncedEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.announce = make(chan struct{})
		f := w.open(t)
		sb := create(t, f, spec.Request{TimeoutSeconds: day.Seconds()})
		other := create(t, f, spec.Request{TimeoutSeconds: day.Seconds()})
		w.leave("ref1", time.Now().Add(time.Minute))
		synctest.Wait()
		if got := get(t, f, sb.ID); got.Status != record.Running || got.Handle.Ref != "ref3" {
			t.Errorf("the sandbox that its engine ends: %+v", got)
		}
		if got := get(t, f, other.ID); got.Handle.Ref != "ref2" {
			t.Errorf("the other one: %+v", got)
		}
		if refs := w.refs(); !slices.Equal(refs, []string{"ref2", "ref3"}) {
			t.Errorf("the engine has %v", refs)
		}
	})
}

func TestCarryingOverFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.life = day
		f := w.open(t)
		sb := create(t, f, spec.Request{TimeoutSeconds: (2 * day).Seconds()})
		w.fail("carry", errors.Newf(errors.Unavailable, "out of reach"), errors.Newf(errors.Exhausted, "no room"))
		time.Sleep(day - time.Hour + time.Second)
		synctest.Wait()
		if got := get(t, f, sb.ID); got.Status != record.Running || got.Handle.Ref != "ref1" {
			t.Fatalf("after a failure: %+v", got)
		}
		wait(t, start(t, f, sb.ID, fleet.ExecRequest{Args: []string{"echo", "x"}}))
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		if got := get(t, f, sb.ID); got.Status != record.Running || got.Handle.Ref != "ref2" {
			t.Errorf("tried again: %+v", got)
		}
	})
}

func TestWhoeverWantsASandboxThatIsCarriedOverWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.life = day
		f := w.open(t)
		sb := create(t, f, spec.Request{TimeoutSeconds: (2 * day).Seconds()})
		unblock := w.block("carry")
		time.Sleep(day - time.Hour + time.Second)
		synctest.Wait()
		if got := get(t, f, sb.ID); got.Status != record.Lost || !strings.Contains(got.Reason, "carried over") {
			t.Errorf("meanwhile: %+v", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := f.Exec(ctx, account, sb.ID, fleet.ExecRequest{Args: []string{"echo"}}); !errors.Is(err,
			errors.Timeout) {
			t.Errorf("who waits no longer: %v", err)
		}
		started := make(chan error, 1)
		go func() {
			x, err := f.Exec(t.Context(), account, sb.ID, fleet.ExecRequest{Args: []string{"echo", "x"}})
			if err == nil {
				_, err = x.Wait(t.Context())
			}
			started <- err
		}()
		synctest.Wait()
		unblock()
		if err := <-started; err != nil {
			t.Errorf("who waited: %v", err)
		}
	})
}

func TestDestroyedWhileItIsCarriedOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.life = day
		f := w.open(t)
		sb := create(t, f, spec.Request{TimeoutSeconds: (2 * day).Seconds()})
		unblock := w.block("carry")
		time.Sleep(day - time.Hour + time.Second)
		synctest.Wait()
		if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
			t.Fatal(err)
		}
		unblock()
		synctest.Wait()
		if refs := w.refs(); len(refs) != 0 {
			t.Errorf("the engine has %v", refs)
		}
		w.wantEnd(t, f, sb.ID, record.Terminated, "destroyed on request", "starting ready terminated")
	})
}

func TestServerEndsWhileASandboxIsCarriedOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.life = day
		f := w.open(t)
		sb := create(t, f, spec.Request{TimeoutSeconds: (2 * day).Seconds()})
		unblock := w.block("carry")
		time.Sleep(day - time.Hour + time.Second)
		synctest.Wait()
		f = w.restart(t, f)
		unblock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := get(t, f, sb.ID); got.Status != record.Running || got.Handle.Ref != "ref2" {
			t.Errorf("after the restart: %+v", got)
		}
		if refs := w.refs(); !slices.Equal(refs, []string{"ref2"}) {
			t.Errorf("the engine has %v", refs)
		}
	})
}

// A server that died in the middle has left two sandboxes of one id, or only the later one.
func TestHalfCarriedOver(t *testing.T) {
	t.Parallel()
	for _, both := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			old, next := w.add(engine.Handle{ID: "sbx_1"}), w.add(engine.Handle{ID: "sbx_1"})
			want := old.handle
			if w.record(t, "sbx_1", record.Lost, old.handle); !both {
				old.vanish()
				want = next.handle
			}
			f := w.open(t)
			synctest.Wait()
			if got := get(t, f, "sbx_1"); got.Status != record.Running || got.Handle != want {
				t.Errorf("both %t: %+v, want %+v", both, got, want)
			}
			if refs := w.refs(); !slices.Equal(refs, []string{want.Ref}) {
				t.Errorf("both %t: the engine has %v", both, refs)
			}
		})
	}
}

// TestLifetimeOfTheEngine checks that a lifetime slightly beyond the engine's limit is shortened, so that a carry-over
// does not end commands for the sake of a few seconds.
func TestLifetimeOfTheEngine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.life = day
		f := w.open(t)
		sb := create(t, f, spec.Request{TimeoutSeconds: day.Seconds()})
		if lives := sb.Expires.Sub(sb.Started); lives >= day || lives < day-time.Minute {
			t.Errorf("it lives for %v", lives)
		}
		time.Sleep(day)
		synctest.Wait()
		w.wantEnd(t, f, sb.ID, record.Terminated, "its lifetime was over", "starting ready terminated")
	})
}

// TestCopyWhileASandboxIsCarriedOver checks that the carry-over of a sandbox waits for a running copy, and carries its
// files over too.
func TestCopyWhileASandboxIsCarriedOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.life = day
		f := w.open(t)
		sb := create(t, f, spec.Request{TimeoutSeconds: (3 * day).Seconds()})
		time.Sleep(day - time.Hour - time.Minute)
		r, tar := io.Pipe()
		copied := make(chan error, 1)
		go func() { copied <- f.CopyIn(t.Context(), account, sb.ID, "/x", r) }()
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		if got := get(t, f, sb.ID); got.Status != record.Lost {
			t.Errorf("during the copy it is %s in %s", got.Status, got.Handle.Ref)
		}
		_ = tar.Close()
		if err := <-copied; err != nil {
			t.Errorf("the copy: %v", err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := get(t, f, sb.ID); got.Status != record.Running || got.Handle.Ref != "ref2" {
			t.Errorf("then it is %s in %s", got.Status, got.Handle.Ref)
		}
		time.Sleep(day - time.Hour - 10*time.Minute) // another copy takes too long
		r, tar = io.Pipe()
		go func() { copied <- f.CopyIn(t.Context(), account, sb.ID, "/x", r) }()
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		if got := get(t, f, sb.ID); got.Status != record.Running || got.Handle.Ref != "ref3" {
			t.Errorf("while a copy goes on and on it is %s in %s", got.Status, got.Handle.Ref)
		}
		_ = tar.Close()
		<-copied
	})
}

// TestCarriedOverWithItsNetwork checks that a sandbox is not carried over until its network can be applied to the new
// one.
func TestCarriedOverWithItsNetwork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.life = day
		f := w.open(t)
		sb := create(t, f, spec.Request{TimeoutSeconds: (2 * day).Seconds()})
		w.fail("network", errors.Newf(errors.Unavailable, "out of reach"))
		time.Sleep(day - time.Hour + 2*time.Second)
		synctest.Wait()
		if got := get(t, f, sb.ID); got.Status != record.Running || got.Handle.Ref != "ref1" {
			t.Errorf("without its network it is %s in %s", got.Status, got.Handle.Ref)
		}
		if refs := w.refs(); !slices.Equal(refs, []string{"ref1"}) {
			t.Errorf("the engine has %v", refs)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if got := get(t, f, sb.ID); got.Status != record.Running || got.Handle.Ref == "ref1" {
			t.Errorf("then it is %s in %s", got.Status, got.Handle.Ref)
		}
	})
}

// TestLifetimeWithASnapshotOnTheEnd checks that a sandbox with a snapshot on its end ends early enough before its
// engine's limit to leave time for the snapshot.
func TestLifetimeWithASnapshotOnTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newSnapshotWorld(t)
		w.life = day
		f := w.open(t)
		sb := create(t, f, spec.Request{TimeoutSeconds: day.Seconds(), SnapshotOnEnd: true})
		if lives := sb.Expires.Sub(sb.Started); lives > day-15*time.Minute || lives < day-20*time.Minute {
			t.Errorf("it lives for %v", lives)
		}
	})
}
