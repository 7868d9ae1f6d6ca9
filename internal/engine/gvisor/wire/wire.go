// Package wire is the protocol between the gVisor engine and the keeper of a sandbox, over a Unix socket.
//
// A connection carries frames: one byte for the kind, four bytes for the length (big endian), and the payload.
// The client sends one Request. The frames after that depend on its operation. Output frames have the same
// format on the wire and in the spool, so that they are copied from disk to socket unchanged.
package wire

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// Kind is the kind of a frame.
type Kind byte

// The kinds of frames.
const (
	KindRequest   Kind = 'q' // client: JSON of Request
	KindReply     Kind = 'r' // keeper: JSON of Reply; the operation succeeded
	KindFailure   Kind = 'e' // keeper: JSON of Failure; ends the connection
	KindStage     Kind = 's' // keeper: JSON of Stage, while booting
	KindStdin     Kind = 'i' // client: bytes for the command's input
	KindStdinEnd  Kind = 'z' // client: end of the input
	KindStdinLost Kind = 'l' // client: the rest of the input is lost; only with StartArgs.InputOnce
	KindStdout    Kind = 'o' // keeper: output
	KindStderr    Kind = 'u' // keeper: error output
	KindTruncated Kind = 't' // keeper: JSON number of bytes of output that are missing at this place
	KindExit      Kind = 'x' // keeper: JSON of engine.Exit; after all output
	KindFiles     Kind = 'f' // keeper: JSON number of open files that it awaits, beside a byte without a frame
)

// Socket and StateFile are the files of a keeper in its sandbox's directory.
const (
	Socket    = "keeper.sock"
	StateFile = "state.json"
)

// VerifyName is argv[0] of gVisor's program if it is to verify its compiled system call filter. It prints Verified or
// an error, and ends with VerifyUnsupported if its build has no compiled filter.
const (
	VerifyName        = "harvest-verify"
	Verified          = "verified"
	VerifyUnsupported = 3
)

// MaxFrame is the maximum payload size that a reader accepts. A command's environment and arguments are in one
// frame.
const MaxFrame = 64 << 20

// HeaderSize is the length of a frame's header.
const HeaderSize = 5

// PutHeader writes a frame's header to b, which must have at least HeaderSize bytes.
func PutHeader(b []byte, k Kind, size int) {
	b[0] = byte(k)
	binary.BigEndian.PutUint32(b[1:], uint32(size))
}

// Operation is the operation of a Request.
type Operation string

// The operations.
const (
	Boot      Operation = "boot"      // Stage*, then Reply: starts the sandbox; first, on the inherited connection
	Prepare   Operation = "prepare"   // Reply: mounts the image of an expected claim
	Claim     Operation = "claim"     // Stage*, then Reply: gives a booted sandbox its image
	Start     Operation = "start"     // Reply with ID, then output until Exit; the client sends Stdin*, StdinEnd
	Attach    Operation = "attach"    // the same for a command that was started before
	Control   Operation = "control"   // Reply: signals, kills or resizes a command
	Processes Operation = "processes" // Reply with Processes
	Wait      Operation = "wait"      // Reply with End when the sandbox has ended
	Info      Operation = "info"      // Reply with State, and with Claim after the claim
	Usage     Operation = "usage"     // Reply with Usage
	Snapshot  Operation = "snapshot"  // KindStdout*, then Reply: the writable layer as a tar stream
	Destroy   Operation = "destroy"   // Reply when all resources are released

	Checkpoint Operation = "checkpoint" // Reply when the files of a checkpoint are durable in the directory Path

	SetNetwork Operation = "set-network" // Reply when the new policy is active
	SetPeers   Operation = "set-peers"   // Reply when the private network has the new peers
	Packets    Operation = "packets"     // Reply, then no frames: a peer's packets, as package netstack sends them
	Denials    Operation = "denials"     // Reply with Denials as soon as there are any
	// Intercepted is answered with a Reply with Intercepted as soon as the sandbox opens such a connection, and then
	// with its data, without frames.
	Intercepted Operation = "intercepted"
	Dial        Operation = "dial" // Reply, then no frames: a byte (DialOK on success), then data from the port
	// Connect is answered with a Reply if the port was reached, then with data from the port, without frames.
	// Meanwhile the client sends Stdin* and StdinEnd. It is for sandboxes to which connections cannot be handed
	// over, and whose connections cannot be closed in one direction.
	Connect Operation = "connect"
)

// Request is the first frame of a connection.
type Request struct {
	Op      Operation
	Boot    *BootArgs    `json:",omitempty"`
	Prepare *PrepareArgs `json:",omitempty"`
	Claim   *ClaimArgs   `json:",omitempty"`
	Start   *StartArgs   `json:",omitempty"`
	Attach  *AttachArgs  `json:",omitempty"`
	Control *ControlArgs `json:",omitempty"`
	Path    string       `json:",omitempty"` // of a snapshot ("" for all), or of a checkpoint, on this machine

	Network *engine.Network `json:",omitempty"` // of SetNetwork
	Peers   *PeersArgs      `json:",omitempty"` // of SetPeers
	Denials *DenialsArgs    `json:",omitempty"`
	Dial    *DialArgs       `json:",omitempty"` // of Dial and Connect
}

// DenialsArgs request the denials after Seq.
type DenialsArgs struct{ Seq uint64 }

// PeersArgs describe the sandbox's place in a private network (engine.Private).
type PeersArgs struct {
	Addr  netip.Addr
	Names []string
	Peers []Peer
}

// Peer is another member of a private network.
type Peer struct {
	Addr  netip.Addr
	Names []string
	Dir   string // of its keeper
}

// DialArgs name a port of the sandbox.
type DialArgs struct{ Port int }

// DialOK is the first byte of a connection to a port with a listener. Any other byte means that there is no
// listener.
const DialOK = 'k'

// BootArgs describe a sandbox before it has an image.
type BootArgs struct {
	Ref         string
	Dir         string // directory of this sandbox, absolute
	Init        string // path of the init program's image
	Sentry      string // path of gVisor's program
	Tools       string // path of the tools' program; "" means the keeper's
	Crashes     string // directory for reports of crashed processes; "" for none
	Platform    string
	Rootless    bool
	NoSetuid    bool   // no privileges from setuid bits and file capabilities
	Cgroup      string // name of the cgroup; "" for none
	Limits      engine.Limits
	OutputBytes int64      // kept output of each command
	Claim       *ClaimArgs `json:",omitempty"` // nil for a warm sandbox
	Restore     string     `json:",omitempty"` // directory of a checkpoint to start from, already claimed

	// FirstUser is the host's user that becomes user 0 of the sandbox, 0 for the keeper's own users. If it is set, the
	// keeper inherits its lease as FirstFile, and after it the files of the claim's mounts.
	FirstUser int `json:",omitempty"`

	// Hosts are further addresses of this machine, which the network treats as those of its interfaces.
	Hosts []netip.Addr `json:",omitempty"`

	// Container makes the sandbox a container instead of a sandbox of gVisor.
	Container *ContainerArgs `json:",omitempty"`
}

// ContainerArgs are the options of containers.
type ContainerArgs struct {
	Filter []unix.SockFilter // of system calls
}

// PrepareArgs describe the part of a claim that can be done in advance.
type PrepareArgs struct {
	Root, Layer string // as in ClaimArgs
	WarmUp      []string
	Env         map[string]string // environment of the warm-up
}

// ClaimArgs add an image and a spec to a booted sandbox.
type ClaimArgs struct {
	ID       string
	Root     string // path of the image's EROFS file
	Layer    string // tar stream for the writable layer; "" for none
	Hostname string
	Env      map[string]string // image's and sandbox's variables
	Dir      string
	User     string
	Mounts   []Mount
	Network  engine.Network
	Keep     bool // read the writable layer first when memory runs out

	// Files are detached mounts, one per element of Mounts, if the sandbox has its own users. The client sends them
	// separately: KindFiles.
	Files []*os.File `json:"-"`

	OutputBytes int64 `json:",omitempty"` // kept output of each command, if not set at boot

	// Spec is the sandbox's spec, which is stored nowhere else, for another sandbox like it.
	Spec *engine.Spec `json:",omitempty"`
}

// CloseFiles closes the files. c may be nil.
func (c *ClaimArgs) CloseFiles() {
	if c == nil {
		return
	}
	for _, f := range c.Files {
		_ = f.Close()
	}
	c.Files = nil
}

// FirstFile is the first descriptor that a keeper may inherit after its connection to the server.
const FirstFile = 4

// Mount is a directory of the host at a path of the sandbox.
type Mount struct {
	Source, Path string
	ReadOnly     bool
	Foreign      bool // not measured; it has its own limits, and may be slow
}

// StartArgs describe a command.
type StartArgs struct {
	Args     [][]byte // any bytes but NUL; JSON strings would change those that are not UTF-8
	Dir      string
	Env      [][]byte // "NAME=value"
	User     string
	Terminal *engine.Size
	Stdin    bool // input follows; otherwise it is empty
	// InputOnce makes the loss of input kill the command, as described for engine.Command.
	InputOnce bool
	Merged    bool // standard error goes to standard output
	Own       bool // runs Harvest's own binary instead of a program of the image
	Tool      bool // the same, as root and in /; its output is not kept after its end
	Quiet     bool // output is kept, but not sent here; otherwise a slow reader blocks the command
}

// AttachArgs name a command.
type AttachArgs struct {
	ID    string
	Stdin bool
	Input bool // the Reply has Input, and other connections provide no more input
	Quiet bool // only the exit is sent
}

// Input describes the input that a command has received.
type Input struct {
	Bytes int64
	Ended bool // the input has ended
}

// ControlArgs describe an action on a command.
type ControlArgs struct {
	ID     string
	Signal int          `json:",omitempty"`
	Kill   bool         `json:",omitempty"`
	Size   *engine.Size `json:",omitempty"`
}

// Reply is the answer of a successful operation. The operation determines the fields that are set.
type Reply struct {
	ID        string               `json:",omitempty"`
	Input     *Input               `json:",omitempty"`
	Processes []engine.ProcessInfo `json:",omitempty"`
	End       *engine.End          `json:",omitempty"`
	State     *State               `json:",omitempty"`
	Denials   []engine.Denial      `json:",omitempty"`

	Intercepted *engine.Interception `json:",omitempty"`
	Usage       *engine.Usage        `json:",omitempty"`
	Found       *Found               `json:",omitempty"`
	Claim       *ClaimArgs           `json:",omitempty"` // the sandbox's claim
}

// Found holds the image's defaults for commands as seen in the sandbox, for engines that cannot know them
// otherwise.
type Found struct {
	Env map[string]string
	Dir string
}

// State is the state of a keeper. It is also on disk (state.json), for the time after the keeper's end.
type State struct {
	Ref     string
	ID      string // "" before the claim
	Keeper  int    // PID of the keeper, in its own view
	Sentry  int    // PID of the sandbox process, in the keeper's view
	Started time.Time
	Cgroup  string
	Limits  engine.Limits
	Network engine.Network
	// FirstUser is the host's user that is user 0 of the sandbox, 0 if the sandbox has no users of its own.
	FirstUser int         `json:",omitempty"`
	End       *engine.End `json:",omitempty"`
}

// Stage is a completed step of booting.
type Stage struct {
	Name string
	Took time.Duration
}

// Failure is an error in transit to the client.
type Failure struct {
	Kind    errors.Kind
	Message string // for clients
	Detail  string // for operators
	Stage   string
	Remedy  string
	Exit    int `json:",omitempty"`
}

// FailureOf converts err to the payload of a frame.
func FailureOf(err error) Failure {
	return Failure{Kind: errors.KindOf(err), Message: errors.Message(err), Detail: err.Error(),
		Stage: errors.StageOf(err), Remedy: errors.RemedyOf(err), Exit: errors.ExitOf(err)}
}

// Err converts the payload back to an error with the same kind, texts, stage and remedy.
func (f Failure) Err() error {
	err := errors.Explainf(errors.Errorf("%s", f.Detail), f.Kind, "%s", f.Message)
	if f.Stage != "" {
		err = errors.Stage(err, f.Stage)
	}
	if f.Remedy != "" {
		err = errors.Remedy(err, "%s", f.Remedy)
	}
	if f.Exit != 0 {
		err = errors.Exit(err, f.Exit)
	}
	return err
}

// Conn sends and receives frames. One goroutine may receive while others send.
type Conn struct {
	net.Conn
	r  *bufio.Reader
	mu sync.Mutex // held while a frame is written
}

// NewConn returns a Conn for frames on c.
func NewConn(c net.Conn) *Conn { return &Conn{Conn: c, r: bufio.NewReaderSize(c, 128<<10)} }

// Stream returns the connection for the data after the last frame.
func (c *Conn) Stream() net.Conn { return &stream{c.Conn, c.r} }

// stream is a connection whose first bytes may be buffered already.
type stream struct {
	net.Conn
	r *bufio.Reader
}

func (s *stream) Read(p []byte) (int, error) { return s.r.Read(p) }

// CloseWrite closes one direction.
func (s *stream) CloseWrite() error {
	if c, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return errors.Errorf("connections of the type %T have no directions", s.Conn)
}

// Send writes one frame.
func (c *Conn) Send(k Kind, payload []byte) error {
	var h [HeaderSize]byte
	PutHeader(h[:], k, len(payload))
	c.mu.Lock()
	defer c.mu.Unlock()
	bufs := net.Buffers{h[:], payload}
	_, err := bufs.WriteTo(c.Conn)
	return errors.Explainf(err, errors.Unavailable, "the connection to the sandbox broke")
}

// SendJSON writes one frame with v as its payload.
func (c *Conn) SendJSON(k Kind, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return errors.Wrapf(err, "encode frame %q", k)
	}
	return c.Send(k, b)
}

// SendFrames writes whole frames.
func (c *Conn) SendFrames(frames []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.Write(frames)
	return errors.Explainf(err, errors.Unavailable, "the connection to the sandbox broke")
}

// Next reads a frame's header and returns a reader for the payload, which must be read to its end before the
// next call. The error is io.EOF if the connection ended between two frames.
func (c *Conn) Next() (Kind, *io.LimitedReader, error) {
	var h [HeaderSize]byte
	if _, err := io.ReadFull(c.r, h[:1]); err != nil {
		return 0, nil, err
	}
	if _, err := io.ReadFull(c.r, h[1:]); err != nil {
		return 0, nil, errors.Explainf(err, errors.Unavailable, "the connection to the sandbox broke")
	}
	size := binary.BigEndian.Uint32(h[1:])
	if size > MaxFrame {
		return 0, nil, errors.Errorf("a frame of %d bytes is larger than %d", size, MaxFrame)
	}
	return Kind(h[0]), &io.LimitedReader{R: c.r, N: int64(size)}, nil
}

// Receive reads a whole frame.
func (c *Conn) Receive() (Kind, []byte, error) {
	k, r, err := c.Next()
	if err != nil {
		return 0, nil, err
	}
	b, err := io.ReadAll(r)
	if err == nil && r.N > 0 {
		err = io.ErrUnexpectedEOF
	}
	return k, b, errors.Explainf(err, errors.Unavailable, "the connection to the sandbox broke")
}

// ReceiveReply reads frames up to the Reply. It calls stage, if not nil, for each stage. It returns a Failure
// as its error.
func (c *Conn) ReceiveReply(stage func(Stage)) (Reply, error) {
	for {
		k, b, err := c.Receive()
		if err != nil {
			return Reply{}, errors.Explainf(err, errors.Unavailable, "the connection to the sandbox broke")
		}
		switch k {
		case KindStage:
			var s Stage
			if err := json.Unmarshal(b, &s); err != nil {
				return Reply{}, errors.Wrapf(err, "decode stage")
			}
			if stage != nil {
				stage(s)
			}
		default:
			return decodeReply(k, b)
		}
	}
}

func decodeReply(k Kind, b []byte) (Reply, error) {
	switch k {
	case KindReply:
		var r Reply
		return r, errors.Wrapf(json.Unmarshal(b, &r), "decode reply")
	case KindFailure:
		var f Failure
		if err := json.Unmarshal(b, &f); err != nil {
			return Reply{}, errors.Wrapf(err, "decode failure")
		}
		return Reply{}, f.Err()
	default:
		return Reply{}, errors.Errorf("unexpected frame %q", k)
	}
}

// ReceiveOutput copies the output before the Reply to w.
func (c *Conn) ReceiveOutput(w io.Writer) (Reply, error) {
	buf := make([]byte, 256<<10)
	for {
		k, r, err := c.Next()
		if err != nil {
			return Reply{}, errors.Explainf(err, errors.Unavailable, "the connection to the sandbox broke")
		}
		if k != KindStdout {
			b, err := io.ReadAll(r)
			if err != nil || r.N > 0 {
				return Reply{}, errors.Newf(errors.Unavailable, "the connection to the sandbox broke")
			}
			return decodeReply(k, b)
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{w}, r, buf); err != nil {
			return Reply{}, err
		}
		if r.N > 0 {
			return Reply{}, errors.Newf(errors.Unavailable, "the connection to the sandbox broke")
		}
	}
}
