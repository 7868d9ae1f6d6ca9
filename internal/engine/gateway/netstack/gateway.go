// Package netstack is the network exit of a sandbox: a TCP/IP stack in this process, at the other end of the
// sandbox's only link. It terminates every connection of the sandbox, asks the policy, and connects onwards
// with sockets of the host. It needs no privileges, and no devices, routes or firewall rules on the host.
//
// Only the link is untrusted. Its frames are checked before they reach the stack: frames with foreign
// addresses, multicast, IP options, extension headers, and protocols other than TCP, UDP and ICMP are dropped.
//
// The gateway's own address stands for the host's loopback, as in other user-space networks: a connection to
// 10.0.2.2:5432 reaches 127.0.0.1:5432 on the host if a rule allows exactly that.
package netstack

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
)

// MTU is the default MTU of a link in bytes: the largest for IPv4 that is a multiple of eight.
const MTU = 65520

// nic is the ID of the stack's only network interface.
const nic tcpip.NICID = 1

// Addresses are the addresses of one family on a link.
type Addresses struct {
	Guest   netip.Addr // the sandbox's
	Gateway netip.Addr // the sandbox's default route
	DNS     netip.Addr // the sandbox's name server
	Bits    int        // length of the network's prefix
}

// IPv4 returns the default IPv4 addresses of a link. They are the same for each sandbox, since links are not
// connected.
func IPv4() Addresses {
	return Addresses{netip.AddrFrom4([4]byte{10, 0, 2, 100}), netip.AddrFrom4([4]byte{10, 0, 2, 2}),
		netip.AddrFrom4([4]byte{10, 0, 2, 3}), 24}
}

// IPv6 returns the default IPv6 addresses of a link, from a unique local network.
func IPv6() Addresses {
	at := func(last byte) netip.Addr {
		return netip.AddrFrom16([16]byte{0xfd, 0x68, 0x61, 0x72, 0x76, 0x65, 0x73, 0x74, 15: last})
	}
	return Addresses{at(0x64), at(2), at(3), 64}
}

// LinkAddress returns the gateway's Ethernet address.
func LinkAddress() net.HardwareAddr { return net.HardwareAddr{0x02, 0x68, 0x76, 0, 0, 2} }

// GuestLinkAddress returns the Ethernet address of a sandbox. It is the same for each sandbox, since links are not
// connected.
func GuestLinkAddress() net.HardwareAddr { return net.HardwareAddr{0x02, 0x68, 0x76, 0, 0, 1} }

// Options are the options of New.
type Options struct {
	Link   *os.File  // an end of Pair, or a tap device; New takes a duplicate
	MTU    uint32    // of IP packets, in bytes; defaults to MTU
	V4, V6 Addresses // default to IPv4() and IPv6()
	Policy *gateway.Policy
	// Denied, if set, is called for refused connections and lookups: immediately for the first, and every few
	// seconds with the count of equal ones. It is called from one goroutine at a time, and must not block.
	Denied func(gateway.Denial)
	// Dial connects to exactly this address, for "tcp" or "udp", with a socket (syscall.Conn). It defaults to
	// the host's network.
	Dial func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	// Exchange sends a DNS query and returns the answer. It defaults to the name servers in the host's
	// /etc/resolv.conf.
	Exchange func(ctx context.Context, query []byte) ([]byte, error)
	// Peer connects to the gateway of a member of a private network, whose Admit reads what is written. It is only
	// needed for SetPrivate.
	Peer func(ctx context.Context, target string) (net.Conn, error)
	// Intercept returns the other end of a connection to an intercepted server: a socket (syscall.Conn). It is only
	// needed for policies that intercept.
	Intercept func(ctx context.Context, i Interception) (net.Conn, error)
	// Host reports whether an address belongs to this machine or its router. It defaults to asking the machine.
	Host func(netip.Addr) bool
	// Hosts are addresses of this machine that its interfaces do not have, such as those of a node whose pods have a
	// network of their own. It has no effect with Host.
	Hosts []netip.Addr
	// Connections limits the open connections, TCP and UDP together. 0 means 4096.
	Connections int
	// Rate limits new connections per second, with a burst of twice as many. 0 means 1000.
	Rate int
}

// Stats are counters since New.
type Stats struct {
	In, Out     uint64 // bytes from and to the sandbox, on the link
	Dropped     uint64 // frames that were refused, or that the sandbox did not accept
	Open        int    // open connections
	Connections uint64 // allowed connections
	Denied      uint64
}

// Gateway is the other end of a sandbox's link. Its methods may be called concurrently.
type Gateway struct {
	o      Options
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	stack  *stack.Stack
	link   *link
	limit  *rate.Limiter
	tcp    []*tcp.Forwarder // by size of the receive buffer, largest first
	syns   synTable
	pins   gateway.Pins
	dns    *resolver
	pings  pings
	denied denials
	wg     sync.WaitGroup // goroutines that Close waits for
	total  atomic.Uint64

	privacy sync.Mutex // held while private changes
	private atomic.Pointer[private]

	over int // consecutive SYNs over the limit; used by the link's reader only

	mu     sync.Mutex
	closed bool                 // guarded by mu
	policy *gateway.Policy      // guarded by mu
	conns  map[*conn]struct{}   // guarded by mu
	flows  map[flowKey]*udpFlow // guarded by mu
}

// New starts a gateway. ctx covers only the start. Close stops the gateway.
func New(ctx context.Context, o Options) (*Gateway, error) {
	if o.Link == nil {
		return nil, errors.Errorf("a gateway needs a link")
	}
	o.setDefaults()
	g := &Gateway{o: o, policy: o.Policy, conns: map[*conn]struct{}{}, flows: map[flowKey]*udpFlow{}}
	g.ctx, g.cancel = context.WithCancel(context.WithoutCancel(ctx))
	g.limit = rate.NewLimiter(rate.Limit(o.Rate), 2*o.Rate)
	g.denied.tell = o.Denied
	g.dns = newResolver(o.Exchange)
	var err error
	if g.link, err = newLink(o.Link, o.MTU, tcpip.LinkAddress(LinkAddress()), g.admit, g.divert); err != nil {
		g.cancel()
		return nil, err
	}
	if err := g.start(); err != nil {
		_ = g.Close()
		return nil, err
	}
	return g, nil
}

func (o *Options) setDefaults() {
	if o.MTU == 0 {
		o.MTU = MTU
	}
	if o.V4 == (Addresses{}) {
		o.V4 = IPv4()
	}
	if o.V6 == (Addresses{}) {
		o.V6 = IPv6()
	}
	if o.Dial == nil {
		o.Dial = dialHost
	}
	if o.Intercept == nil {
		o.Intercept = func(context.Context, Interception) (net.Conn, error) {
			return nil, errors.Newf(errors.Unsupported, "nothing takes intercepted connections")
		}
	}
	if o.Host == nil {
		o.Host = (&hostAddresses{more: o.Hosts}).contains
	}
	if o.Connections == 0 {
		o.Connections = 4096
	}
	if o.Rate == 0 {
		o.Rate = 1000
	}
}

func dialHost(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, addr.String())
}

func (g *Gateway) start() error {
	s := stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4,
			icmp.NewProtocol6},
	})
	g.stack = s
	tuneTCP(s)
	if err := s.CreateNIC(nic, g.link); err != nil {
		return errors.Errorf("create the gateway's network card: %s", err)
	}
	for _, a := range []netip.Addr{g.o.V4.Gateway, g.o.V4.DNS, g.o.V6.Gateway, g.o.V6.DNS} {
		bits, proto := g.o.V4.Bits, ipv4.ProtocolNumber
		if a.Is6() {
			bits, proto = g.o.V6.Bits, ipv6.ProtocolNumber
		}
		pa := tcpip.ProtocolAddress{Protocol: proto, AddressWithPrefix: tcpip.AddressWithPrefix{Address: address(a),
			PrefixLen: bits}}
		if err := s.AddProtocolAddress(nic, pa, stack.AddressProperties{}); err != nil {
			return errors.Errorf("give the gateway the address %s: %s", a, err)
		}
	}
	// The gateway answers for every address that the sandbox connects to.
	if err := s.SetPromiscuousMode(nic, true); err != nil {
		return errors.Errorf("let the gateway answer for all addresses: %s", err)
	}
	if err := s.SetSpoofing(nic, true); err != nil {
		return errors.Errorf("let the gateway send for all addresses: %s", err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic},
		{Destination: header.IPv6EmptySubnet, NIC: nic}})
	g.startTCP()
	s.SetTransportProtocolHandler(udp.ProtocolNumber, g.handleUDP)
	return g.startDNS()
}

// Policy returns the current policy.
func (g *Gateway) Policy() *gateway.Policy {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.policy
}

// SetPolicy replaces the policy. Before it returns, it closes the connections that the new policy forbids. It
// also closes those whose names the new policy must check, but whose beginning was not inspected.
func (g *Gateway) SetPolicy(p *gateway.Policy) {
	g.mu.Lock()
	g.policy = p
	var cut []*conn
	for c := range g.conns {
		if !c.holds(p, g.target(c.addr, c.port)) {
			cut = append(cut, c)
		}
	}
	g.mu.Unlock()
	for _, c := range cut {
		g.deny(gateway.Denial{Protocol: c.protocol, Address: c.addr.String(), Port: int(c.port),
			Reason: "the network policy was changed"})
		c.cut()
	}
}

// Stats returns the counters.
func (g *Gateway) Stats() Stats {
	g.mu.Lock()
	open := len(g.conns)
	g.mu.Unlock()
	return Stats{In: g.link.received.Load(), Out: g.link.sent.Load(), Dropped: g.link.dropped.Load(), Open: open,
		Connections: g.total.Load(), Denied: g.denied.total.Load()}
}

// Done returns a channel that is closed when the link has ended, by Close or because its other end was closed.
func (g *Gateway) Done() <-chan struct{} { return g.link.done }

// Close closes all connections and releases all resources. It is idempotent.
func (g *Gateway) Close() error {
	g.mu.Lock()
	first := !g.closed
	g.closed = true
	var cut []*conn
	for c := range g.conns {
		cut = append(cut, c)
	}
	g.mu.Unlock()
	if !first {
		return nil
	}
	g.cancel()
	for _, c := range cut {
		c.cut()
	}
	g.pings.close()
	g.waitAborting()
	g.stack.Close()
	g.link.close()
	if g.link.IsAttached() {
		<-g.link.done
	}
	g.stack.Wait()
	g.denied.flush()
	return nil
}

// closeTime limits how long Close waits for goroutines.
const closeTime = 10 * time.Second

// waitAborting waits for the goroutines. Handshakes may still start meanwhile, so it aborts endpoints
// repeatedly. A closed stack would never report their failure.
func (g *Gateway) waitAborting() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.wg.Wait()
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(closeTime); ; {
		for _, e := range g.stack.RegisteredEndpoints() {
			e.Abort()
		}
		select {
		case <-done:
			return
		case <-end:
			return
		case <-tick.C:
		}
	}
}

// target describes the destination of a sandbox's connection to addr.
func (g *Gateway) target(addr netip.Addr, port uint16) gateway.Target {
	return gateway.Target{Addr: addr, Port: port, Names: g.pins.Names(addr, time.Now()), Host: g.o.Host(addr)}
}

// outside translates an address from the sandbox's view: the gateway's own address stands for the host's
// loopback.
func (g *Gateway) outside(addr netip.Addr) netip.Addr {
	switch addr {
	case g.o.V4.Gateway:
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case g.o.V6.Gateway:
		return netip.IPv6Loopback()
	}
	return addr.Unmap()
}

// inside is the opposite of outside.
func inside(g *Gateway, addr netip.Addr) netip.Addr {
	for _, own := range []netip.Addr{g.o.V4.Gateway, g.o.V6.Gateway} {
		if addr == g.outside(own) {
			return own
		}
	}
	return addr
}

// verdict decides on a connection, and reports a denial.
func (g *Gateway) verdict(protocol string, addr netip.Addr, port uint16) gateway.Verdict {
	t := g.target(addr, port)
	v := g.Policy().Connect(t)
	if !v.Allowed {
		d := gateway.Denial{Protocol: protocol, Address: addr.String(), Port: int(port), Reason: v.Reason}
		if len(t.Names) > 0 {
			d.Domain = t.Names[0]
		}
		g.deny(d)
	}
	return v
}

func (g *Gateway) deny(d gateway.Denial) { g.denied.add(d) }

// address converts to the stack's type.
func address(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }

// netipAddr converts from the stack's type.
func netipAddr(a tcpip.Address) netip.Addr {
	addr, _ := netip.AddrFromSlice(a.AsSlice())
	return addr
}
