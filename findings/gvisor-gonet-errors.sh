#!/bin/sh
# Version: gvisor.dev/gvisor v0.0.0-20260905035102-160fafc42237, pkg/tcpip/adapters/gonet: connections of gVisor's
# network stack as a net.Conn. The package net of Go is the comparison.
#
# Guess: an error of such a connection is one of those that the package net documents: os.ErrDeadlineExceeded after a
# deadline, net.ErrClosed after Close, and ECONNREFUSED or ECONNRESET from the peer. Code for a net.Conn tests for them
# with errors.Is.
#
# Behaviour: none of these matches. The errors have the texts of the known ones, and that of a deadline reports
# Timeout(), but errors.Is does not find anything in them. A read that the program itself ends with Close returns
# io.EOF: as if the peer had sent all that it wanted. A copy that is cut off looks complete.
#
# Output seen:
#   gonet: deadline other, own Close io.EOF, reset other, refused other
#   net: deadline os.ErrDeadlineExceeded, own Close net.ErrClosed, reset ECONNRESET, refused ECONNREFUSED
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'MOD'
module finding

go 1.26

require gvisor.dev/gvisor v0.0.0-20260905035102-160fafc42237
MOD
cat >main.go <<'GO'
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/loopback"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

func main() {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
		HandleLocal:        true,
	})
	s.CreateNIC(1, loopback.New())
	at := tcpip.AddrFrom4([4]byte{127, 0, 0, 1})
	s.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber,
		AddressWithPrefix: at.WithPrefix()}, stack.AddressProperties{})
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})

	inside, err := gonet.ListenTCP(s, tcpip.FullAddress{NIC: 1, Addr: at}, ipv4.ProtocolNumber)
	must(err)
	show("gonet", inside, func(port int) (net.Conn, error) {
		return gonet.DialContextTCP(context.Background(), s,
			tcpip.FullAddress{NIC: 1, Addr: at, Port: uint16(port)}, ipv4.ProtocolNumber)
	})
	outside, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	show("net", outside, func(port int) (net.Conn, error) {
		return net.Dial("tcp", fmt.Sprint("127.0.0.1:", port))
	})
}

func show(stack string, l net.Listener, dial func(port int) (net.Conn, error)) {
	port := l.Addr().(*net.TCPAddr).Port
	pair := func() (near, far net.Conn) {
		near, err := dial(port)
		must(err)
		far, err = l.Accept()
		must(err)
		return near, far
	}
	b := make([]byte, 1)

	c, _ := pair()
	must(c.SetReadDeadline(time.Now().Add(-time.Second)))
	_, deadline := c.Read(b)

	c, _ = pair()
	time.AfterFunc(50*time.Millisecond, func() { c.Close() })
	_, closed := c.Read(b)

	// A peer that closes before it has read everything sends a reset.
	c, far := pair()
	_, err := c.Write([]byte("all"))
	must(err)
	_, err = far.Read(b)
	must(err)
	must(far.Close())
	_, reset := c.Read(b)

	must(l.Close())
	_, refused := dial(port)
	fmt.Printf("%s: deadline %s, own Close %s, reset %s, refused %s\n", stack, known(deadline), known(closed),
		known(reset), known(refused))
}

func known(err error) string {
	for _, k := range []struct {
		err  error
		name string
	}{
		{io.EOF, "io.EOF"}, {os.ErrDeadlineExceeded, "os.ErrDeadlineExceeded"}, {net.ErrClosed, "net.ErrClosed"},
		{syscall.ECONNREFUSED, "ECONNREFUSED"}, {syscall.ECONNRESET, "ECONNRESET"}, {nil, "no error"},
	} {
		if errors.Is(err, k.err) {
			return k.name
		}
	}
	return "other"
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
GO
CGO_ENABLED=0 GOFLAGS=-mod=mod go run . >seen
cat seen
cat >want <<'WANT'
gonet: deadline other, own Close io.EOF, reset other, refused other
net: deadline os.ErrDeadlineExceeded, own Close net.ErrClosed, reset ECONNRESET, refused ECONNREFUSED
WANT
cmp seen want
