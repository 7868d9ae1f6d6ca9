package usage

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func sampleAt(seconds float64, memory int64) Sample {
	return Sample{Time: start.Add(time.Duration(seconds * float64(time.Second))),
		Usage: engine.Usage{Memory: memory, CPU: seconds}}
}

// TestHistoryIsThinned checks that a long history keeps its bounds, its first and its newest sample and its peak,
// and that samples stay in order.
func TestHistoryIsThinned(t *testing.T) {
	t.Parallel()
	u := Usage{Interval: 5}
	const count = 5000
	for i := range count {
		memory := int64(i)
		if i == 17 { // an odd one, which is dropped
			memory = 1e9
		}
		u.add(sampleAt(float64(5*i), memory))
		if len(u.Samples) > keptSamples {
			t.Fatalf("%d samples after %d", len(u.Samples), i+1)
		}
		if newest := u.Samples[len(u.Samples)-1]; newest.CPU != float64(5*i) {
			t.Fatalf("the newest sample after %d is that of %v", i+1, newest.CPU)
		}
	}
	if u.PeakMemory != 1e9 || u.Samples[0].CPU != 0 || len(u.Samples) < keptSamples/2 {
		t.Errorf("peak %d, first %v, %d samples", u.PeakMemory, u.Samples[0].CPU, len(u.Samples))
	}
	if u.Interval != 80 { // 5,000 samples need four halvings
		t.Errorf("interval %v", u.Interval)
	}
	for i, s := range u.Samples[1:] {
		if !s.Time.After(u.Samples[i].Time) {
			t.Fatalf("sample %d is not after the one before", i+1)
		}
	}
}

func TestCloseSamplesReplaceEachOther(t *testing.T) {
	t.Parallel()
	u := Usage{Interval: 10}
	for _, seconds := range []float64{0, 1, 3, 9, 12, 12, 11, 20.5} {
		u.add(sampleAt(seconds, int64(seconds)))
	}
	// The first one stays. 1 and 3 become 9, which is nearly an interval later, and stays too. 12 becomes 20.5. The
	// others are not newer.
	var got []float64
	for _, s := range u.Samples {
		got = append(got, s.CPU)
	}
	if len(got) != 3 || got[0] != 0 || got[1] != 9 || got[2] != 20.5 {
		t.Errorf("%v", got)
	}
}

// store keeps the usage of one sandbox.
type store struct {
	mu   sync.Mutex
	kept Usage // guarded by mu
	puts int   // guarded by mu
	err  error
}

func (s *store) PutUsage(_ context.Context, _ string, u Usage) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = u
	s.puts++
	return s.err
}

func (s *store) Usage(context.Context, string) (Usage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept, s.err
}

func (s *store) saved() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.puts
}

// box measures a core in full use, until it has ended.
type box struct {
	mu    sync.Mutex
	looks int   // guarded by mu
	err   error // guarded by mu
}

func (b *box) Usage(context.Context) (engine.Usage, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.looks++
	return engine.Usage{CPU: float64(b.looks), Memory: 100}, b.err
}

func (b *box) looked() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.looks
}

func (b *box) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

func always() bool { return true }

func pauser(ctx context.Context) func(time.Duration) bool {
	return func(d time.Duration) bool {
		select {
		case <-time.After(d):
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// TestFollow checks that a sandbox is sampled after a second and then at each interval, that failed samples are
// skipped, that the history is saved each minute, and that sampling ends with the sandbox.
func TestFollow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := &store{}, &box{}
		all := &Meters{Store: s, Every: 10 * time.Second, Now: time.Now}
		m := all.Of("sbx_1")
		done := make(chan struct{})
		go func() {
			m.Follow(t.Context(), Source{Engine: b, Current: always}, pauser(t.Context()))
			close(done)
		}()
		time.Sleep(time.Second - 1)
		if m.Last(t.Context(), Source{Engine: b, Current: always}); b.looked() != 0 || m.Memory() != 0 {
			t.Errorf("measured %d times within the first second", b.looked())
		}
		time.Sleep(61 * time.Second)
		if s.saved() != 1 || b.looked() != 7 || m.Memory() != 100 {
			t.Errorf("saved %d times, measured %d times, memory %d", s.saved(), b.looked(), m.Memory())
		}
		b.fail(errors.Newf(errors.Unavailable, "no answer"))
		time.Sleep(20 * time.Second)
		b.fail(nil)
		time.Sleep(10 * time.Second)
		u := m.History(t.Context(), Source{Engine: b, Current: always})
		if n := len(u.Samples); n < 8 || u.PeakMemory != 100 || u.Interval != 10 {
			t.Errorf("%d samples, peak %d, interval %v", n, u.PeakMemory, u.Interval)
		}
		if used := all.Used(); used.CPU != u.Samples[len(u.Samples)-1].CPU {
			t.Errorf("the machine counts %v, the sandbox %v", used.CPU, u.Samples[len(u.Samples)-1].CPU)
		}
		b.fail(errors.Newf(errors.Conflict, "it has ended"))
		<-done
	})
}

// TestHistoryContinues checks that a meter continues the history of an earlier server, and counts for the machine
// only what is new.
func TestHistoryContinues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &store{kept: Usage{Interval: 40, PeakMemory: 500, Samples: []Sample{{Time: time.Now().Add(-time.Hour),
			Usage: engine.Usage{CPU: 3, Memory: 500}}}}}
		all := &Meters{Store: s, Every: 10 * time.Second, Now: time.Now}
		b := &box{looks: 9}
		m := all.Of("sbx_1")
		u := m.History(t.Context(), Source{Engine: b, Current: always})
		if len(u.Samples) != 2 || u.PeakMemory != 500 || u.Interval != 40 || all.Used().CPU != 7 {
			t.Errorf("%+v, %+v", u, all.Used())
		}
		again := m.History(t.Context(), Source{Engine: b, Current: always})
		if b.looks != 10 || len(again.Samples) != 2 {
			t.Errorf("measured again, although the sample is fresh: %d", b.looks)
		}
		again.Samples[0].CPU = 99
		if m.History(t.Context(), Source{}).Samples[0].CPU != 3 {
			t.Error("a caller can change the history")
		}
		m.Save(t.Context())
		if s.puts != 1 || len(s.kept.Samples) != 2 {
			t.Errorf("stored %d times: %+v", s.puts, s.kept)
		}
	})
}

// TestNothingIsMeasuredOfAnotherSandbox checks that a sandbox that was carried over meanwhile adds no sample.
func TestNothingIsMeasuredOfAnotherSandbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := &Meters{Store: &store{}, Every: time.Second, Now: time.Now}
		for name, s := range map[string]Source{
			"without a meter": {Current: always},
			"another one":     {Engine: &box{}, Current: func() bool { return false }},
			"since then":      {Engine: &box{}, Current: once()},
		} {
			if u := all.Of("sbx_1").History(t.Context(), s); len(u.Samples) != 0 || u.Interval != 1 {
				t.Errorf("%s: %+v", name, u)
			}
		}
		m := all.Of("sbx_1")
		m.Save(t.Context())
		if s := all.Store.(*store); s.puts != 0 {
			t.Error("an empty history is stored")
		}
	})
}

// once returns a function that returns true once.
func once() func() bool {
	first := true
	return func() bool {
		was := first
		first = false
		return was
	}
}

func TestUsageOfAnEndedSandbox(t *testing.T) {
	t.Parallel()
	s := &store{}
	all := &Meters{Store: s, Every: 5 * time.Second}
	if u, err := all.Ended(t.Context(), "sbx_1"); err != nil || u.Interval != 5 {
		t.Errorf("without samples: %+v, %v", u, err)
	}
	s.kept.Interval = 20
	if u, err := all.Ended(t.Context(), "sbx_1"); err != nil || u.Interval != 20 {
		t.Errorf("with samples: %+v, %v", u, err)
	}
}

// TestRenewedMeter checks that the counters of a sandbox go on when another one of the engine, whose counters begin
// again, continues as it, also with a later server.
func TestRenewedMeter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		all := &Meters{Store: s, Every: 10 * time.Second, Now: time.Now}
		m := all.Of("sbx_1")
		look := func(m *Meter, b *box) float64 {
			time.Sleep(time.Minute)
			u := m.History(t.Context(), Source{Engine: b, Current: always})
			return u.Samples[len(u.Samples)-1].CPU
		}
		if got := look(m, &box{looks: 6}); got != 7 {
			t.Errorf("at first it used %v", got)
		}
		m.Renew(t.Context())
		b := &box{}
		if got := look(m, b); got != 8 || all.Used().CPU != 8 {
			t.Errorf("the next one: %v, the machine %v", got, all.Used().CPU)
		}
		m.Save(t.Context())
		later := &Meters{Store: s, Every: 10 * time.Second, Now: time.Now}
		if got := look(later.Of("sbx_1"), b); got != 9 || later.Used().CPU != 1 {
			t.Errorf("the next server: %v, the machine %v", got, later.Used().CPU)
		}
	})
}
