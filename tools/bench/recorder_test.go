package main

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
)

func newRecorder(o options) *recorder {
	return &recorder{row: &Row{}, lab: &lab{opts: o}, stderr: io.Discard}
}

func TestTurnsAlternateAfterAFirstTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(options{})
		var order []string
		player := func(name string, values ...float64) side {
			return side{name, func(context.Context) (sample, error) {
				order = append(order, name)
				v := values[0]
				values = values[1:]
				return sample{"time": v, "stage boot": v / 2}, nil
			}}
		}
		m := r.measure("time", "ms")
		begin := time.Now()
		if err := r.turns(t.Context(), 2, []*Measure{m}, player(harvest, 100, 1, 2),
			player("runc", 200, 3, 4)); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(order, " "); got != "Harvest runc Harvest runc Harvest runc" {
			t.Errorf("the order was %s", got)
		}
		if diff := cmp.Diff([]float64{1, 2}, m.side(harvest).Values); diff != "" {
			t.Errorf("Harvest's values differ: %s", diff)
		}
		if diff := cmp.Diff([]float64{3, 4}, m.side("runc").Values); diff != "" {
			t.Errorf("runc's values differ: %s", diff)
		}
		part := r.measure("stage boot", "")
		if diff := cmp.Diff([]float64{0.5, 1}, part.side(harvest).Values); diff != "" || !part.Part ||
			part.Unit != "ms" {
			t.Errorf("the part is %+v: %s", part, diff)
		}
		if got := time.Since(begin); got != 6*settle {
			t.Errorf("the quiet between runs was %v, want %v", got, 6*settle)
		}
	})
}

func TestTurnsCountFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(options{})
		one, two := r.measure("one", "ms"), r.measure("two", "ms")
		turn := 0
		flaky := side{harvest, func(context.Context) (sample, error) {
			if turn++; turn != 2 {
				return nil, errors.Errorf("turn %d broke", turn)
			}
			return sample{"one": 1, "two": 2}, nil
		}}
		if err := r.turns(t.Context(), 5, []*Measure{one, two}, flaky); err != nil {
			t.Fatal(err)
		}
		for _, m := range []*Measure{one, two} {
			s := m.side(harvest)
			if s.Failed != 5 || len(s.Values) != 1 { // the first time counts when it fails
				t.Errorf("%s: %d failed, %d values", m.Name, s.Failed, len(s.Values))
			}
			if diff := cmp.Diff([]string{"turn 1 broke", "turn 3 broke", "turn 4 broke"}, s.Errors); diff != "" {
				t.Errorf("the errors that are kept differ: %s", diff)
			}
		}
	})
}

func TestTurnsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(options{})
		m := r.measure("time", "ms")
		ctx, cancel := context.WithCancel(t.Context())
		interrupted := side{harvest, func(context.Context) (sample, error) {
			cancel()
			return nil, errors.Errorf("killed")
		}}
		err := r.turns(ctx, 5, []*Measure{m}, interrupted)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the error is %v", err)
		}
		if s := m.side(harvest); s != nil {
			t.Errorf("an interrupted run counts: %+v", s)
		}
	})
}

func TestCount(t *testing.T) {
	t.Parallel()
	for want, o := range map[int]options{20: {}, 3: {short: true}, 7: {turns: 7, short: true}} {
		if got := newRecorder(o).count(3, 20); got != want {
			t.Errorf("%+v runs %d times, want %d", o, got, want)
		}
	}
}

func TestAnonymous(t *testing.T) {
	t.Parallel()
	l := &lab{dir: "/var/data/hvb1", opts: options{images: "/cache/images"}}
	if got := l.anonymous("open /var/data/hvb1/x: /cache/images/y"); got != "open DATA/x: IMAGES/y" {
		t.Errorf("the text is %q", got)
	}
	if got := l.anonymous(strings.Repeat("é", 400)); len(got) > 510 || !strings.HasSuffix(got, "é…") {
		t.Errorf("a long text becomes %q", got)
	}
	if got := new(lab).anonymous("text"); got != "text" {
		t.Errorf("without a directory the text becomes %q", got)
	}
}
