// Package spec describes sandboxes: the requests of clients, decoded and checked, and the Plan that a request becomes
// with all defaults.
package spec

import (
	"maps"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/image"
)

// Request contains the parameters of Create. Every field is optional.
type Request struct {
	// Image is an ID, a unique prefix of an ID, a digest or a name; "" means "base". A missing image is built, or
	// pulled from its registry.
	Image string `json:"image,omitempty"`
	// Name is unique among the account's sandboxes that have not ended.
	Name     string            `json:"name,omitempty"`
	Commands []string          `json:"dockerfile_commands,omitempty"` // Dockerfile instructions to run on top of Image
	Tags     map[string]string `json:"tags,omitempty"`                // for finding it
	Env      map[string]string `json:"env,omitempty"`                 // of every command
	// Secrets are names of secrets whose pairs are added to Env. modal:NAME is a secret that the engine's provider
	// stores. If keys are equal, Env takes precedence, then the later secret.
	Secrets []string `json:"secrets,omitempty"`
	// Reveal gives commands the values of bound secrets. Otherwise they have placeholders.
	Reveal bool `json:"reveal_secrets,omitempty"`
	// Borrows prepares the sandbox for credentials that fleet.Lend lends it while it runs.
	Borrows bool `json:"-"`
	// PerTurn lends them only while LendNow says so.
	PerTurn  bool    `json:"-"`
	Workdir  string  `json:"workdir,omitempty"` // absolute
	User     string  `json:"user,omitempty"`    // name or uid, either with ":group"
	Hostname string  `json:"hostname,omitempty"`
	Volumes  []Mount `json:"volumes,omitempty"`
	Engine   string  `json:"engine,omitempty"`
	// Isolation is the kind of isolation, such as "gvisor" or "container"; "" means the server's default.
	Isolation string  `json:"isolation,omitempty"`
	Network   Network `json:"network,omitzero"`
	Ports     []int   `json:"ports,omitempty"` // that its user intends to connect to; Dial connects to any
	// PortDetails describe some of Ports, for people.
	PortDetails []PortDetail `json:"-"`

	// Limits; 0 means the default. A limit that the engine cannot enforce on this machine is refused, never ignored.
	CPU         float64 `json:"cpu,omitempty"` // cores
	Memory      int64   `json:"memory_bytes,omitempty"`
	Disk        int64   `json:"disk_bytes,omitempty"`
	Processes   int     `json:"processes,omitempty"`
	Files       int     `json:"open_files,omitempty"`
	VolumeFiles int     `json:"volume_files,omitempty"` // of each writable volume; at most what the server allows
	// GPU is the kind, such as "T4", or "A100:2" for two. Engines without GPUs refuse it.
	GPU string `json:"gpu,omitempty"`

	TimeoutSeconds float64 `json:"timeout_seconds,omitempty"` // lifetime; 0 means the default
	// IdleTimeoutSeconds is the time without any command or operation after which the sandbox ends or is suspended; 0
	// means the default.
	IdleTimeoutSeconds float64 `json:"idle_timeout_seconds,omitempty"`

	// IdleAction is what happens at the idle limit: IdleEnd or IdleSuspend; "" is IdleEnd. A suspended sandbox wakes at
	// the next operation on it.
	IdleAction string `json:"idle_action,omitempty"`
	// StartCommand is a program with its arguments that starts with the sandbox, and again when the sandbox wakes
	// without its processes. It does not keep the sandbox from becoming idle.
	StartCommand []string `json:"start_command,omitempty"`

	// SnapshotOnEnd creates an image of the sandbox's files before its resources are released, however it ends: by
	// request, by its lifetime, by its idle limit or because memory runs out. Sandbox.SnapshotID is the image,
	// Sandbox.SnapshotError says why there is none.
	SnapshotOnEnd bool `json:"snapshot_on_end,omitempty"`

	// S3 requests a volume that is synchronized with S3.
	S3 *S3 `json:"s3,omitempty"`

	// Owner is the account that a sandbox of SpareAccount is made for; "" for all others.
	Owner string `json:"-"`

	// Withhold are keys of Secrets that commands do not receive: the creator of the request uses them itself.
	Withhold []string `json:"-"`

	Cold bool `json:"cold,omitempty"` // do not take a booted sandbox from the pool
	// Progress receives the progress of an image build, and StepQueue while the sandbox is queued for its boot.
	Progress func(image.Progress) `json:"-"`
}

// Values of Request.IdleAction.
const (
	IdleEnd     = "end"
	IdleSuspend = "suspend"
)

// Mount mounts a volume at a path. The volume is created if missing.
type Mount struct {
	Name     string `json:"name"`
	Path     string `json:"path"` // absolute
	ReadOnly bool   `json:"read_only,omitempty"`
}

// PortDetail describes the server that listens on a port.
type PortDetail struct {
	Port     int    `json:"port"`
	Label    string `json:"label,omitempty"`    // a name for people
	Protocol string `json:"protocol,omitempty"` // "http" or "https"; "" if unknown
}

// Network is a sandbox's network policy. Rules are domains ("example.org", "*.example.org"), addresses and CIDRs,
// each with an optional ":port".
type Network struct {
	// Mode is "none", only the sandbox's own loopback; "allow", the destinations in Allow; or "default", the
	// internet, but no loopback, private, link-local, metadata or host address. "" is "default" if the engine has a
	// network, and "none" otherwise.
	Mode  string   `json:"mode,omitempty"`
	Allow []string `json:"allow,omitempty"` // with "default" in addition to the internet
	Deny  []string `json:"deny,omitempty"`  // wins over Allow
}

// Clone returns a copy that shares nothing with n.
func (n Network) Clone() Network {
	n.Allow, n.Deny = slices.Clone(n.Allow), slices.Clone(n.Deny)
	return n
}

// Engine returns the policy in the terms of engines.
func (n Network) Engine() engine.Network {
	return engine.Network{Mode: engine.NetworkMode(n.Mode), Allow: slices.Clone(n.Allow), Deny: slices.Clone(n.Deny)}
}

// Summary formats n for logs.
func (n Network) Summary() string {
	var b strings.Builder
	b.WriteString(n.Mode)
	for word, rules := range map[string][]string{"allow": n.Allow, "deny": n.Deny} {
		if len(rules) > 0 {
			b.WriteString(", " + word + " " + strings.Join(rules, " "))
		}
	}
	return b.String()
}

// ownTag is the prefix of tags by which Harvest itself identifies a sandbox, such as the tag of a session.
const ownTag = "harvest."

// UserTags returns a copy of tags without Harvest's own. A copy of the sandbox of a session belongs to no session.
func UserTags(tags map[string]string) map[string]string {
	own := maps.Clone(tags)
	maps.DeleteFunc(own, func(key, _ string) bool { return strings.HasPrefix(key, ownTag) })
	return own
}
