package netstack

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/RelevanceAI/harvest/gateway"
)

// conn is a connection that was let through, TCP or UDP.
type conn struct {
	protocol string
	addr     netip.Addr // outside
	port     uint16
	cut      func() // ends it; may be called more than once

	mu    sync.Mutex
	names []string      // guarded by mu: what it said about itself
	check gateway.Check // guarded by mu: how much of that was read, from the beginning on
}

// maxConnNames bounds what is remembered of one connection.
const maxConnNames = 64

// told remembers a name that the connection gave itself.
func (c *conn) told(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.names, name) && len(c.names) < maxConnNames {
		c.names = append(c.names, name)
	}
}

// holds reports whether the connection may go on under p.
func (c *conn) holds(p *gateway.Policy, t gateway.Target) bool {
	v := p.Connect(t)
	if !v.Allowed || v.Check == gateway.CheckNothing {
		return v.Allowed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return v.Check <= c.check && !slices.ContainsFunc(c.names, func(n string) bool { return !p.Name(v.Check, n, c.port).Allowed })
}

// add registers a connection if the policy still allows it, it would not be too many, and the gateway is open. It returns the verdict that
// holds.
func (g *Gateway) add(c *conn) gateway.Verdict {
	t := g.target(c.addr, c.port)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return gateway.Verdict{Reason: "the network is closed"}
	case len(g.conns) >= g.o.Connections:
		return gateway.Verdict{Reason: "the sandbox has too many connections open"}
	}
	v := g.policy.Connect(t)
	if v.Allowed {
		c.check = v.Check
		g.conns[c] = struct{}{}
		g.total.Add(1)
	}
	return v
}

func (g *Gateway) remove(c *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
}

// full reports whether no more connections may be opened, so that none is dialled in vain.
func (g *Gateway) full() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.conns) >= g.o.Connections
}
