// Package pid1 is the first process of a container. It makes the container's root file system from mounts that the
// keeper hands over, and then starts commands for the keeper and reports their ends.
//
// The keeper is outside of the container, with more privileges, and trusts nothing that this process says: a root user
// of the container may control it. This process, in turn, has no privilege that such a user does not have. Both speak
// over a Unix socket in messages (Link).
package pid1

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Name is the first argument of the process.
const Name = "harvest-init"

// LinkFD is the descriptor of its link to the keeper.
const LinkFD = 3

// Limits of a message.
const (
	maxMessage = 8 << 20 // Linux allows 6 MiB for the arguments and the environment of a program
	maxFiles   = 253     // the kernel's limit for one message
)

// Operation is what the keeper wants.
type Operation string

// The operations. The number of files that come with each request and each reply is fixed.
const (
	Enter    Operation = "enter"    // the files of Enter: makes the root file system, and drops privileges
	Start    Operation = "start"    // standard input, output and error, and the program if StartArgs.Own is set
	Terminal Operation = "terminal" // the reply comes with both ends of a new terminal
	Dir      Operation = "dir"      // the path of a directory in which commands can start, without symbolic links
	Read     Operation = "read"     // the content of a small file
)

// Request is a message of the keeper.
type Request struct {
	ID    uint64
	Op    Operation
	Enter *EnterArgs `json:",omitempty"`
	Start *StartArgs `json:",omitempty"`
	Path  string     `json:",omitempty"` // of Dir and Read
}

// EnterArgs describe the container. The first file is the mount of its root, the next one the layer if Layer is set,
// and the others are those of Mounts, in order.
type EnterArgs struct {
	Hostname string
	Layer    bool // a file is a tar stream in the form of an OCI layer, which is unpacked over the image
	Mounts   []Mount
	Files    []File // written in this order
	NoSetuid bool   // programs gain no privileges by setuid bits and file capabilities
	OpenFile int    // limit of open files of a process; 0 for none
	// Filter is the filter of system calls, of this process, too; none if it is empty.
	Filter []unix.SockFilter
}

// Mount is a place of the container for a mount that the keeper hands over.
type Mount struct {
	Path     string
	ReadOnly bool
}

// File is a small file of the container, replaced at once.
type File struct{ Path, Content string }

// StartArgs describe a command.
type StartArgs struct {
	Args     [][]byte
	Env      [][]byte // NAME=value
	Dir      string
	UID, GID uint32
	Groups   []uint32
	Terminal bool // the files are a terminal, which becomes the command's own
	Own      bool // the program is the fourth file
}

// Message is a message of this process: a reply to the request ID, or the end of a command.
type Message struct {
	ID      uint64           `json:",omitempty"`
	Error   *Failure         `json:",omitempty"`
	PID     int              `json:",omitempty"` // of a started command
	Content []byte           `json:",omitempty"`
	Exit    *unix.WaitStatus `json:",omitempty"` // with PID: the command has ended
}

// Failure is the failed system call of a request.
type Failure struct {
	Step  string // what was tried
	Errno unix.Errno
	Text  string
}

// Error implements error.
func (f *Failure) Error() string { return f.Step + ": " + f.Text }

// Link carries messages with open files. One goroutine may receive while others send.
type Link struct {
	conn *net.UnixConn
	mu   sync.Mutex // held while a message is written
	rest []byte     // received beyond the last message
	held []*os.File // files received with bytes that were not used yet
}

// NewLink returns the link of a connected Unix socket of the type stream.
func NewLink(conn *net.UnixConn) *Link { return &Link{conn: conn} }

// Close closes the link.
func (l *Link) Close() error { return l.conn.Close() }

// Send sends v as JSON, with files. The files stay open.
func (l *Link) Send(v any, files ...*os.File) error {
	body, err := json.Marshal(v)
	if err != nil {
		return errors.Wrapf(err, "encode a message")
	}
	if len(body) > maxMessage || len(files) > maxFiles {
		return errors.Newf(errors.Invalid, "a message of %d bytes with %d files is too large", len(body), len(files))
	}
	head := binary.BigEndian.AppendUint32([]byte{byte(len(files))}, uint32(len(body)))
	l.mu.Lock()
	defer l.mu.Unlock()
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := l.conn.WriteMsgUnix(head, rights, nil); err != nil {
		return errors.Wrapf(err, "send a message")
	}
	_, err = l.conn.Write(body)
	return errors.Wrapf(err, "send a message")
}

// Receive decodes the next message into v, and returns its files, which the caller closes. The error is io.EOF if the
// link has ended between two messages.
func (l *Link) Receive(v any) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(l.held)
			l.held = nil
		}
	}()
	head, err := l.read(headSize)
	if err != nil {
		return nil, err
	}
	n, size := int(head[0]), binary.BigEndian.Uint32(head[1:])
	if size > maxMessage || n != len(l.held) {
		return nil, errors.Errorf("a message of %d bytes with %d files, not %d", size, len(l.held), n)
	}
	body, err := l.read(int(size))
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	if len(l.held) != n {
		return nil, errors.Errorf("a message with %d files, not %d", len(l.held), n)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return nil, errors.Wrapf(err, "decode a message")
	}
	files, l.held = l.held, nil
	return files, nil
}

// headSize is the size of a message's head: the number of files, and the size of the body.
const headSize = 5

// read returns n bytes. The kernel ends a read before bytes that came with other files.
func (l *Link) read(n int) ([]byte, error) {
	const piece = 64 << 10
	for len(l.rest) < n {
		buf, oob := make([]byte, min(max(piece, n), maxMessage)), make([]byte, unix.CmsgSpace(4*maxFiles))
		if len(l.rest) == 0 && n == headSize {
			buf = buf[:headSize] // so that files of the next message are not received with this one
		} else {
			buf = buf[:n-len(l.rest)]
		}
		got, length, _, _, err := l.conn.ReadMsgUnix(buf, oob) // it sets close-on-exec
		if length > 0 {
			files, perr := filesIn(oob[:length])
			l.held = append(l.held, files...)
			err = errors.Join(err, perr)
		}
		l.rest = append(l.rest, buf[:max(got, 0)]...)
		switch {
		case err != nil && !errors.Is(err, io.EOF):
			return nil, errors.Wrapf(err, "receive a message")
		case got <= 0 && len(l.rest) == 0:
			return nil, io.EOF
		case got <= 0:
			return nil, io.ErrUnexpectedEOF
		}
	}
	out := l.rest[:n:n]
	l.rest = l.rest[n:]
	return out, nil
}

func filesIn(oob []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, errors.Wrapf(err, "parse a message with files")
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, errors.Wrapf(err, "parse a message with files")
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
