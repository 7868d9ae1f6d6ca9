package netstack

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
)

// Private is a sandbox's place in a private network. Its members reach each other's ports by TCP, UDP and ping,
// whatever their policies. Ports on their loopback interfaces stay out of reach. Every sandbox has the same
// address on its own link, so the gateways replace it by an address that is unique in the private network.
type Private struct {
	Addr  netip.Addr // this sandbox's, IPv4
	Names []string   // this sandbox's, for its own lookups
	Peers []Peer
}

// Peer is another member of a private network.
type Peer struct {
	Addr   netip.Addr // IPv4
	Names  []string
	Target string // where Options.Peer finds its gateway
}

// Limits of the way to a peer.
const (
	// peerQueue is the number of packets that wait for a peer. More are dropped, as by the full queue of a
	// network card, so that a peer that is stuck does not delay other traffic.
	peerQueue = 64
	// peerTime limits how long it takes to reach a peer's gateway, which is on the same machine.
	peerTime = 10 * time.Second
	// peerTTL is for how long programs may keep the address of a name, in seconds. The next member of that name
	// has another address.
	peerTTL = 1
)

// private is the active form of Private.
type private struct {
	addr  [4]byte
	names map[string]netip.Addr // canonical
	peers map[[4]byte]*peerLink
}

// SetPrivate replaces the sandbox's place in a private network; the zero value is none. Connections to members
// that stay continue.
func (g *Gateway) SetPrivate(p Private) {
	g.privacy.Lock()
	defer g.privacy.Unlock()
	old := g.private.Load()
	if len(p.Peers) == 0 {
		g.private.Store(nil)
		old.leave(nil)
		return
	}
	now := &private{addr: p.Addr.As4(), names: map[string]netip.Addr{}, peers: map[[4]byte]*peerLink{}}
	now.name(p.Names, p.Addr)
	for _, peer := range p.Peers {
		now.name(peer.Names, peer.Addr)
		key := peer.Addr.As4()
		if old != nil && old.peers[key] != nil && old.peers[key].target == peer.Target {
			now.peers[key] = old.peers[key]
			continue
		}
		now.peers[key] = g.newPeerLink(peer.Target)
	}
	g.private.Store(now)
	old.leave(now)
}

func (p *private) name(names []string, addr netip.Addr) {
	for _, name := range names {
		p.names[strings.ToLower(name)] = addr
	}
}

// leave closes the ways to the peers that are not in next.
func (p *private) leave(next *private) {
	if p == nil {
		return
	}
	for key, peer := range p.peers {
		if next == nil || next.peers[key] != peer {
			peer.cancel()
		}
	}
}

// member reports whether an address belongs to this sandbox or a peer.
func (p *private) member(a [4]byte) bool { return p != nil && (a == p.addr || p.peers[a] != nil) }

// answer answers a lookup of a member's name.
func (p *private) answer(q gateway.Query) (gateway.Reply, bool) {
	if p == nil {
		return gateway.Reply{}, false
	}
	addr, ok := p.names[q.Name]
	if !ok {
		return gateway.Reply{}, false
	}
	return q.Address(addr, peerTTL), true
}

// divert takes a frame of the sandbox that is for a member of its private network. frame is only valid during
// the call. It returns false for all other frames, which it does not change.
func (g *Gateway) divert(first []byte, whole func() []byte) bool {
	p := g.private.Load()
	if p == nil || len(first) < header.EthernetMinimumSize+header.IPv4MinimumSize ||
		header.Ethernet(first).Type() != header.IPv4ProtocolNumber {
		return false
	}
	ip := header.IPv4(first[header.EthernetMinimumSize:])
	src, dst := [4]byte(ip[12:16]), [4]byte(ip[16:20])
	if src != g.o.V4.Guest.As4() || !p.member(dst) {
		return false
	}
	packet := whole()[header.EthernetMinimumSize:]
	if ip = header.IPv4(packet); !plain(ip) {
		g.link.dropped.Add(1)
		return true
	}
	readdress(ip, sourceAt, p.addr)
	if dst == p.addr {
		g.inject(packet)
		return true
	}
	p.peers[dst].send(packet)
	return true
}

// Admit delivers the packets that a peer's gateway has sent, until r ends.
func (g *Gateway) Admit(r io.Reader) error {
	var size [2]byte
	b := make([]byte, 1<<16)
	for {
		if _, err := io.ReadFull(r, size[:]); err != nil {
			if err == io.EOF {
				return nil
			}
			return errors.Wrapf(err, "receive from a peer")
		}
		packet := b[:binary.BigEndian.Uint16(size[:])]
		if _, err := io.ReadFull(r, packet); err != nil {
			return errors.Wrapf(err, "receive from a peer")
		}
		p := g.private.Load()
		if ip := header.IPv4(packet); p == nil || !plain(ip) || p.peers[[4]byte(ip[12:16])] == nil ||
			[4]byte(ip[16:20]) != p.addr {
			g.link.dropped.Add(1)
			continue
		}
		g.inject(packet)
	}
}

// inject sends a packet for this sandbox's address in the private network to the sandbox.
func (g *Gateway) inject(packet []byte) {
	readdress(header.IPv4(packet), destinationAt, g.o.V4.Guest.As4())
	frame := make([]byte, header.EthernetMinimumSize)
	header.Ethernet(frame).Encode(&header.EthernetFields{SrcAddr: g.link.addr, DstAddr: g.link.peerAddress(),
		Type: header.IPv4ProtocolNumber})
	_ = g.link.send([][]byte{frame, packet})
}

// plain reports whether a packet is complete, without options, and of a protocol that peers speak.
func plain(ip header.IPv4) bool {
	if len(ip) < header.IPv4MinimumSize || ip[0] != 4<<4|header.IPv4MinimumSize/4 || int(ip.TotalLength()) != len(ip) {
		return false
	}
	switch ip.TransportProtocol() {
	case header.TCPProtocolNumber, header.UDPProtocolNumber, header.ICMPv4ProtocolNumber:
		return true
	}
	return false
}

// Positions of the addresses in a header.
const (
	sourceAt      = 12
	destinationAt = 16
)

// readdress replaces the address at a position of the header. In the packet that an ICMP error quotes, which went
// the other way, it replaces the other address. Checksums of TCP and UDP stay, since neither end of a link
// verifies them.
func readdress(ip header.IPv4, at int, to [4]byte) {
	replace := func(ip header.IPv4, at int) {
		copy(ip[at:at+4], to[:])
		ip.SetChecksum(0)
		ip.SetChecksum(^ip.CalculateChecksum())
	}
	replace(ip, at)
	if ip.TransportProtocol() != header.ICMPv4ProtocolNumber || ip.FragmentOffset() != 0 || ip.More() {
		return
	}
	m := header.ICMPv4(ip[header.IPv4MinimumSize:])
	if len(m) < header.ICMPv4MinimumSize+header.IPv4MinimumSize ||
		m.Type() == header.ICMPv4Echo || m.Type() == header.ICMPv4EchoReply {
		return
	}
	replace(header.IPv4(m[header.ICMPv4MinimumSize:][:header.IPv4MinimumSize]), sourceAt+destinationAt-at)
	m.SetChecksum(0)
	m.SetChecksum(header.ICMPv4Checksum(m, 0))
}

// peerLink is the way to a peer. Its gateway has another one back.
type peerLink struct {
	target  string
	packets chan []byte
	cancel  context.CancelFunc
	dropped *atomic.Uint64
}

// newPeerLink returns a way that is opened by the first packet.
func (g *Gateway) newPeerLink(target string) *peerLink {
	ctx, cancel := context.WithCancel(g.ctx)
	l := &peerLink{target: target, packets: make(chan []byte, peerQueue), cancel: cancel, dropped: &g.link.dropped}
	if !g.begin() {
		cancel()
		return l
	}
	go func() {
		defer g.wg.Done()
		g.carry(ctx, l)
	}()
	return l
}

// send queues a copy of a packet.
func (l *peerLink) send(packet []byte) {
	b := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(packet)), uint16(len(packet)))
	select {
	case l.packets <- append(b, packet...):
	default:
		l.dropped.Add(1)
	}
}

// carry sends the packets of l until ctx ends. It connects again if the connection breaks.
func (g *Gateway) carry(ctx context.Context, l *peerLink) {
	var conn net.Conn
	end := func() bool { return true }
	defer func() {
		if end(); conn != nil {
			_ = conn.Close()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case packet := <-l.packets:
			if conn == nil {
				c, err := g.dialPeer(ctx, l.target)
				if err != nil {
					l.dropped.Add(1)
					continue
				}
				conn = c
				end = context.AfterFunc(ctx, func() { _ = c.Close() }) // ends a write that waits
			}
			if _, err := conn.Write(packet); err != nil {
				end()
				_ = conn.Close()
				conn = nil
				l.dropped.Add(1)
			}
		}
	}
}

func (g *Gateway) dialPeer(ctx context.Context, target string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, peerTime)
	defer cancel()
	return g.o.Peer(ctx, target)
}
