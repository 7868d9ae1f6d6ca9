package schedule_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/schedule"
)

// TestCreateChecksAndReports checks that Create refuses a job that exists, that wrong arguments are refused when a job
// is set, and that the end of each attempt is reported.
func TestCreateChecksAndReports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var mu sync.Mutex
		var ended []string
		w.opts.Ended = func(job schedule.Job, run schedule.Run) {
			mu.Lock()
			defer mu.Unlock()
			ended = append(ended, fmt.Sprintf("%s %s/%d %t", job.Name, run.Status, run.Attempt, run.RetryAt.IsZero()))
		}
		w.opts.Checks = map[string]func(schedule.Job) error{"work": func(job schedule.Job) error {
			if string(job.Args) == "{}" {
				return errors.Newf(errors.Invalid, "no a")
			}
			return nil
		}}
		w.will(func(context.Context, json.RawMessage) (any, error) { return nil, boom })
		s := w.open(t)
		job := halfHourly()
		job.Retries = 1
		if _, err := s.Create(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		_, err := s.Create(t.Context(), job)
		wantError(t, err, errors.Conflict, "exists already")
		job.Args = json.RawMessage("{}")
		_, err = s.Set(t.Context(), job)
		wantError(t, err, errors.Invalid, "no a")
		if kept, err := s.Get(t.Context(), account, "job"); err != nil || string(kept.Args) != `{"a":1}` {
			t.Errorf("%+v, %v", kept, err)
		}
		time.Sleep(40 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"job failed/1 false", "job failed/2 true"}; !slices.Equal(ended, want) {
			t.Errorf("%q, want %q", ended, want)
		}
	})
}
