package main

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"

	"github.com/RelevanceAI/harvest/errors"
)

// cutter is a proxy that breaks each connection off after some bytes from the server, ever different ones.
type cutter struct {
	listener net.Listener
	to       string         // the server's address
	most     int64          // bytes, beyond the first 200
	work     sync.WaitGroup // the listener and its connections
}

// cut starts a cutter before the server at an address. Close ends it.
func cut(ctx context.Context, to string, most int) (*cutter, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Wrapf(err, "listen")
	}
	c := &cutter{listener: l, to: to, most: int64(most)}
	c.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // it is closed
			}
			c.work.Go(func() { c.pass(ctx, conn) })
		}
	})
	return c, nil
}

// pass is one connection. A server that is away is a connection that breaks off at once.
func (c *cutter) pass(ctx context.Context, client net.Conn) {
	defer client.Close()
	server, err := new(net.Dialer).DialContext(ctx, "tcp", c.to)
	if err != nil {
		return
	}
	defer server.Close()
	c.work.Go(func() {
		_, _ = io.Copy(server, client)
		server.Close() // its client has gone
	})
	_, _ = io.CopyN(client, server, 200+rand.Int64N(c.most))
}

// Close ends the listener, and waits for the connections, which clients have to close.
func (c *cutter) Close() error {
	err := c.listener.Close()
	c.work.Wait()
	return errors.Wrapf(err, "close the proxy")
}
