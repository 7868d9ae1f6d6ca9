package fleet_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/fleet/usage"
)

// Usage reports half a busy core since the creation of the sandbox, and the values that a test has set.
func (b *box) Usage(ctx context.Context) (engine.Usage, error) {
	if err := b.s.called(ctx, "usage"); err != nil {
		return engine.Usage{}, err
	}
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.s.looks++
	if b.end != nil {
		return engine.Usage{}, errors.Newf(errors.Conflict, "it has ended")
	}
	cpu := time.Since(b.made).Seconds() / 2
	return engine.Usage{CPU: cpu, Memory: b.s.memory, Received: int64(cpu * 1000), Sent: int64(cpu * 10)}, nil
}

func (s *stub) lookedAt() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.looks
}

func (s *stub) holds(memory int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory = memory
}

// metered is a world whose engine reports the usage of sandboxes.
func metered(t testing.TB) *world {
	w := newWorld(t)
	w.caps.Usage = true
	w.holds(1 << 20)
	return w
}

func usageOf(t *testing.T, f *fleet.Fleet, ref string) usage.Usage {
	t.Helper()
	u, err := f.Usage(t.Context(), account, ref)
	if err != nil {
		t.Fatalf("usage: %v", err)
	}
	return u
}

// increasing checks that the samples are in order, and returns the last.
func increasing(t *testing.T, u usage.Usage) usage.Sample {
	t.Helper()
	for i := 1; i < len(u.Samples); i++ {
		a, b := u.Samples[i-1], u.Samples[i]
		if !b.Time.After(a.Time) || b.CPU < a.CPU || b.Received < a.Received || b.Sent < a.Sent {
			t.Fatalf("sample %d is %+v, after %+v", i, b, a)
		}
	}
	if len(u.Samples) == 0 {
		t.Fatal("there is no sample")
	}
	return u.Samples[len(u.Samples)-1]
}

// A sandbox's history covers its life with a bounded number of samples, and outlives it.
// mission: A12
func TestUsageOverALife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := metered(t)
		f := w.open(t)
		sb := create(t, f, spec.Request{})
		time.Sleep(21*time.Second + time.Millisecond)
		u := usageOf(t, f, sb.ID)
		last := increasing(t, u)
		if len(u.Samples) != 5 || u.Interval != 5 || last.CPU != 10.5 || last.Received != 10500 || last.Sent != 105 {
			t.Errorf("after 21 s: %+v", u)
		}
		w.holds(9 << 20)
		time.Sleep(5 * time.Second)
		w.holds(2 << 20)
		time.Sleep(20 * time.Hour)
		u = usageOf(t, f, sb.ID)
		last = increasing(t, u)
		if n := len(u.Samples); n < 180 || n > 361 {
			t.Errorf("after 20 hours there are %d samples", n)
		}
		if first := u.Samples[0].Time.Sub(sb.Started); first > 2*time.Second {
			t.Errorf("the first sample is %s after the start", first)
		}
		if age := time.Since(last.Time); age > 5*time.Second {
			t.Errorf("the newest sample is %s old", age)
		}
		for i := 2; i < len(u.Samples)-1; i++ { // evenly, so that a plot of them is one of the whole life
			if gap := u.Samples[i].Time.Sub(u.Samples[i-1].Time).Seconds(); gap < u.Interval*0.8 ||
				gap > u.Interval*1.3 {
				t.Errorf("sample %d is %.0f s after the one before, the interval is %.0f", i, gap, u.Interval)
			}
		}
		if u.PeakMemory != 9<<20 || last.Memory != 2<<20 {
			t.Errorf("the peak is %d, now it is %d", u.PeakMemory, last.Memory)
		}
		if used := f.Stats().Used; used.Memory != 2<<20 || used.CPU != last.CPU || used.Received != last.Received ||
			used.Sent != last.Sent {
			t.Errorf("of all sandboxes: %+v, the last sample is %+v", used, last)
		}
		time.Sleep(2 * time.Second)
		if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
			t.Fatal(err)
		}
		after := usageOf(t, f, sb.ID)
		if end := increasing(t, after); end.CPU <= last.CPU || get(t, f, sb.ID).Ended.Sub(end.Time) > time.Second ||
			after.PeakMemory != 9<<20 {
			t.Errorf("after the end the last sample is %+v, before it was %+v", end, last)
		}
		looks := w.lookedAt()
		time.Sleep(time.Hour)
		if w.lookedAt() != looks {
			t.Error("a sandbox that has ended was looked at")
		}
	})
}

// TestUsageIsFresh checks that a request returns a current sample, but takes at most one a second.
func TestUsageIsFresh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := metered(t)
		w.opts.UsageEvery = time.Hour
		f := w.open(t)
		sb := create(t, f, spec.Request{})
		time.Sleep(100 * time.Millisecond) // before the first look
		if u := usageOf(t, f, sb.ID); len(u.Samples) != 1 || u.Samples[0].CPU != 0.05 {
			t.Errorf("at once: %+v", u)
		}
		time.Sleep(10 * time.Second)
		for range 5 {
			usageOf(t, f, sb.ID)
		}
		u := usageOf(t, f, sb.ID)
		if last := increasing(t, u); last.CPU != 5.05 || w.lookedAt() != 3 {
			t.Errorf("after 10 s: %+v, %d looks", u, w.lookedAt())
		}
	})
}

// TestUsageThatIsNotThere checks that a sandbox that ends at once is not measured, and that an engine that fails to
// report now and then, or always, does no harm.
func TestUsageThatIsNotThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := metered(t)
		f := w.open(t)
		quick := create(t, f, spec.Request{})
		time.Sleep(500 * time.Millisecond)
		if err := f.Destroy(t.Context(), account, quick.ID); err != nil {
			t.Fatal(err)
		}
		if u := usageOf(t, f, quick.ID); len(u.Samples) != 0 || u.Interval != 5 || w.lookedAt() != 0 {
			t.Errorf("of a quick one: %+v, %d looks", u, w.lookedAt())
		}
		w.fail("usage", errors.Newf(errors.Unavailable, "not now"), context.DeadlineExceeded)
		sb := create(t, f, spec.Request{})
		time.Sleep(12 * time.Second)
		if u := usageOf(t, f, sb.ID); len(u.Samples) != 2 { // the third attempt, and this one
			t.Errorf("after two failures: %+v", u)
		}
		w.box(t, sb.ID).die(engine.End{Detail: "it broke"})
		synctest.Wait()
		if u := usageOf(t, f, sb.ID); len(u.Samples) != 2 {
			t.Errorf("after it broke: %+v", u)
		}
		_, err := f.Usage(t.Context(), "other", sb.ID)
		wantError(t, err, errors.NotFound, sb.ID)

		w.caps.Usage = false
		silent := newWorld(t)
		g := silent.open(t)
		sb = create(t, g, spec.Request{})
		time.Sleep(time.Minute)
		_, err = g.Usage(t.Context(), account, sb.ID)
		wantError(t, err, errors.Unsupported, "stub", "sandbox exec")
		if err := g.Destroy(t.Context(), account, sb.ID); err != nil {
			t.Fatal(err)
		}
		_, err = g.Usage(t.Context(), account, sb.ID)
		wantError(t, err, errors.Unsupported, "stub")
		if silent.lookedAt() != 0 {
			t.Error("an engine that announces nothing was asked")
		}
	})
}

// TestUsageOverARestart checks that the history continues after a restart of the server, and after a sandbox was lost
// for a while.
func TestUsageOverARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := metered(t)
		f := w.open(t)
		sb := create(t, f, spec.Request{})
		time.Sleep(20 * time.Second)
		before := usageOf(t, f, sb.ID)
		if err := f.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		f = w.open(t)
		time.Sleep(10 * time.Second)
		after := usageOf(t, f, sb.ID)
		increasing(t, after)
		if len(after.Samples) <= len(before.Samples) || after.Samples[0] != before.Samples[0] {
			t.Errorf("before the restart %+v, after it %+v", before, after)
		}
		w.box(t, sb.ID).lose()
		time.Sleep(10 * time.Second)
		looks := w.lookedAt()
		time.Sleep(50 * time.Second)
		if more := w.lookedAt() - looks; more > 11 {
			t.Errorf("%d looks in 50 s: two look at the same sandbox", more)
		}
		if found := usageOf(t, f, sb.ID); len(found.Samples) <= len(after.Samples) {
			t.Errorf("after it was found again: %+v", found)
		}
		time.Sleep(time.Minute) // a crash of the server loses no more than that
		if kept, err := w.store.Usage(t.Context(), sb.ID); err != nil ||
			time.Since(increasing(t, kept).Time) > 66*time.Second {
			t.Errorf("kept: %+v, %v", kept, err)
		}
	})
}
