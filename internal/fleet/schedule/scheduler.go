package schedule

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/ids"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// Options of a Scheduler. Store is required. Other zero fields get the default given in their comments.
type Options struct {
	Store Store
	Kinds map[string]Func // functions by kind
	// Checks report wrong arguments of jobs when they are set, by kind. Kinds without a check accept all.
	Checks map[string]func(Job) error
	// Ended, if set, gets each attempt when it has ended. It must not block, or call the Scheduler.
	Ended func(Job, Run)
	// ByHand is for short-lived servers: only RunNow starts runs. Due and interrupted runs are left to a long-lived
	// server.
	ByHand bool
	Keep   int // runs per job in the history: 100
	Jobs   int // maximum number of jobs per account: 200

	Now func() time.Time // wall clock: time.Now
}

const (
	tick     = 30 * time.Second // interval for checking the clock, which may have been set
	lateness = time.Minute      // a run that starts later than this counts as missed
	setBack  = 3 * time.Hour    // a larger step back of the clock takes effect at once, as in cron

	firstPause  = 10 * time.Second // between attempts; doubles, with jitter
	longPause   = 10 * time.Minute
	storePause  = 5 * time.Second // after a failure to persist
	idPrefix    = "run_"
	maxListRuns = 1000
)

// Scheduler runs jobs. All methods may be called concurrently.
type Scheduler struct {
	opts  Options
	kinds []string

	ctx   context.Context // of all runs; ends with Close
	stop  context.CancelFunc
	wake  chan struct{}
	tasks sync.WaitGroup

	// mu is held while jobs and runs are persisted, which keeps memory and Store consistent; jobs are few.
	mu      sync.Mutex
	entries map[[2]string]*entry // guarded by mu; by account and name
}

// entry is a job. Its fields are guarded by Scheduler.mu.
type entry struct {
	job   Job
	times Times
	bad   error // set if the job can never be due: a newer server stored it

	running *Run // nil if it is not running
	cancel  context.CancelFunc
	retry   *Run // failed attempt with a pending retry; nil if none
	deleted bool
}

// Open loads the jobs in the Store. It marks interrupted runs as Interrupted and retries them according to their
// jobs. Missed runs are made up for or skipped.
func Open(ctx context.Context, opts Options) (*Scheduler, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	opts.Keep, opts.Jobs = cmp.Or(opts.Keep, 100), cmp.Or(opts.Jobs, 200)
	s := &Scheduler{opts: opts, kinds: slices.Sorted(maps.Keys(opts.Kinds)), wake: make(chan struct{}, 1),
		entries: map[[2]string]*entry{}}
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.recover(ctx); err != nil {
		s.stop()
		return nil, errors.Stage(err, "schedules")
	}
	s.tasks.Go(s.loop)
	return s, nil
}

func (s *Scheduler) recover(ctx context.Context) error {
	jobs, err := s.opts.Store.Jobs(ctx)
	if err != nil {
		return err
	}
	for _, job := range jobs {
		e := &entry{job: job}
		if _, e.times, e.bad = job.normal(s.kinds); e.bad != nil {
			logf.Warnf(ctx, "the schedule %s of %s does not run: %v", job.Name, job.Account, e.bad)
		}
		s.entries[[2]string{job.Account, job.Name}] = e
	}
	runs, err := s.opts.Store.Open(ctx)
	if err != nil {
		return err
	}
	for _, run := range runs {
		e := s.entries[[2]string{run.Account, run.Job}]
		if e == nil {
			continue
		}
		if run.Status == Running {
			run.Status, run.Reason, run.Ended = Interrupted, "the server ended while it ran", s.now()
			run.Seconds = max(0, run.Ended.Sub(run.Started).Seconds())
			if run.Attempt <= e.job.Retries {
				run.RetryAt = run.Ended
			}
			if err := s.opts.Store.Put(ctx, e.job, run); err != nil {
				return err
			}
			logf.Warnf(ctx, "attempt %d of the schedule %s was interrupted", run.Attempt, run.Job)
		}
		if run.RetryAt.IsZero() || s.opts.ByHand {
			continue
		}
		if err := s.takeUp(ctx, e, run); err != nil {
			return err
		}
	}
	return nil
}

// takeUp schedules the pending retry of an earlier server, unless the job has run since.
func (s *Scheduler) takeUp(ctx context.Context, e *entry, run Run) error {
	newest, err := s.opts.Store.Runs(ctx, run.Account, run.Job, "", s.opts.Keep)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(newest, func(r Run) bool { return r.Attempt > 0 }); i >= 0 && newest[i].ID != run.ID {
		return s.opts.Store.Put(ctx, e.job, withoutRetry(run))
	}
	e.retry = &run
	return nil
}

// Close cancels running jobs and waits until they have returned. The next server retries them.
func (s *Scheduler) Close(ctx context.Context) error {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.tasks.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.Wrapf(ctx.Err(), "wait for scheduled jobs")
	}
}

// now returns the time for records.
func (s *Scheduler) now() time.Time { return s.opts.Now().UTC().Truncate(time.Millisecond) }

// Set creates or replaces a job, and returns the result. A current run continues. Kinds: Invalid, Exhausted (too many
// jobs).
func (s *Scheduler) Set(ctx context.Context, job Job) (Job, error) {
	return s.set(ctx, job, replaceExisting)
}

// Create is Set for a new job. It returns Conflict if the job exists.
func (s *Scheduler) Create(ctx context.Context, job Job) (Job, error) {
	return s.set(ctx, job, refuseExisting)
}

// Ensure is Set for Harvest's built-in jobs: it does not change an existing job, which the user may have edited.
func (s *Scheduler) Ensure(ctx context.Context, job Job) (Job, error) {
	return s.set(ctx, job, keepExisting)
}

// existing says what set does with a job that exists.
type existing int

const (
	replaceExisting existing = iota
	keepExisting
	refuseExisting
)

func (s *Scheduler) set(ctx context.Context, job Job, policy existing) (Job, error) {
	job, times, err := job.normal(s.kinds)
	if err != nil {
		return Job{}, err
	}
	if check := s.opts.Checks[job.Kind]; check != nil {
		if err := check(job); err != nil {
			return Job{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := [2]string{job.Account, job.Name}
	e := s.entries[key]
	if e != nil && policy == keepExisting {
		return e.job, nil
	}
	if e != nil && policy == refuseExisting {
		return Job{}, errors.Remedy(errors.Newf(errors.Conflict, "schedule %q: exists already", job.Name),
			"change it with \"harvest schedule set\", or choose another name")
	}
	now := s.now()
	job.Created, job.Updated, job.Next = now, now, time.Time{}
	if e != nil {
		job.Created = e.job.Created
	} else if s.count(job.Account) >= s.opts.Jobs {
		return Job{}, errors.Remedy(errors.Newf(errors.Exhausted, "an account can have %d schedules", s.opts.Jobs),
			"remove unused ones")
	}
	if !job.Paused {
		job.Next = times.Next(now)
	}
	if err := s.opts.Store.Put(ctx, job); err != nil {
		return Job{}, err
	}
	if e == nil {
		e = &entry{}
		s.entries[key] = e
	}
	e.job, e.times, e.bad = job, times, nil
	s.look()
	logf.Infof(ctx, "schedule %s of %s: %s %s, next %s", job.Name, job.Account, job.Kind, job.Cron,
		job.Next.Format(time.RFC3339))
	return job, nil
}

func (s *Scheduler) count(account string) int {
	n := 0
	for key := range s.entries {
		if key[0] == account {
			n++
		}
	}
	return n
}

// Pause suspends a job until Resume. A current run continues, but pending retries are dropped.
func (s *Scheduler) Pause(ctx context.Context, account, name string) (Job, error) {
	return s.pause(ctx, account, name, true)
}

// Resume ends Pause. Runs that would have been due meanwhile are not made up for.
func (s *Scheduler) Resume(ctx context.Context, account, name string) (Job, error) {
	return s.pause(ctx, account, name, false)
}

func (s *Scheduler) pause(ctx context.Context, account, name string, paused bool) (Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.find(account, name)
	if err != nil {
		return Job{}, err
	}
	if e.job.Paused == paused {
		return e.job, nil
	}
	job := e.job
	job.Paused, job.Updated, job.Next = paused, s.now(), time.Time{}
	if !paused {
		if e.bad != nil {
			return Job{}, e.bad
		}
		job.Next = e.times.Next(job.Updated)
	}
	var runs []Run
	if e.retry != nil {
		runs = []Run{withoutRetry(*e.retry)}
	}
	if err := s.opts.Store.Put(ctx, job, runs...); err != nil {
		return Job{}, err
	}
	e.job, e.retry = job, nil
	s.look()
	logf.Infof(ctx, "schedule %s of %s: paused %t", name, account, paused)
	return job, nil
}

func withoutRetry(run Run) Run {
	run.RetryAt = time.Time{}
	return run
}

// find returns a job's entry. mu is held.
func (s *Scheduler) find(account, name string) (*entry, error) {
	e := s.entries[[2]string{account, name}]
	if e == nil {
		return nil, NotFound(name)
	}
	return e, nil
}

// Delete deletes a job with its history, and cancels its current run.
func (s *Scheduler) Delete(ctx context.Context, account, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.find(account, name)
	if err != nil {
		return err
	}
	if err := s.opts.Store.Delete(ctx, account, name); err != nil {
		return err
	}
	e.deleted = true
	if e.cancel != nil {
		e.cancel()
	}
	delete(s.entries, [2]string{account, name})
	logf.Infof(ctx, "schedule %s of %s deleted", name, account)
	return nil
}

// Get returns a job.
func (s *Scheduler) Get(_ context.Context, account, name string) (Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.find(account, name)
	if err != nil {
		return Job{}, err
	}
	return e.job, nil
}

// List returns the jobs of an account, by name.
func (s *Scheduler) List(_ context.Context, account string) ([]Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs := []Job{}
	for key, e := range s.entries {
		if key[0] == account {
			jobs = append(jobs, e.job)
		}
	}
	slices.SortFunc(jobs, func(a, b Job) int { return strings.Compare(a.Name, b.Name) })
	return jobs, nil
}

// History returns runs of a job, newest first, at most limit. If before is not "", only runs before the run with this
// ID are returned.
func (s *Scheduler) History(ctx context.Context, account, name, before string, limit int) ([]Run, error) {
	if _, err := s.Get(ctx, account, name); err != nil {
		return nil, err
	}
	if limit <= 0 || limit > maxListRuns {
		limit = maxListRuns
	}
	return s.opts.Store.Runs(ctx, account, name, before, limit)
}

// RunNow starts a run of a job at once, even if it is paused, and returns when that is persisted. Failures are
// retried as usual. It returns Conflict if the job is running already.
func (s *Scheduler) RunNow(ctx context.Context, account, name string) (Run, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.find(account, name)
	switch {
	case err != nil:
		return Run{}, err
	case e.bad != nil:
		return Run{}, e.bad
	case s.ctx.Err() != nil:
		return Run{}, errors.Newf(errors.Unavailable, "Harvest is shutting down")
	case e.running != nil:
		return Run{}, errors.Remedy(errors.Newf(errors.Conflict, "the schedule %q runs already, since %s", name,
			e.running.Started.Format(time.RFC3339)), "wait until it has ended")
	}
	return s.begin(ctx, e, e.job, time.Time{}, 1)
}

// look makes the loop check for due jobs.
func (s *Scheduler) look() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func newID() string { return idPrefix + ids.New() }
