package pipe

import (
	"io"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// Conn is a connection to a port of a sandbox. Writes are framed, because the end of the written data is
// not the end of the connection.
type Conn struct {
	net.Conn // raw data from the sandbox
	frames   *wire.Conn
	closed   atomic.Bool
}

// Port returns the connection that a keeper's answer on conn has opened.
func Port(conn *wire.Conn) *Conn { return &Conn{Conn: conn.Stream(), frames: conn} }

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	if c.closed.Load() {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(b)
	switch stream, ok := c.frames.Conn.(*yamux.Stream); {
	case err == nil:
		return n, nil
	case c.closed.Load():
		err = net.ErrClosed
	case err == io.EOF && ok && stream.Session().IsClosed():
		err = errors.Newf(errors.Unavailable, "the connection to the sandbox broke")
	}
	return n, err
}

// frame is the maximum size of one write, so that other streams of the link get their turn.
const frame = 256 << 10

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) {
	written := 0
	for chunk := range slices.Chunk(b, frame) {
		if c.closed.Load() {
			return written, net.ErrClosed
		}
		if err := c.frames.Send(wire.KindStdin, chunk); err != nil {
			return written, err
		}
		written += len(chunk)
	}
	return written, nil
}

// CloseWrite ends the direction into the sandbox.
func (c *Conn) CloseWrite() error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	return c.frames.Send(wire.KindStdinEnd, nil)
}

// Close closes the connection, and unblocks readers.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	_ = c.Conn.SetReadDeadline(time.Unix(1, 0)) // closing the stream alone would not unblock Read
	return c.frames.Close()
}
