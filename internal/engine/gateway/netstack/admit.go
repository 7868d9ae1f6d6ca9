package netstack

import (
	"encoding/binary"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// admit reports whether a frame may reach the stack. frame contains at least the headers. Packets that an
// honest sandbox never sends are dropped silently: those with an address that is not the sandbox's, multicast,
// IP options, extension headers, and fragments other than UDP.
func (g *Gateway) admit(frame []byte) bool {
	eth := header.Ethernet(frame)
	if dst := eth.DestinationAddress(); dst != g.link.addr && dst[0]&1 == 0 {
		return false
	}
	switch p := frame[header.EthernetMinimumSize:]; eth.Type() {
	case header.ARPProtocolNumber:
		return g.admitARP(header.ARP(p))
	case header.IPv4ProtocolNumber:
		return g.admitIPv4(header.IPv4(p))
	case header.IPv6ProtocolNumber:
		return g.admitIPv6(header.IPv6(p))
	}
	return false
}

// admitARP admits only requests for the gateway's own addresses, because the stack would answer for every
// address.
func (g *Gateway) admitARP(h header.ARP) bool {
	if len(h) < header.ARPSize || !h.IsValid() || h.Op() != header.ARPRequest {
		return false
	}
	target := netip.AddrFrom4([4]byte(h.ProtocolAddressTarget()))
	return target == g.o.V4.Gateway || target == g.o.V4.DNS
}

func (g *Gateway) own(a netip.Addr) bool {
	return a == g.o.V4.Gateway || a == g.o.V4.DNS || a == g.o.V6.Gateway || a == g.o.V6.DNS
}

// admitIPv4 checks a packet, whose payload may be truncated.
func (g *Gateway) admitIPv4(h header.IPv4) bool {
	if len(h) < header.IPv4MinimumSize || h[0] != 4<<4|header.IPv4MinimumSize/4 {
		return false
	}
	src, dst := netip.AddrFrom4([4]byte(h[12:16])), netip.AddrFrom4([4]byte(h[16:20]))
	if src != g.o.V4.Guest || !reachable(dst) || dst == g.o.V4.Guest {
		return false
	}
	payload := h[header.IPv4MinimumSize:]
	if h.More() || h.FragmentOffset() != 0 {
		return h.TransportProtocol() == header.UDPProtocolNumber
	}
	switch h.TransportProtocol() {
	case header.TCPProtocolNumber:
		return g.admitTCP(src, dst, header.TCP(payload))
	case header.UDPProtocolNumber:
		return true
	case header.ICMPv4ProtocolNumber:
		m := header.ICMPv4(payload)
		switch {
		case len(m) < header.ICMPv4MinimumSize:
			return false
		case m.Type() == header.ICMPv4Echo && !g.own(dst):
			if n := int(h.TotalLength()) - header.IPv4MinimumSize; n <= len(payload) {
				g.ping(dst, payload[:max(n, 0)])
			}
			return false
		}
		return m.Type() == header.ICMPv4Echo || m.Type() == header.ICMPv4DstUnreachable
	}
	return false
}

func (g *Gateway) admitIPv6(h header.IPv6) bool {
	if len(h) < header.IPv6MinimumSize || h[0]>>4 != 6 {
		return false
	}
	src, dst := netip.AddrFrom16([16]byte(h[8:24])), netip.AddrFrom16([16]byte(h[24:40]))
	payload := h[header.IPv6MinimumSize:]
	proto := tcpip.TransportProtocolNumber(h.NextHeader())
	if proto == header.ICMPv6ProtocolNumber && len(payload) >= header.ICMPv6MinimumSize &&
		header.ICMPv6(payload).Type() == header.ICMPv6NeighborSolicit {
		return g.admitSolicitation(src, h.HopLimit(), payload)
	}
	if src != g.o.V6.Guest || !reachable(dst) || dst == g.o.V6.Guest {
		return false
	}
	switch proto {
	case header.TCPProtocolNumber:
		return g.admitTCP(src, dst, header.TCP(payload))
	case header.UDPProtocolNumber:
		return true
	case tcpip.TransportProtocolNumber(header.IPv6FragmentExtHdrIdentifier):
		return len(payload) >= header.IPv6FragmentHeaderSize && payload[0] == uint8(header.UDPProtocolNumber)
	case header.ICMPv6ProtocolNumber:
		m := header.ICMPv6(payload)
		switch {
		case len(m) < header.ICMPv6EchoMinimumSize:
			return false
		case m.Type() == header.ICMPv6EchoRequest && !g.own(dst):
			if n := int(h.PayloadLength()); n <= len(payload) {
				g.ping(dst, payload[:n])
			}
			return false
		}
		return m.Type() == header.ICMPv6EchoRequest || m.Type() == header.ICMPv6DstUnreachable ||
			m.Type() == header.ICMPv6PacketTooBig
	}
	return false
}

// admitSolicitation admits only requests for the gateway's own addresses, as admitARP does.
func (g *Gateway) admitSolicitation(src netip.Addr, hops uint8, m []byte) bool {
	if hops != header.NDPHopLimit || len(m) < header.ICMPv6NeighborSolicitMinimumSize || src != g.o.V6.Guest &&
		!src.IsLinkLocalUnicast() {
		return false
	}
	target := netip.AddrFrom16([16]byte(m[8:24]))
	return target == g.o.V6.Gateway || target == g.o.V6.DNS
}

// reachable reports whether dst is a valid destination. Addresses that are only meaningful within one network
// are not.
func reachable(dst netip.Addr) bool {
	return !dst.IsMulticast() && !dst.IsUnspecified() && dst != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// throttleEvery is the number of SYNs over the limit after which the link is not read for throttleTime, so that
// a flood slows down its own sandbox rather than the machine.
const (
	throttleEvery = 32
	throttleTime  = 5 * time.Millisecond
)

// admitTCP drops SYNs over the limit, and remembers the others for ICMP errors.
func (g *Gateway) admitTCP(src, dst netip.Addr, h header.TCP) bool {
	if len(h) < header.TCPMinimumSize {
		return false
	}
	if f := h.Flags(); !f.Contains(header.TCPFlagSyn) || f.Contains(header.TCPFlagAck) {
		return true
	}
	if !g.allowNew() {
		return false
	}
	g.syns.remember(stack.TransportEndpointID{LocalPort: h.DestinationPort(), LocalAddress: address(dst),
		RemotePort: h.SourcePort(), RemoteAddress: address(src)}, binary.BigEndian.Uint32(h[4:8]))
	return true
}

// allowNew reports whether one more connection may be attempted now. Only the link's reader calls it.
func (g *Gateway) allowNew() bool {
	if g.limit.Allow() {
		g.over = 0
		return true
	}
	if g.over++; g.over%throttleEvery == 0 {
		wait := time.NewTimer(throttleTime)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-g.ctx.Done():
		}
	}
	return false
}
