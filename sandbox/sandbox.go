// Package sandbox runs sandboxes on an engine: it holds everything that is policy, such as names, quotas, time limits,
// records, recovery and cost. Fleet is the entry; Executor runs one piece of code.
//
// A Fleet writes a record first and then acts, so that the next server always knows what the last one was doing.
package sandbox

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
)

// Sandbox is the record of a sandbox: a snapshot that does not change by itself.
type Sandbox struct {
	ID        string            `json:"id"` // "sbx_" and a ULID in lower case
	Account   string            `json:"account"`
	Name      string            `json:"name,omitempty"`
	Tags      map[string]string `json:"tags,omitempty"`
	Engine    string            `json:"engine"`
	Isolation string            `json:"isolation"`
	Image     string            `json:"image"`    // as the request names it
	ImageID   string            `json:"image_id"` // "" until stage "image" is done
	Workdir   string            `json:"workdir,omitempty"`
	User      string            `json:"user,omitempty"`
	Volumes   []Mount           `json:"volumes,omitempty"`
	Secrets   []string          `json:"secrets,omitempty"` // their names
	Network   Network           `json:"network"`
	Ports     []int             `json:"ports,omitempty"`
	// Limits are those in force: a default that the engine cannot hold on this machine is zero here.
	Limits engine.Limits `json:"limits"`
	GPU    string        `json:"gpu,omitempty"` // as the request names it

	Status      Status  `json:"status"`
	Reason      string  `json:"reason,omitempty"`        // one sentence: why it failed, was lost or ended
	End         string  `json:"end,omitempty"`           // EndLifetime or EndIdle, if that ended it
	FailedStage string  `json:"failed_stage,omitempty"`  // the step of Create that failed
	OutOfMemory bool    `json:"out_of_memory,omitempty"` // it ended because its memory limit was reached
	Stages      []Stage `json:"stages"`
	Warm        bool    `json:"warm,omitempty"` // it came from the pool of booted sandboxes

	Created            time.Time `json:"created_at"`
	Started            time.Time `json:"started_at,omitzero"` // when it was ready for commands
	Ended              time.Time `json:"ended_at,omitzero"`
	Expires            time.Time `json:"expires_at"`
	LastUsed           time.Time `json:"last_used_at,omitzero"`
	IdleTimeoutSeconds float64   `json:"idle_timeout_seconds,omitempty"` // 0: no idle limit
	Cost               float64   `json:"cost_usd"`                       // so far, from Options.Prices

	Denials []engine.Denial `json:"denials,omitempty"` // the last of what the network policy refused, oldest first; equal ones together

	SnapshotOnEnd bool   `json:"snapshot_on_end,omitempty"` // as the request says
	SnapshotID    string `json:"snapshot_id,omitempty"`     // the image that was made on its end
	SnapshotError string `json:"snapshot_error,omitempty"`  // one sentence: why none was

	S3 *S3Volume `json:"s3,omitempty"`

	// Withheld are keys of Secrets that its commands did not get, as the request had it. A copy of the sandbox does not get them either.
	Withheld []string `json:"-"`

	// Handle, Commands and Denied are for recovery and not for clients.
	Handle   engine.Handle `json:"-"`
	Commands []Command     `json:"-"`
	Denied   uint64        `json:"-"` // Seq of the last denial that was made known
}

// Command is what recovery has to know of a command that runs.
type Command struct {
	ID       string    `json:"id"` // of the process
	Deadline time.Time `json:"deadline"`
	Detached bool      `json:"detached,omitempty"`
	// Background commands do not keep the sandbox from being idle.
	Background bool `json:"background,omitempty"`
}

// Stage is a step of Create that is done.
type Stage struct {
	Name string  `json:"name"` // "validate", "image", "secrets", "volumes", "create" (what the engine did beside its own stages), …
	MS   float64 `json:"ms"`
}

// Clone returns a copy that shares nothing with s.
func (s Sandbox) Clone() Sandbox {
	s.Tags = maps.Clone(s.Tags)
	s.Volumes = slices.Clone(s.Volumes)
	s.Secrets = slices.Clone(s.Secrets)
	s.Withheld = slices.Clone(s.Withheld)
	s.Network = s.Network.Clone()
	s.Ports = slices.Clone(s.Ports)
	s.Stages = slices.Clone(s.Stages)
	s.Commands = slices.Clone(s.Commands)
	s.Denials = slices.Clone(s.Denials)
	if s.S3 != nil {
		own := *s.S3
		s.S3 = &own
	}
	return s
}

// Filter of List. The zero value lists everything that has not ended.
type Filter struct {
	All      bool              // also those that have ended
	Statuses []Status          // if set, only these, whatever All says
	Name     string            // if set, only this name
	Tags     map[string]string // all of these
	Before   string            // an id: only older ones; the last id of a page gives the next page
	Limit    int               // 0: no limit
}

// Store keeps records. Package store has one on SQLite and one in memory; package storetest proves them.
type Store interface {
	// Put inserts or replaces the record of s.ID. Conflict if another sandbox of the account that has not ended has its name.
	Put(ctx context.Context, s Sandbox) error
	// Get returns a record. NotFound if there is none.
	Get(ctx context.Context, id string) (Sandbox, error)
	// List returns records of the account ("" means every account), newest first.
	List(ctx context.Context, account string, filter Filter) ([]Sandbox, error)
	// Find returns those of the account whose id begins with prefix: newest first, at most limit.
	Find(ctx context.Context, account, prefix string, limit int) ([]Sandbox, error)
	// Totals returns what the account's sandboxes have used that have ended, also those whose records were deleted.
	Totals(ctx context.Context, account string) (Totals, error)
	// Delete removes records of sandboxes that ended before the time, and what these have used, and returns how many.
	Delete(ctx context.Context, endedBefore time.Time) (int, error)
	// PutUsage keeps what the sandbox has used, instead of what was kept of that before. Its record exists.
	PutUsage(ctx context.Context, id string, u Usage) error
	// Usage returns that; the zero Usage if nothing is kept.
	Usage(ctx context.Context, id string) (Usage, error)
}

// NameTaken is what a Store's Put returns when the name is in use.
func NameTaken(name string) error {
	return errors.Remedy(errors.Newf(errors.Conflict, "a sandbox named %q exists already", name), "choose another name, or remove that one first")
}
