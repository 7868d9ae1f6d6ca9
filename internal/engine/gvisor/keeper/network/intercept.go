package network

import (
	"context"
	"net"
	"sync"

	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gateway/netstack"
)

// Interception is a connection of the sandbox that needs another end. One of its methods must be called.
type Interception struct {
	engine.Interception
	end chan<- net.Conn // takes one, which may be nil
}

// Fail returns the connection to those that need another end.
func (i Interception) Fail() { i.end <- nil }

// Take makes c the other end. It returns a channel that is closed when the connection has ended.
func (i Interception) Take(c *net.UnixConn) <-chan struct{} {
	t := &taken{UnixConn: c, ended: make(chan struct{})}
	i.end <- t
	return t.ended
}

// taken is the other end of an intercepted connection.
type taken struct {
	*net.UnixConn
	once  sync.Once
	ended chan struct{}
}

func (t *taken) Close() error {
	t.once.Do(func() { close(t.ended) })
	return t.UnixConn.Close()
}

// Intercepted returns the channel with the connections that need another end.
func (n *Network) Intercepted() <-chan Interception { return n.intercepted }

// intercept waits for the other end of a connection.
func (n *Network) intercept(ctx context.Context, i netstack.Interception) (net.Conn, error) {
	for {
		end := make(chan net.Conn, 1)
		offer := Interception{engine.Interception{Name: i.Name, Addr: i.Addr, TLS: i.TLS, Connect: i.Connect}, end}
		select {
		case n.intercepted <- offer:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if c := <-end; c != nil {
			return c, nil
		}
	}
}
