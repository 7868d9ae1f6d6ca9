#!/bin/sh
# Version: github.com/hashicorp/yamux v0.1.2.
#
# Guess: if the connection below a session breaks, a read from one of its streams fails, as one from the connection
# itself does. io.EOF means that the peer has closed its stream, after all its data. A stream is a net.Conn, and io.Copy
# takes io.EOF for success.
#
# Behaviour: a broken connection is io.EOF on all streams, the same as a clean end. What was sent so far is read, and
# then the transfer looks complete: io.ReadAll returns a part of the data, and no error. Writes do fail. A protocol
# above has to send lengths or a mark at the end, or has to ask the session whether it is closed.
#
# Output seen:
#   TCP, connection reset: 3 bytes, err=connection reset by peer
#   yamux, stream closed: 3 bytes, err=<nil>, session closed: false
#   yamux, connection reset: 3 bytes, err=<nil>, session closed: true
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'MOD'
module finding

go 1.25

require github.com/hashicorp/yamux v0.1.2
MOD
cat >main.go <<'GO'
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/hashicorp/yamux"
)

func main() {
	near, far := connect()
	_, err := far.Write([]byte("abc"))
	must(err)
	b := make([]byte, 3)
	n, err := io.ReadFull(near, b)
	must(err)
	reset(far)
	_, err = near.Read(b)
	var errno syscall.Errno
	errors.As(err, &errno)
	fmt.Printf("TCP, connection reset: %d bytes, err=%v\n", n, errno)

	transfer("stream closed", func(s *yamux.Stream, _ *net.TCPConn) { must(s.Close()) })
	transfer("connection reset", func(_ *yamux.Stream, c *net.TCPConn) { reset(c) })
}

// transfer sends three bytes over a stream, and ends it.
func transfer(name string, end func(*yamux.Stream, *net.TCPConn)) {
	near, far := connect()
	config := yamux.DefaultConfig()
	config.LogOutput = io.Discard
	client, err := yamux.Client(near, config)
	must(err)
	server, err := yamux.Server(far, config)
	must(err)
	in, err := client.OpenStream()
	must(err)
	out, err := server.AcceptStream()
	must(err)
	_, err = out.Write([]byte("abc"))
	must(err)
	first := make([]byte, 1)
	_, err = in.Read(first) // the data has arrived
	must(err)
	end(out, far)
	rest, err := io.ReadAll(in)
	fmt.Printf("yamux, %s: %d bytes, err=%v, session closed: %t\n", name, 1+len(rest), err, client.IsClosed())
}

func connect() (near net.Conn, far *net.TCPConn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	defer l.Close()
	near, err = net.Dial("tcp", l.Addr().String())
	must(err)
	c, err := l.Accept()
	must(err)
	return near, c.(*net.TCPConn)
}

// reset closes a connection as a kernel does that has lost it.
func reset(c *net.TCPConn) {
	must(c.SetLinger(0))
	must(c.Close())
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
GO
GOFLAGS=-mod=mod go run . >seen
cat seen
cat >want <<'WANT'
TCP, connection reset: 3 bytes, err=connection reset by peer
yamux, stream closed: 3 bytes, err=<nil>, session closed: false
yamux, connection reset: 3 bytes, err=<nil>, session closed: true
WANT
cmp seen want
