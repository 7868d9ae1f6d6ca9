package api

import "time"

// SandboxRequest is the body of POST /v1/sandboxes. Every field is optional.
type SandboxRequest struct {
	Image    string            `json:"image,omitempty"`               // "" means "base"
	Commands []string          `json:"dockerfile_commands,omitempty"` // instructions of a Dockerfile, carried out on top of the image
	Name     string            `json:"name,omitempty"`
	Tags     map[string]string `json:"tags,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	Secrets  []string          `json:"secrets,omitempty"` // by name; their pairs join Env, whose own win. modal:NAME is one that Modal keeps
	Workdir  string            `json:"workdir,omitempty"`
	User     string            `json:"user,omitempty"`
	Hostname string            `json:"hostname,omitempty"`
	Volumes  []Mount           `json:"volumes,omitempty"`
	Engine   string            `json:"engine,omitempty"`
	Network  Network           `json:"network,omitzero"`
	Ports    []int             `json:"ports,omitempty"` // that its user means to connect to

	CPU         float64 `json:"cpu,omitempty"` // cores; 0 means the default, here and below
	Memory      int64   `json:"memory_bytes,omitempty"`
	Disk        int64   `json:"disk_bytes,omitempty"`
	Processes   int     `json:"processes,omitempty"`
	Files       int     `json:"open_files,omitempty"`
	VolumeFiles int     `json:"volume_files,omitempty"` // of each writable volume; at most what the server allows
	GPU         string  `json:"gpu,omitempty"`          // such as "T4", or "A100:2" for two, where the engine has GPUs

	TimeoutSeconds     float64 `json:"timeout_seconds,omitempty"`
	IdleTimeoutSeconds float64 `json:"idle_timeout_seconds,omitempty"`

	// SnapshotOnEnd makes an image of the sandbox's files however it ends.
	SnapshotOnEnd bool `json:"snapshot_on_end,omitempty"`

	// S3 asks for a volume whose files come from S3 and go there.
	S3 *S3 `json:"s3,omitempty"`

	Cold bool `json:"cold,omitempty"` // do not take a sandbox that was booted ahead
}

// Mount puts a volume, made if missing, at a path.
type Mount struct {
	Name     string `json:"name"`
	Path     string `json:"path"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// S3 is a place in S3 for the files of the volume at MountPath: one of the request's, or else one that is made for the bucket and prefix.
type S3 struct {
	Bucket          string `json:"bucket,omitempty"` // "" is the server's own
	Prefix          string `json:"prefix,omitempty"`
	MountPath       string `json:"mount_path"`
	Init            bool   `json:"init,omitempty"`              // copy what is there into the volume before the sandbox is ready
	SyncOnTerminate bool   `json:"sync_on_terminate,omitempty"` // copy the volume there when the sandbox ends, in whatever way
	// SyncEverySeconds copies the volume there every so often while the sandbox runs; 0 does not.
	SyncEverySeconds float64 `json:"sync_every_seconds,omitempty"`
	Secret           string  `json:"secret,omitempty"`    // with the credentials; "" is "aws"
	Mount            bool    `json:"mount,omitempty"`     // no volume, but the bucket itself, live
	ReadOnly         bool    `json:"read_only,omitempty"` // of mount
}

// SandboxS3 is what became of SandboxRequest.S3.
type SandboxS3 struct {
	S3
	Volume    string `json:"volume"`
	SyncError string `json:"sync_error,omitempty"` // why not everything is in S3 that was there when the sandbox ended; it is tried again
	// MountError says why the mount does not work any more, and what to do.
	MountError string `json:"mount_error,omitempty"`
}

// SandboxSyncRequest is the body of POST /v1/sandboxes/{id}/sync, which answers with a Synced.
type SandboxSyncRequest struct {
	Direction  string `json:"direction"`             // "up": volume to bucket, "down" or "both"
	DeleteMany bool   `json:"delete_many,omitempty"` // as of VolumeSyncRequest
}

// Network is what a sandbox reaches, and the body of POST /v1/sandboxes/{id}/network. Rules are domains ("example.org",
// "*.example.org"), addresses and CIDRs, each with an optional ":port".
type Network struct {
	Mode  string   `json:"mode,omitempty"`  // "none", "default" (the internet) or "allow"; "" is "default" where the engine has a network
	Allow []string `json:"allow,omitempty"` // what "allow" reaches, and "default" in addition
	Deny  []string `json:"deny,omitempty"`  // wins over Allow
}

// Limits that are in force; zero means none.
type Limits struct {
	CPU       float64 `json:"cpu"`
	Memory    int64   `json:"memory_bytes"`
	Disk      int64   `json:"disk_bytes"`
	Processes int     `json:"processes"`
	Files     int     `json:"open_files"`

	VolumeFiles int `json:"volume_files"`
}

// Stage is a step of creating a sandbox that is done.
type Stage struct {
	Name string  `json:"name"`
	MS   float64 `json:"ms"`
}

// Sandbox is a sandbox as it is shown.
type Sandbox struct {
	ID                 string            `json:"id"`
	Name               string            `json:"name,omitempty"`
	Status             string            `json:"status"` // "creating", "running", "stopping", "terminated", "failed" or "lost"
	Reason             string            `json:"reason,omitempty"`
	FailedStage        string            `json:"failed_stage,omitempty"`
	OutOfMemory        bool              `json:"out_of_memory,omitempty"`
	Engine             string            `json:"engine"`
	Isolation          string            `json:"isolation"`
	Image              string            `json:"image"`
	ImageID            string            `json:"image_id,omitempty"`
	Tags               map[string]string `json:"tags,omitempty"`
	Workdir            string            `json:"workdir,omitempty"`
	User               string            `json:"user,omitempty"`
	Volumes            []Mount           `json:"volumes,omitempty"`
	Secrets            []string          `json:"secrets,omitempty"` // their names
	Network            Network           `json:"network"`
	Ports              []int             `json:"ports,omitempty"`
	Limits             Limits            `json:"limits"`
	GPU                string            `json:"gpu,omitempty"`
	Stages             []Stage           `json:"stages"`
	Warm               bool              `json:"warm,omitempty"` // it was booted ahead
	Created            time.Time         `json:"created_at"`
	Started            time.Time         `json:"started_at,omitzero"`
	Ended              time.Time         `json:"ended_at,omitzero"`
	Expires            time.Time         `json:"expires_at"`
	LastUsed           time.Time         `json:"last_used_at,omitzero"`
	IdleTimeoutSeconds float64           `json:"idle_timeout_seconds,omitempty"`
	CostUSD            float64           `json:"cost_usd"`
	Denials            []Denial          `json:"denials,omitempty"` // the last that its network policy refused, oldest first
	SnapshotOnEnd      bool              `json:"snapshot_on_end,omitempty"`
	SnapshotID         string            `json:"snapshot_id,omitempty"`    // the image that was made on its end
	SnapshotError      string            `json:"snapshot_error,omitempty"` // why none was
	S3                 *SandboxS3        `json:"s3,omitempty"`
}

// Used is what a sandbox has taken of the machine over its life, also after its end.
type Used struct {
	Interval   float64       `json:"interval_seconds"` // about what lies between two samples; it grows with the sandbox's age
	PeakMemory int64         `json:"peak_memory_bytes"`
	Samples    []UsageSample `json:"samples"` // oldest first; of a sandbox that ended within a second or two there are none
}

// UsageSample is what had been taken at a time.
type UsageSample struct {
	Time     time.Time `json:"at"`
	CPU      float64   `json:"cpu_seconds"`    // processor time until then
	Memory   int64     `json:"memory_bytes"`   // held then, without the cache of files
	Received int64     `json:"received_bytes"` // by its network interface until then
	Sent     int64     `json:"sent_bytes"`     // by its network interface until then
}

// Denial is a connection or a look-up that a sandbox's network policy refused.
type Denial struct {
	Time     time.Time `json:"time"`             // of the last one
	Protocol string    `json:"protocol"`         // "tcp", "udp", "icmp" or "dns"
	Domain   string    `json:"domain,omitempty"` // as looked up, or as the connection names it
	Address  string    `json:"address,omitempty"`
	Port     int       `json:"port,omitempty"`
	Reason   string    `json:"reason"` // one sentence
	Count    int       `json:"count"`  // of equal ones
}

// SandboxFilter is the query of GET /v1/sandboxes.
type SandboxFilter struct {
	All    bool              // ?all=true: also those that have ended
	Name   string            // ?name=
	Tags   map[string]string // ?tag=key=value, repeatable
	Limit  int               // ?limit=, at most MaxPage
	Cursor string            // ?cursor=, from List.NextCursor

	Everyone bool // ?everyone=true: those of all accounts; for the server's operator
}

// Sizes of pages.
const (
	DefaultPage = 100
	MaxPage     = 1000
)

// SnapshotRequest is the body of POST /v1/sandboxes/{id}/snapshot, which answers with an Image.
type SnapshotRequest struct {
	Name string `json:"name,omitempty"` // of the image; an older image of that name loses it
	Path string `json:"path,omitempty"` // only the files below it; "" means all
}

// ForkRequest is the body of POST /v1/sandboxes/{id}/fork, which answers with a Sandbox. What it does not name is like the first one's.
type ForkRequest struct {
	Name string            `json:"name,omitempty"`
	Env  map[string]string `json:"env,omitempty"` // what the first one was given is not recorded
}

// ExtendRequest is the body of POST /v1/sandboxes/{id}/extend; 0 leaves a limit as it is.
type ExtendRequest struct {
	TimeoutSeconds     float64 `json:"timeout_seconds,omitempty"` // from now
	IdleTimeoutSeconds float64 `json:"idle_timeout_seconds,omitempty"`
}
