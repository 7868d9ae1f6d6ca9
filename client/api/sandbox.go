package api

import "time"

// SandboxRequest is the body of POST /v1/sandboxes. Every field is optional.
type SandboxRequest struct {
	Image string `json:"image,omitempty"` // "" means "base"
	// Commands are Dockerfile instructions to run on top of the image.
	Commands []string          `json:"dockerfile_commands,omitempty"`
	Name     string            `json:"name,omitempty"`
	Tags     map[string]string `json:"tags,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	// Secrets are names of secrets whose pairs are added to Env; Env takes precedence. modal:NAME is a secret that
	// Modal stores.
	Secrets []string `json:"secrets,omitempty"`
	// Reveal gives commands the values of secrets that are bound to hosts. Otherwise they have placeholders.
	Reveal   bool    `json:"reveal_secrets,omitempty"`
	Workdir  string  `json:"workdir,omitempty"`
	User     string  `json:"user,omitempty"`
	Hostname string  `json:"hostname,omitempty"`
	Volumes  []Mount `json:"volumes,omitempty"`
	Engine   string  `json:"engine,omitempty"`
	// Isolation is "gvisor", or "container", which is faster and shares the kernel of the server's machine; "" means
	// the server's default.
	Isolation string  `json:"isolation,omitempty"`
	Network   Network `json:"network,omitzero"`
	Ports     []int   `json:"ports,omitempty"` // that its user intends to connect to

	CPU         float64 `json:"cpu,omitempty"` // cores; 0 means the default, here and below
	Memory      int64   `json:"memory_bytes,omitempty"`
	Disk        int64   `json:"disk_bytes,omitempty"`
	Processes   int     `json:"processes,omitempty"`
	Files       int     `json:"open_files,omitempty"`
	VolumeFiles int     `json:"volume_files,omitempty"` // of each writable volume; at most what the server allows
	GPU         string  `json:"gpu,omitempty"`          // such as "T4", or "A100:2" for two, if the engine has GPUs

	TimeoutSeconds     float64 `json:"timeout_seconds,omitempty"`
	IdleTimeoutSeconds float64 `json:"idle_timeout_seconds,omitempty"`
	// IdleAction is what happens at the idle limit: "end", the default, or "suspend". The next operation on a suspended
	// sandbox, such as a command or a connection to a port, wakes it.
	IdleAction string `json:"idle_action,omitempty"`
	// StartCommand is a program with its arguments that starts with the sandbox, and again when the sandbox wakes
	// without its processes. It does not keep the sandbox from becoming idle. Everybody who sees the sandbox sees it.
	StartCommand []string `json:"start_command,omitempty"`

	// SnapshotOnEnd creates an image of the sandbox's files at its end, whatever the cause.
	SnapshotOnEnd bool `json:"snapshot_on_end,omitempty"`

	// S3 requests a volume that is synchronized with S3.
	S3 *S3 `json:"s3,omitempty"`

	Cold bool `json:"cold,omitempty"` // do not use a sandbox from the warm pool
}

// Mount mounts a volume at a path. The volume is created if missing.
type Mount struct {
	Name     string `json:"name"`
	Path     string `json:"path"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Place is a place in S3, of a sandbox or of one sync.
type Place struct {
	Bucket string `json:"bucket,omitempty"` // a bucket of the account; "" means the server's
	Prefix string `json:"prefix,omitempty"` // in the bucket
	Secret string `json:"secret,omitempty"` // secret with the bucket's credentials; "" means "aws"
}

// S3 is a location in S3 for the files of the volume at MountPath: one of the request's volumes, or else one for this
// bucket and prefix.
type S3 struct {
	Place
	MountPath string `json:"mount_path"`
	// Init copies the files from S3 into the volume before the sandbox is ready.
	Init bool `json:"init,omitempty"`
	// SyncOnTerminate copies the volume to S3 when the sandbox ends, in whatever way.
	SyncOnTerminate bool `json:"sync_on_terminate,omitempty"`
	// SyncEverySeconds is the interval at which the volume is copied to S3 while the sandbox runs; 0 means never.
	SyncEverySeconds float64 `json:"sync_every_seconds,omitempty"`
	Mount            bool    `json:"mount,omitempty"`     // mount the bucket itself, without a volume
	ReadOnly         bool    `json:"read_only,omitempty"` // of mount
}

// SandboxS3 is the state of SandboxRequest.S3.
type SandboxS3 struct {
	S3
	Volume string `json:"volume"`
	// SyncError says why some data was not in S3 when the sandbox ended. The transfer is retried.
	SyncError string `json:"sync_error,omitempty"`
	// MountError says why the mount no longer works, and what to do.
	MountError string `json:"mount_error,omitempty"`
}

// SandboxSyncRequest is the body of POST /v1/sandboxes/{id}/sync. The response is a Synced.
type SandboxSyncRequest struct {
	Direction  string `json:"direction"`             // "up": volume to bucket, "down" or "both"
	DeleteMany bool   `json:"delete_many,omitempty"` // as in VolumeSyncRequest
}

// Network is a sandbox's network policy, and the body of POST /v1/sandboxes/{id}/network. Rules are domains
// ("example.org", "*.example.org"), addresses and CIDRs, each with an optional ":port".
type Network struct {
	// Mode is "none", "default" (the internet) or "allow"; "" is "default" if the engine has a network.
	Mode  string   `json:"mode,omitempty"`
	Allow []string `json:"allow,omitempty"` // destinations of "allow", and additional ones of "default"
	Deny  []string `json:"deny,omitempty"`  // wins over Allow
}

// Limits are the limits in force; zero means no limit.
type Limits struct {
	CPU       float64 `json:"cpu"`
	Memory    int64   `json:"memory_bytes"`
	Disk      int64   `json:"disk_bytes"`
	Processes int     `json:"processes"`
	Files     int     `json:"open_files"`

	VolumeFiles int `json:"volume_files"`
}

// Stage is a completed step of creating a sandbox.
type Stage struct {
	Name string  `json:"name"`
	MS   float64 `json:"ms"`
}

// Sandbox is a sandbox.
type Sandbox struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
	// Status is "creating", "running", "suspended", "stopping", "terminated", "failed" or "lost".
	Status      string            `json:"status"`
	Reason      string            `json:"reason,omitempty"`
	FailedStage string            `json:"failed_stage,omitempty"`
	OutOfMemory bool              `json:"out_of_memory,omitempty"`
	Engine      string            `json:"engine"`
	Isolation   string            `json:"isolation"`
	Image       string            `json:"image"`
	ImageID     string            `json:"image_id,omitempty"`
	Tags        map[string]string `json:"tags,omitempty"`
	Workdir     string            `json:"workdir,omitempty"`
	User        string            `json:"user,omitempty"`
	Volumes     []Mount           `json:"volumes,omitempty"`
	Secrets     []string          `json:"secrets,omitempty"`      // names
	Lent        []string          `json:"lent_secrets,omitempty"` // of which commands have placeholders
	Network     Network           `json:"network"`
	Ports       []int             `json:"ports,omitempty"`
	PortDetails []PortDetail      `json:"port_details,omitempty"` // of some of Ports
	Limits      Limits            `json:"limits"`
	GPU         string            `json:"gpu,omitempty"`
	Stages      []Stage           `json:"stages"`
	// Notes say what its creator may not expect, such as a network policy that forbids the hosts of a secret.
	Notes              []string   `json:"notes,omitempty"`
	Warm               bool       `json:"warm,omitempty"` // from the warm pool
	Created            time.Time  `json:"created_at"`
	Started            time.Time  `json:"started_at,omitzero"`
	Ended              time.Time  `json:"ended_at,omitzero"`
	Expires            time.Time  `json:"expires_at"` // while it is suspended: as of Suspended; the rest passes later
	LastUsed           time.Time  `json:"last_used_at,omitzero"`
	IdleTimeoutSeconds float64    `json:"idle_timeout_seconds,omitempty"`
	IdleAction         string     `json:"idle_action,omitempty"` // "suspend", or "" for the end
	StartCommand       []string   `json:"start_command,omitempty"`
	Suspended          time.Time  `json:"suspended_at,omitzero"`       // while it is suspended
	SuspendedSeconds   float64    `json:"suspended_seconds,omitempty"` // of earlier suspensions
	CostUSD            float64    `json:"cost_usd"`
	Denials            []Denial   `json:"denials,omitempty"` // last denials of its network policy, oldest first
	SnapshotOnEnd      bool       `json:"snapshot_on_end,omitempty"`
	SnapshotID         string     `json:"snapshot_id,omitempty"`    // image created at its end
	SnapshotError      string     `json:"snapshot_error,omitempty"` // why there is no such image
	S3                 *SandboxS3 `json:"s3,omitempty"`
}

// PortDetail describes the server that listens on a port, as a dev container's portsAttributes does.
type PortDetail struct {
	Port     int    `json:"port"`
	Label    string `json:"label,omitempty"`    // a name for people
	Protocol string `json:"protocol,omitempty"` // "http" or "https"; "" if unknown
}

// Used is the resource usage of a sandbox over its life, also after its end.
type Used struct {
	// Interval is the approximate time between samples; it grows with the sandbox's age.
	Interval   float64       `json:"interval_seconds"`
	PeakMemory int64         `json:"peak_memory_bytes"`
	Samples    []UsageSample `json:"samples"` // oldest first; a sandbox that ended within a second or two has none
}

// UsageSample is the cumulative usage at a time.
type UsageSample struct {
	Time     time.Time `json:"at"`
	CPU      float64   `json:"cpu_seconds"`    // processor time so far
	Memory   int64     `json:"memory_bytes"`   // current use, without the page cache
	Received int64     `json:"received_bytes"` // by its network interface so far
	Sent     int64     `json:"sent_bytes"`     // by its network interface so far
}

// Denial is a connection or a lookup that a sandbox's network policy refused.
type Denial struct {
	Time     time.Time `json:"time"`             // of the last one
	Protocol string    `json:"protocol"`         // "tcp", "udp", "icmp" or "dns"
	Domain   string    `json:"domain,omitempty"` // as looked up, or as named by the connection
	Address  string    `json:"address,omitempty"`
	Port     int       `json:"port,omitempty"`
	Reason   string    `json:"reason"` // one sentence
	Count    int       `json:"count"`  // number of equal denials
}

// CredentialUse is a request of a sandbox with the value of a bound secret, or with a placeholder that it may not use:
// the "use" of the events credential.used and credential.refused.
type CredentialUse struct {
	Time   time.Time `json:"time"`
	Secret string    `json:"secret"`
	Key    string    `json:"key"` // of the pair
	Host   string    `json:"host"`
	Method string    `json:"method"`
	Path   string    `json:"path"`             // without the query
	Status int       `json:"status,omitempty"` // of the answer; 0 without one
	// Count is the number of equal requests since the last event about them, if it is not the first one; Time is that
	// of the last.
	Count   int    `json:"count,omitempty"`
	Refused string `json:"refused,omitempty"` // why the credential was not used, one sentence; "" if it was
}

// SandboxFilter is the query of GET /v1/sandboxes.
type SandboxFilter struct {
	All    bool              // ?all=true: also ended ones
	Name   string            // ?name=
	Tags   map[string]string // ?tag=key=value, repeatable
	Limit  int               // ?limit=, at most MaxPage
	Cursor string            // ?cursor=, from List.NextCursor

	Everyone bool // ?everyone=true: of all accounts; for the operator
}

// Sizes of pages.
const (
	DefaultPage = 100
	MaxPage     = 1000
)

// SnapshotRequest is the body of POST /v1/sandboxes/{id}/snapshot. The response is an Image.
type SnapshotRequest struct {
	Name string `json:"name,omitempty"` // name of the image; an older image of that name loses it
	Path string `json:"path,omitempty"` // only files below it; "" means all
}

// ForkRequest is the body of POST /v1/sandboxes/{id}/fork. The response is a Sandbox. Other properties are those of
// the original sandbox.
type ForkRequest struct {
	Name string            `json:"name,omitempty"`
	Env  map[string]string `json:"env,omitempty"` // the environment of the original is not recorded
}

// ExtendRequest is the body of POST /v1/sandboxes/{id}/extend; 0 leaves a limit unchanged.
type ExtendRequest struct {
	TimeoutSeconds     float64 `json:"timeout_seconds,omitempty"` // from now, or from when the sandbox wakes
	IdleTimeoutSeconds float64 `json:"idle_timeout_seconds,omitempty"`
}
