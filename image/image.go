// Package image describes, builds and keeps the root file systems of sandboxes.
package image

import (
	"context"
	"encoding/json"
	"time"
)

// Spec says what an image consists of. Equal specs have equal digests, and a digest is built once.
type Spec struct {
	// Base is what it starts from: "base" and "agent" are Harvest's own (mission B1, B3); otherwise the id or name of an image
	// of the library, or a registry's reference such as "debian:12" or "ghcr.io/owner/name@sha256:…". "" with Dockerfile.
	Base     string `json:"base,omitempty"`
	Platform string `json:"platform,omitempty"` // "linux/amd64"; "" means this machine's

	Commands   []string          `json:"commands,omitempty"`   // instructions of a Dockerfile, run on top of Base
	Dockerfile string            `json:"dockerfile,omitempty"` // a whole one, as text
	Context    string            `json:"context,omitempty"`    // digest of the build context's files, "" without one; the files are in BuildOptions
	Target     string            `json:"target,omitempty"`     // stage to build; "" means the last one
	Args       map[string]string `json:"args,omitempty"`       // build arguments

	// Owner is the account whose image it is; "" for the personal one and for what all share, see Of.
	Owner string `json:"owner,omitempty"`

	Parent string `json:"parent,omitempty"` // of a snapshot: id of the image that its sandbox had
	Layer  string `json:"layer,omitempty"`  // of a snapshot: digest of what differs from it
}

// Config is what an image says about how commands run in it.
type Config struct {
	Env        map[string]string `json:"env,omitempty"`
	User       string            `json:"user,omitempty"`
	Dir        string            `json:"dir,omitempty"`
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	Shell      []string          `json:"shell,omitempty"`
	Ports      []string          `json:"ports,omitempty"`   // "8080/tcp"
	Volumes    []string          `json:"volumes,omitempty"` // paths; kept for export, not mounted
	Labels     map[string]string `json:"labels,omitempty"`
	StopSignal string            `json:"stop_signal,omitempty"`
	// Healthcheck is kept for export as the image's configuration has it.
	Healthcheck json.RawMessage `json:"healthcheck,omitempty"`
	OnBuild     []string        `json:"on_build,omitempty"` // instructions that a Dockerfile runs that begins with this image
}

// Image is a built image.
type Image struct {
	ID        string        `json:"id"`     // "img_" and the first 16 hex digits of Digest
	Digest    string        `json:"digest"` // "sha256:…" of the Spec and of what the build took from the host (its extra CAs)
	Names     []string      `json:"names"`  // what users call it, such as "base"
	Spec      Spec          `json:"spec"`
	Config    Config        `json:"config"`
	Size      int64         `json:"size_bytes"` // of the root file system
	Built     time.Time     `json:"built_at"`
	BuildTime time.Duration `json:"build_ns"`
	Parts     []Part        `json:"parts"`              // what is in it, with versions
	Missing   []Part        `json:"missing"`            // what should be in it and is not, with the reason
	Snapshot  *Snapshot     `json:"snapshot,omitempty"` // nil for images that were built
}

// Part is a program or package that an image should contain.
type Part struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Reason  string `json:"reason,omitempty"` // why it is missing
}

// Builder builds and finds images. All methods may be called concurrently.
type Builder interface {
	// Build returns the image for spec, building it if it does not exist or if opts.Force. Equal builds at the same time are
	// one build; each caller's cancellation ends only its own waiting, and the build when nobody waits any more.
	// Nothing half-made is ever left or seen. A Base that names an image of the library is that image, unless opts says to pull
	// it again. Exhausted if the disk is full or a limit is reached, Unavailable if a source cannot be reached, NotFound if a
	// registry has no such image, Unauthenticated or Denied if it keeps it from us.
	Build(ctx context.Context, spec Spec, opts BuildOptions) (Image, error)
	// Find returns the image with that id, a unique beginning of an id, a digest, or a name. NotFound otherwise.
	Find(ctx context.Context, ref string) (Image, error)
	// List returns all images, newest first.
	List(ctx context.Context) ([]Image, error)
	// Delete removes an image. Conflict while a sandbox uses it. NotFound if there is none.
	Delete(ctx context.Context, id string) error
}

// BuildOptions of one Build. Nothing of them is stored.
type BuildOptions struct {
	Force bool     // build it even if it exists
	Pull  Pull     // when to ask a registry for what a name means
	Names []string // what users will call the image, besides its Base; an older image that has one of the names loses it

	// Context is the path of the build context's directory, or of a tar file of it, on this machine. "" means an empty one.
	Context string
	// Secrets are the values that a build's "--mount=type=secret" gets, by id.
	Secrets map[string][]byte
	// Credentials, if not nil, says who we are at a registry, such as "ghcr.io" or "localhost:5000". Without an answer the
	// user's Docker configuration is asked.
	Credentials func(ctx context.Context, registry string) (Credential, error)

	Progress func(Progress)    // may be nil; called from one goroutine at a time
	Log      func(line string) // what the build says, line by line without the newline; may be nil; called from one goroutine at a time
}

// Pull says when a registry is asked for what a name means now.
type Pull string

// The policies.
const (
	PullMissing Pull = "missing" // if the library has no image of that name; also what "" means
	PullAlways  Pull = "always"
)

// Credential is who we are at a registry. The zero value means that nobody knows.
type Credential struct {
	User, Password string
	Token          string // a bearer token, instead of the two
	Anonymous      bool   // nobody, even if Docker's configuration knows somebody
}

// Progress of a build.
type Progress struct {
	Step    string  // "download", "install", "pack", …
	Done    float64 // 0…1 within the whole build, or negative when unknown
	Message string  // one line of detail
}
