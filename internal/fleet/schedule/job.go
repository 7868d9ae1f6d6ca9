// Package schedule runs jobs at scheduled times. A job calls a function that is registered by kind, with retries, a
// time limit and a history.
//
// Scheduler is the entry point. It persists each step before it acts, so that the next server knows which runs were
// interrupted. Runs of a job never overlap.
package schedule

import (
	"context"
	"encoding/json"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// Job is a scheduled job.
type Job struct {
	Account string          `json:"-"`
	Name    string          `json:"name"`           // unique within the account
	Kind    string          `json:"kind"`           // selects the function: a key of Options.Kinds
	Args    json.RawMessage `json:"args,omitempty"` // for the function
	Cron    string          `json:"cron"`           // see Times
	Zone    string          `json:"zone,omitempty"` // such as "Europe/Berlin"; "" is UTC

	Retries        int     `json:"retries"`         // after a failure; 0 means 3, and NoRetries none
	TimeoutSeconds float64 `json:"timeout_seconds"` // of one attempt; 0 means 600
	Missed         Missed  `json:"missed"`          // "" means RunOnce
	Paused         bool    `json:"paused,omitempty"`

	Created time.Time `json:"created_at"`
	Updated time.Time `json:"updated_at"`
	Next    time.Time `json:"next_at,omitzero"` // zero while paused
}

// NoRetries is the value of Job.Retries for no retries.
const NoRetries = -1

// Missed is the policy for runs that came due while no server was running.
type Missed string

// The policies.
const (
	RunOnce Missed = "run_once" // one run replaces all missed ones
	Skip    Missed = "skip"     // the history records that they were missed
)

// Status is the state of a Run.
type Status string

// The states.
const (
	Running     Status = "running"
	Succeeded   Status = "succeeded"
	Failed      Status = "failed"
	TimedOut    Status = "timed_out"
	Interrupted Status = "interrupted" // the server ended during the run
	Skipped     Status = "skipped"     // did not run; Reason says why
)

// Run is one attempt of a job, or a record of why it did not run.
type Run struct {
	ID      string          `json:"id"` // "run_" and a ULID in lower case
	Account string          `json:"-"`
	Job     string          `json:"job"`
	Due     time.Time       `json:"due_at,omitzero"` // zero if a user requested it
	Attempt int             `json:"attempt"`         // from 1; 0 if skipped
	Status  Status          `json:"status"`
	Reason  string          `json:"reason,omitempty"` // one sentence: why it failed or was skipped
	Output  json.RawMessage `json:"output,omitempty"` // result of the function, limited in size, with secrets redacted
	Started time.Time       `json:"started_at"`
	Ended   time.Time       `json:"ended_at,omitzero"`
	Seconds float64         `json:"duration_seconds"`
	RetryAt time.Time       `json:"retry_at,omitzero"` // when the next attempt begins; reset to zero when it has begun
}

// Func is the function of a job, which it must not change. output must be encodable by encoding/json. The function must
// return soon after ctx ends. Errors of kind Invalid, Unsupported and Denied are not retried.
type Func func(ctx context.Context, job Job) (output any, err error)

// Store stores jobs and runs. Package store implements it on SQLite and in memory; package storetest tests the
// implementations.
type Store interface {
	// Put inserts or replaces a job and runs of it, atomically.
	Put(ctx context.Context, job Job, runs ...Run) error
	// Jobs returns all jobs, by account and name.
	Jobs(ctx context.Context) ([]Job, error)
	// Delete removes a job and its runs. It returns NotFound if the job does not exist.
	Delete(ctx context.Context, account, name string) error
	// Runs returns at most limit runs of the job, newest first. If before is not "", only runs before the run with
	// this ID are returned.
	Runs(ctx context.Context, account, job, before string, limit int) ([]Run, error)
	// Open returns all runs that are Running or have RetryAt.
	Open(ctx context.Context) ([]Run, error)
	// Trim removes all but the newest runs of the job.
	Trim(ctx context.Context, account, job string, keep int) error
}

// NotFound returns the error of a Store's Delete and of the Scheduler for a job that does not exist.
func NotFound(name string) error {
	return errors.Remedy(errors.Newf(errors.NotFound, "there is no schedule %.80q", name),
		"list those there are with \"harvest schedule ls\"")
}

const (
	defaultRetries = 3
	maxRetries     = 10
	defaultTimeout = 10 * time.Minute
	maxTimeout     = 24 * time.Hour
	maxArgs        = 64 << 10
)

var namePattern = pattern.New(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)

// normal returns j with its defaults filled in, or an error if it is invalid.
func (j Job) normal(kinds []string) (Job, Times, error) {
	invalid := func(remedy, format string, args ...any) (Job, Times, error) {
		return j, Times{}, errors.Remedy(errors.Newf(errors.Invalid, format, args...), "%s", remedy)
	}
	if !namePattern().MatchString(j.Name) {
		return invalid("use 1 to 63 letters, digits, '_', '.' or '-', beginning with a letter or digit",
			"%.100q cannot be a schedule's name", j.Name)
	}
	known := false
	for _, k := range kinds {
		known = known || k == j.Kind
	}
	switch {
	case !known:
		return j, Times{}, errors.Remedy(errors.Newf(errors.Invalid, "there is no kind of jobs %.80q", j.Kind),
			"use one of %v", kinds)
	case len(j.Args) > maxArgs || len(j.Args) > 0 && !json.Valid(j.Args):
		return invalid("give JSON of up to 64 KiB", "the arguments are not JSON, or too much of it")
	case j.Retries < NoRetries || j.Retries > maxRetries:
		return invalid("give 1 to 10, -1 for none, or 0 for the default, 3", "retries cannot be %d", j.Retries)
	case !(j.TimeoutSeconds >= 0 && j.TimeoutSeconds <= maxTimeout.Seconds()):
		return invalid("give up to 86400 seconds, or 0 for the default, 600", "timeout_seconds cannot be %v",
			j.TimeoutSeconds)
	case j.Missed != "" && j.Missed != RunOnce && j.Missed != Skip:
		return invalid("use run_once or skip", "missed runs cannot be %.40q", string(j.Missed))
	}
	if j.Retries == 0 {
		j.Retries = defaultRetries
	}
	if j.TimeoutSeconds == 0 {
		j.TimeoutSeconds = defaultTimeout.Seconds()
	}
	if j.Missed == "" {
		j.Missed = RunOnce
	}
	times, err := ParseTimes(j.Cron, j.Zone)
	return j, times, err
}
