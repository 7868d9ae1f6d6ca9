package netstack_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/raw"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/RelevanceAI/harvest/internal/engine/gateway"
	"github.com/RelevanceAI/harvest/internal/engine/gateway/netstack"
)

// guest is a sandbox's network stack, configured like gVisor's, at the other end of a link.
type guest struct {
	*stack.Stack
	fd int
}

var guestMAC = tcpip.LinkAddress(netstack.GuestLinkAddress())

func full(a netip.Addr, port int) *tcpip.FullAddress {
	return &tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFromSlice(a.AsSlice()), Port: uint16(port)}
}

func proto(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return ipv4.ProtocolNumber
	}
	return ipv6.ProtocolNumber
}

// newGuest puts a stack on a link.
func newGuest(t testing.TB, link *os.File) *guest {
	t.Helper()
	fd, err := unix.Dup(int(link.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	s := stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4,
			icmp.NewProtocol6},
		RawFactory: raw.EndpointFactory{},
	})
	ep, err := fdbased.New(&fdbased.Options{FDs: []int{fd}, MTU: netstack.MTU, EthernetHeader: true, Address: guestMAC,
		PacketDispatchMode: fdbased.RecvMMsg, RXChecksumOffload: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.CreateNIC(1, ep); err != nil {
		t.Fatal(err)
	}
	for _, a := range []netip.Addr{netstack.IPv4().Guest, netstack.IPv6().Guest} {
		bits := netstack.IPv4().Bits
		if a.Is6() {
			bits = netstack.IPv6().Bits
		}
		pa := tcpip.ProtocolAddress{Protocol: proto(a),
			AddressWithPrefix: tcpip.AddressWithPrefix{Address: full(a, 0).Addr, PrefixLen: bits}}
		if err := s.AddProtocolAddress(1, pa, stack.AddressProperties{}); err != nil {
			t.Fatal(err)
		}
	}
	s.SetRouteTable([]tcpip.Route{
		{Destination: header.IPv4EmptySubnet, NIC: 1, Gateway: full(netstack.IPv4().Gateway, 0).Addr},
		{Destination: header.IPv6EmptySubnet, NIC: 1, Gateway: full(netstack.IPv6().Gateway, 0).Addr},
	})
	sack := tcpip.TCPSACKEnabled(true)
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &sack)
	g := &guest{s, fd}
	t.Cleanup(func() {
		s.Destroy()
		_ = unix.Close(fd)
	})
	return g
}

func (g *guest) dial(t testing.TB, to string) (*gonet.TCPConn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ap := netip.MustParseAddrPort(to)
	return gonet.DialContextTCP(ctx, g.Stack, *full(ap.Addr(), int(ap.Port())), proto(ap.Addr()))
}

func (g *guest) dialUDP(t testing.TB, to string) *gonet.UDPConn {
	t.Helper()
	ap := netip.MustParseAddrPort(to)
	c, err := gonet.DialUDP(g.Stack, nil, full(ap.Addr(), int(ap.Port())), proto(ap.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// world is a gateway whose outside consists of servers on the loopback: every address leads to the server that the test
// assigned to it.
type world struct {
	*netstack.Gateway
	guest *guest

	mu      sync.Mutex
	servers map[string]string // guarded by mu: "network address:port" to the real address
	dialled []string          // guarded by mu
	denied  []gateway.Denial  // guarded by mu
	refused chan gateway.Denial
	dns     func(query []byte) ([]byte, error)
}

func policy(t testing.TB, mode string, allow ...string) *gateway.Policy {
	t.Helper()
	p, err := gateway.Compile(mode, allow, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// newWorld starts a gateway with a guest. change may alter its options.
func newWorld(t testing.TB, p *gateway.Policy, change ...func(*netstack.Options)) *world {
	t.Helper()
	ours, theirs, err := netstack.Pair()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{servers: map[string]string{}, refused: make(chan gateway.Denial, 1000)}
	o := netstack.Options{
		Link: ours, Policy: p,
		Denied: func(d gateway.Denial) {
			w.mu.Lock()
			w.denied = append(w.denied, d)
			w.mu.Unlock()
			select {
			case w.refused <- d:
			default:
			}
		},
		Dial: w.dialOut,
		Host: func(a netip.Addr) bool {
			return a == netip.MustParseAddr("198.51.100.1") || a == netip.MustParseAddr("10.9.9.9")
		},
		Exchange: func(_ context.Context, q []byte) ([]byte, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.dns == nil {
				return nil, net.ErrClosed
			}
			return w.dns(q)
		},
	}
	for _, c := range change {
		c(&o)
	}
	if w.Gateway, err = netstack.New(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.Close()
		_ = ours.Close()
	})
	w.guest = newGuest(t, theirs)
	_ = theirs.Close()
	return w
}

// serve makes real reachable at an address of the outside.
func (w *world) serve(network, as, real string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.servers[network+" "+as] = real
}

func (w *world) dialOut(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	w.mu.Lock()
	real := w.servers[network+" "+addr.String()]
	w.dialled = append(w.dialled, addr.String())
	w.mu.Unlock()
	if real == "" {
		return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", unix.ECONNREFUSED)}
	}
	return new(net.Dialer).DialContext(ctx, network, real)
}

// listen starts a TCP server on the loopback, which ends with the test.
func listen(t testing.TB, handle func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				defer context.AfterFunc(ctx, func() { _ = c.Close() })()
				handle(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		cancel()
		wg.Wait()
	})
	return l.Addr().String()
}

func unlimited(o *netstack.Options) { o.Rate = 1 << 20 }
