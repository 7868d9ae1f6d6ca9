package app

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
)

// TestDiskWatch checks which changes of the free space become events, that an event that could not be published is
// published later, and that the reserve is renewed each time.
func TestDiskWatch(t *testing.T) {
	t.Parallel()
	var now diskState
	var broken error
	var got []string
	reserved := 0
	w := &diskWatch{last: diskOK, look: func() (diskState, error) { return now, nil },
		reserve: func() error { reserved++; return errors.Newf(errors.Exhausted, "full") },
		publish: func(_ context.Context, drafts ...event.Draft) error {
			if broken != nil {
				return broken
			}
			for _, d := range drafts {
				s := d.Data.(diskState)
				if d.Stream != "account/personal" || (s.Reason == "") != (d.Type == "disk.ok") ||
					(s.Reason == "") != (s.Remedy == "") {
					t.Errorf("%+v", d)
				}
				got = append(got, d.Type)
			}
			return nil
		}}
	const many = 1 << 20
	steps := []struct {
		state diskState
		err   error
		want  string // events so far
	}{
		{diskState{Free: 100 << 30, Files: many, Counts: true}, nil, ""},
		{diskState{Free: 3 << 30, Files: many, Counts: true}, nil, "disk.low"},
		{diskState{Free: 4<<30 + 1, Files: many, Counts: true}, nil, "disk.low"}, // near the limit
		{diskState{Free: 1 << 20, Files: many, Counts: true}, errors.Exhausted, "disk.low"},
		{diskState{Free: 1 << 20, Files: many, Counts: true}, nil, "disk.low disk.full"},
		{diskState{Free: 70 << 20, Files: many, Counts: true}, nil, "disk.low disk.full"},
		{diskState{Free: 1 << 30, Files: many, Counts: true}, nil, "disk.low disk.full disk.low"},
		{diskState{Free: 100 << 30}, nil, "disk.low disk.full disk.low disk.ok"},
		{diskState{Free: 100 << 30, Files: 10, Counts: true}, nil, "disk.low disk.full disk.low disk.ok disk.full"},
	}
	for i, step := range steps {
		now, broken = step.state, step.err
		w.check(t.Context())
		if diff := cmp.Diff(step.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("step %d (-want +got):\n%s", i, diff)
		}
	}
	if reserved != len(steps) {
		t.Errorf("reserved %d times", reserved)
	}
}
