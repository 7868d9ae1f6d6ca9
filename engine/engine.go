// Package engine is the contract of sandbox providers.
//
// Engines hold no policy: quotas, time limits, names, retries and records live in package sandbox. What every engine must
// do is proven by package enginetest; what only some can do is an optional interface, announced in Capabilities.
package engine

import (
	"context"
	"io"
	"net"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/internal/tarfs"
	"github.com/RelevanceAI/harvest/volume"
)

// Engine creates isolated sandboxes. All methods may be called concurrently.
type Engine interface {
	// Name is a word for records and error texts, such as "gvisor".
	Name() string
	// Capabilities says what this engine can do on this machine, now.
	Capabilities() Capabilities
	// Create returns a sandbox that is ready for commands. On failure, cancellation included, nothing is left behind.
	// Kinds: Invalid for a spec that can never work, NotFound for an unknown image, Exhausted, Unavailable.
	Create(ctx context.Context, spec Spec) (Sandbox, error)
	// Open finds a sandbox made earlier, perhaps by an earlier process. NotFound if it is gone.
	Open(ctx context.Context, h Handle) (Sandbox, error)
	// List returns every sandbox that exists, also those that no record knows.
	List(ctx context.Context) ([]Handle, error)
	// Images builds and finds the images that Spec.Image names.
	Images() image.Builder
	// Volumes provides the volumes that Spec.Mounts names.
	Volumes() volume.Provider
	// Close releases the engine's own resources. Sandboxes keep running.
	Close() error
}

// Capabilities is what an engine can do on this machine.
type Capabilities struct {
	Isolation string   `json:"isolation"` // what separates a sandbox from the host, e.g. "gvisor/systrap"; shown to users, never flattering
	Limits    []string `json:"limits"`    // which of "cpu", "memory", "processes", "disk", "files" hold
	Missing   []string `json:"missing"`   // what is weaker than it could be and why, one sentence each
	Terminal  bool     `json:"terminal"`
	Reopen    bool     `json:"reopen"`   // sandboxes implement ProcessOpener
	Warm      bool     `json:"warm"`     // the engine implements Warmer
	Volumes   bool     `json:"volumes"`  // Spec.Mounts works
	Views     bool     `json:"views"`    // each sandbox has a view of a volume of its own, which others see once it is committed and they reload theirs
	Dirs      bool     `json:"dirs"`     // Mount.Dir works
	Buckets   bool     `json:"buckets"`  // Mount.Bucket works
	Users     bool     `json:"users"`    // Command.User works
	Network   bool     `json:"network"`  // every NetworkMode works, sandboxes implement Networker and Dialer
	Rules     bool     `json:"rules"`    // every rule of Network works; without, those with a port, Deny, and Allow beside the internet are Unsupported
	Denials   bool     `json:"denials"`  // Networker.Denials tells something; without, it only waits for the sandbox's end
	Snapshot  bool     `json:"snapshot"` // sandboxes implement Snapshotter
	Imager    bool     `json:"imager"`   // sandboxes implement Imager
	Memory    bool     `json:"memory"`   // sandboxes implement Checkpointer, and Spec.Checkpoint works
	Usage     bool     `json:"usage"`    // sandboxes implement Meter
	GPUs      bool     `json:"gpus"`     // Spec.GPU works
	Secrets   bool     `json:"secrets"`  // Spec.Secrets works
	Hostname  bool     `json:"hostname"` // Spec.Hostname works
	Isolated  bool     `json:"isolated"` // false only for the fake, which runs commands as plain child processes
}

// Snapshots reports whether images can be made of sandboxes, one way or the other.
func (c Capabilities) Snapshots() bool { return c.Snapshot || c.Imager }

// Handle names a sandbox across processes. It is stored in records.
type Handle struct {
	ID  string `json:"id"`  // Spec.ID; "" for a warm sandbox that nobody claimed
	Ref string `json:"ref"` // the engine's own name for it
}

// Spec describes a sandbox. Package sandbox has validated it: paths are absolute and clean, limits are positive or zero.
type Spec struct {
	ID       string            // unique, [a-z0-9_-]{1,64}
	Account  string            // whose it is, for engines that keep accounts apart; "" for none
	Image    string            // id of an image that Images() holds
	Hostname string            // "" means HostName(ID); only where Capabilities.Hostname is true, else the engine gives its own
	Env      map[string]string // of every command, over the image's
	Dir      string            // default working directory; "" means the image's, or "/"
	User     string            // default user; "" means the image's, or root
	Mounts   []Mount
	Limits   Limits
	GPU      string // such as "T4", or "A100:2" for two; "" for none. Only where Capabilities.GPUs says so
	// Secrets are names of secrets that the provider itself keeps: what is in them joins the environment of every command, over the image's and below Env.
	// NotFound if there is none of that name. Only where Capabilities.Secrets says so.
	Secrets []string
	Network Network
	// KeepOnOOM asks a Snapshotter to read the files when memory runs out, before it ends the sandbox: Snapshot then works after that end.
	// It is an attempt: a command that takes memory quicker than the engine looks ends the sandbox without.
	KeepOnOOM bool
	// Checkpoint is the directory of a checkpoint with which the sandbox begins, instead of an image. Only where Capabilities.Memory says so. It is
	// Checkpointer that says what comes of it. Limits must be those of the sandbox that it was made of, and there are no Mounts. Env, Dir and
	// User, as far as they are set, count for commands that are started from now on. Kinds: NotFound; Invalid: it is damaged, or the limits
	// are others; Unsupported: it was made with another version of the engine, or on another kind of machine.
	Checkpoint string
	// Stage, if set, is told each step of Create when it is done.
	Stage func(name string, took time.Duration) `json:"-"`
}

// HostName makes a valid host name (RFC 1123) of a name or an id: at most 63 letters, digits and hyphens, no hyphen at either end.
func HostName(text string) string {
	valid := func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}
	text = strings.TrimLeft(strings.Map(valid, text), "-")
	if text = strings.TrimRight(text[:min(len(text), 63)], "-"); text == "" {
		return "sandbox"
	}
	return text
}

// Mount puts a volume at a path, or a directory of this machine, or a bucket.
type Mount struct {
	Volume string // name of a volume that exists; "" with Dir and with Bucket
	// Dir is a directory of this machine, which is there until the sandbox has ended and need not be a plain one: its limits, and how long
	// it takes to answer, are its own affair. Only where Capabilities.Dirs says so.
	Dir string
	// Bucket is mounted by the engine itself, live: what is written there is stored there, by whatever rules the engine has for it, and is in no
	// snapshot. Whoever opens the engine tells it where buckets are. Only where Capabilities.Buckets says so.
	Bucket   Bucket `json:",omitzero"`
	Path     string
	ReadOnly bool
}

// Bucket is a place in S3, without credentials, since a Spec may be kept.
type Bucket struct {
	Name   string // "" for none
	Prefix string // of the keys; "" is all of it
	Secret string // the name of the account's secret that has the credentials; "" is the usual one
}

// Limits of a sandbox; zero means no limit of its own.
type Limits struct {
	CPU    float64 `json:"cpu"`          // cores
	Memory int64   `json:"memory_bytes"` // bytes; beyond it the sandbox ends with OutOfMemory
	// Disk is in bytes, of the writable layer: beyond it writes fail with ENOSPC. A volume that is mounted writable has the same
	// limit; where an engine cannot refuse the write, it ends what runs while the volume grows beyond, with OutOfSpace.
	Disk      int64 `json:"disk_bytes"`
	Processes int   `json:"processes"` // beyond it fork fails with EAGAIN
	Files     int   `json:"files"`     // open files of one process
}

// Network is what a sandbox reaches. Rules are domains ("example.org", "*.example.org"), addresses and CIDRs, each with an optional
// ":port". Deny wins over Allow.
type Network struct {
	Mode  NetworkMode `json:"mode"`
	Allow []string    `json:"allow,omitempty"` // with "default" in addition to the internet, with "allow" nothing else
	Deny  []string    `json:"deny,omitempty"`
}

// NetworkMode is what a sandbox reaches where no rule says otherwise.
type NetworkMode string

// The modes.
const (
	NetworkNone    NetworkMode = "none"    // nothing but its own loopback
	NetworkDefault NetworkMode = "default" // the internet: no loopback, private, link-local, CGNAT, ULA, multicast, metadata or host address
	NetworkAllow   NetworkMode = "allow"   // what Allow names
)

// Denial is a connection or a look-up that the network policy refused.
type Denial struct {
	Seq      uint64    `json:"seq"` // counts up from 1 in each sandbox
	Time     time.Time `json:"time"`
	Protocol string    `json:"protocol"`         // "tcp", "udp", "icmp" or "dns"
	Domain   string    `json:"domain,omitempty"` // as looked up, or as the connection names it (SNI, Host)
	Address  string    `json:"address,omitempty"`
	Port     int       `json:"port,omitempty"`
	Reason   string    `json:"reason"`          // one sentence
	Count    int       `json:"count,omitempty"` // of equal ones that this entry stands for, when there are many
}

// Networker is a sandbox whose network can be changed and watched while it runs.
type Networker interface {
	// SetNetwork replaces the policy. Connections that the new one forbids are cut before it returns.
	SetNetwork(ctx context.Context, network Network) error
	// Denials returns what was denied after seq, oldest first, and waits until there is something. Old ones are dropped.
	Denials(ctx context.Context, seq uint64) ([]Denial, error)
}

// Dialer is a sandbox into whose TCP ports the host may connect; nothing else reaches them.
type Dialer interface {
	// Dial connects to a port on which a command listens, on any address of the sandbox's, loopback included. Unavailable
	// if nobody listens.
	Dial(ctx context.Context, port int) (net.Conn, error)
}

// Meter is a sandbox that tells what it takes of the machine.
type Meter interface {
	// Usage returns what the sandbox has taken up to now. It is cheap: a few reads, nothing inside the sandbox runs for it. Conflict if it has ended.
	Usage(ctx context.Context) (Usage, error)
}

// Usage is what a sandbox has taken of the machine. What counts up never goes back while the sandbox exists, restarts of the server included.
type Usage struct {
	CPU      float64 `json:"cpu_seconds"`    // processor time since it was booted, with what the engine itself took for it
	Memory   int64   `json:"memory_bytes"`   // that it holds now and that nobody else can have: what its limit counts, without the cache of files
	Received int64   `json:"received_bytes"` // by its network interface
	Sent     int64   `json:"sent_bytes"`     // by its network interface
}

// Snapshotter is a sandbox whose changed files can be read while it runs.
type Snapshotter interface {
	// Snapshot writes all that differs from the root file system of the sandbox's image as a tar stream, consistent in itself,
	// in the form of an OCI layer (https://github.com/opencontainers/image-spec/blob/main/layer.md): whiteouts for what was removed. Volumes
	// and what is mounted by the engine are not part of it. path, if not "", limits it to what lies below that directory. Commands may
	// stand still meanwhile, and go on when it returns. Invalid: path is no directory, or mounted. NotFound: there is none.
	// Conflict: the sandbox has ended, and nothing was kept (Spec.KeepOnOOM). Errors of w are returned.
	Snapshot(ctx context.Context, path string, w io.Writer) error
}

// Checkpointer is a sandbox of which a checkpoint can be made: its processes with their memory, and its files, as they are at one moment.
//
// Sandboxes that begin with it (Spec.Checkpoint), as many as one likes and at the same time, go on from that moment, each by itself, and so does the one it
// was made of. They have its files; their processes have their memory, ids, open files of the sandbox and connections within it, loopback included. Commands that ran are
// found again by their ids (ProcessOpener): what they write from then on is kept anew, and input that was open is open again. They are not told, but notice: the
// clock has jumped, connections to elsewhere are broken, and two sandboxes share what was random. The host name stays. What had ended is gone, and
// so are files that were just being copied in or out.
type Checkpointer interface {
	// Checkpoint makes a checkpoint in dir, a directory of this machine that must not exist, in one that does. It is whole and durable when that returns; on failure,
	// cancellation included, dir does not exist. Commands stand still meanwhile and then go on; connections into ports of the sandbox are closed. Conflict: it has
	// ended, or a command has a terminal or is one of Harvest's own. Unsupported: it has volumes, or other things that cannot be in a checkpoint.
	Checkpoint(ctx context.Context, dir string) error
}

// Rooted is a Snapshotter that has the file of its root file system, which its image may no longer have: it can be built anew meanwhile.
type Rooted interface {
	// Root returns the file's name on this machine, "" if it is not known. It is there until the sandbox is destroyed.
	Root() string
}

// Imager is a sandbox of whose files the engine itself makes an image, which stays where the engine's images are.
type Imager interface {
	// SnapshotImage makes an image of the sandbox's files as they are now, as image.Snapshotter has it: parent is the sandbox's image. Volumes are
	// not part of it. Commands go on. Kinds: Unsupported for opts.Path where the engine has only all of it; Conflict: the sandbox has ended.
	SnapshotImage(ctx context.Context, parent image.Image, opts image.SnapshotOptions) (image.Image, error)
}

// Carrier is a sandbox that its engine ends at a certain time, however long it shall live, and of which it can make another one like it before.
type Carrier interface {
	// Ends returns when the sandbox is to be carried over at the latest, and when the engine ends it; zero times if it does not.
	Ends() (due, end time.Time)
	// Carry makes a sandbox with the same Handle.ID and Spec and with the files as they are now. What was written to volumes is committed. Commands
	// stay behind: end them first. The old sandbox is there until it is destroyed. On failure nothing else is left.
	Carry(ctx context.Context) (Sandbox, error)
}

// Filer is a sandbox whose files can be looked at and changed one by one, whatever its image has.
type Filer interface {
	// Files carries out req, whose paths are absolute, and writes its answer to w as tarfs.Do does. It sees what commands see, links
	// included, and may do what root may where the engine has users. The end of ctx ends it. Kinds: those of tarfs.Do.
	Files(ctx context.Context, req tarfs.Request, w io.Writer) error
}

// Sandbox is a running sandbox. All methods may be called concurrently. A sandbox that has ended answers with Conflict.
type Sandbox interface {
	Handle() Handle
	// Start starts a command; ctx covers starting only. Invalid: no such program (ExitNoProgram), one that cannot be executed
	// (ExitNotExecutable), no such directory or user, or a malformed argument or environment. The caller's Stdin is read and its Stdout and Stderr are written until Wait returns.
	Start(ctx context.Context, cmd Command) (Process, error)
	// CopyIn unpacks a tar stream below dir, which is created if missing. Entries that would leave dir are refused with
	// Invalid, and what was unpacked before them stays. Modes, times and symlinks are kept; owners where the engine has users.
	CopyIn(ctx context.Context, dir string, tar io.Reader) error
	// CopyOut returns a tar stream of path: one entry if it is a file, a tree of entries relative to path if it is a
	// directory. The caller closes it. NotFound if path does not exist.
	CopyOut(ctx context.Context, path string) (io.ReadCloser, error)
	// Wait returns when the sandbox has ended, by itself or by Destroy.
	Wait(ctx context.Context) (End, error)
	// Destroy ends the sandbox and releases all it holds. It is repeatable; when it fails, it has still released what it could.
	Destroy(ctx context.Context) error
}

// End is how a sandbox ended.
type End struct {
	OutOfMemory bool   `json:"out_of_memory"`
	Destroyed   bool   `json:"destroyed"` // by Destroy
	Lost        bool   `json:"lost"`      // by nobody here: whoever runs it for us has ended it, or does not know it any more
	Detail      string `json:"detail"`    // one sentence for users
}

// Process is a started command. All methods may be called concurrently.
type Process interface {
	// ID names the process within its sandbox, also for ProcessOpener. It is not the PID.
	ID() string
	// Wait returns after the last byte of output was written. A failing command is an Exit; an error means that we do not
	// know how it ended: Unavailable when the connection to it broke, Canceled or Timeout when ctx ended (the command goes on).
	// Output of background children that still hold the pipes when the command itself ends is not waited for.
	Wait(ctx context.Context) (Exit, error)
	// Signal sends a signal by its name, such as "TERM" or "INT"; to a terminal command, its foreground group gets it too.
	// Sending one to a process that has ended is no error. Invalid for an unknown name.
	Signal(ctx context.Context, sig string) error
	// Kill ends the command and everything that it started, also what moved to a session of its own. It is repeatable.
	Kill(ctx context.Context) error
	// Resize sets the size of the terminal. Conflict if the command has none.
	Resize(ctx context.Context, size Size) error
}

// Command is shaped after os/exec.Cmd.
type Command struct {
	Args     []string          // Args[0] is a path, or a name looked up in PATH
	Own      bool              // Args[0] is the name of a program that is part of Harvest's own binary, which the engine brings along
	Dir      string            // absolute; "" means the sandbox's
	Env      map[string]string // over the sandbox's
	User     string            // name, uid, or either with ":group"; "" means the sandbox's
	Terminal *Size             // nil: pipes. Otherwise a pseudo-terminal of that size; all output is Stdout
	// Stdin is read to its end and then closed; on a terminal its end types end-of-file. nil is an empty input.
	Stdin io.Reader
	// Stdout and Stderr get the output as it comes; a slow writer slows the command down. nil: output is only kept, for
	// ProcessOpener. A writer that fails stops delivery to it, not the command.
	Stdout, Stderr io.Writer
}

// Size is a terminal's, in characters.
type Size struct {
	Rows int `json:"rows"`
	Cols int `json:"cols"`
}

// Exit codes of errors (errors.ExitOf) for commands that do not start, as in shells.
const (
	ExitNotExecutable = 126
	ExitNoProgram     = 127
)

// Exit is how a command ended.
type Exit struct {
	Code        int    `json:"code"`             // 128+n when a signal ended it, as shells have it
	Signal      string `json:"signal,omitempty"` // "KILL", …
	OutOfMemory bool   `json:"out_of_memory,omitempty"`
	OutOfSpace  bool   `json:"out_of_space,omitempty"` // killed while a volume grew beyond the disk limit
	// Crashed lists processes of the command that a signal such as SIGSEGV ended, unless another process or a user had sent it: "process node (pid 12)
	// died of SIGSEGV at address 0x0". The command may have gone on without them. Engines that do not see such signals leave it empty.
	Crashed string `json:"crashed,omitempty"`
}

// ProcessOpener finds commands again that an earlier connection, perhaps of an earlier server, has started.
type ProcessOpener interface {
	// Processes lists the commands that were started here, ended ones included as long as their output is kept.
	Processes(ctx context.Context) ([]ProcessInfo, error)
	// OpenProcess attaches to a command: all output that is kept is written from its beginning, then what follows.
	// Output is bounded; what was dropped is told by Truncated. The end of ctx ends the connection, and not the command, which
	// then waits for that reader no longer: Wait says Canceled or Timeout. NotFound if there is no such process.
	OpenProcess(ctx context.Context, id string, stdio Stdio) (Process, error)
}

// Stdio is what OpenProcess connects.
type Stdio struct {
	Stdin          io.Reader // nil leaves the command's input as it is
	Stdout, Stderr io.Writer
	// Input, if set, is told before Stdin is read how many bytes of input the command has had from whoever gave it some, and whether its input has
	// ended. Those others give it none any more. An engine that does not count them never calls it.
	Input func(taken int64, ended bool)
	// Truncated, if set, is told before the first byte how many bytes of the beginning are no longer kept.
	Truncated func(bytes int64)
}

// ProcessInfo is a command as ProcessOpener lists it.
type ProcessInfo struct {
	ID       string    `json:"id"`
	Args     []string  `json:"args"`
	Terminal bool      `json:"terminal,omitempty"`
	Started  time.Time `json:"started_at"`
	Exit     *Exit     `json:"exit,omitempty"` // nil while it runs
}

// Warmer boots sandboxes ahead of need.
type Warmer interface {
	// Warm boots a sandbox that is not tied to an image or a network, with the limits that it will have.
	Warm(ctx context.Context, limits Limits) (Warm, error)
}

// Warm is a booted sandbox that waits for its spec.
type Warm interface {
	Handle() Handle
	// Claim makes it the sandbox that spec describes; the limits must be those of Warm. On failure it is destroyed.
	Claim(ctx context.Context, spec Spec) (Sandbox, error)
	// Destroy discards it. It is repeatable, and does nothing after a Claim that succeeded.
	Destroy(ctx context.Context) error
}

// Preparer is a Warm that can have done, before it is claimed, what the claim is expected to want.
type Preparer interface {
	// Prepare mounts an image. Then it runs warmUp there to its end, without rights, unless that is empty or the image has no such
	// program; Invalid if that leaves anything behind. A Claim with that image and no mounts takes what was prepared, any other one is as if nothing
	// had been. A failure leaves the sandbox as it was. Conflict: it was claimed, or prepared before. The image may be deleted meanwhile.
	Prepare(ctx context.Context, image string, warmUp []string) error
}
