package netstack

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/RelevanceAI/harvest/internal/engine/gateway"
)

// conn is an allowed connection, TCP or UDP.
type conn struct {
	protocol string
	addr     netip.Addr // the destination, in the host's view
	port     uint16
	cut      func() // closes the connection; idempotent

	mu          sync.Mutex
	intercepted bool          // guarded by mu
	names       []string      // guarded by mu: names found in the connection
	check       gateway.Check // guarded by mu: the check that has applied since the beginning
}

// maxConnNames limits the names that are remembered for a connection.
const maxConnNames = 64

// told records a name that was found in the connection.
func (c *conn) told(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.names, name) && len(c.names) < maxConnNames {
		c.names = append(c.names, name)
	}
}

// holds reports whether the connection may continue under p. A connection to an intercepted server that is not
// intercepted may not: its client must connect again.
func (c *conn) holds(p *gateway.Policy, t gateway.Target) bool {
	v := p.Connect(t)
	if !v.Allowed || v.Check == gateway.CheckNothing {
		return v.Allowed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	names := c.names
	if c.check == gateway.CheckNothing {
		names = t.Names
	}
	if !c.intercepted && slices.ContainsFunc(names, func(n string) bool { return p.Intercepts(n, c.port) }) {
		return false
	}
	if v.Check == gateway.CheckIntercept {
		return true
	}
	return v.Check <= c.check && !slices.ContainsFunc(c.names,
		func(n string) bool { return !p.Name(v.Check, n, c.port).Allowed })
}

// add registers a connection unless the policy no longer allows it, there are too many connections, or the
// gateway is closed. It returns the current verdict.
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

// full reports whether the limit of connections is reached, so that a dial would be useless.
func (g *Gateway) full() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.conns) >= g.o.Connections
}
