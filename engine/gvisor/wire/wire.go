// Package wire is what the gVisor engine and the keeper of a sandbox say to each other over a Unix socket.
//
// A connection carries frames: one byte of kind, four bytes of length (big endian), the payload. The client sends one
// Request; what follows depends on its operation. Output frames have the same form on the wire and in the spool, so that
// they pass from disk to socket as they are.
package wire

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
)

// Kind of a frame.
type Kind byte

// The kinds of frames.
const (
	KindRequest   Kind = 'q' // client: JSON of Request
	KindReply     Kind = 'r' // keeper: JSON of Reply; the operation succeeded
	KindFailure   Kind = 'e' // keeper: JSON of Failure; ends the connection
	KindStage     Kind = 's' // keeper: JSON of Stage, while booting
	KindStdin     Kind = 'i' // client: bytes for the command's input
	KindStdinEnd  Kind = 'z' // client: end of the input
	KindStdout    Kind = 'o' // keeper: output
	KindStderr    Kind = 'u' // keeper: error output
	KindTruncated Kind = 't' // keeper: JSON number, bytes that are no longer kept; before any output
	KindExit      Kind = 'x' // keeper: JSON of engine.Exit; after all output
)

// MaxFrame is the largest payload that a reader accepts: environment and arguments of a command are in one frame.
const MaxFrame = 64 << 20

// HeaderSize is the length of a frame's header.
const HeaderSize = 5

// PutHeader writes a frame's header to b, which must have HeaderSize bytes.
func PutHeader(b []byte, k Kind, size int) {
	b[0] = byte(k)
	binary.BigEndian.PutUint32(b[1:], uint32(size))
}

// Operation of a Request.
type Operation string

// The operations.
const (
	Boot      Operation = "boot"      // Stage*, then Reply: starts the sandbox; first on the keeper's inherited connection
	Prepare   Operation = "prepare"   // Reply: mounts the image that a claim is expected to want
	Claim     Operation = "claim"     // Stage*, then Reply: gives a booted sandbox its image
	Start     Operation = "start"     // Reply with ID, then output until Exit; the client sends Stdin*, StdinEnd
	Attach    Operation = "attach"    // the same for a command that was started before
	Control   Operation = "control"   // Reply: signals, kills or resizes a command
	Processes Operation = "processes" // Reply with Processes
	Wait      Operation = "wait"      // Reply with End when the sandbox has ended
	Info      Operation = "info"      // Reply with State
	Usage     Operation = "usage"     // Reply with Usage
	Snapshot  Operation = "snapshot"  // KindStdout*, then Reply: the writable layer as a tar stream
	Destroy   Operation = "destroy"   // Reply when everything is released

	Checkpoint Operation = "checkpoint" // Reply when the files of a checkpoint are durable in the directory Path

	SetNetwork Operation = "set-network" // Reply when the new policy is in force
	Denials    Operation = "denials"     // Reply with Denials as soon as there are some
	Dial       Operation = "dial"        // Reply, then no frames: a byte, DialOK if the port was reached, and what comes from it
	// Reply if the port was reached, then what comes from it, without frames, while the client sends Stdin* and StdinEnd. Where connections cannot
	// be handed over, and their ends are not half.
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
	Path    string       `json:",omitempty"` // of a snapshot, "" for all; of a checkpoint, which is on this machine

	Network *engine.Network `json:",omitempty"` // of SetNetwork
	Denials *DenialsArgs    `json:",omitempty"`
	Dial    *DialArgs       `json:",omitempty"` // of Dial and Connect
}

// DenialsArgs ask for what the network policy refused after Seq.
type DenialsArgs struct{ Seq uint64 }

// DialArgs name a port of the sandbox.
type DialArgs struct{ Port int }

// DialOK is the first byte of a connection to a port on which somebody listens. Any other means that nobody does.
const DialOK = 'k'

// BootArgs describe a sandbox before it has an image.
type BootArgs struct {
	Ref         string
	Dir         string // of this sandbox, absolute
	Init        string // path of the image that holds the init program
	Sentry      string // path of the program that is gVisor
	Tools       string // path of the program of what runs inside; "" means the keeper's
	Crashes     string // directory that keeps reports of crashed processes; "" for none
	Platform    string
	Rootless    bool
	NoSetuid    bool   // programs gain no privileges by setuid bits and file capabilities
	Cgroup      string // name of the cgroup; "" for none
	Limits      engine.Limits
	OutputBytes int64      // of each command that are kept
	Claim       *ClaimArgs `json:",omitempty"` // nil for a warm sandbox
	Restore     string     `json:",omitempty"` // directory of a checkpoint with which the sandbox begins, claimed
}

// PrepareArgs are what can be done for a claim before anything else of it is known.
type PrepareArgs struct {
	Root, Layer string // as in ClaimArgs
	WarmUp      []string
	Env         map[string]string // of the warm-up
}

// ClaimArgs are what an image and a spec add to a booted sandbox.
type ClaimArgs struct {
	ID       string
	Root     string // path of the image's EROFS file
	Layer    string // path of the tar stream that fills the writable layer; "" for none
	Hostname string
	Env      map[string]string // the image's and the sandbox's
	Dir      string
	User     string
	Mounts   []Mount
	Network  engine.Network
	Keep     bool // when memory runs out, the writable layer is read first

	OutputBytes int64 `json:",omitempty"` // of each command that are kept, where booting has not said it

	// Spec is what the sandbox was made of, for engines that make another one like it and keep it nowhere else.
	Spec *engine.Spec `json:",omitempty"`
}

// Mount is a directory of the host at a path of the sandbox.
type Mount struct {
	Source, Path string
	ReadOnly     bool
	Foreign      bool // nobody measures it: it has limits of its own, and may take long to answer
}

// StartArgs are a command.
type StartArgs struct {
	Args     [][]byte // any bytes but NUL; JSON's strings would change what is not UTF-8
	Dir      string
	Env      [][]byte // "NAME=value"
	User     string
	Terminal *engine.Size
	Stdin    bool // input follows; otherwise it is empty
	Own      bool // runs Harvest's own binary instead of a program of the image
	Tool     bool // the same, as root and in /; its output is not kept after it ends
	Quiet    bool // output is only kept; otherwise it is sent on this connection, and the command waits for a slow reader
}

// AttachArgs name a command.
type AttachArgs struct {
	ID    string
	Stdin bool
	Input bool // the reply says how much input the command has had, and nobody else gives it any from then on
	Quiet bool // only the exit is sent
}

// Input is what a command has had of its input.
type Input struct {
	Bytes int64
	Ended bool // there will be no more
}

// ControlArgs act on a command.
type ControlArgs struct {
	ID     string
	Signal int          `json:",omitempty"`
	Kill   bool         `json:",omitempty"`
	Size   *engine.Size `json:",omitempty"`
}

// Reply is a success. The operation says which fields are set.
type Reply struct {
	ID        string               `json:",omitempty"`
	Input     *Input               `json:",omitempty"`
	Processes []engine.ProcessInfo `json:",omitempty"`
	End       *engine.End          `json:",omitempty"`
	State     *State               `json:",omitempty"`
	Denials   []engine.Denial      `json:",omitempty"`
	Usage     *engine.Usage        `json:",omitempty"`
	Found     *Found               `json:",omitempty"`
	Claim     *ClaimArgs           `json:",omitempty"` // what the sandbox was claimed with
}

// Found is what a sandbox's image turns out to say about commands, where nobody else tells.
type Found struct {
	Env map[string]string
	Dir string
}

// State is what the keeper is, also on disk (state.json) for the time after it.
type State struct {
	Ref     string
	ID      string // "" while nobody claimed it
	Keeper  int    // PID of the keeper, as it sees it
	Sentry  int    // PID of the sandbox process, as the keeper sees it
	Started time.Time
	Cgroup  string
	Limits  engine.Limits
	Network engine.Network
	End     *engine.End `json:",omitempty"`
}

// Stage is a step of booting that is done.
type Stage struct {
	Name string
	Took time.Duration
}

// Failure is an error on its way to the client.
type Failure struct {
	Kind    errors.Kind
	Message string // for clients
	Detail  string // for operators
	Stage   string
	Remedy  string
	Exit    int `json:",omitempty"`
}

// FailureOf turns err into a frame's payload.
func FailureOf(err error) Failure {
	return Failure{Kind: errors.KindOf(err), Message: errors.Message(err), Detail: err.Error(), Stage: errors.StageOf(err), Remedy: errors.RemedyOf(err), Exit: errors.ExitOf(err)}
}

// Err turns the payload back into an error with the same kind, texts, stage and remedy.
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

// NewConn puts frames on c.
func NewConn(c net.Conn) *Conn { return &Conn{Conn: c, r: bufio.NewReaderSize(c, 128<<10)} }

// Stream returns the connection for what follows the last frame.
func (c *Conn) Stream() net.Conn { return &stream{c.Conn, c.r} }

// stream is a connection whose first bytes may already have been read.
type stream struct {
	net.Conn
	r *bufio.Reader
}

func (s *stream) Read(p []byte) (int, error) { return s.r.Read(p) }

// CloseWrite ends one direction.
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

// SendFrames copies whole frames from r.
func (c *Conn) SendFrames(r io.Reader) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := io.Copy(c.Conn, r)
	return errors.Explainf(err, errors.Unavailable, "the connection to the sandbox broke")
}

// Next reads a frame's header and returns its payload as a reader, which must be read to its end before the next call.
// The error is io.EOF if the connection ended between two frames.
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

// ReceiveReply reads frames up to the Reply; stage, if not nil, is told the stages. A Failure becomes its error.
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

// ReceiveOutput copies the output that comes before the Reply to w.
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
