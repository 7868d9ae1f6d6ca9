package netstack

import (
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
)

const (
	maxPings = 32               // programs that ping at the same time
	pingIdle = 10 * time.Second // time without an answer
)

// pings are the host's sockets for echo requests, one for each identifier and address.
type pings struct {
	mu     sync.Mutex
	closed bool                 // guarded by mu
	open   map[pingKey]*os.File // guarded by mu
}

type pingKey struct {
	dst netip.Addr
	id  uint16
}

func (p *pings) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, f := range p.open {
		_ = f.Close()
	}
}

// ping forwards an echo request of the sandbox, if the policy and the host allow it. The sandbox receives the
// answer, or nothing. Requests of more than some 2,000 bytes are not forwarded.
func (g *Gateway) ping(dst netip.Addr, m []byte) {
	if len(m) < header.ICMPv4MinimumSize || !g.allowNew() {
		return
	}
	if v := g.verdict("icmp", dst, 0); !v.Allowed {
		g.refusePing(dst, m)
		return
	}
	key := pingKey{dst, uint16(m[4])<<8 | uint16(m[5])}
	f, err := g.pingSocket(key)
	if err != nil {
		if errors.KindOf(err) == errors.Unsupported {
			g.deny(gateway.Denial{Protocol: "icmp", Address: dst.String(),
				Reason: "this machine does not let ordinary programs ping (net.ipv4.ping_group_range)"})
			g.refusePing(dst, m)
		}
		return
	}
	_, _ = f.Write(m) // the kernel sets identifier and checksum
}

func (g *Gateway) refusePing(dst netip.Addr, m []byte) {
	guest, proto := g.o.V4.Guest, header.ICMPv4ProtocolNumber
	if dst.Is6() {
		guest, proto = g.o.V6.Guest, header.ICMPv6ProtocolNumber
	}
	g.sendUnreachable(prohibited, guest, dst, proto, m)
}

// pingSocket returns the socket for a key, and opens it if necessary. Unsupported if the host forbids such
// sockets.
func (g *Gateway) pingSocket(key pingKey) (*os.File, error) {
	g.pings.mu.Lock()
	defer g.pings.mu.Unlock()
	if f := g.pings.open[key]; f != nil {
		return f, nil
	}
	if g.pings.closed || len(g.pings.open) >= maxPings {
		return nil, errors.Newf(errors.Exhausted, "too many programs ping")
	}
	f, err := openPing(key.dst)
	if err != nil {
		return nil, err
	}
	if g.pings.open == nil {
		g.pings.open = map[pingKey]*os.File{}
	}
	if !g.begin() {
		_ = f.Close()
		return nil, errors.Newf(errors.Unavailable, "the network is closed")
	}
	g.pings.open[key] = f
	go func() {
		defer g.wg.Done()
		g.hearPing(key, f)
	}()
	return f, nil
}

// openPing opens a socket for echo messages only. It needs no privileges if net.ipv4.ping_group_range permits
// it (icmp(7)).
func openPing(dst netip.Addr) (*os.File, error) {
	family, proto := unix.AF_INET, unix.IPPROTO_ICMP
	var to unix.Sockaddr
	if dst.Is6() {
		family, proto = unix.AF_INET6, unix.IPPROTO_ICMPV6
		to = &unix.SockaddrInet6{Addr: dst.As16()}
	} else {
		to = &unix.SockaddrInet4{Addr: dst.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
	if err != nil {
		return nil, errors.Explainf(err, errors.Unsupported, "this machine does not let ordinary programs ping")
	}
	if err := unix.Connect(fd, to); err != nil {
		_ = unix.Close(fd)
		return nil, errors.Explainf(err, errors.Unavailable, "the address cannot be reached")
	}
	return os.NewFile(uintptr(fd), "ping"), nil
}

// hearPing forwards answers to the sandbox until none arrives for pingIdle.
func (g *Gateway) hearPing(key pingKey, f *os.File) {
	defer func() {
		g.pings.mu.Lock()
		delete(g.pings.open, key)
		g.pings.mu.Unlock()
		_ = f.Close()
	}()
	b := make([]byte, 4096)
	for {
		if f.SetReadDeadline(time.Now().Add(pingIdle)) != nil {
			return
		}
		n, err := f.Read(b)
		if err != nil {
			return
		}
		if n >= header.ICMPv4MinimumSize && g.Policy().Connect(g.target(key.dst, 0)).Allowed {
			g.echoReply(key, b[:n])
		}
	}
}

// echoReply sends an answer to the sandbox, with the sandbox's own identifier.
func (g *Gateway) echoReply(key pingKey, m []byte) {
	m[4], m[5] = byte(key.id>>8), byte(key.id)
	if key.dst.Is4() {
		h := header.ICMPv4(m)
		h.SetChecksum(0)
		h.SetChecksum(^checksum.Checksum(h, 0))
		g.sendIP(key.dst, g.o.V4.Guest, uint8(header.ICMPv4ProtocolNumber), h)
		return
	}
	h := header.ICMPv6(m)
	h.SetChecksum(0)
	h.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: h[:header.ICMPv6MinimumSize],
		Src: address(key.dst), Dst: address(g.o.V6.Guest),
		PayloadCsum: checksum.Checksum(h[header.ICMPv6MinimumSize:], 0),
		PayloadLen:  len(h) - header.ICMPv6MinimumSize}))
	g.sendIP(key.dst, g.o.V6.Guest, uint8(header.ICMPv6ProtocolNumber), h)
}
