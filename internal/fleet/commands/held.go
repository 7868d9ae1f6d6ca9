package commands

import (
	"io"
	"net"

	"github.com/RelevanceAI/harvest/client/errors"
)

// HeldStream is a stream whose end ends an activity. Leave is called at each Close.
type HeldStream struct {
	io.ReadCloser
	Leave func()
}

// Close closes the stream.
func (s HeldStream) Close() error {
	defer s.Leave()
	return s.ReadCloser.Close()
}

// HeldConn is a connection whose end ends an activity. Leave is called at each Close.
type HeldConn struct {
	net.Conn
	Leave func()
}

// Close closes the connection.
func (c HeldConn) Close() error {
	defer c.Leave()
	return c.Conn.Close()
}

// CloseWrite closes the direction into the sandbox.
func (c HeldConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errors.Errorf("connections of the type %T have no directions", c.Conn)
}
