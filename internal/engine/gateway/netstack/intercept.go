package netstack

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
)

// interceptTime limits how long an intercepted connection waits for its other end.
const interceptTime = 20 * time.Second

// Interception is a connection of the sandbox that names an intercepted server.
type Interception struct {
	Name string         // the server, as the connection names it
	Addr netip.AddrPort // the destination, which the policy allows: the server, or with Connect a proxy
	TLS  bool           // the connection begins with a ClientHello; otherwise with an HTTP request
	// Connect is set if the connection begins with a CONNECT request for the server.
	Connect bool
}

// handOver replaces the other end of a connection by one that Options.Intercept returns, and forwards until the sandbox
// ends its direction.
func (r *relay) handOver(c *conn, over *gateway.Handover) error {
	g := r.g
	at := netip.AddrPortFrom(c.addr, c.port)
	if !over.Connect && !g.looksUp(over.Name, c.addr) {
		err := &gateway.Refusal{Domain: over.Name,
			Reason: "the connection names a host with credentials, but its address is not one of that host"}
		g.refused(c, err)
		return err
	}
	if err := r.leave(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(g.ctx, interceptTime)
	up, err := g.o.Intercept(ctx, Interception{Name: over.Name, Addr: at, TLS: over.TLS, Connect: over.Connect})
	cancel()
	if err != nil {
		g.refused(c, &gateway.Refusal{Domain: over.Name,
			Reason: "the server of Harvest, which holds the credentials of this host, does not answer"})
		return err
	}
	if err := r.replace(c, up); err != nil {
		return err
	}
	if _, err := up.Write(over.Data); err != nil {
		return errors.Wrapf(err, "write to an intercepted connection")
	}
	return g.pumpFromGuest(c, gateway.CheckNothing, r.guest, up)
}

// looksUp reports whether the sandbox knows an address as that of a server.
func (g *Gateway) looksUp(name string, addr netip.Addr) bool {
	if literal, err := netip.ParseAddr(name); err == nil {
		return g.outside(literal) == addr
	}
	return slices.Contains(g.pins.Names(addr, time.Now()), name)
}

// leave stops forwarding the data of the other end, which must not have sent any.
func (r *relay) leave() error {
	r.mu.Lock()
	r.leaving = true
	up := r.up
	r.mu.Unlock()
	if err := up.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return errors.Wrapf(err, "leave the host's connection")
	}
	<-r.received
	if r.from.sent > 0 {
		return errors.Errorf("the server sent %d bytes before the client named it", r.from.sent)
	}
	return nil
}

// replace makes up the other end.
func (r *relay) replace(c *conn, up net.Conn) error {
	r.mu.Lock()
	old, ended := r.up, r.ended
	if !ended {
		r.up, r.leaving = up, false
	}
	r.mu.Unlock()
	if ended {
		return errors.Join(errors.Errorf("the connection was cut"), up.Close())
	}
	_ = old.Close()
	c.mu.Lock()
	c.intercepted = true
	c.mu.Unlock()
	r.toGuest()
	return nil
}
