package api

import (
	"encoding/json"
	"time"
)

// ScheduleRequest is the body of POST /v1/schedules, which creates or replaces a schedule.
type ScheduleRequest struct {
	Name           string          `json:"name"`
	Kind           string          `json:"kind"` // kind of job: "refresh" or "prune-events"
	Args           json.RawMessage `json:"args,omitempty"`
	Cron           string          `json:"cron"`                      // such as "*/30 * * * *", "@daily" or "@every 90m"
	Zone           string          `json:"zone,omitempty"`            // such as "Europe/Berlin"; "" means UTC
	Retries        int             `json:"retries,omitempty"`         // 0 means 3, and -1 none
	TimeoutSeconds float64         `json:"timeout_seconds,omitempty"` // of one attempt; 0 means 600
	Missed         string          `json:"missed,omitempty"`          // "run_once", the default, or "skip"
	Paused         bool            `json:"paused,omitempty"`
}

// Schedule is a scheduled job.
type Schedule struct {
	Name           string          `json:"name"`
	Kind           string          `json:"kind"`
	Args           json.RawMessage `json:"args,omitempty"`
	Cron           string          `json:"cron"`
	Zone           string          `json:"zone,omitempty"`
	Retries        int             `json:"retries"`
	TimeoutSeconds float64         `json:"timeout_seconds"`
	Missed         string          `json:"missed"`
	Paused         bool            `json:"paused,omitempty"`
	Created        time.Time       `json:"created_at"`
	Updated        time.Time       `json:"updated_at"`
	Next           time.Time       `json:"next_at,omitzero"`
}

// ScheduleRun is one attempt of a scheduled job, or a record of why it did not run.
type ScheduleRun struct {
	ID       string          `json:"id"`
	Schedule string          `json:"schedule"`
	Due      time.Time       `json:"due_at,omitzero"` // missing if a user requested it
	Attempt  int             `json:"attempt"`
	Status   string          `json:"status"` // "running", "succeeded", "failed", "timed_out", "interrupted" or "skipped"
	Reason   string          `json:"reason,omitempty"`
	Output   json.RawMessage `json:"output,omitempty"`
	Started  time.Time       `json:"started_at"`
	Ended    time.Time       `json:"ended_at,omitzero"`
	Seconds  float64         `json:"duration_secs"`
	RetryAt  time.Time       `json:"retry_at,omitzero"`
}
