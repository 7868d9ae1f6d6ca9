package schedule

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// maxOutput is the size limit for the output of a run in the history, in bytes of JSON.
const maxOutput = 64 << 10

// loop starts due jobs until Close.
func (s *Scheduler) loop() {
	for s.ctx.Err() == nil {
		timer := time.NewTimer(s.step())
		select {
		case <-timer.C:
		case <-s.wake:
		case <-s.ctx.Done():
		}
		timer.Stop()
	}
}

// step starts due jobs, and returns when to check again.
func (s *Scheduler) step() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return tick
	}
	now := s.now()
	wait := tick
	for _, e := range s.entries {
		if e.bad != nil {
			continue
		}
		if err := s.due(e, now); err != nil {
			logf.Errorf(s.ctx, "the schedule %s of %s: %v", e.job.Name, e.job.Account, err)
			wait = min(wait, storePause)
			continue
		}
		if !e.job.Next.IsZero() && !s.opts.ByHand {
			wait = min(wait, e.job.Next.Sub(now))
		}
		if e.retry != nil && e.running == nil {
			wait = min(wait, e.retry.RetryAt.Sub(now))
		}
	}
	return max(wait, time.Millisecond)
}

// due starts e if it is due, or records why it was skipped. mu is held.
func (s *Scheduler) due(e *entry, now time.Time) error {
	next := e.job.Next
	if s.opts.ByHand {
		next = time.Time{}
	}
	if !next.IsZero() && next.Sub(e.times.NextAfter(now, now)) > setBack {
		// The clock was set back by so much that it must have been wrong before.
		job := e.job
		job.Next = e.times.NextAfter(now, now)
		logf.Warnf(s.ctx, "the clock was set back: the schedule %s is due at %s now", job.Name,
			job.Next.Format(time.RFC3339))
		if err := s.opts.Store.Put(s.ctx, job); err != nil {
			return err
		}
		e.job = job
	}
	if !next.IsZero() && !now.Before(next) {
		return s.fire(e, next, now)
	}
	if r := e.retry; r != nil && e.running == nil && (!now.Before(r.RetryAt) || r.RetryAt.Sub(now) > longPause) {
		_, err := s.begin(s.ctx, e, e.job, r.Due, r.Attempt+1)
		return err
	}
	return nil
}

// fire runs a job that is due. It skips the job if it is still running, or if the due time was missed and its policy
// is Skip. mu is held.
func (s *Scheduler) fire(e *entry, due, now time.Time) error {
	job := e.job
	job.Next = e.times.NextAfter(due, now)
	skip := ""
	switch {
	case e.running != nil:
		skip = "the run that began at " + e.running.Started.Format(time.RFC3339) + " is still running"
	case now.Sub(due) > lateness && job.Missed == Skip:
		skip = "its time was over by " + now.Sub(due).Round(time.Second).String() +
			", since no server was running or the clock was set"
	}
	if skip == "" {
		_, err := s.begin(s.ctx, e, job, due, 1)
		return err
	}
	run := Run{ID: newID(), Account: job.Account, Job: job.Name, Due: due, Status: Skipped, Reason: skip,
		Started: now, Ended: now}
	if err := s.opts.Store.Put(s.ctx, job, run); err != nil {
		return err
	}
	e.job = job
	logf.Warnf(s.ctx, "the schedule %s is skipped: %s", job.Name, skip)
	return nil
}

// begin persists that e is running with the definition job, and then starts the run. The run replaces a pending
// retry. mu is held.
func (s *Scheduler) begin(ctx context.Context, e *entry, job Job, due time.Time, attempt int) (Run, error) {
	run := Run{ID: newID(), Account: job.Account, Job: job.Name, Due: due, Attempt: attempt, Status: Running,
		Started: s.now()}
	runs := []Run{run}
	if e.retry != nil {
		runs = append(runs, withoutRetry(*e.retry))
	}
	if err := s.opts.Store.Put(ctx, job, runs...); err != nil {
		return Run{}, err
	}
	shown := run
	e.job, e.retry, e.running = job, nil, &shown
	timeout := time.Duration(job.TimeoutSeconds * float64(time.Second))
	running, cancel := context.WithTimeout(logf.With(s.ctx, "schedule", job.Name, "run_id", run.ID), timeout)
	e.cancel = cancel
	logf.Infof(running, "attempt %d begins", attempt)
	s.tasks.Go(func() {
		start := time.Now()
		output, err := s.call(running, job)
		s.ended(running, e, run, output, err, time.Since(start))
		cancel()
	})
	return run, nil
}

// call calls the function of a job. A panic becomes an error of that job and does not end the server.
func (s *Scheduler) call(ctx context.Context, job Job) (output any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errors.Errorf("a panic: %v\n%s", p, debug.Stack())
		}
	}()
	return s.opts.Kinds[job.Kind](ctx, job)
}

// ended persists the result of a run, and schedules a retry if necessary.
func (s *Scheduler) ended(ctx context.Context, e *entry, run Run, output any, err error, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.look()
	e.running, e.cancel = nil, nil
	if e.deleted {
		return
	}
	run.Ended, run.Seconds, run.Output = s.now(), took.Seconds(), encode(output)
	switch {
	case err == nil:
		run.Status = Succeeded
		logf.Infof(ctx, "attempt %d succeeded after %s", run.Attempt, took.Round(time.Millisecond))
	case s.ctx.Err() != nil:
		run.Status, run.Reason = Interrupted, "the server ended while it ran"
	case ctx.Err() != nil:
		run.Status, run.Reason = TimedOut, fmt.Sprintf("its time limit of %s was reached",
			time.Duration(e.job.TimeoutSeconds*float64(time.Second)))
	default:
		run.Status, run.Reason = Failed, reason(err)
	}
	if err != nil {
		if run.Attempt <= e.job.Retries && !e.job.Paused && !final(err) {
			run.RetryAt = run.Ended
			if run.Status != Interrupted {
				run.RetryAt = run.Ended.Add(pauseAfter(run.Attempt))
			}
		}
		logf.Warnf(ctx, "attempt %d: %s (again: %t): %v", run.Attempt, run.Status, !run.RetryAt.IsZero(), err)
	}
	// Close must not interrupt this: the result must be recorded.
	keep := context.WithoutCancel(ctx)
	if err := s.opts.Store.Put(keep, e.job, run); err != nil {
		logf.Errorf(ctx, "record how the schedule went: %v", err)
	}
	if !run.RetryAt.IsZero() {
		e.retry = &run
	}
	if s.opts.Ended != nil {
		s.opts.Ended(e.job, run)
	}
	if err := s.opts.Store.Trim(keep, run.Account, run.Job, s.opts.Keep); err != nil {
		logf.Errorf(ctx, "shorten the history: %v", err)
	}
}

// final reports whether retries of err are useless.
func final(err error) bool {
	switch errors.KindOf(err) {
	case errors.Invalid, errors.Unsupported, errors.Denied, errors.Unauthenticated, errors.NotFound:
		return true
	}
	return false
}

// reason formats err for the history.
func reason(err error) string {
	text := errors.Message(err)
	if stage := errors.StageOf(err); stage != "" {
		text = stage + ": " + text
	}
	if remedy := errors.RemedyOf(err); remedy != "" {
		text += "; " + remedy
	}
	return logf.Redacted(text)
}

// pauseAfter returns the pause after an attempt: doubled each time, with jitter.
func pauseAfter(attempt int) time.Duration {
	pause := min(firstPause<<(attempt-1), longPause)
	return pause/2 + rand.N(pause/2)
}

// encode encodes output for the history.
func encode(output any) json.RawMessage {
	if output == nil {
		return nil
	}
	text, err := event.Encode(output)
	if err != nil {
		text, err = event.Encode(map[string]string{"problem": "the output is not JSON, or far too long"})
	}
	if err == nil && len(text) > maxOutput {
		text, err = event.Encode(map[string]any{"truncated_bytes": len(text), "head": string(text[:maxOutput/2])})
	}
	if err != nil {
		return nil
	}
	return text
}
