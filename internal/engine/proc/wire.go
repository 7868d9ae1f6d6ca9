package proc

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// A keeper's socket and its spool contain frames: a type, a length of four bytes, data. The first frame of a
// connection is a request.
const (
	frameHeader = 5
	maxData     = 64 << 10 // for frames with output or input
	maxRequest  = 8 << 20
)

// Types of frames.
const (
	frameRequest = 'r' // to the keeper: gob of request
	frameInput   = 'i' // to the keeper: bytes of standard input
	frameEOF     = 'c' // to the keeper: end of standard input
	frameLost    = 'l' // to the keeper: the rest of standard input is lost
	frameReply   = 'a' // from the keeper: gob of reply; to "start" and "attach" before the first output
	frameStdout  = 'o'
	frameStderr  = 'e'
	frameMissing = 'm' // from the keeper: gob of an int64, the bytes of output that are missing here
	frameExit    = 'x' // from the keeper: gob of engine.Exit, the last frame
)

// request is encoded as gob, because JSON would change strings that are not UTF-8.
type request struct {
	Op     string // "start", "attach", "signal" or "resize"
	Order  *order // start
	Signal int
	Size   engine.Size
}

type reply struct {
	Errno   int    // error of a failed start
	Error   string // text of a failed request
	Dropped int64  // attach: dropped bytes at the beginning
}

func writeFrame(w io.Writer, kind byte, data []byte) error {
	frame := make([]byte, frameHeader+len(data))
	frame[0] = kind
	binary.BigEndian.PutUint32(frame[1:], uint32(len(data)))
	copy(frame[frameHeader:], data)
	_, err := w.Write(frame)
	return err
}

func writeValue(w io.Writer, kind byte, v any) error {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(v); err != nil {
		return err
	}
	return writeFrame(w, kind, b.Bytes())
}

// readFrame reads a frame, into buf if that is large enough.
func readFrame(r io.Reader, buf []byte) (kind byte, data []byte, err error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	n := int(binary.BigEndian.Uint32(header[1:]))
	if n > maxRequest {
		return 0, nil, errors.Errorf("a frame of %d bytes", n)
	}
	if n > len(buf) {
		buf = make([]byte, n)
	}
	_, err = io.ReadFull(r, buf[:n])
	return header[0], buf[:n], err
}

// readValue reads a frame of the wanted kind, and decodes it.
func readValue(r io.Reader, want byte, v any) error {
	kind, data, err := readFrame(r, nil)
	if err != nil {
		return err
	}
	if kind != want {
		return errors.Errorf("got a frame %q instead of %q", kind, want)
	}
	return gob.NewDecoder(bytes.NewReader(data)).Decode(v)
}

// socketPair returns two connected ends: a connection, and a file for a keeper.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, errors.Wrapf(err, "connect to a keeper")
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, errors.Wrapf(err, "connect to a keeper")
	}
	return conn, theirs, nil
}

// atSocket calls do with an address of the socket in dir that is short enough for every kernel, however long
// dir is.
func atSocket(dir string, do func(*net.UnixAddr) error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return do(&net.UnixAddr{Net: "unix", Name: filepath.Join("/proc/self/fd", strconv.Itoa(int(d.Fd())), "socket")})
}

func listen(dir string) (l *net.UnixListener, err error) {
	err = atSocket(dir, func(addr *net.UnixAddr) error {
		if l, err = net.ListenUnix("unix", addr); err == nil {
			l.SetUnlinkOnClose(false)
		}
		return err
	})
	return l, errors.Wrapf(err, "listen in %s", dir)
}

func dial(dir string) (conn *net.UnixConn, err error) {
	err = atSocket(dir, func(addr *net.UnixAddr) error {
		conn, err = net.DialUnix("unix", nil, addr)
		return err
	})
	return conn, errors.Wrapf(err, "reach the keeper of %s", dir)
}
