package fleet_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
)

func TestPool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.opts.Warm = 2
		f := w.open(t)
		synctest.Wait()
		if got := f.Stats().Warm; got != 2 || len(w.refs()) != 2 {
			t.Fatalf("%d are warm, the engine has %v, want 2", got, w.refs())
		}
		sb := create(t, f, spec.Request{Env: map[string]string{"A": "b"}})
		if !sb.Warm || sb.Stages[len(sb.Stages)-1].Name != "claim" || w.specs[0].Env["A"] != "b" {
			t.Errorf("record: %+v", sb)
		}
		synctest.Wait()
		if s := f.Stats(); s.Warm != 2 || s.WarmUsed != 1 {
			t.Errorf("after a claim: %+v", s)
		}
		for _, req := range []spec.Request{{Cold: true}, {Memory: 1 << 30}, {CPU: 2}, {Disk: 1 << 30}} {
			if create(t, f, req).Warm {
				t.Errorf("%+v got a warm sandbox", req)
			}
		}
		if !create(t, f, spec.Request{CPU: 1, Memory: 2 << 30, Network: spec.Network{Mode: "none"}}).Warm {
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
		w := newWorld(t)
		w.opts.Warm = 1
		unblock := w.block("warm")
		f := w.open(t)
		before := time.Now()
		if sb := create(t, f, spec.Request{}); sb.Warm || time.Since(before) != 0 {
			t.Errorf("warm %t after %s", sb.Warm, time.Since(before))
		}
		unblock()
	})
}

func TestPoolBacksOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.opts.Warm = 1
		no := errors.Newf(errors.Unavailable, "no")
		w.fail("warm", no, no, no)
		var calls atomic.Int32
		w.hooks["warm"] = func() { calls.Add(1) }
		f := w.open(t)
		for _, c := range []struct {
			after time.Duration
			calls int32
		}{{0, 1}, {100 * time.Millisecond, 2}, {200 * time.Millisecond, 3}, {399 * time.Millisecond, 3},
			{time.Millisecond, 4}} {
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
		w := newWorld(t)
		w.opts.Warm = 1
		f := w.open(t)
		synctest.Wait()
		w.fail("claim", errors.Newf(errors.Unavailable, "it died while it waited"))
		if sb := create(t, f, spec.Request{}); sb.Warm || sb.Status != record.Running {
			t.Errorf("record: %+v", sb)
		}
		synctest.Wait()
		w.fail("claim", errors.Newf(errors.Invalid, "no such user"))
		_, err := f.Create(t.Context(), account, spec.Request{})
		wantError(t, err, errors.Invalid, "no such user", "| claim")
		if got := len(w.refs()) - f.Stats().Warm; got != 1 {
			t.Errorf("the engine has %d sandboxes in use, want 1", got)
		}
	})
}

func TestPoolNeedsAnEngineThatHasOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.opts.Warm = 3
	w.caps.Warm = false
	f := w.open(t)
	if sb := create(t, f, spec.Request{}); sb.Warm || f.Stats().Warm != 0 {
		t.Errorf("record %+v, stats %+v", sb, f.Stats())
	}
}

func TestDrainReportsFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		opts := w.opts
		opts.Engine, opts.Store, opts.Warm = w.stub, w.store, 2
		f, err := fleet.Open(t.Context(), opts)
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

// prepared lists the calls of Prepare.
func (s *stub) prepared() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.prepares, ", ")
}

const baseID = "img_0123456789abcdef"

func TestPoolPreparesWhatWasAskedForLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.others = []image.Image{{ID: "img_other", Names: []string{"other"},
			Spec: image.Spec{Base: "x", Owner: account}}}
		w.opts.Warm, w.opts.WarmUp = 1, []string{"python3", "-c", "pass"}
		f := w.open(t)
		synctest.Wait()
		if got, s := w.prepared(), f.Stats(); got != "ref1 "+baseID+" python3 -c pass" || s.Warm != 1 ||
			s.Prepared != 1 {
			t.Fatalf("prepared are %s, stats %+v", got, s)
		}
		if sb := create(t, f, spec.Request{Image: "other"}); !sb.Warm {
			t.Error("what was prepared for another image was not used")
		}
		synctest.Wait()
		if sb := create(t, f, spec.Request{Image: "other",
			Volumes: []spec.Mount{{Name: "data", Path: "/data"}}}); !sb.Warm {
			t.Error("a request with a volume got a cold sandbox")
		}
		synctest.Wait()
		create(t, f, spec.Request{Cold: true})
		synctest.Wait()
		if got := w.prepared(); got != "ref1 "+baseID+
			" python3 -c pass, ref2 img_other python3 -c pass, ref3 img_other python3 -c pass" {
			t.Errorf("prepared are %s", got)
		}
	})
}

func TestPoolGivesWhatFitsBest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.others = []image.Image{{ID: "img_other", Names: []string{"other"},
			Spec: image.Spec{Base: "x", Owner: account}}}
		w.opts.Warm = 2
		f := w.open(t)
		synctest.Wait()
		create(t, f, spec.Request{Image: "other"}) // ref1; ref2 has the base image
		synctest.Wait()
		create(t, f, spec.Request{Image: "other"}) // ref3, which was prepared since
		synctest.Wait()
		create(t, f, spec.Request{}) // ref2
		w.stub.mu.Lock()
		defer w.stub.mu.Unlock()
		for _, ref := range []string{"ref1", "ref2", "ref3"} {
			if b := w.boxes[ref]; b == nil || b.handle.ID == "" {
				t.Errorf("%s was not taken", ref)
			}
		}
	})
}

// mission: A7
func TestPoolGivesNobodyTheImageOfSomebodyElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.others = []image.Image{{ID: "img_theirs", Names: []string{"theirs"},
			Spec: image.Spec{Base: "x", Owner: "somebody"}}}
		w.opts.Warm = 1
		f := w.open(t)
		synctest.Wait()
		if _, err := f.Create(t.Context(), "somebody", spec.Request{Image: "theirs"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if create(t, f, spec.Request{}).Warm {
			t.Error("a sandbox in which somebody else's image is mounted was given away")
		}
		synctest.Wait()
		if len(w.refs()) != 3 || !create(t, f, spec.Request{}).Warm {
			t.Errorf("the pool does not recover: the engine has %v", w.refs())
		}
	})
}

func TestPoolDoesWithoutWhatCannotBePrepared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.opts.Warm, w.opts.WarmUp = 1, []string{"leave", "traces"}
		w.fail("prepare", errors.Newf(errors.Invalid, "it leaves traces"))
		f := w.open(t)
		synctest.Wait()
		if got := w.prepared(); got != "ref1 "+baseID+" leave traces, ref2 "+baseID+" " || f.Stats().Prepared != 1 ||
			len(w.refs()) != 1 {
			t.Fatalf("prepared are %s, the engine has %v", got, w.refs())
		}
		w.fail("prepare", errors.Newf(errors.Unavailable, "it broke"))
		create(t, f, spec.Request{})
		synctest.Wait()
		if s := f.Stats(); s.Warm != 1 || s.Prepared != 0 || len(w.refs()) != 2 {
			t.Errorf("after a second failure: %+v, the engine has %v", s, w.refs())
		}
		if !create(t, f, spec.Request{}).Warm {
			t.Error("a sandbox that cannot be prepared is not used")
		}
	})
}

func TestPoolTakenWhileItIsPrepared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.opts.Warm = 1
		unblock := w.block("prepare")
		f := w.open(t)
		synctest.Wait()
		w.fail("prepare", errors.Newf(errors.Conflict, "it was claimed"))
		if s := f.Stats(); s.Warm != 1 || s.Prepared != 0 || !create(t, f, spec.Request{}).Warm {
			t.Errorf("stats: %+v", s)
		}
		unblock()
		synctest.Wait()
		if s := f.Stats(); s.Warm != 1 {
			t.Errorf("later: %+v", s)
		}
	})
}

func TestPoolForgetsImagesThatWereDeleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.opts.Warm = 1
		f := w.open(t)
		synctest.Wait()
		w.stub.mu.Lock()
		w.absent = true
		w.stub.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := f.Stats(); s.Warm != 1 || s.Prepared != 0 || len(w.refs()) != 1 || w.refs()[0] != "ref2" {
			t.Errorf("stats %+v, the engine has %v", s, w.refs())
		}
	})
}

// TestPoolForgetsImagesThatWereBuiltAnew checks that a sandbox that was prepared with an image is not used after the
// image was forcibly rebuilt, and does not wait for long.
func TestPoolForgetsImagesThatWereBuiltAnew(t *testing.T) {
	t.Parallel()
	for name, asked := range map[string]bool{"asked for": true, "not asked for": false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.opts.Warm = 1
			f := w.open(t)
			synctest.Wait()
			if s := f.Stats(); s.Prepared != 1 {
				t.Fatalf("stats %+v", s)
			}
			w.stub.mu.Lock()
			w.builds++
			w.stub.mu.Unlock()
			if asked && create(t, f, spec.Request{}).Warm {
				t.Error("a sandbox has the files from before")
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if prepared := w.prepared(); strings.Count(prepared, baseID) < 2 || f.Stats().Prepared > 1 ||
				slices.Contains(w.refs(), "ref1") {
				t.Errorf("%s: prepared were %s, the engine has %v", name, prepared, w.refs())
			}
			if asked && !create(t, f, spec.Request{}).Warm {
				t.Error("the next one has no warm sandbox")
			}
		})
	}
}
