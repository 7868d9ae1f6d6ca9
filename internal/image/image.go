// Package image describes, builds and stores the root file systems of sandboxes.
package image

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"
)

// Spec describes the content of an image. Equal specs have equal digests, and a digest is built
// once.
type Spec struct {
	// Base is the image to start from: "base" and "agent" are Harvest's own (mission B1, B3);
	// otherwise the id or name of an image of the library, or a registry's reference such as
	// "debian:12" or "ghcr.io/owner/name@sha256:…". It is "" with Dockerfile.
	Base     string `json:"base,omitempty"`
	Platform string `json:"platform,omitempty"` // "linux/amd64"; "" means this machine's

	Commands   []string          `json:"commands,omitempty"`   // instructions of a Dockerfile, run on top of Base
	Dockerfile string            `json:"dockerfile,omitempty"` // a whole one, as text
	Context    string            `json:"context,omitempty"`    // digest of the files in BuildOptions.Context; "" if none
	Target     string            `json:"target,omitempty"`     // stage to build; "" means the last one
	Args       map[string]string `json:"args,omitempty"`       // build arguments

	// Owner is the account that owns the image; "" for the personal account and for shared images,
	// see Of.
	Owner string `json:"owner,omitempty"`

	Parent string `json:"parent,omitempty"` // of a snapshot: id of its sandbox's image
	Layer  string `json:"layer,omitempty"`  // of a snapshot: digest of the difference to Parent
}

// Config is the configuration of an image for commands that run in it.
type Config struct {
	Env        map[string]string `json:"env,omitempty"`
	Trust      []string          `json:"trust,omitempty"` // sorted names in Env that AddTrust added
	User       string            `json:"user,omitempty"`
	Dir        string            `json:"dir,omitempty"`
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	Shell      []string          `json:"shell,omitempty"`
	Ports      []string          `json:"ports,omitempty"`   // "8080/tcp"
	Volumes    []string          `json:"volumes,omitempty"` // paths; kept for export, not mounted
	Labels     map[string]string `json:"labels,omitempty"`
	StopSignal string            `json:"stop_signal,omitempty"`
	Author     string            `json:"author,omitempty"` // of MAINTAINER
	// Healthcheck is kept for export, in the form of the image's configuration.
	Healthcheck json.RawMessage `json:"healthcheck,omitempty"`
	OnBuild     []string        `json:"on_build,omitempty"` // instructions for Dockerfiles that begin with this image
	History     []History       `json:"history,omitempty"`
}

// AddTrust adds variables with which programs trust the certificate authorities of this machine. Those that the image
// has keep their values.
func (c *Config) AddTrust(env map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if _, own := c.Env[name]; own {
			continue
		}
		if c.Env == nil {
			c.Env = map[string]string{}
		}
		c.Env[name] = env[name]
		c.Trust = append(c.Trust, name)
	}
}

// AddedEnv returns the variables that AddTrust added.
func (c Config) AddedEnv() map[string]string {
	added := map[string]string{}
	for _, name := range c.Trust {
		added[name] = c.Env[name]
	}
	return added
}

// OwnEnv returns the variables of the image's author: those that exports and Dockerfiles have.
func (c Config) OwnEnv() map[string]string {
	own := maps.Clone(c.Env)
	for _, name := range c.Trust {
		delete(own, name)
	}
	return own
}

// History is an instruction that made a part of an image, as its builder recorded it.
type History struct {
	Created time.Time `json:"created_at,omitzero"`
	By      string    `json:"created_by,omitempty"`
	Comment string    `json:"comment,omitempty"`
	Author  string    `json:"author,omitempty"`
	Empty   bool      `json:"empty,omitempty"` // it changed no files
}

// Image is a built image.
type Image struct {
	ID        string        `json:"id"`     // "img_" and the first 16 hex digits of Digest
	Digest    string        `json:"digest"` // "sha256:…" of the Spec and the host's input (extra CAs)
	Names     []string      `json:"names"`  // names by users, such as "base"
	Spec      Spec          `json:"spec"`
	Config    Config        `json:"config"`
	Size      int64         `json:"size_bytes"` // of the root file system
	Built     time.Time     `json:"built_at"`
	BuildTime time.Duration `json:"build_ns"`
	Parts     []Part        `json:"parts"`              // its content, with versions
	Missing   []Part        `json:"missing"`            // missing content, with the reason
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
	// Build returns the image for spec, and builds it if it does not exist or opts.Force is set.
	// Concurrent equal calls share one build. Canceling a call ends its wait; the build ends when
	// no call is waiting. An unfinished build is never visible and leaves nothing behind. A Base
	// that names an image of the library is that image, unless opts requests a pull.
	//
	// Kinds: Exhausted if the disk is full or a limit is reached, Unavailable if a source cannot be
	// reached, NotFound if a registry has no such image, Unauthenticated or Denied if the registry
	// refuses access.
	Build(ctx context.Context, spec Spec, opts BuildOptions) (Image, error)
	// Find returns the image with that id, a unique beginning of an id, a digest, or a name.
	// Otherwise it returns NotFound.
	Find(ctx context.Context, ref string) (Image, error)
	// List returns all images, newest first.
	List(ctx context.Context) ([]Image, error)
	// Delete removes an image. It returns Conflict while a sandbox uses the image, and NotFound if
	// it does not exist. Through Of, it also accepts a name, and removes only that name if the image has others.
	Delete(ctx context.Context, id string) error
}

// BuildOptions configures one Build. They are not stored.
type BuildOptions struct {
	Force bool // build it even if it exists
	// Foreign allows an image of a registry for a platform whose programs cannot run on this machine. It gets no name.
	Foreign bool
	Pull    Pull     // when to resolve a name at its registry
	Names   []string // names for the image, besides its Base; older images lose them

	// Context is the path on this machine of the build context: a directory, or a tar file of it.
	// "" means an empty context.
	Context string
	// Secrets are the values for "--mount=type=secret" of a build, by id.
	Secrets map[string][]byte
	// Credentials, if not nil, returns the credentials for a registry, such as "ghcr.io" or
	// "localhost:5000". If it returns none, the user's Docker configuration is used.
	Credentials func(ctx context.Context, registry string) (Credential, error)

	Progress func(Progress) // may be nil; called from one goroutine at a time
	// Log gets each output line, without newline; may be nil; called from one goroutine at a time
	Log func(line string)
}

// Pull is the policy for resolving a name at its registry.
type Pull string

// The policies.
const (
	PullMissing Pull = "missing" // if the library has no image of that name; the default
	PullAlways  Pull = "always"
)

// Credential authenticates at a registry. The zero value means that there is none.
type Credential struct {
	User, Password string
	Token          string // a bearer token, instead of the two
	Anonymous      bool   // use no credentials, even if Docker's configuration has some
}

// Progress is the progress of a build.
type Progress struct {
	Step    string  // "download", "install", "pack", …
	Done    float64 // 0…1 within the whole build, or negative when unknown
	Message string  // one line of detail
}
