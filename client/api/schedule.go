package api

import (
	"encoding/json"
	"time"
)

// ScheduleRequest is the body of POST /v1/schedules, which creates or replaces a schedule.
type ScheduleRequest struct {
	Name string `json:"name"`
	// Kind is the kind of the job: JobRun with a RunRequest as Args, JobPrompt with a PromptJob, or a job of the
	// server, "refresh" or "prune-events", which only the server's operator may set.
	Kind           string          `json:"kind"`
	Args           json.RawMessage `json:"args,omitempty"`
	Cron           string          `json:"cron"`                      // such as "*/30 * * * *", "@daily" or "@every 90m"
	Zone           string          `json:"zone,omitempty"`            // such as "Europe/Berlin"; "" means UTC
	Retries        int             `json:"retries,omitempty"`         // 0 means 3, and -1 none
	TimeoutSeconds float64         `json:"timeout_seconds,omitempty"` // of one attempt; 0 means 600
	Missed         string          `json:"missed,omitempty"`          // "run_once", the default, or "skip"
	Paused         bool            `json:"paused,omitempty"`
	New            bool            `json:"new,omitempty"` // do not replace an existing schedule: 409
}

// The kinds of jobs for every account.
const (
	JobRun    = "run"    // runs a command in a new sandbox
	JobPrompt = "prompt" // sends a prompt to a new session
)

// PromptJob is the Args of a schedule of the kind JobPrompt.
type PromptJob struct {
	Session SessionRequest `json:"session"`        // with a prompt
	Keep    bool           `json:"keep,omitempty"` // do not end the session after the turn
}

// PromptResult is the Output of a run of the kind JobPrompt. The Output of the kind JobRun is a Result.
type PromptResult struct {
	SessionID string `json:"session_id"`
	State     string `json:"state"` // of the message
	Reply     string `json:"reply"` // the agent's last words, shortened
	Usage     Usage  `json:"usage"`
	Kept      string `json:"kept,omitempty"` // why the session was not ended
}

// EventScheduleEnded is the type of the event at the end of each attempt of a scheduled job, in the stream of the
// account. Its data is a ScheduleEnded.
const EventScheduleEnded = "schedule.ended"

// ScheduleEnded describes an attempt that has ended. Its output is in the history of the schedule.
type ScheduleEnded struct {
	Schedule string `json:"schedule"`
	Kind     string `json:"kind"`
	RunID    string `json:"run_id"`
	Attempt  int    `json:"attempt"`
	Status   string `json:"status"` // as in ScheduleRun
	Reason   string `json:"reason,omitempty"`
	Final    bool   `json:"final"` // no retry follows
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
