// Package record holds the records of sandboxes: their states and events, and the contract of the Store that keeps
// them.
package record

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/docker/go-units"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/fleet/usage"
)

// Sandbox is the record of a sandbox: a snapshot that does not change by itself.
type Sandbox struct {
	ID        string            `json:"id"` // "sbx_" and a ULID in lower case
	Account   string            `json:"account"`
	Owner     string            `json:"owner,omitempty"` // account that a sandbox of SpareAccount is made for
	Name      string            `json:"name,omitempty"`
	Tags      map[string]string `json:"tags,omitempty"`
	Engine    string            `json:"engine"`
	Isolation string            `json:"isolation"`
	Image     string            `json:"image"`    // as in the request
	ImageID   string            `json:"image_id"` // "" until stage "image" is done
	Workdir   string            `json:"workdir,omitempty"`
	User      string            `json:"user,omitempty"`
	Volumes   []spec.Mount      `json:"volumes,omitempty"`
	Secrets   []string          `json:"secrets,omitempty"` // names
	Reveal    bool              `json:"reveal_secrets,omitempty"`
	// Notes say what its creator may not expect, one sentence each.
	Notes []string `json:"notes,omitempty"`
	// Borrows means that the sandbox may be lent credentials while it runs.
	Borrows bool `json:"borrows,omitempty"`
	// PerTurn means that it may use credentials only while fleet.LendNow says so.
	PerTurn bool `json:"per_turn,omitempty"`
	// LentHosts are the servers of the credentials that it was lent, as engine.Network names them.
	LentHosts []string `json:"lent_hosts,omitempty"`
	// Lent are those of Secrets of which the sandbox has placeholders.
	Lent    []string     `json:"lent_secrets,omitempty"`
	Network spec.Network `json:"network"`
	Ports   []int        `json:"ports,omitempty"`
	// PortDetails describe some of Ports.
	PortDetails []spec.PortDetail `json:"port_details,omitempty"`
	// Limits are the limits in force: a default that the engine cannot enforce on this machine is zero here.
	Limits engine.Limits `json:"limits"`
	GPU    string        `json:"gpu,omitempty"` // as in the request

	// StartCommand runs while the sandbox does.
	StartCommand []string `json:"start_command,omitempty"`

	Status      Status  `json:"status"`
	Reason      string  `json:"reason,omitempty"`        // one sentence: why it failed, was lost or ended
	End         string  `json:"end,omitempty"`           // EndLifetime or EndIdle, if that was the cause
	FailedStage string  `json:"failed_stage,omitempty"`  // failed step of Create
	OutOfMemory bool    `json:"out_of_memory,omitempty"` // ended because of its memory limit
	Stages      []Stage `json:"stages"`
	Warm        bool    `json:"warm,omitempty"` // from the pool of booted sandboxes

	Created            time.Time `json:"created_at"`
	Started            time.Time `json:"started_at,omitzero"` // when it was ready for commands
	Ended              time.Time `json:"ended_at,omitzero"`
	Expires            time.Time `json:"expires_at"`
	LastUsed           time.Time `json:"last_used_at,omitzero"`
	IdleTimeoutSeconds float64   `json:"idle_timeout_seconds,omitempty"` // 0: no idle limit
	IdleAction         string    `json:"idle_action,omitempty"`          // spec.IdleSuspend, or "" for the end
	Suspended          time.Time `json:"suspended_at,omitzero"`          // since when it is suspended
	SuspendedSeconds   float64   `json:"suspended_seconds,omitempty"`    // of earlier suspensions, until Suspended
	Cost               float64   `json:"cost_usd"`                       // so far, by the prices of the server

	// Denials are the last denials of the network policy, oldest first; equal ones are merged.
	Denials []engine.Denial `json:"denials,omitempty"`

	SnapshotOnEnd bool   `json:"snapshot_on_end,omitempty"` // as in the request
	SnapshotID    string `json:"snapshot_id,omitempty"`     // image created at its end
	SnapshotError string `json:"snapshot_error,omitempty"`  // one sentence: why there is no such image

	S3 *S3Volume `json:"s3,omitempty"`

	// Withheld are the keys of Secrets that the request withheld from its commands. A copy of the sandbox does not
	// receive them either.
	Withheld []string `json:"-"`

	// Handle, Commands, Denied and Suspension are for recovery and not for clients.
	Handle     engine.Handle `json:"-"`
	Commands   []Command     `json:"-"`
	Denied     uint64        `json:"-"` // Seq of the last published denial
	Suspension Suspension    `json:"-"`
}

// Suspension is the kept state of a suspended sandbox.
type Suspension struct {
	// Base is the ID of the image that the sandbox runs from, or continues to run from with its processes, if that
	// image is of an earlier suspension. It belongs to the sandbox.
	Base string `json:"base,omitempty"`
	// Image is the ID of the image of its files while it is suspended. It belongs to the sandbox.
	Image string `json:"image,omitempty"`
	// Checkpoint is the ID of the checkpoint with its processes; "" if they were not kept.
	Checkpoint string `json:"checkpoint,omitempty"`
	// Commands are those that continue with the processes, with their deadlines as of the suspension.
	Commands []Command `json:"commands,omitempty"`
}

// Command is the recovery data of a command that runs, or that was killed at its time limit.
type Command struct {
	ID       string    `json:"id"` // of the process
	Deadline time.Time `json:"deadline"`
	Overdue  string    `json:"overdue,omitempty"` // the reason of its end if it was killed at its time limit
	Detached bool      `json:"detached,omitempty"`
	// Background commands do not keep the sandbox from becoming idle.
	Background bool `json:"background,omitempty"`
}

// Stage is a completed step of Create.
type Stage struct {
	// Name is "validate", "image", "secrets", "volumes", "create" (the engine's time outside of its own stages), and
	// others.
	Name string  `json:"name"`
	MS   float64 `json:"ms"`
}

// Clone returns a copy that shares nothing with s.
func (s Sandbox) Clone() Sandbox {
	s.Tags = maps.Clone(s.Tags)
	s.Volumes = slices.Clone(s.Volumes)
	s.Secrets = slices.Clone(s.Secrets)
	s.Withheld = slices.Clone(s.Withheld)
	s.Lent = slices.Clone(s.Lent)
	s.LentHosts = slices.Clone(s.LentHosts)
	s.Notes = slices.Clone(s.Notes)
	s.Network = s.Network.Clone()
	s.Ports, s.PortDetails = slices.Clone(s.Ports), slices.Clone(s.PortDetails)
	s.StartCommand = slices.Clone(s.StartCommand)
	s.Stages = slices.Clone(s.Stages)
	s.Commands = slices.Clone(s.Commands)
	s.Denials = slices.Clone(s.Denials)
	s.Suspension.Commands = slices.Clone(s.Suspension.Commands)
	if s.S3 != nil {
		own := *s.S3
		s.S3 = &own
	}
	return s
}

// Filter of List. The zero value selects all sandboxes that have not ended.
type Filter struct {
	All      bool              // also ended ones
	Statuses []Status          // if set, only these; All is then ignored
	Name     string            // if set, only this name
	Tags     map[string]string // all of these
	Before   string            // an ID: only older ones; the last ID of a page gives the next page
	Limit    int               // 0: no limit
}

// Check returns Invalid for a filter that selects nothing by mistake.
func (f Filter) Check() error {
	for _, s := range f.Statuses {
		if !slices.Contains(Statuses, s) {
			return errors.Remedy(errors.Newf(errors.Invalid, "invalid status %.40q", s), "use one of %v", Statuses)
		}
	}
	if f.Limit < 0 {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid limit: %d", f.Limit),
			"give a positive number, or 0 for all")
	}
	return nil
}

// Store stores records. Package store implements it on SQLite; package storetest tests it.
type Store interface {
	// Put inserts or replaces the record of s.ID. It returns Conflict if another sandbox of the account that has not
	// ended has its name.
	Put(ctx context.Context, s Sandbox) error
	// Get returns a record, or NotFound.
	Get(ctx context.Context, id string) (Sandbox, error)
	// List returns records of the account ("" means every account), newest first.
	List(ctx context.Context, account string, filter Filter) ([]Sandbox, error)
	// Find returns the account's records whose ID begins with prefix: newest first, at most limit.
	Find(ctx context.Context, account, prefix string, limit int) ([]Sandbox, error)
	// Totals returns the total usage of the account's ended sandboxes, including those whose records were deleted.
	Totals(ctx context.Context, account string) (Totals, error)
	// Delete deletes the records and usage of sandboxes that ended before the time, and returns how many.
	Delete(ctx context.Context, endedBefore time.Time) (int, error)
	usage.Store
}

// NameTaken returns the error of a Store's Put if the name is in use.
func NameTaken(name string) error {
	return errors.Remedy(errors.Newf(errors.Conflict, "sandbox %q: already exists", name),
		"choose another name, or remove the existing sandbox first")
}

// Reasons for the end of a sandbox without a request.
const (
	EndLifetime = "lifetime" // its lifetime expired
	EndIdle     = "idle"     // it reached its idle limit
)

// S3Volume is the state of Request.S3.
type S3Volume struct {
	spec.S3
	Volume string `json:"volume"`
	// SyncError is one sentence: why the volume could not be sent when the sandbox ended. The transfer is retried.
	SyncError string `json:"sync_error,omitempty"`
	// MountError is one sentence: why the mount no longer works, and what to do.
	MountError string `json:"mount_error,omitempty"`
}

// Accounts of sandboxes that the server makes for itself. Clients cannot use them, and they have no quota.
const (
	// SpareAccount is the account of sandboxes that are made ahead for their Owner, until they are adopted. The package
	// that makes them limits their number. Their volumes, secrets and images are those of the owner. They take no
	// snapshot on their end, their idle limit does not count, and recovery ends them.
	SpareAccount = "harvest-spares"
	// BuildAccount is the account of sandboxes that build images. Package dockerfile limits their number. After a
	// restart these sandboxes are orphans, and recovery ends them.
	BuildAccount = "harvest-build"
)

// Internal reports whether the account is that of sandboxes that the server makes for itself.
func Internal(account string) bool { return account == BuildAccount || account == SpareAccount }

// Again returns a request for another sandbox like s, which may be repeated although rules have changed since. Name and
// environment are not part of it: names are unique, and the environment is in no record.
func (s Sandbox) Again(rules spec.Rules) spec.Request {
	req := spec.Request{
		Image: s.ImageID, Tags: spec.UserTags(s.Tags), Secrets: s.Secrets, Reveal: s.Reveal, Borrows: s.Borrows,
		PerTurn: s.PerTurn, Withhold: s.Withheld, Ports: s.Ports, PortDetails: s.PortDetails,
		Workdir: s.Workdir, User: s.User, Volumes: s.Volumes, Network: s.Network, GPU: s.GPU,
		CPU: s.Limits.CPU, Memory: s.Limits.Memory, Disk: s.Limits.Disk,
		Processes: s.Limits.Processes, Files: s.Limits.Files,
		VolumeFiles:        min(s.Limits.VolumeFiles, rules.Defaults.VolumeFiles),
		TimeoutSeconds:     min(s.Life(), rules.Timeouts.MaxLife).Seconds(),
		IdleTimeoutSeconds: s.IdleTimeoutSeconds, IdleAction: s.IdleAction, StartCommand: s.StartCommand,
		SnapshotOnEnd: s.SnapshotOnEnd,
	}
	if len(rules.Isolations) > 0 { // if the kind is no longer allowed, the request is refused rather than changed
		req.Isolation = s.Engine
	}
	if s.S3 != nil {
		own := s.S3.S3
		own.Init = false // the volume is filled already
		req.S3 = &own
	}
	return req
}

// EndReason returns the reason for an end without a request.
func (s Sandbox) EndReason(end engine.End) string {
	switch {
	case end.OutOfMemory && s.Limits.Memory > 0:
		return "it exceeded its memory limit of " + units.BytesSize(float64(s.Limits.Memory))
	case end.OutOfMemory:
		return "it exceeded the memory of the machine"
	case end.Destroyed:
		return "it was destroyed by another program than Harvest's server"
	}
	return cmp.Or(end.Detail, "it ended by itself")
}

// Ran returns how long the sandbox has run until at. The time in which it was suspended does not count.
func (s Sandbox) Ran(at time.Time) time.Duration {
	if s.Started.IsZero() {
		return 0
	}
	if !s.Suspended.IsZero() {
		at = s.Suspended
	}
	return max(0, at.Sub(s.Started)-time.Duration(s.SuspendedSeconds*float64(time.Second)))
}

// Life returns the lifetime that the sandbox was given.
func (s Sandbox) Life() time.Duration {
	return s.Expires.Sub(s.Started) - time.Duration(s.SuspendedSeconds*float64(time.Second))
}

// Woken changes the record of a suspended sandbox when its suspension ends: its lifetime did not pass meanwhile.
func (s *Sandbox) Woken(at time.Time) {
	if s.Suspended.IsZero() {
		return
	}
	slept := max(0, at.Sub(s.Suspended))
	s.Expires = s.Expires.Add(slept)
	s.SuspendedSeconds += slept.Seconds()
	s.Suspended = time.Time{}
}

// Holder returns the account whose volumes, secrets and images the sandbox uses.
func (s Sandbox) Holder() string { return cmp.Or(s.Owner, s.Account) }

// MayBorrow reports whether the sandbox has placeholders of credentials, or may get some.
func (s Sandbox) MayBorrow() bool { return len(s.Lent) > 0 || s.Borrows }

// SyncsAtEnd reports whether the sandbox's volume is sent to S3 when the sandbox ends.
func (s Sandbox) SyncsAtEnd() bool { return s.S3 != nil && s.S3.SyncOnTerminate && !s.S3.Mount }

// Totals is the total usage of an account's sandboxes.
type Totals struct {
	Sandboxes int
	Seconds   float64 // from each start to the end, or until now, without suspensions
	Cost      float64 // USD, by the prices of that time
}

// Add adds the usage of s until now.
func (t *Totals) Add(s Sandbox, now time.Time) {
	if !s.Ended.IsZero() {
		now = s.Ended
	}
	t.Sandboxes++
	t.Cost += s.Cost
	t.Seconds += s.Ran(now).Seconds()
}
