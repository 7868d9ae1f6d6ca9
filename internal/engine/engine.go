// Package engine defines the contract of sandbox providers.
//
// Engines hold no policy: quotas, time limits, names, retries and records belong to package fleet. Package
// enginetest tests the behavior that every engine must have. Optional behavior is an optional interface,
// announced in Capabilities.
package engine

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/image"
)

// Engine creates isolated sandboxes. All methods may be called concurrently.
type Engine interface {
	// Name returns the engine's name for records and error texts, such as "gvisor".
	Name() string
	// Capabilities returns what this engine can currently do on this machine.
	Capabilities() Capabilities
	// Create returns a sandbox that is ready for commands. If it fails or is canceled, it leaves nothing
	// behind. Kinds: Invalid for a spec that can never work, NotFound for an unknown image, Exhausted,
	// Unavailable.
	Create(ctx context.Context, spec Spec) (Sandbox, error)
	// Open finds an existing sandbox, possibly one that an earlier process created. It returns NotFound if the
	// sandbox is gone.
	Open(ctx context.Context, h Handle) (Sandbox, error)
	// List returns every sandbox that exists, including those without a record.
	List(ctx context.Context) ([]Handle, error)
	// Images returns the builder of the images that Spec.Image names.
	Images() image.Builder
	// Volumes returns the provider of the volumes that Spec.Mounts names.
	Volumes() volume.Provider
	// Close releases the engine's own resources. Sandboxes keep running.
	Close() error
}

// The kinds of isolation of an Isolator.
const (
	// GVisor sandboxes have a kernel of their own, which is a process of this machine.
	GVisor = "gvisor"
	// Container sandboxes share the kernel of this machine.
	Container = "container"
)

// Isolator is an engine that can isolate sandboxes in several ways.
type Isolator interface {
	Engine
	// Isolation returns the engine whose Create isolates in a way: its Name is the kind, and its Capabilities are those
	// of that kind. It shares images, volumes and handles with this one, and ends with it. Kind: Unsupported, if this
	// machine cannot do it.
	Isolation(kind string) (Engine, error)
}

// Capabilities describes what an engine can do on this machine.
type Capabilities struct {
	// Isolation names the boundary between a sandbox and the host, such as "gvisor/systrap". Users see it, so
	// it must not overstate.
	Isolation string   `json:"isolation"`
	Limits    []string `json:"limits"`  // enforced: "cpu", "memory", "processes", "disk", "files", "volume_files"
	Missing   []string `json:"missing"` // weaknesses and their reasons, one sentence each
	Terminal  bool     `json:"terminal"`
	Reopen    bool     `json:"reopen"`  // sandboxes implement ProcessOpener
	Warm      bool     `json:"warm"`    // the engine implements Warmer
	Volumes   bool     `json:"volumes"` // Spec.Mounts works
	// Views is set if each sandbox has its own view of a volume. Other sandboxes see a change once it is
	// committed and they have reloaded the volume.
	Views   bool `json:"views"`
	Dirs    bool `json:"dirs"`    // Mount.Dir works
	Buckets bool `json:"buckets"` // Mount.Place works
	Users   bool `json:"users"`   // Command.User works
	Network bool `json:"network"` // every NetworkMode works, sandboxes implement Networker and Dialer
	// Rules is set if every rule of Network works. Otherwise rules with a port, Deny, and Allow in addition to
	// the internet are Unsupported.
	Rules bool `json:"rules"`
	// Denials is set if Networker.Denials reports denials. Otherwise it only waits for the end of the sandbox.
	Denials bool `json:"denials"`
	// Intercept is set if sandboxes implement Interceptor.
	Intercept bool `json:"intercept"`
	Snapshot  bool `json:"snapshot"` // sandboxes implement Snapshotter
	Imager    bool `json:"imager"`   // sandboxes implement Imager
	Memory    bool `json:"memory"`   // sandboxes implement Checkpointer, and Spec.Checkpoint works
	Usage     bool `json:"usage"`    // sandboxes implement Meter
	GPUs      bool `json:"gpus"`     // Spec.GPU works
	Secrets   bool `json:"secrets"`  // Spec.Secrets works
	Hostname  bool `json:"hostname"` // Spec.Hostname works
	Private   bool `json:"private"`  // sandboxes implement Peered
	Isolated  bool `json:"isolated"` // false only for the fake, which runs commands as plain child processes
}

// Snapshots reports whether the engine can make images of sandboxes, as a Snapshotter or as an Imager.
func (c Capabilities) Snapshots() bool { return c.Snapshot || c.Imager }

// Handle identifies a sandbox across processes. It is stored in records.
type Handle struct {
	ID  string `json:"id"`  // Spec.ID; "" for a warm sandbox that is not claimed
	Ref string `json:"ref"` // the engine's own name for the sandbox
}

// Spec describes a sandbox. Package fleet has validated it: paths are absolute and clean, limits are positive
// or zero.
type Spec struct {
	ID      string // unique, [a-z0-9_-]{1,64}
	Account string // owner, for engines that separate accounts; "" for none
	Image   string // ID of an image that Images() holds
	// Hostname defaults to HostName(ID). It requires Capabilities.Hostname; other engines choose the host name
	// themselves.
	Hostname string
	Env      map[string]string // environment of every command; overrides the image's
	Dir      string            // default working directory; "" means the image's, or "/"
	User     string            // default user; "" means the image's, or root
	Mounts   []Mount
	Limits   Limits
	// GPU is a type such as "T4", or "A100:2" for two; "" for none. It requires Capabilities.GPUs.
	GPU string
	// Secrets names secrets that the provider itself stores. Their variables join the environment of every
	// command. They override the image's variables, and Env overrides them. NotFound if one does not exist. It
	// requires Capabilities.Secrets.
	Secrets []string
	Network Network
	// KeepOnOOM asks a Snapshotter to read the files before it ends a sandbox that runs out of memory, so that
	// Snapshot works after that end. This is best effort: if a command allocates faster than the engine checks,
	// the files are lost.
	KeepOnOOM bool
	// Checkpoint is the directory of a checkpoint from which the sandbox starts, instead of an image; see
	// Checkpointer for the effects. It requires Capabilities.Memory. Limits must equal those of the sandbox
	// that was checkpointed, and Mounts must be empty. Env, Dir and User, if set, apply to commands that start
	// from now on. Kinds: NotFound; Invalid: the checkpoint is damaged, or the limits differ; Unsupported:
	// another version of the engine made it, or another kind of machine.
	Checkpoint string
	// Stage, if set, is called after each step of Create.
	Stage func(name string, took time.Duration) `json:"-"`
}

// Holder returns the words for a sandbox that holds an image or a volume, for messages.
func Holder(id string) string {
	if id == "" {
		return "a sandbox that was booted ahead"
	}
	return "the sandbox " + id
}

// HostName makes a valid host name (RFC 1123) from a name or an ID: at most 63 letters, digits and hyphens,
// without a hyphen at either end.
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

// Mount mounts a volume, a directory of this machine, or a bucket at a path.
type Mount struct {
	Volume string // name of an existing volume; "" with Dir and with Place
	// Dir is a directory of this machine. It must exist until the sandbox has ended, and may be a mount point
	// of another file system, with limits and response times of its own. It requires Capabilities.Dirs.
	Dir string
	// Place is a place in a bucket that the engine itself mounts. Writes go straight to the bucket, under the engine's
	// own rules for buckets, and are not part of a snapshot. The code that opens the engine supplies the
	// location of the buckets. It requires Capabilities.Buckets.
	Place    places.Place `json:",omitzero"`
	Path     string
	ReadOnly bool
}

// Limits are the limits of a sandbox. Zero means that the sandbox has no limit of its own.
type Limits struct {
	CPU    float64 `json:"cpu"`          // cores
	Memory int64   `json:"memory_bytes"` // bytes; a sandbox that exceeds it ends with OutOfMemory
	// Disk limits the bytes of the writable layer; further writes fail with ENOSPC. The same limit applies to
	// each volume that is mounted writable. An engine that cannot refuse such a write ends the commands that
	// run while the volume exceeds the limit, with OutOfSpace.
	Disk      int64 `json:"disk_bytes"`
	Processes int   `json:"processes"` // beyond it, fork fails with EAGAIN
	Files     int   `json:"files"`     // open files of one process
	// VolumeFiles limits the files and directories of a volume that is mounted writable. Beyond it, creating
	// one fails with EDQUOT.
	VolumeFiles int `json:"volume_files,omitempty"`
}

// Network is the network policy of a sandbox. Rules are domains ("example.org", "*.example.org"), addresses and
// CIDRs, each with an optional ":port". Deny wins over Allow.
type Network struct {
	Mode  NetworkMode `json:"mode"`
	Allow []string    `json:"allow,omitempty"` // besides the internet in mode "default"; exclusively in mode "allow"
	Deny  []string    `json:"deny,omitempty"`
	// Intercept names the servers whose connections are handed to an Interceptor instead of the network: domains and
	// addresses, each with a ":port". It allows none of them. It requires Capabilities.Intercept.
	Intercept []string `json:"intercept,omitempty"`
}

// NetworkMode determines which destinations a sandbox reaches if no rule matches.
type NetworkMode string

// The network modes.
const (
	NetworkNone NetworkMode = "none" // only its own loopback
	// The internet, without loopback, private, link-local, CGNAT, ULA, multicast, metadata and host addresses.
	NetworkDefault NetworkMode = "default"
	NetworkAllow   NetworkMode = "allow" // only the destinations in Allow
)

// Denial is a connection or a DNS lookup that the network policy refused.
type Denial struct {
	Seq      uint64    `json:"seq"` // counts up from 1 in each sandbox
	Time     time.Time `json:"time"`
	Protocol string    `json:"protocol"`         // "tcp", "udp", "icmp" or "dns"
	Domain   string    `json:"domain,omitempty"` // as looked up, or as named by the connection (SNI, Host)
	Address  string    `json:"address,omitempty"`
	Port     int       `json:"port,omitempty"`
	Reason   string    `json:"reason"`          // one sentence
	Count    int       `json:"count,omitempty"` // equal denials that this entry stands for, if many
}

// Networker is a sandbox whose network policy can be changed and observed while it runs.
type Networker interface {
	// SetNetwork replaces the policy. It closes connections that the new policy forbids before it returns.
	SetNetwork(ctx context.Context, network Network) error
	// Denials returns the denials after seq, oldest first, and waits until there is at least one. Old denials
	// are dropped.
	Denials(ctx context.Context, seq uint64) ([]Denial, error)
}

// Interceptor is a sandbox that hands over its connections to the servers in Network.Intercept: those that name one of
// them in the ClientHello of TLS, in a plain HTTP request, or as the target of CONNECT. Without a call of Intercepted
// that waits, such a connection waits for some seconds, and is then closed. Connections that hide the name are not
// intercepted. QUIC to these servers is refused, so that clients use TCP.
type Interceptor interface {
	// Intercepted returns the next connection, and waits until there is one. The caller closes it. Conflict: the
	// sandbox has ended.
	Intercepted(ctx context.Context) (*Intercepted, error)
}

// Intercepted is the other end of a connection of a sandbox.
type Intercepted struct {
	net.Conn
	Interception
}

// Interception describes an intercepted connection.
type Interception struct {
	Name string // the server that the connection names: a domain in lower case, or an address
	// Addr is the destination, which the policy allows. The sandbox looked it up as Name. With Connect, it is a proxy.
	Addr netip.AddrPort
	TLS  bool // the connection begins with a ClientHello; otherwise with an HTTP request
	// Connect is set if the connection begins with a CONNECT request for the server.
	Connect bool
}

// Peered is a sandbox that can be a member of a private network, whose members reach each other's ports by TCP, UDP
// and ping. Ports on loopback stay out of reach. The network policy does not apply there, so that a sandbox without
// the internet may have a private network.
type Peered interface {
	// SetPeers replaces the sandbox's place in a private network; without peers it leaves it. Connections to
	// members that stay continue. Every member must get the others as its peers. The place lasts as long as the
	// sandbox, across restarts of the server, and is not part of a checkpoint.
	SetPeers(ctx context.Context, p Private) error
}

// Private is a sandbox's place in a private network.
type Private struct {
	Addr  netip.Addr // the sandbox's, in IPv4; unique in the private network
	Names []string   // the sandbox's, for its own lookups
	Peers []Peer
}

// Peer is another member of a private network.
type Peer struct {
	Addr   netip.Addr
	Names  []string // by which the sandbox looks it up
	Handle Handle   // of a sandbox of the same engine
}

// Dialer is a sandbox to whose TCP ports the host may connect. Nothing else reaches these ports.
type Dialer interface {
	// Dial connects to a port on which a command listens, on any address of the sandbox, including loopback.
	// Unavailable if nothing listens there.
	Dial(ctx context.Context, port int) (net.Conn, error)
}

// Meter is a sandbox that reports its use of the machine's resources.
type Meter interface {
	// Usage returns the resources used so far. It is cheap: it takes a few reads and runs nothing in the
	// sandbox. Conflict if the sandbox has ended.
	Usage(ctx context.Context) (Usage, error)
}

// Usage is a sandbox's use of resources. Counters never decrease while the sandbox exists, even across server
// restarts.
type Usage struct {
	CPU float64 `json:"cpu_seconds"` // processor time since boot, including the engine's own
	// Memory is the memory in use that is not available to others. It is what the limit counts, without the
	// page cache.
	Memory   int64 `json:"memory_bytes"`
	Received int64 `json:"received_bytes"` // by its network interface
	Sent     int64 `json:"sent_bytes"`     // by its network interface
}

// Snapshotter is a sandbox whose changed files can be read while it runs.
type Snapshotter interface {
	// Snapshot writes the differences from the root file system of the sandbox's image as a consistent tar
	// stream in the form of an OCI layer (https://github.com/opencontainers/image-spec/blob/main/layer.md),
	// with whiteouts for removed files. Volumes and the engine's own mounts are not included. If path is not
	// "", only files below that directory are included. Commands may be paused until it returns. Invalid: path
	// is not a directory, or is a mount point. NotFound: path does not exist. Conflict: the sandbox has ended,
	// and its files were not kept (Spec.KeepOnOOM). Errors of w are returned.
	Snapshot(ctx context.Context, path string, w io.Writer) error
}

// Checkpointer is a sandbox that can be checkpointed: its processes with their memory, and its files, as of one
// moment.
//
// Any number of sandboxes may start from the checkpoint (Spec.Checkpoint), also at the same time. Each of them
// continues from that moment independently, and so does the original. They have its files. Their processes have
// the memory, the IDs, the open files of the sandbox, and the connections within it, including loopback.
// ProcessOpener finds the commands that ran by the same IDs. Their output from then on is kept anew, and input
// that was open is open again. Commands get no notification, but they can notice: the clock has jumped,
// connections to other hosts are broken, and two sandboxes share random state. The host name is the new
// sandbox's. Commands that had ended are gone, and so are files that were being copied in or out at that moment.
type Checkpointer interface {
	// Checkpoint writes a checkpoint to dir, a directory of this machine that must not exist yet, in a parent
	// that does. The checkpoint is complete and durable when Checkpoint returns. If it fails or is canceled,
	// dir does not exist. Commands are paused until it returns, and then continue. Connections to ports of the
	// sandbox are closed. Conflict: the sandbox has ended, or a command has a terminal or is one of Harvest's
	// own. Unsupported: the sandbox has volumes, or other things that cannot be part of a checkpoint.
	Checkpoint(ctx context.Context, dir string) error
}

// Described is a sandbox from which its Spec can be read, to create another one like it.
type Described interface {
	// Spec returns the Spec from which the sandbox was made, with its environment, which may have secrets. Image,
	// Network and Limits are those of its beginning. Kinds: Conflict (it has ended), Unsupported (an earlier version
	// of Harvest made it, and did not keep the Spec).
	Spec(ctx context.Context) (Spec, error)
}

// Rooted is a Snapshotter that holds the file of its root file system. The image may no longer hold that file,
// because it can be rebuilt while the sandbox runs.
type Rooted interface {
	// Root returns the file's name on this machine, or "" if it is unknown. The file exists until the sandbox
	// is destroyed.
	Root() string
}

// Imager is a sandbox whose engine makes images of its files itself. The image is stored with the engine's
// images.
type Imager interface {
	// SnapshotImage makes an image of the sandbox's current files, with the semantics of image.Snapshotter.
	// parent is the sandbox's image. Volumes are not included. Commands keep running. Kinds: Unsupported for
	// opts.Path if the engine can only take whole file systems; Conflict: the sandbox has ended.
	SnapshotImage(ctx context.Context, parent image.Image, opts image.SnapshotOptions) (image.Image, error)
}

// Carrier is a sandbox that its engine ends at a certain time, regardless of the lifetime in its record. Before
// that time, the engine can replace it by an equal one. If the time can change, the engine is an Announcer.
type Carrier interface {
	// Ends returns the latest time to carry the sandbox over, and the time when the engine ends it. Both are
	// zero if the engine does not end it.
	Ends() (due, end time.Time)
	// Carry makes a sandbox with the same Handle.ID and Spec and with the current files. Writes to volumes are
	// committed. Commands are not carried over: end them first. The old sandbox exists until it is destroyed.
	// If Carry fails, it leaves nothing else behind.
	Carry(ctx context.Context) (Sandbox, error)
}

// Announcer is an engine that learns late when it ends a Carrier.
type Announcer interface {
	// Announced returns a channel with a value after Ends of a Carrier has changed.
	Announced() <-chan struct{}
}

// Filer is a sandbox whose files can be read and changed one by one, regardless of the programs in its image.
type Filer interface {
	// Files executes req, whose paths are absolute, and writes the answer to w as tarfs.Do does. It sees the
	// same files as commands do, links included, and has root's permissions if the engine supports users.
	// Cancelling ctx ends it. Kinds: those of tarfs.Do.
	Files(ctx context.Context, req tarfs.Request, w io.Writer) error
}

// Sandbox is a running sandbox. All methods may be called concurrently. They return Conflict after the sandbox
// has ended.
type Sandbox interface {
	Handle() Handle
	// Start starts a command; ctx covers only the start. Invalid: the program does not exist (ExitNoProgram) or
	// is not executable (ExitNotExecutable), the directory or the user does not exist, or an argument or the
	// environment is malformed. The process reads the caller's Stdin and writes Stdout and Stderr until Wait
	// returns.
	Start(ctx context.Context, cmd Command) (Process, error)
	// CopyIn unpacks a tar stream below dir, which is created if missing. An entry that would leave dir is
	// refused with Invalid; entries unpacked before it stay. Modes, times and symlinks are kept, and owners if
	// the engine supports users.
	CopyIn(ctx context.Context, dir string, tar io.Reader) error
	// CopyOut returns a tar stream of path: one entry for a file, a tree of entries relative to path for a directory.
	// The caller closes the stream. NotFound if path does not exist.
	CopyOut(ctx context.Context, path string) (io.ReadCloser, error)
	// Wait returns when the sandbox has ended, by itself or by Destroy.
	Wait(ctx context.Context) (End, error)
	// Destroy ends the sandbox and releases all its resources. It is idempotent. When it fails, it has still
	// released as much as it could.
	Destroy(ctx context.Context) error
}

// End describes how a sandbox ended.
type End struct {
	OutOfMemory bool   `json:"out_of_memory"`
	Destroyed   bool   `json:"destroyed"` // ended by Destroy
	Lost        bool   `json:"lost"`      // ended by the provider, or the provider no longer knows it
	Detail      string `json:"detail"`    // one sentence for users
}

// Process is a started command. All methods may be called concurrently.
type Process interface {
	// ID names the process within its sandbox, also for ProcessOpener. It is not the PID.
	ID() string
	// Wait returns after the last byte of output was written. A failing command is an Exit. An error means that
	// its result is unknown: Unavailable when the connection to it broke, Canceled or Timeout when ctx ended
	// (the command keeps running). Wait does not wait for the output of background children that still hold the
	// pipes when the command itself ends.
	Wait(ctx context.Context) (Exit, error)
	// Signal sends a signal by its name, such as "TERM" or "INT". For a command with a terminal, the foreground
	// process group gets it too. Signalling a process that has ended is not an error. Invalid for an unknown
	// name.
	Signal(ctx context.Context, sig string) error
	// Kill ends the command and all its descendants, including those in sessions of their own. It is
	// idempotent.
	Kill(ctx context.Context) error
	// Resize sets the size of the terminal. Conflict if the command has none.
	Resize(ctx context.Context, size Size) error
}

// Command describes a command, much like os/exec.Cmd.
type Command struct {
	Args     []string          // Args[0] is a path, or a name looked up in PATH
	Own      bool              // Args[0] names a program in Harvest's own binary, which the engine supplies
	Dir      string            // absolute; defaults to the sandbox's
	Env      map[string]string // overrides the sandbox's
	User     string            // name, uid, or either with ":group"; defaults to the sandbox's
	Terminal *Size             // nil for pipes; otherwise the size of a pseudo-terminal, whose output is all Stdout
	// Stdin is read to its end and then closed. On a terminal, its end types end-of-file. nil is an empty
	// input.
	Stdin io.Reader
	// InputOnce says that no later connection can continue Stdin. If Stdin fails, or the connection that provides it
	// breaks before the end of Stdin, the command and its descendants are killed, and Exit.InputLost is set: it would
	// wait for ever, or take a part of the input for all of it. It has no effect on a terminal.
	InputOnce bool
	// Stdout and Stderr receive the output as it is produced; a slow writer slows the command down. With nil,
	// the output is only kept for ProcessOpener. If a writer fails, it gets no more output, but the command
	// continues.
	Stdout, Stderr io.Writer
	// Truncated, if set, is called as described for Stdio.
	Truncated func(bytes int64)
	// Merged sends both streams of the command to Stdout, in the order in which it writes.
	Merged bool
}

// Size is the size of a terminal, in characters.
type Size struct {
	Rows int `json:"rows"`
	Cols int `json:"cols"`
}

// Exit codes of errors (errors.ExitOf) for commands that do not start, the same as in shells.
const (
	ExitNotExecutable = 126
	ExitNoProgram     = 127
)

// Exit describes how a command ended.
type Exit struct {
	Code        int    `json:"code"`             // 128+n when a signal ended it, as in shells
	Signal      string `json:"signal,omitempty"` // "KILL", …
	OutOfMemory bool   `json:"out_of_memory,omitempty"`
	OutOfSpace  bool   `json:"out_of_space,omitempty"` // killed while a volume exceeded the disk limit
	// InputLost is set if the command was killed because the rest of its input was lost (Command.InputOnce).
	InputLost bool `json:"input_lost,omitempty"`
	// Crashed lists processes of the command that a signal such as SIGSEGV ended, unless another process or a
	// user sent the signal: "process node (pid 12) died of SIGSEGV at address 0x0". The command may have
	// continued without them. Engines that cannot see such signals leave it empty.
	Crashed string `json:"crashed,omitempty"`
}

// ProcessOpener finds commands that were started over an earlier connection, possibly by an earlier server.
type ProcessOpener interface {
	// Processes lists the commands of the sandbox, including ended ones while their output is kept.
	Processes(ctx context.Context) ([]ProcessInfo, error)
	// OpenProcess attaches to a command: it writes all kept output from the beginning, then the output that
	// follows. The kept output is bounded, and more so if the disk is full; Truncated reports the dropped part.
	// When ctx ends, the connection ends, but not the command, which no longer waits for that reader: Wait returns
	// Canceled or Timeout. NotFound if the process does not exist.
	OpenProcess(ctx context.Context, id string, stdio Stdio) (Process, error)
}

// Stdio holds the streams that OpenProcess connects.
type Stdio struct {
	Stdin          io.Reader // nil leaves the command's input as it is
	Stdout, Stderr io.Writer
	// Input, if set, is called before Stdin is read. It reports how many bytes of input the command has
	// received from earlier connections, and whether its input has ended. Those connections send no further
	// input. An engine that does not count input never calls it.
	Input func(taken int64, ended bool)
	// Truncated, if set, reports how many bytes of output are missing at the place that was reached: at the
	// beginning, where old output was dropped, or later, where the disk did not return kept output. It is not
	// called during a write.
	Truncated func(bytes int64)
}

// ProcessInfo is a command as listed by ProcessOpener.
type ProcessInfo struct {
	ID       string    `json:"id"`
	Args     []string  `json:"args"`
	Terminal bool      `json:"terminal,omitempty"`
	Started  time.Time `json:"started_at"`
	Exit     *Exit     `json:"exit,omitempty"` // nil while it runs
}

// Warmer is an engine that boots sandboxes ahead of demand.
type Warmer interface {
	// Warm boots a sandbox with its final limits, but without an image or a network.
	Warm(ctx context.Context, limits Limits) (Warm, error)
}

// Warm is a booted sandbox that is not claimed yet.
type Warm interface {
	Handle() Handle
	// Claim turns it into the sandbox that spec describes. The limits must be those passed to Warm. On failure
	// it is destroyed.
	Claim(ctx context.Context, spec Spec) (Sandbox, error)
	// Destroy discards it. It is idempotent, and does nothing after a successful Claim.
	Destroy(ctx context.Context) error
}

// Preparer is a Warm that can do the work of an expected claim in advance.
type Preparer interface {
	// Prepare mounts an image and then runs warmUp in it to its end, without privileges. It skips warmUp if
	// that is empty or the image does not have the program, and returns Invalid if the command leaves anything
	// behind. A Claim with that image and without mounts uses the preparation; any other Claim ignores it. If
	// Prepare fails, the sandbox is as before. Conflict: it was claimed or prepared before. The image may be
	// deleted meanwhile.
	Prepare(ctx context.Context, image string, warmUp []string) error
}
