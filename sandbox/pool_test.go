package sandbox_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/sandbox"
)

func TestPool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.opts.Warm = 2
		f := w.open(t)
		synctest.Wait()
		if got := f.Stats().Warm; got != 2 || len(w.refs()) != 2 {
			t.Fatalf("%d are warm, the engine has %v, want 2", got, w.refs())
		}
		sb := create(t, f, sandbox.Request{Env: map[string]string{"A": "b"}})
		if !sb.Warm || sb.Stages[len(sb.Stages)-1].Name != "claim" || w.specs[0].Env["A"] != "b" {
			t.Errorf("record: %+v", sb)
		}
		synctest.Wait()
		if s := f.Stats(); s.Warm != 2 || s.WarmUsed != 1 {
			t.Errorf("after a claim: %+v", s)
		}
		for _, req := range []sandbox.Request{{Cold: true}, {Memory: 1 << 30}, {CPU: 2}, {Disk: 1 << 30}} {
			if create(t, f, req).Warm {
				t.Errorf("%+v got a warm sandbox", req)
			}
		}
		if !create(t, f, sandbox.Request{CPU: 1, Memory: 2 << 30, Network: sandbox.Network{Mode: "none"}}).Warm {
			t.Error("a request that names the defaults got a cold sandbox")
		}
		synctest.Wait()
		if err := f.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := len(w.refs()); got != 6 {
			t.Errorf("after Close the engine has %d sandboxes, want the 6 that are used", got)
		}
	})
}

func TestEmptyPoolDelaysNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.opts.Warm = 1
		unblock := w.block("warm")
		f := w.open(t)
		before := time.Now()
		if sb := create(t, f, sandbox.Request{}); sb.Warm || time.Since(before) != 0 {
			t.Errorf("warm %t after %s", sb.Warm, time.Since(before))
		}
		unblock()
	})
}

func TestPoolBacksOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.opts.Warm = 1
		no := errors.Newf(errors.Unavailable, "no")
		w.fail("warm", no, no, no)
		var calls atomic.Int32
		w.hooks["warm"] = func() { calls.Add(1) }
		f := w.open(t)
		for _, c := range []struct {
			after time.Duration
			calls int32
		}{{0, 1}, {100 * time.Millisecond, 2}, {200 * time.Millisecond, 3}, {399 * time.Millisecond, 3}, {time.Millisecond, 4}} {
			time.Sleep(c.after)
			synctest.Wait()
			if got := calls.Load(); got != c.calls {
				t.Errorf("%d attempts %s later, want %d", got, c.after, c.calls)
			}
		}
		if f.Stats().Warm != 1 {
			t.Errorf("stats: %+v", f.Stats())
		}
	})
}

func TestClaimThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.opts.Warm = 1
		f := w.open(t)
		synctest.Wait()
		w.fail("claim", errors.Newf(errors.Unavailable, "it died while it waited"))
		if sb := create(t, f, sandbox.Request{}); sb.Warm || sb.Status != sandbox.Running {
			t.Errorf("record: %+v", sb)
		}
		synctest.Wait()
		w.fail("claim", errors.Newf(errors.Invalid, "no such user"))
		_, err := f.Create(t.Context(), account, sandbox.Request{})
		wantError(t, err, errors.Invalid, "no such user", "| claim")
		if got := len(w.refs()) - f.Stats().Warm; got != 1 {
			t.Errorf("the engine has %d sandboxes in use, want 1", got)
		}
	})
}

func TestPoolNeedsAnEngineThatHasOne(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.opts.Warm = 3
	w.caps.Warm = false
	f := w.open(t)
	if sb := create(t, f, sandbox.Request{}); sb.Warm || f.Stats().Warm != 0 {
		t.Errorf("record %+v, stats %+v", sb, f.Stats())
	}
}

func TestDrainReportsFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		opts := w.opts
		opts.Engine, opts.Store, opts.Warm = w.stub, w.store, 2
		f, err := sandbox.Open(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.fail("destroy", errors.Newf(errors.Unavailable, "busy"))
		wantError(t, f.Close(context.Background()), errors.Unavailable, "busy")
		if len(w.refs()) != 1 {
			t.Errorf("the engine has %v; the other one should be gone", w.refs())
		}
	})
}
