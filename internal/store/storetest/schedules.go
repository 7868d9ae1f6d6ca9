package storetest

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/schedule"
)

// RunSchedules runs the suite of schedule.Store. open returns a new, empty store.
func RunSchedules(t *testing.T, open func(t *testing.T) schedule.Store) {
	for name, check := range map[string]func(*testing.T, schedule.Store){
		"jobs and runs come back as they were put": scheduleRoundTrip,
		"runs are paged, newest first":             schedulePages,
		"open runs are found":                      scheduleOpen,
		"delete takes the runs along":              scheduleDelete,
		"trim keeps the newest":                    scheduleTrim,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, open(t))
		})
	}
}

func job(account, name string) schedule.Job {
	return schedule.Job{
		Account: account, Name: name, Kind: "k", Args: json.RawMessage(`{"a":1}`), Cron: "*/30 * * * *",
		Zone:    "Europe/Berlin",
		Retries: -1, TimeoutSeconds: 1.5, Missed: schedule.Skip, Paused: true, Created: day,
		Updated: day.Add(time.Second), Next: day.Add(time.Hour),
	}
}

func run(of schedule.Job, n int) schedule.Run {
	return schedule.Run{
		ID: fmt.Sprintf("run_%s_%03d", of.Account, n), Account: of.Account, Job: of.Name, Due: day, Attempt: 2,
		Status: schedule.Failed, Reason: "né",
		Output: json.RawMessage(`{"b":[1,"é"]}`), Started: day, Ended: day.Add(time.Minute), Seconds: 60.25,
	}
}

func putJob(t *testing.T, s schedule.Store, job schedule.Job, runs ...schedule.Run) {
	t.Helper()
	if err := s.Put(t.Context(), job, runs...); err != nil {
		t.Fatal(err)
	}
}

func wantRuns(t *testing.T, what string, got []schedule.Run, err error, want ...schedule.Run) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func scheduleRoundTrip(t *testing.T, s schedule.Store) {
	a, b, other := job("acme", "a"), job("acme", "b"), job("other", "a")
	b.Args, b.Next, b.Paused = nil, time.Time{}, false
	one, two := run(a, 1), run(other, 1)
	two.Output, two.Due, two.Ended = nil, time.Time{}, time.Time{}
	for range 2 { // the second call replaces
		putJob(t, s, other, two)
		putJob(t, s, b)
		putJob(t, s, a, one)
		jobs, err := s.Jobs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]schedule.Job{a, b, other}, jobs); diff != "" {
			t.Errorf("jobs (-want +got):\n%s", diff)
		}
		jobs[0].Args[0] = 'x' // the caller's copy
		found, err := s.Runs(t.Context(), "acme", "a", "", 10)
		wantRuns(t, "runs of a", found, err, one)
		found, err = s.Runs(t.Context(), "other", "a", "", 10)
		wantRuns(t, "runs of the other a", found, err, two)
		found, err = s.Runs(t.Context(), "acme", "b", "", 10)
		wantRuns(t, "runs of b", found, err)
		a.Cron, one.Status, two.Reason = "@daily", schedule.Succeeded, "again"
	}
}

func schedulePages(t *testing.T, s schedule.Store) {
	a := job("acme", "a")
	var want []schedule.Run
	for n := 25; n > 0; n-- {
		want = append(want, run(a, n))
	}
	putJob(t, s, a, want...)
	var got []schedule.Run
	before := ""
	for {
		page, err := s.Runs(t.Context(), "acme", "a", before, 10)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		got = append(got, page...)
		before = page[len(page)-1].ID
	}
	wantRuns(t, "all pages", got, nil, want...)
}

func scheduleOpen(t *testing.T, s schedule.Store) {
	a, b := job("acme", "a"), job("other", "b")
	running, retried, ended := run(a, 1), run(b, 2), run(a, 3)
	running.Status, retried.RetryAt = schedule.Running, day.Add(time.Hour)
	putJob(t, s, a, running, ended)
	putJob(t, s, b, retried)
	found, err := s.Open(t.Context())
	wantRuns(t, "open", found, err, retried, running)
	running.Status, retried.RetryAt = schedule.Interrupted, time.Time{}
	putJob(t, s, a, running)
	putJob(t, s, b, retried)
	found, err = s.Open(t.Context())
	wantRuns(t, "open after their end", found, err)
}

func scheduleDelete(t *testing.T, s schedule.Store) {
	a, b := job("acme", "a"), job("acme", "b")
	putJob(t, s, a, run(a, 1))
	putJob(t, s, b, run(b, 2))
	if err := s.Delete(t.Context(), "acme", "a"); err != nil {
		t.Fatal(err)
	}
	for _, account := range []string{"acme", "other"} {
		if err := s.Delete(t.Context(), account, "a"); !errors.Is(err, errors.NotFound) {
			t.Errorf("delete of a deleted schedule: %v, want NotFound", err)
		}
	}
	found, err := s.Runs(t.Context(), "acme", "a", "", 10)
	wantRuns(t, "runs of a", found, err)
	found, err = s.Runs(t.Context(), "acme", "b", "", 10)
	wantRuns(t, "runs of b", found, err, run(b, 2))
}

func scheduleTrim(t *testing.T, s schedule.Store) {
	a, b := job("acme", "a"), job("acme", "b")
	putJob(t, s, a, run(a, 1), run(a, 3), run(a, 5))
	putJob(t, s, b, run(b, 2), run(b, 4))
	for _, keep := range []int{2, 3} {
		if err := s.Trim(t.Context(), "acme", "a", keep); err != nil {
			t.Fatal(err)
		}
	}
	found, err := s.Runs(t.Context(), "acme", "a", "", 10)
	wantRuns(t, "runs of a", found, err, run(a, 5), run(a, 3))
	found, err = s.Runs(t.Context(), "acme", "b", "", 10)
	wantRuns(t, "runs of b", found, err, run(b, 4), run(b, 2))
}
