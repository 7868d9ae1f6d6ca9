package schedule_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet/schedule"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

const account = "acme"

func TestMain(m *testing.M) {
	logf.Setup(io.Discard, 0, false)
	os.Exit(m.Run())
}

// world is a store and a clock, on which servers come and go.
type world struct {
	store schedule.Store
	opts  schedule.Options

	mu    sync.Mutex
	set   time.Duration                                       // guarded by mu; how far the clock on the wall was set
	calls []string                                            // guarded by mu; when the function was called
	do    func(context.Context, json.RawMessage) (any, error) // guarded by mu; nil succeeds
}

func newWorld(t *testing.T) *world {
	w := &world{store: testdb.Open(t).Schedules()}
	w.opts = schedule.Options{Now: w.now, Kinds: map[string]schedule.Func{"work": w.work}}
	return w
}

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.set)
}

func (w *world) setClock(by time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set += by
}

func (w *world) will(do func(context.Context, json.RawMessage) (any, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.do = do
}

func (w *world) work(ctx context.Context, job schedule.Job) (any, error) {
	now := w.now().UTC()
	w.mu.Lock()
	w.calls = append(w.calls, now.Format("15:04"))
	do := w.do
	w.mu.Unlock()
	if do == nil {
		return job.Args, nil
	}
	return do(ctx, job.Args)
}

// called reports when the function was called, and forgets it.
func (w *world) called() string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	calls := strings.Join(w.calls, " ")
	w.calls = nil
	return calls
}

// open starts a server. Tests run on a clock that begins at midnight.
func (w *world) open(t *testing.T) *schedule.Scheduler {
	t.Helper()
	opts := w.opts
	opts.Store = w.store
	s, err := schedule.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, s) })
	return s
}

func shut(t *testing.T, s *schedule.Scheduler) {
	t.Helper()
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func halfHourly() schedule.Job {
	return schedule.Job{Account: account, Name: "job", Kind: "work", Cron: "*/30 * * * *",
		Args: json.RawMessage(`{"a":1}`)}
}

func set(t *testing.T, s *schedule.Scheduler, job schedule.Job) schedule.Job {
	t.Helper()
	job, err := s.Set(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// history returns the runs of the job, oldest first, and in short.
func history(t *testing.T, s *schedule.Scheduler) (runs []schedule.Run, short string) {
	t.Helper()
	synctest.Wait()
	newest, err := s.History(t.Context(), account, "job", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for i := len(newest) - 1; i >= 0; i-- {
		runs = append(runs, newest[i])
		words = append(words, fmt.Sprintf("%s/%d", newest[i].Status, newest[i].Attempt))
	}
	return runs, strings.Join(words, " ")
}

func wantHistory(t *testing.T, s *schedule.Scheduler, want string) []schedule.Run {
	t.Helper()
	runs, short := history(t, s)
	if short != want {
		t.Errorf("the history is %s, want %s", short, want)
	}
	return runs
}

func wantCalls(t *testing.T, w *world, want string) {
	t.Helper()
	if got := w.called(); got != want {
		t.Errorf("called at %q, want %q", got, want)
	}
}

func wantError(t *testing.T, err error, kind errors.Kind, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("error is %v (%s), want %s", err, errors.KindOf(err), kind)
		return
	}
	text := errors.Message(err) + " | " + errors.RemedyOf(err)
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q does not say %q", text, w)
		}
	}
}

var boom = errors.Newf(errors.Unavailable, "boom")

// mission: F8
func TestJobsRunWhenTheyAreDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.open(t)
		job := set(t, s, halfHourly())
		if job.Retries != 3 || job.TimeoutSeconds != 600 || job.Missed != schedule.RunOnce ||
			job.Next.Format("15:04") != "00:30" {
			t.Errorf("%+v", job)
		}
		time.Sleep(95 * time.Minute)
		wantCalls(t, w, "00:30 01:00 01:30")
		runs := wantHistory(t, s, "succeeded/1 succeeded/1 succeeded/1")
		r := runs[2]
		if string(r.Output) != `{"a":1}` || r.Due.Format("15:04") != "01:30" || r.Started.Sub(r.Due) > time.Second ||
			r.Ended.IsZero() || !strings.HasPrefix(r.ID, "run_") {
			t.Errorf("%+v", r)
		}
		if job, err := s.Get(t.Context(), account, "job"); err != nil || job.Next.Format("15:04") != "02:00" {
			t.Errorf("%+v, %v", job, err)
		}
		if page, err := s.History(t.Context(), account, "job", runs[2].ID, 1); err != nil || len(page) != 1 ||
			page[0].ID != runs[1].ID {
			t.Errorf("a page: %+v, %v", page, err)
		}
	})
}

// mission: F8, B5
func TestFailuresAreTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.will(func(context.Context, json.RawMessage) (any, error) {
			return map[string]string{"got": "so far"}, errors.Remedy(errors.Stage(boom, "build"), "wait")
		})
		s := w.open(t)
		job := halfHourly()
		job.Cron = "@daily"
		set(t, s, job)
		time.Sleep(24*time.Hour + 5*time.Minute)
		runs := wantHistory(t, s, "failed/1 failed/2 failed/3 failed/4")
		for i, r := range runs {
			if r.Reason != "build: boom; wait" || string(r.Output) != `{"got":"so far"}` || !r.RetryAt.IsZero() {
				t.Errorf("%+v", r)
			}
			if i == 0 {
				continue
			}
			longest := 10 * time.Second << (i - 1)
			if pause := r.Started.Sub(runs[i-1].Ended); pause < longest/2 || pause > longest+time.Second {
				t.Errorf("attempt %d after %s", r.Attempt, pause)
			}
		}
		w.will(func(context.Context, json.RawMessage) (any, error) { return nil, errors.Newf(errors.Invalid, "no") })
		if _, err := s.RunNow(t.Context(), account, "job"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		wantHistory(t, s, "failed/1 failed/2 failed/3 failed/4 failed/1") // it stays wrong
		job.Retries = schedule.NoRetries
		set(t, s, job)
		w.will(func(context.Context, json.RawMessage) (any, error) { panic("oh no") })
		if _, err := s.RunNow(t.Context(), account, "job"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		runs = wantHistory(t, s, "failed/1 failed/2 failed/3 failed/4 failed/1 failed/1")
		if reason := runs[5].Reason; strings.Contains(reason, "oh no") || reason == "" {
			t.Errorf("a panic: %q", reason)
		}
	})
}

func TestSuccessEndsTheRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := 0
		w.will(func(context.Context, json.RawMessage) (any, error) {
			if n++; n < 3 {
				return nil, boom
			}
			return nil, nil
		})
		s := w.open(t)
		set(t, s, halfHourly())
		time.Sleep(45 * time.Minute)
		wantHistory(t, s, "failed/1 failed/2 succeeded/3")
	})
}

// mission: B5
func TestTimeLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.will(func(ctx context.Context, _ json.RawMessage) (any, error) { <-ctx.Done(); return nil, ctx.Err() })
		s := w.open(t)
		job := halfHourly()
		job.Retries = schedule.NoRetries
		set(t, s, job)
		time.Sleep(45 * time.Minute)
		runs := wantHistory(t, s, "timed_out/1")
		if runs[0].Seconds != 600 || !strings.Contains(runs[0].Reason, "10m0s") {
			t.Errorf("%+v", runs[0])
		}
	})
}

func TestNoOverlap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.will(func(context.Context, json.RawMessage) (any, error) { time.Sleep(70 * time.Minute); return nil, nil })
		s := w.open(t)
		job := halfHourly()
		job.TimeoutSeconds = 7200
		set(t, s, job)
		time.Sleep(31 * time.Minute)
		_, err := s.RunNow(t.Context(), account, "job")
		wantError(t, err, errors.Conflict, "runs already", "wait")
		time.Sleep(72 * time.Minute)
		runs := wantHistory(t, s, "succeeded/1 skipped/0 skipped/0")
		if !strings.Contains(runs[1].Reason, "still running") || runs[1].Due.Format("15:04") != "01:00" {
			t.Errorf("%+v", runs[1])
		}
		time.Sleep(20 * time.Minute)
		wantCalls(t, w, "00:30 02:00")
	})
}

// TestDueBeatsRetry checks that a due run replaces one that waits for a retry.
func TestDueBeatsRetry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.will(func(context.Context, json.RawMessage) (any, error) { return nil, boom })
		s := w.open(t)
		job := halfHourly()
		job.Cron, job.Retries = "* * * * *", 10
		set(t, s, job)
		time.Sleep(2*time.Minute + 2*time.Second)
		runs, short := history(t, s)
		if runs[len(runs)-1].Attempt != 1 || !strings.HasPrefix(short, "failed/1 failed/2") {
			t.Errorf("the history is %s", short)
		}
		open, err := w.store.Open(t.Context())
		if err != nil || len(open) != 1 || open[0].ID != runs[len(runs)-1].ID {
			t.Errorf("still open: %+v, %v", open, err)
		}
	})
}

func TestMissedRuns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy         schedule.Missed
		history, calls string
	}{
		{schedule.RunOnce, "succeeded/1 succeeded/1", "03:50"},
		{schedule.Skip, "succeeded/1 skipped/0", ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			s := w.open(t)
			job := halfHourly()
			job.Missed = c.policy
			set(t, s, job)
			time.Sleep(50 * time.Minute)
			wantCalls(t, w, "00:30")
			shut(t, s)
			time.Sleep(3 * time.Hour)
			s = w.open(t)
			time.Sleep(time.Second)
			wantCalls(t, w, c.calls)
			runs := wantHistory(t, s, c.history)
			if c.policy == schedule.Skip && !strings.Contains(runs[1].Reason, "over by 2h50m") {
				t.Errorf("%+v", runs[1])
			}
			time.Sleep(30 * time.Minute)
			wantCalls(t, w, "04:00")
		})
	}
}

func TestRunsThatWereCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.will(func(ctx context.Context, _ json.RawMessage) (any, error) { <-ctx.Done(); return nil, ctx.Err() })
		s := w.open(t)
		set(t, s, halfHourly())
		time.Sleep(31 * time.Minute)
		shut(t, s)
		wantCalls(t, w, "00:30")
		_, err := s.RunNow(t.Context(), account, "job")
		wantError(t, err, errors.Unavailable)

		w.will(nil)
		s = w.open(t)
		time.Sleep(time.Second)
		wantCalls(t, w, "00:31")
		wantHistory(t, s, "interrupted/1 succeeded/2")
	})
}

// TestCrash checks that a run that a crash left unfinished is handled.
func TestCrash(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		retries int
		history string
	}{{3, "interrupted/1 succeeded/2"}, {schedule.NoRetries, "interrupted/1"}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			job := halfHourly()
			job.Retries, job.TimeoutSeconds, job.Next = c.retries, 600, time.Now().Add(10*time.Hour)
			left := schedule.Run{ID: "run_0", Account: account, Job: "job", Attempt: 1, Status: schedule.Running,
				Started: time.Now().Add(-time.Minute)}
			if err := w.store.Put(t.Context(), job, left); err != nil {
				t.Fatal(err)
			}
			byHand := w.opts
			byHand.Store, byHand.ByHand = w.store, true
			s, err := schedule.Open(t.Context(), byHand)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(24 * time.Hour)
			wantCalls(t, w, "")
			shut(t, s)
			job.Next = time.Now().Add(10 * time.Hour)
			runs, err := w.store.Runs(t.Context(), account, "job", "", 9)
			if err != nil || len(runs) != 1 || runs[0].Status != schedule.Interrupted || runs[0].Seconds != 60 {
				t.Errorf("%+v, %v", runs, err)
			}
			if err := w.store.Put(t.Context(), job); err != nil {
				t.Fatal(err)
			}
			s = w.open(t)
			time.Sleep(time.Second)
			wantHistory(t, s, c.history)
		})
	}
}

// TestRetryThatIsOutOfDate checks that a planned retry is dropped if the job has run since.
func TestRetryThatIsOutOfDate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		job := halfHourly()
		job.Retries, job.TimeoutSeconds, job.Next = 3, 600, time.Now().Add(time.Hour)
		old := schedule.Run{ID: "run_0", Account: account, Job: "job", Attempt: 1, Status: schedule.Failed,
			RetryAt: time.Now()}
		since := schedule.Run{ID: "run_1", Account: account, Job: "job", Attempt: 1, Status: schedule.Succeeded}
		gone := schedule.Run{ID: "run_2", Account: account, Job: "gone", Attempt: 1, Status: schedule.Running}
		if err := w.store.Put(t.Context(), job, old, since, gone); err != nil {
			t.Fatal(err)
		}
		s := w.open(t)
		time.Sleep(time.Minute)
		wantHistory(t, s, "failed/1 succeeded/1")
		if open, err := w.store.Open(t.Context()); err != nil || len(open) != 1 {
			t.Errorf("%+v, %v", open, err)
		}
	})
}

// mission: F8
func TestClockIsSet(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		by          time.Duration
		then, later string
	}{
		"back an hour": {-time.Hour, "",
			"02:30 03:00"}, // no run is repeated, and the schedule continues
		"on an hour":    {time.Hour, "03:10", "03:30 04:00"},            // skipped times give one run
		"back a year":   {-365 * 24 * time.Hour, "", "02:30 03:00"},     // the clock was wrong before
		"back a minute": {-time.Minute, "", "02:30 03:00"},              // as by a time server
		"on a year":     {365 * 24 * time.Hour, "02:10", "02:30 03:00"}, //
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				s := w.open(t)
				set(t, s, halfHourly())
				time.Sleep(130 * time.Minute)
				wantCalls(t, w, "00:30 01:00 01:30 02:00")
				w.setClock(c.by)
				time.Sleep(30 * time.Second)
				wantCalls(t, w, c.then)
				if c.by == -time.Hour {
					time.Sleep(time.Hour)
				}
				time.Sleep(51 * time.Minute)
				wantCalls(t, w, c.later)
			})
		})
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.will(func(context.Context, json.RawMessage) (any, error) { return nil, boom })
		s := w.open(t)
		set(t, s, halfHourly())
		time.Sleep(30*time.Minute + time.Second)
		wantCalls(t, w, "00:30")
		for range 2 {
			if job, err := s.Pause(t.Context(), account, "job"); err != nil || !job.Paused || !job.Next.IsZero() {
				t.Errorf("%+v, %v", job, err)
			}
		}
		time.Sleep(2 * time.Hour)
		wantCalls(t, w, "") // nor is it tried again
		shut(t, s)
		s = w.open(t)
		time.Sleep(time.Hour)
		wantCalls(t, w, "")
		w.will(nil)
		if _, err := s.RunNow(t.Context(), account, "job"); err != nil {
			t.Fatal(err)
		}
		wantCalls(t, w, "03:30")
		for range 2 {
			if job, err := s.Resume(t.Context(), account, "job"); err != nil || job.Paused ||
				job.Next.Format("15:04") != "04:00" {
				t.Errorf("%+v, %v", job, err)
			}
		}
		time.Sleep(time.Hour)
		wantCalls(t, w, "04:00 04:30")
	})
}

// wait returns a run that has ended.
func wait(t *testing.T, s *schedule.Scheduler, run schedule.Run) schedule.Run {
	t.Helper()
	for {
		runs, err := s.History(t.Context(), run.Account, run.Job, "", 0)
		i := slices.IndexFunc(runs, func(r schedule.Run) bool { return r.ID == run.ID })
		if err != nil || i < 0 {
			t.Fatalf("%v, %v", runs, err)
		}
		if runs[i].Status != schedule.Running {
			return runs[i]
		}
		time.Sleep(time.Second)
	}
}

func TestRunNow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.opts.ByHand, w.opts.Keep = true, 3
		w.will(func(context.Context, json.RawMessage) (any, error) { time.Sleep(time.Minute); return "done", nil })
		s := w.open(t)
		set(t, s, halfHourly())
		time.Sleep(2 * time.Hour)
		wantCalls(t, w, "") // by hand only
		run, err := s.RunNow(t.Context(), account, "job")
		if err != nil || run.Status != schedule.Running || run.Attempt != 1 || !run.Due.IsZero() {
			t.Fatalf("%+v, %v", run, err)
		}
		if ended := wait(t, s, run); ended.Status != schedule.Succeeded || string(ended.Output) != `"done"` ||
			ended.Seconds != 60 {
			t.Errorf("%+v", ended)
		}
		for range 3 {
			again, err := s.RunNow(t.Context(), account, "job")
			if err != nil {
				t.Fatal(err)
			}
			wait(t, s, again)
		}
		wantHistory(t, s, "succeeded/1 succeeded/1 succeeded/1")
		n := 0
		w.will(func(context.Context, json.RawMessage) (any, error) {
			if n++; n == 1 {
				return nil, boom
			}
			return nil, nil
		})
		if _, err := s.RunNow(t.Context(), account, "job"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		wantHistory(t, s, "succeeded/1 failed/1 succeeded/2") // a requested run is retried
	})
}

func TestSetListDelete(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.opts.Jobs = 3
		w.will(func(ctx context.Context, _ json.RawMessage) (any, error) { <-ctx.Done(); return nil, ctx.Err() })
		s := w.open(t)
		first := set(t, s, halfHourly())
		other := halfHourly()
		other.Name = "a"
		set(t, s, other)
		other.Account = "other"
		set(t, s, other)
		changed := halfHourly()
		changed.Cron = "@hourly"
		time.Sleep(time.Second)
		now := set(t, s, changed)
		if !now.Created.Equal(first.Created) || now.Updated.Equal(first.Updated) ||
			now.Next.Format("15:04") != "01:00" {
			t.Errorf("%+v", now)
		}
		if kept, err := s.Ensure(t.Context(), halfHourly()); err != nil || kept.Cron != "@hourly" {
			t.Errorf("%+v, %v", kept, err)
		}
		if jobs, err := s.List(t.Context(), account); err != nil || len(jobs) != 2 || jobs[0].Name != "a" {
			t.Errorf("%+v, %v", jobs, err)
		}
		other.Account, other.Name = account, "b"
		if _, err := s.Ensure(t.Context(), other); err != nil {
			t.Error(err)
		}
		other.Name = "c"
		_, err := s.Set(t.Context(), other)
		wantError(t, err, errors.Exhausted, "3 schedules", "remove")

		if _, err = s.RunNow(t.Context(), account, "job"); err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(t.Context(), account, "job"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if runs, err := w.store.Runs(t.Context(), account, "job", "", 9); err != nil || len(runs) != 0 {
			t.Errorf("%+v, %v", runs, err)
		}
		_, getting := s.Get(t.Context(), account, "job")
		_, running := s.RunNow(t.Context(), account, "job")
		_, pausing := s.Pause(t.Context(), account, "job")
		_, reading := s.History(t.Context(), account, "job", "", 1)
		for _, err := range []error{getting, running, pausing, reading, s.Delete(t.Context(), account, "job")} {
			wantError(t, err, errors.NotFound, `"job"`, "harvest schedule ls")
		}
	})
}

func TestBadJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newWorld(t).open(t)
		for want, change := range map[string]func(*schedule.Job){
			"cannot be a schedule's name": func(j *schedule.Job) { j.Name = "../x" },
			"no kind of jobs":             func(j *schedule.Job) { j.Kind = "x" },
			"arguments are not JSON":      func(j *schedule.Job) { j.Args = json.RawMessage("{") },
			"retries cannot be 11":        func(j *schedule.Job) { j.Retries = 11 },
			"retries cannot be -2":        func(j *schedule.Job) { j.Retries = -2 },
			"timeout_seconds cannot be":   func(j *schedule.Job) { j.TimeoutSeconds = -1 },
			"missed runs cannot be":       func(j *schedule.Job) { j.Missed = "x" },
			"is no schedule":              func(j *schedule.Job) { j.Cron = "x" },
			"no time zone":                func(j *schedule.Job) { j.Zone = "x" },
		} {
			job := halfHourly()
			change(&job)
			_, err := s.Set(t.Context(), job)
			wantError(t, err, errors.Invalid, want)
			if errors.RemedyOf(err) == "" {
				t.Errorf("%v has no remedy", err)
			}
		}
	})
}

// TestUnknownKindIsKept checks that a job of a newer server, or one whose function is gone, is kept unchanged.
func TestUnknownKindIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		job := halfHourly()
		job.Kind, job.Next, job.Paused = "gone", time.Now(), true
		if err := w.store.Put(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		s := w.open(t)
		time.Sleep(time.Hour)
		wantHistory(t, s, "")
		_, running := s.RunNow(t.Context(), account, "job")
		_, resuming := s.Resume(t.Context(), account, "job")
		wantError(t, running, errors.Invalid, "no kind of jobs", "[work]")
		wantError(t, resuming, errors.Invalid, "no kind of jobs")
	})
}

// faulty is a Store that fails on demand.
type faulty struct {
	schedule.Store
	mu  sync.Mutex
	err error // guarded by mu
}

func (f *faulty) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *faulty) get() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *faulty) Put(ctx context.Context, job schedule.Job, runs ...schedule.Run) error {
	if err := f.get(); err != nil {
		return err
	}
	return f.Store.Put(ctx, job, runs...)
}

func (f *faulty) Trim(ctx context.Context, account, job string, keep int) error {
	return errors.Join(f.get(), f.Store.Trim(ctx, account, job, keep))
}

func (f *faulty) Delete(ctx context.Context, account, job string) error {
	if err := f.get(); err != nil {
		return err
	}
	return f.Store.Delete(ctx, account, job)
}

func TestNothingRunsThatCannotBeRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		full := errors.Newf(errors.Exhausted, "the disk is full")
		store := &faulty{Store: w.store}
		w.store = store
		s := w.open(t)
		set(t, s, halfHourly())
		store.set(full)
		time.Sleep(31 * time.Minute)
		wantCalls(t, w, "")
		_, setting := s.Set(t.Context(), halfHourly())
		_, running := s.RunNow(t.Context(), account, "job")
		_, pausing := s.Pause(t.Context(), account, "job")
		for _, err := range []error{setting, running, pausing, s.Delete(t.Context(), account, "job")} {
			wantError(t, err, errors.Exhausted)
		}
		store.set(nil)
		time.Sleep(10 * time.Second)
		wantCalls(t, w, "00:31") // as soon as there is room again
		w.will(func(context.Context, json.RawMessage) (any, error) { store.set(full); return nil, nil })
		time.Sleep(40 * time.Minute)
		wantCalls(t, w, "01:00") // its end is not recorded, which is logged
		store.set(nil)
		wantHistory(t, s, "succeeded/1 running/1")
	})
}

// mission: F6
func TestOutputIsBoundedAndWithoutSecrets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const value = "schedule-canary-51f0"
		defer logf.Redact(value)()
		w := newWorld(t)
		s := w.open(t)
		set(t, s, halfHourly())
		for _, c := range []struct {
			output any
			err    error
			want   string
		}{
			{map[string]any{"a": value}, nil, `{"a":"[redacted]"}`},
			{func() {}, nil, `{"problem":"the output is not JSON, or far too long"}`},
			{strings.Repeat("x", 2<<20), nil, `{"problem":"the output is not JSON, or far too long"}`},
			{strings.Repeat("x", 100_000), nil,
				`{"head":"\"` + strings.Repeat("x", 32<<10-1) + `","truncated_bytes":100002}`},
			{nil, errors.Newf(errors.Invalid, "cannot use %s", value), ""},
		} {
			w.will(func(context.Context, json.RawMessage) (any, error) { return c.output, c.err })
			run, err := s.RunNow(t.Context(), account, "job")
			if err != nil {
				t.Fatal(err)
			}
			if run = wait(t, s, run); string(run.Output) != c.want || strings.Contains(run.Reason, value) {
				t.Errorf("%.100s %s", run.Output, run.Reason)
			}
		}
	})
}

func TestCloseDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		block := make(chan struct{})
		w.will(func(context.Context, json.RawMessage) (any, error) { <-block; return nil, nil })
		s := w.open(t)
		set(t, s, halfHourly())
		time.Sleep(31 * time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantError(t, s.Close(ctx), errors.Timeout)
		close(block)
	})
}
