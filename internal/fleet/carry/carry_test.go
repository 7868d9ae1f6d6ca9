package carry

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// box is a sandbox that its engine ends.
type box struct {
	engine.Sandbox
	due, end time.Time
}

func (b box) Ends() (due, end time.Time)                    { return b.due, b.end }
func (b box) Carry(context.Context) (engine.Sandbox, error) { return b, nil }

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// TestFit checks that a lifetime is shortened only if it ends shortly before or after the engine's limit, and then
// leaves time for the end.
func TestFit(t *testing.T) {
	t.Parallel()
	end := start.Add(24 * time.Hour)
	limited := box{due: end.Add(-time.Hour), end: end}
	tight := box{due: end.Add(-time.Minute), end: end}
	for name, c := range map[string]struct {
		box      engine.Sandbox
		life     time.Duration // from start
		snapshot time.Duration
		want     time.Duration // from start
	}{
		"no limit":              {struct{ engine.Sandbox }{}, 48 * time.Hour, 0, 48 * time.Hour},
		"a limit that is unset": {box{}, 48 * time.Hour, 0, 48 * time.Hour},
		"long before":           {limited, time.Hour, 0, time.Hour},
		"just early enough":     {limited, 24*time.Hour - early, 0, 24*time.Hour - early},
		"a moment too late":     {limited, 24*time.Hour - early + 1, 0, 24*time.Hour - early},
		"a little longer":       {limited, 24*time.Hour + notWorthIt - 1, 0, 24*time.Hour - early},
		"worth a carry-over":    {limited, 24*time.Hour + notWorthIt, 0, 24*time.Hour + notWorthIt},
		"with a snapshot":       {limited, 24 * time.Hour, 15 * time.Minute, 24*time.Hour - 15*time.Minute},
		"with little time":      {tight, 24 * time.Hour, 15 * time.Minute, 24*time.Hour - time.Minute},
		"snapshot, in time":     {limited, 23 * time.Hour, 15 * time.Minute, 23 * time.Hour},
	} {
		if got := Fit(c.box, start.Add(c.life), c.snapshot).Sub(start); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestDue(t *testing.T) {
	t.Parallel()
	due, end := start.Add(23*time.Hour), start.Add(24*time.Hour)
	limited := box{due: due, end: end}
	var s State
	for name, c := range map[string]struct {
		box         engine.Sandbox
		expires, at time.Time
		left        time.Duration
		ok          bool
	}{
		"early":                 {limited, end.Add(time.Hour), start, 23 * time.Hour, true},
		"late":                  {limited, end.Add(time.Hour), due.Add(time.Minute), -time.Minute, true},
		"it ends before":        {limited, end, start, 0, false},
		"the engine has none":   {struct{ engine.Sandbox }{}, end.Add(time.Hour), start, 0, false},
		"the engine ends none":  {box{}, end, start, 0, false},
		"it is lost or created": {nil, end.Add(time.Hour), start, 0, false},
	} {
		if left, ok := s.Due(c.box, c.expires, c.at); left != c.left || ok != c.ok {
			t.Errorf("%s: %v, %t, want %v, %t", name, left, ok, c.left, c.ok)
		}
	}
	done := s.Begin()
	if _, ok := s.Due(limited, end.Add(time.Hour), due); ok || !s.UnderWay() {
		t.Error("it is due while it is under way")
	}
	done()
	if _, ok := s.Due(limited, end.Add(time.Hour), due); !ok || s.UnderWay() {
		t.Error("it is not due, or still under way, after it is done")
	}
}

// TestPausesAfterFailures checks that attempts become more frequent as the end approaches, between one second and
// five minutes.
func TestPausesAfterFailures(t *testing.T) {
	t.Parallel()
	b := box{due: start, end: start.Add(time.Hour)}
	for _, c := range []struct{ at, pause time.Duration }{
		{0, 5 * time.Minute}, {52 * time.Minute, time.Minute}, {time.Hour - 4*time.Second, time.Second},
		{2 * time.Hour, time.Second},
	} {
		var s State
		at := start.Add(c.at)
		if got := s.Failed(b, at); got != c.pause {
			t.Errorf("after %v: %v, want %v", c.at, got, c.pause)
		}
		if left, ok := s.Due(b, b.end.Add(time.Hour), at); !ok || left != c.pause {
			t.Errorf("after %v: due in %v, %t", c.at, left, ok)
		}
	}
	if got := Quiet(b, start.Add(20*time.Minute)); got != 10*time.Minute {
		t.Errorf("waits %v for copies, long before the end", got)
	}
	if got := Quiet(b, start.Add(56*time.Minute)); got != time.Minute {
		t.Errorf("waits %v for copies, shortly before the end", got)
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s State
		if err := s.Wait(t.Context(), "sbx_1"); err != nil {
			t.Fatal(err)
		}
		done := s.Begin()
		waited := make(chan error, 1)
		go func() { waited <- s.Wait(t.Context(), "sbx_1") }()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Wait(short, "sbx_1"); errors.KindOf(err) != errors.Timeout {
			t.Errorf("a caller with little time: %v", err)
		}
		synctest.Wait()
		if len(waited) > 0 {
			t.Errorf("it did not wait: %v", <-waited)
		}
		done()
		if err := <-waited; err != nil {
			t.Error(err)
		}
	})
}
