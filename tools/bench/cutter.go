package main

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"

	"github.com/RelevanceAI/harvest/client/errors"
)

// cutter is a proxy that breaks each connection after a varying number of bytes from the server.
type cutter struct {
	listener net.Listener
	to       string         // the server's address
	most     int64          // maximum of bytes beyond the first 200
	work     sync.WaitGroup // the listener and its connections
}

// cut starts a cutter in front of the server at an address. Close ends it.
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
				return // the listener is closed
			}
			c.work.Go(func() { c.pass(ctx, conn) })
		}
	})
	return c, nil
}

// pass serves one connection. If the server is away, the connection ends at once.
func (c *cutter) pass(ctx context.Context, client net.Conn) {
	defer client.Close()
	server, err := new(net.Dialer).DialContext(ctx, "tcp", c.to)
	if err != nil {
		return
	}
	defer server.Close()
	c.work.Go(func() {
		_, _ = io.Copy(server, client)
		server.Close() // the client has gone
	})
	_, _ = io.CopyN(client, server, 200+rand.Int64N(c.most))
}

// Close closes the listener and waits for the connections, which the clients must close.
func (c *cutter) Close() error {
	err := c.listener.Close()
	c.work.Wait()
	return errors.Wrapf(err, "close the proxy")
}
