package api

import "time"

// Image is a built image.
type Image struct {
	ID           string            `json:"id"`
	Digest       string            `json:"digest"`
	Names        []string          `json:"names"`
	Base         string            `json:"base"`
	Env          map[string]string `json:"env,omitempty"`
	User         string            `json:"user,omitempty"`
	Workdir      string            `json:"workdir,omitempty"`
	Size         int64             `json:"size_bytes"`
	Built        time.Time         `json:"built_at"`
	BuildSeconds float64           `json:"build_seconds"`
	Parts        []Part            `json:"parts"`
	Missing      []Part            `json:"missing"` // expected parts that are not in it
	Kind         string            `json:"kind"`    // "built" or "snapshot"
	Platform     string            `json:"platform,omitempty"`
	Command      []string          `json:"command,omitempty"`
	Entrypoint   []string          `json:"entrypoint,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	Ports        []string          `json:"ports,omitempty"`   // "8080/tcp"
	Volumes      []string          `json:"volumes,omitempty"` // paths that the image declares
	StopSignal   string            `json:"stop_signal,omitempty"`
	HealthCheck  *HealthCheck      `json:"health_check,omitempty"`
	OnBuild      []string          `json:"on_build,omitempty"` // instructions for Dockerfiles that start from the image
	// History lists the instructions that made the image, the oldest first. Lists of images leave it out.
	History  []History `json:"history,omitempty"`
	Snapshot *Snapshot `json:"snapshot,omitempty"`
}

// HealthCheck is the health check that an image declares. Zero values mean the defaults of Docker.
type HealthCheck struct {
	Test                 []string `json:"test"` // "CMD" or "CMD-SHELL" and a command, or "NONE"
	IntervalSeconds      float64  `json:"interval_seconds,omitempty"`
	TimeoutSeconds       float64  `json:"timeout_seconds,omitempty"`
	StartPeriodSeconds   float64  `json:"start_period_seconds,omitempty"`
	StartIntervalSeconds float64  `json:"start_interval_seconds,omitempty"`
	Retries              int      `json:"retries,omitempty"`
}

// History is an instruction that made a part of an image.
type History struct {
	Created   time.Time `json:"created_at,omitzero"`
	CreatedBy string    `json:"created_by"`
	Comment   string    `json:"comment,omitempty"`
	Empty     bool      `json:"empty,omitempty"` // it changed no files
}

// Snapshot describes what a snapshot of a sandbox adds to the root file system of its parent image.
type Snapshot struct {
	Parent  string   `json:"parent"`         // ID of the sandbox's image
	Path    string   `json:"path,omitempty"` // only files below it were included
	Size    int64    `json:"size_bytes"`     // of the added files
	Lineage []Origin `json:"lineage"`        // of the snapshots that lead to it, oldest first, its own last
}

// Origin is the origin of a snapshot.
type Origin struct {
	Image   string    `json:"image"`   // image of the sandbox
	Sandbox string    `json:"sandbox"` // sandbox of the snapshot
	Time    time.Time `json:"time"`
}

// Kinds of images.
const (
	KindBuilt    = "built"
	KindSnapshot = "snapshot"
)

// Part is a program or package of an image.
type Part struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Reason  string `json:"reason,omitempty"` // why it is missing
}

// BuildRequest is the body of POST /v1/images. With a build context, the body is a form (multipart/form-data): the
// field "request" contains this struct as JSON, and the file "context" is a tar stream.
type BuildRequest struct {
	// Base is "base" for Harvest's own image, which "" also means without a Dockerfile; an image of the library; or
	// an image of a registry.
	Base       string            `json:"base,omitempty"`
	Platform   string            `json:"platform,omitempty"`            // "linux/amd64"; "" means the server's
	Commands   []string          `json:"dockerfile_commands,omitempty"` // Dockerfile instructions on top of Base
	Dockerfile string            `json:"dockerfile,omitempty"`          // complete Dockerfile, as text
	Target     string            `json:"target,omitempty"`              // stage; "" means the last one
	Args       map[string]string `json:"build_args,omitempty"`
	Secrets    map[string]string `json:"secrets,omitempty"` // for --mount=type=secret, by ID; never stored
	// Names are for the image; an older image of such a name loses it.
	Names []string `json:"names,omitempty"`
	// Pull is "missing", which "" also means, or "always": resolve the name at the registry again.
	Pull  string `json:"pull,omitempty"`
	Force bool   `json:"force,omitempty"` // build it even if it exists
	// Login is the secret with the login for a registry; "" means any matching one.
	Login string `json:"registry_secret,omitempty"`
}

// Fields of a form that builds an image.
const (
	FieldRequest = "request"
	FieldContext = "context"
)

// LogLine is a line of a build's output.
type LogLine struct {
	Line string `json:"line"`
}

// CollectRequest is the body of POST /v1/images/collect. Images that are in use, have a name or are snapshots are
// never removed.
type CollectRequest struct {
	AgeSeconds *float64 `json:"age_seconds,omitempty"` // minimum time without use; missing means as configured
	// Size is the limit for the total: the least recently used images beyond it are removed; 0 means no limit.
	Size   int64 `json:"size_bytes,omitempty"`
	All    bool  `json:"all,omitempty"` // also named images of registries
	DryRun bool  `json:"dry_run,omitempty"`
}

// Collected is the result of a collection.
type Collected struct {
	Images []Image `json:"images"`
	Freed  int64   `json:"freed_bytes"`
	Left   int64   `json:"left_bytes"`
}

// Cached is an entry of the build cache, for later builds of the same account.
type Cached struct {
	ID   string    `json:"id"`
	Kind string    `json:"kind"` // "layer" of an instruction, or "mount", the files of a RUN --mount=type=cache
	Text string    `json:"text"` // instruction, or ID of a mount
	Size int64     `json:"size_bytes"`
	Used time.Time `json:"used_at"` // last use
}

// Progress is the progress of a build.
type Progress struct {
	Step    string  `json:"step"`
	Done    float64 `json:"done"` // 0…1 of the whole, or negative if unknown
	Message string  `json:"message,omitempty"`
}
