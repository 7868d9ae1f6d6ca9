// Package inside is the part of SSH that runs in sandboxes: it serves files to sftp and scp, and forwards connections.
package inside

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/bytestream"
)

// Program is the name of the program (engine.Command.Own). Its argument is Files or Relay.
const Program = "harvest-ssh"

// The arguments of Program.
const (
	Files = "files" // serves the protocol of sftp on its standard streams
	Relay = "relay" // forwards connections, which are streams of yamux on its standard streams
)

// dialTime limits how long a connection may take.
const dialTime = 30 * time.Second

// Head is what comes first in a stream of a relay.
type Head struct {
	// Dial is "tcp" or "unix", in a stream that the server opens. After an Answer, the stream is the connection.
	Dial string `json:",omitempty"`
	// Listen is "tcp" or "unix", in a stream that the server opens. After an Answer, the listener ends with the stream.
	Listen string `json:",omitempty"`
	// Address is a host and a port, or a path. Port 0 of Listen is a free port. An empty path is a new one, which only
	// the program's user may use.
	Address string
	// Accepted is the Address of a listener, in a stream that the program opens for a connection from From.
	Accepted string `json:",omitempty"`
	From     string `json:",omitempty"`
}

// Answer is the result of Dial or Listen.
type Answer struct {
	Error   string `json:",omitempty"` // "" for success
	Address string `json:",omitempty"` // of the listener
}

// halfClosed limits how long a connection may go on in one direction only: that of a client that has gone would stay.
const halfClosed = 30 * time.Minute

// mostHead limits a Head and an Answer, in bytes.
const mostHead = 8 << 10

// Send writes a Head or an Answer.
func Send(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return errors.Wrapf(err, "encode a frame")
	}
	if len(text) > mostHead {
		return errors.Newf(errors.Invalid, "a frame of %d bytes is too long", len(text))
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(text))), text...))
	return err
}

// Receive reads a Head or an Answer.
func Receive(r io.Reader, v any) error {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return err
	}
	n := int(binary.BigEndian.Uint16(size[:]))
	if n > mostHead {
		return errors.Newf(errors.Invalid, "a frame of %d bytes is too long", n)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return err
	}
	return errors.Explainf(json.Unmarshal(text, v), errors.Invalid, "a frame is damaged")
}

// Main runs the program.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	err := errors.Newf(errors.Invalid, "the arguments are %s and %s", Files, Relay)
	if len(args) == 1 {
		switch args[0] {
		case Files:
			err = serveFiles(stdin, stdout)
		case Relay:
			err = relay(ctx, stdin, stdout)
		}
	}
	if err != nil {
		fmt.Fprintln(stderr, errors.Message(err))
		return 1
	}
	return 0
}

// streams are the standard streams of a program.
type streams struct {
	io.Reader
	io.Writer
}

// Close does nothing: the process ends.
func (streams) Close() error { return nil }

// Yamux is the configuration of both ends. The connection of the standard streams does not break silently.
func Yamux() *yamux.Config {
	c := yamux.DefaultConfig()
	c.EnableKeepAlive = false
	c.StreamCloseTimeout = halfClosed
	c.LogOutput = io.Discard
	return c
}

// Stream is a stream of yamux whose directions end separately.
type Stream struct{ *yamux.Stream }

// CloseWrite ends the direction of this side.
func (s Stream) CloseWrite() error { return s.Stream.Close() }

// Close ends both directions.
func (s Stream) Close() error { return errors.Join(s.SetReadDeadline(time.Now()), s.Stream.Close()) }

func relay(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	session, err := yamux.Server(streams{stdin, stdout}, Yamux())
	if err != nil {
		return errors.Wrapf(err, "start the relay")
	}
	defer session.Close()
	defer context.AfterFunc(ctx, func() { _ = session.Close() })()
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel() // closes what the streams are connected to
	for {
		accepted, err := session.AcceptStream()
		if err != nil {
			return nil // the server has left
		}
		stream := Stream{accepted}
		all.Go(func() {
			defer stream.Close()
			serve(ctx, session, stream)
		})
	}
}

// serve serves one stream of the server.
func serve(ctx context.Context, session *yamux.Session, stream Stream) {
	var head Head
	if Receive(stream, &head) != nil {
		return
	}
	switch {
	case head.Dial == "tcp" || head.Dial == "unix":
		conn, err := (&net.Dialer{Timeout: dialTime}).DialContext(ctx, head.Dial, head.Address)
		if err != nil {
			_ = Send(stream, Answer{Error: reason(err)})
			return
		}
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
		if Send(stream, Answer{}) == nil {
			bytestream.Join(stream, conn)
		}
	case head.Listen == "tcp" || head.Listen == "unix":
		listen(ctx, session, stream, head)
	default:
		_ = Send(stream, Answer{Error: "the relay does not know this request"})
	}
}

// reason returns the text of an error without the addresses, which the client knows.
func reason(err error) string {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Err.Error()
	}
	return err.Error()
}

// listen accepts connections until the stream ends.
func listen(ctx context.Context, session *yamux.Session, stream Stream, head Head) {
	address := head.Address
	if head.Listen == "unix" && address == "" {
		dir, err := os.MkdirTemp("", "harvest-ssh-")
		if err != nil {
			_ = Send(stream, Answer{Error: err.Error()})
			return
		}
		defer os.RemoveAll(dir)
		address = filepath.Join(dir, "agent")
	}
	l, err := new(net.ListenConfig).Listen(ctx, head.Listen, address)
	if err != nil {
		_ = Send(stream, Answer{Error: reason(err)})
		return
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	if head.Listen == "tcp" {
		address = l.Addr().String()
	}
	if Send(stream, Answer{Address: address}) != nil {
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, stream) // until the server closes it
		_ = l.Close()
	}()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		all.Go(func() {
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			to, err := session.OpenStream()
			if err != nil {
				return
			}
			defer to.Close()
			if Send(to, Head{Accepted: address, From: conn.RemoteAddr().String()}) == nil {
				bytestream.Join(Stream{to}, conn)
			}
		})
	}
}
