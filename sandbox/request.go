package sandbox

import (
	"io"
	"time"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/image"
)

// Request is what a client may ask of Create. Every field is optional.
type Request struct {
	Image    string            `json:"image,omitempty"`               // id, unique beginning of an id, digest or name; "" means "base". What is missing is built, or fetched from its registry
	Name     string            `json:"name,omitempty"`                // unique among the account's sandboxes that have not ended
	Commands []string          `json:"dockerfile_commands,omitempty"` // instructions of a Dockerfile that are carried out on top of Image
	Tags     map[string]string `json:"tags,omitempty"`                // for finding it
	Env      map[string]string `json:"env,omitempty"`                 // of every command
	Secrets  []string          `json:"secrets,omitempty"`             // names, also of what the engine's provider keeps, as modal:NAME; their pairs join Env. Of equal keys Env's wins, then the later secret's
	Workdir  string            `json:"workdir,omitempty"`             // absolute
	User     string            `json:"user,omitempty"`                // name or uid, either with ":group"
	Hostname string            `json:"hostname,omitempty"`
	Volumes  []Mount           `json:"volumes,omitempty"`
	Engine   string            `json:"engine,omitempty"`
	Network  Network           `json:"network,omitzero"`
	Ports    []int             `json:"ports,omitempty"` // that its user means to connect to; Dial connects to any

	// Limits; 0 means the default. A limit that the engine cannot hold on this machine is refused, never ignored.
	CPU         float64 `json:"cpu,omitempty"` // cores
	Memory      int64   `json:"memory_bytes,omitempty"`
	Disk        int64   `json:"disk_bytes,omitempty"`
	Processes   int     `json:"processes,omitempty"`
	Files       int     `json:"open_files,omitempty"`
	VolumeFiles int     `json:"volume_files,omitempty"` // of each writable volume; at most what the server allows
	GPU         string  `json:"gpu,omitempty"`          // such as "T4", or "A100:2" for two; refused by engines that have none

	TimeoutSeconds     float64 `json:"timeout_seconds,omitempty"`      // of its life; 0 means the default
	IdleTimeoutSeconds float64 `json:"idle_timeout_seconds,omitempty"` // ends it when nothing ran and nothing was done for so long; 0 means the default

	// SnapshotOnEnd makes an image of the sandbox's files however it ends, before what it holds is released: by request, by its
	// lifetime, by its idle limit or because memory runs out. Sandbox.SnapshotID names it, Sandbox.SnapshotError says why there is none.
	SnapshotOnEnd bool `json:"snapshot_on_end,omitempty"`

	// S3 asks for a volume whose files come from S3 and go there.
	S3 *S3 `json:"s3,omitempty"`

	// Withhold are keys of Secrets that commands do not get: what made the request uses them itself.
	Withhold []string `json:"-"`

	Cold     bool                 `json:"cold,omitempty"` // do not take a booted sandbox from the pool
	Progress func(image.Progress) `json:"-"`              // gets the progress of an image that has to be built, and StepQueue while the sandbox waits for its turn
}

// Mount puts a volume, made if missing, at a path.
type Mount struct {
	Name     string `json:"name"`
	Path     string `json:"path"` // absolute
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Network is what a sandbox reaches. Rules are domains ("example.org", "*.example.org"), addresses and CIDRs, each with an
// optional ":port".
type Network struct {
	// Mode is "none", nothing but its own loopback; "allow", what Allow names; or "default", the internet, but no loopback, private,
	// link-local, metadata or host address. "" is "default" where the engine has a network, and "none" otherwise.
	Mode  string   `json:"mode,omitempty"`
	Allow []string `json:"allow,omitempty"` // with "default" in addition to the internet
	Deny  []string `json:"deny,omitempty"`  // wins over Allow
}

// ForkRequest is what the copy of a sandbox does not take from it.
type ForkRequest struct {
	Name string            `json:"name,omitempty"`
	Env  map[string]string `json:"env,omitempty"`
}

// ExecRequest is a command to run.
type ExecRequest struct {
	Args     []string // Args[0] is a path, or a name looked up in PATH
	Own      bool     // Args[0] is a program of Harvest's own, as engine.Command has it
	Env      map[string]string
	Workdir  string        // "" means the sandbox's
	User     string        // "" means the sandbox's
	Terminal *engine.Size  // nil: pipes
	Timeout  time.Duration // 0 means the default (30 minutes)
	Stdin    io.Reader     // nil is an empty input
	// Stdout and Stderr get the output as it comes. Where one is nil, Result has that stream, bounded as Capture says,
	// except for detached commands, whose output only Attach tells.
	Stdout, Stderr io.Writer
	// Detach lets the command go on when ctx of Exec ends. Only the end of ctx before the start cancels it.
	Detach bool
	// Background is for commands of Harvest's own that wait for work: while only such run, the sandbox is idle. All others keep it from
	// being idle until they end, detached or not, also after a restart.
	Background bool
}
