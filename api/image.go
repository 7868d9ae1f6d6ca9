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
	Missing      []Part            `json:"missing"` // what should be in it and is not
	Kind         string            `json:"kind"`    // "built" or "snapshot"
	Snapshot     *Snapshot         `json:"snapshot,omitempty"`
}

// Snapshot is what an image that was taken of a sandbox adds to the root file system that it shares with its parent.
type Snapshot struct {
	Parent  string   `json:"parent"`         // id of the image that the sandbox had
	Path    string   `json:"path,omitempty"` // only what lies below was taken
	Size    int64    `json:"size_bytes"`     // of what it adds
	Lineage []Origin `json:"lineage"`        // of the snapshots that lead to it, the oldest first, its own last
}

// Origin is where a snapshot came from.
type Origin struct {
	Image   string    `json:"image"`   // that the sandbox was created from
	Sandbox string    `json:"sandbox"` // of which it was taken
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

// BuildRequest is the body of POST /v1/images. With a build context, the body is a form (multipart/form-data): the field "request" has this as JSON,
// then the file "context" is a tar stream.
type BuildRequest struct {
	Base       string            `json:"base,omitempty"`                // "base" is Harvest's own, and what "" means without a Dockerfile; an image of the library; or one of a registry
	Platform   string            `json:"platform,omitempty"`            // "linux/amd64"; "" means the server's
	Commands   []string          `json:"dockerfile_commands,omitempty"` // instructions of a Dockerfile on top of Base
	Dockerfile string            `json:"dockerfile,omitempty"`          // a whole one, as text
	Target     string            `json:"target,omitempty"`              // its stage; "" means the last one
	Args       map[string]string `json:"build_args,omitempty"`
	Secrets    map[string]string `json:"secrets,omitempty"`         // for --mount=type=secret, by id; never kept
	Names      []string          `json:"names,omitempty"`           // what to call it; an older image of such a name loses it
	Pull       string            `json:"pull,omitempty"`            // "missing", which "" means, or "always": ask the registry what the name means now
	Force      bool              `json:"force,omitempty"`           // build it even if it exists
	Login      string            `json:"registry_secret,omitempty"` // the secret with the login of a registry; "" means whichever fits
}

// Fields of a form that builds an image.
const (
	FieldRequest = "request"
	FieldContext = "context"
)

// LogLine is a line of what a build says.
type LogLine struct {
	Line string `json:"line"`
}

// CollectRequest is the body of POST /v1/images/collect. Images that are in use, have a name or are snapshots always stay.
type CollectRequest struct {
	AgeSeconds *float64 `json:"age_seconds,omitempty"` // what was not used for so long; missing means as configured
	Size       int64    `json:"size_bytes,omitempty"`  // and the longest unused while all is larger; 0 means no limit
	All        bool     `json:"all,omitempty"`         // also images of registries that have a name
	DryRun     bool     `json:"dry_run,omitempty"`
}

// Collected is what was removed.
type Collected struct {
	Images []Image `json:"images"`
	Freed  int64   `json:"freed_bytes"`
	Left   int64   `json:"left_bytes"`
}

// Cached is something that builds have left for later ones of the same account.
type Cached struct {
	ID   string    `json:"id"`
	Kind string    `json:"kind"` // "layer", of an instruction, or "mount", the files of a RUN --mount=type=cache
	Text string    `json:"text"` // the instruction; of a mount its id
	Size int64     `json:"size_bytes"`
	Used time.Time `json:"used_at"` // for the last time
}

// Progress of a build.
type Progress struct {
	Step    string  `json:"step"`
	Done    float64 `json:"done"` // 0…1 of the whole, or negative when unknown
	Message string  `json:"message,omitempty"`
}
