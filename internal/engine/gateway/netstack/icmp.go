package netstack

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// unreachable is the reason in an ICMP destination unreachable message.
type unreachable int

const (
	netUnreachable unreachable = iota
	hostUnreachable
	portUnreachable
	prohibited
)

// The codes of RFC 792 and 1812, and of RFC 4443. gVisor's TCP handles only two of the latter. On the others, a
// program would wait for minutes.
var (
	codes4 = [...]header.ICMPv4Code{header.ICMPv4NetUnreachable, header.ICMPv4HostUnreachable,
		header.ICMPv4PortUnreachable, header.ICMPv4AdminProhibited}
	codes6 = [...]header.ICMPv6Code{header.ICMPv6NetworkUnreachable, header.ICMPv6NetworkUnreachable,
		header.ICMPv6PortUnreachable, header.ICMPv6NetworkUnreachable}
)

// sendUnreachable sends the sandbox an ICMP error for its packet to dst, whose transport header is begin.
func (g *Gateway) sendUnreachable(why unreachable, guest, dst netip.Addr, proto tcpip.TransportProtocolNumber,
	begin []byte) {
	begin = begin[:min(len(begin), 64)]
	quote := append(ipHeader(guest, dst, uint8(proto), len(begin)), begin...)
	if dst.Is4() {
		m := make(header.ICMPv4, header.ICMPv4MinimumSize, header.ICMPv4MinimumSize+len(quote))
		m.SetType(header.ICMPv4DstUnreachable)
		m.SetCode(codes4[why])
		m = append(m, quote...)
		m.SetChecksum(^checksum.Checksum(m, 0))
		g.sendIP(dst, guest, uint8(header.ICMPv4ProtocolNumber), m)
		return
	}
	m := make(header.ICMPv6, header.ICMPv6DstUnreachableMinimumSize, header.ICMPv6DstUnreachableMinimumSize+len(quote))
	m.SetType(header.ICMPv6DstUnreachable)
	m.SetCode(codes6[why])
	m = append(m, quote...)
	m.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: m, Src: address(dst), Dst: address(guest)}))
	g.sendIP(dst, guest, uint8(header.ICMPv6ProtocolNumber), m)
}

// sendIP sends a packet to the sandbox, with src as its source address.
func (g *Gateway) sendIP(src, guest netip.Addr, proto uint8, payload []byte) {
	eth := make(header.Ethernet, header.EthernetMinimumSize)
	kind := header.IPv4ProtocolNumber
	if src.Is6() {
		kind = header.IPv6ProtocolNumber
	}
	eth.Encode(&header.EthernetFields{SrcAddr: g.link.addr, DstAddr: g.link.peerAddress(), Type: kind})
	_ = g.link.send([][]byte{eth, ipHeader(src, guest, proto, len(payload)), payload})
}

// ipHeader returns an IP header of the family of src.
func ipHeader(src, dst netip.Addr, proto uint8, payload int) []byte {
	if src.Is4() {
		h := make(header.IPv4, header.IPv4MinimumSize)
		h.Encode(&header.IPv4Fields{TotalLength: uint16(header.IPv4MinimumSize + payload), TTL: 64, Protocol: proto,
			SrcAddr: address(src), DstAddr: address(dst)})
		h.SetChecksum(^h.CalculateChecksum())
		return h
	}
	h := make(header.IPv6, header.IPv6MinimumSize)
	h.Encode(&header.IPv6Fields{PayloadLength: uint16(payload), TransportProtocol: tcpip.TransportProtocolNumber(proto),
		HopLimit: 64, SrcAddr: address(src), DstAddr: address(dst)})
	return h
}
