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

// BuildRequest is the body of POST /v1/images.
type BuildRequest struct {
	Base  string `json:"base"`            // "base" is Harvest's own
	Force bool   `json:"force,omitempty"` // build it even if it exists
}

// Progress of a build.
type Progress struct {
	Step    string  `json:"step"`
	Done    float64 `json:"done"` // 0…1 of the whole, or negative when unknown
	Message string  `json:"message,omitempty"`
}
