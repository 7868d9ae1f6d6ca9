package netstack_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
	"github.com/RelevanceAI/harvest/internal/engine/gateway/netstack"
)

// wire is a link whose other end speaks in frames, as a hostile sandbox does.
type wire struct {
	*world
	end *os.File
}

func newWire(t testing.TB, p *gateway.Policy, change ...func(*netstack.Options)) *wire {
	t.Helper()
	ours, theirs, err := netstack.Pair()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{servers: map[string]string{}, refused: make(chan gateway.Denial, 1000)}
	o := netstack.Options{Link: ours, Policy: p, Dial: w.dialOut, Host: func(netip.Addr) bool { return false },
		Denied: func(d gateway.Denial) {
			select {
			case w.refused <- d:
			default:
			}
		}}
	for _, c := range change {
		c(&o)
	}
	if w.Gateway, err = netstack.New(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	_ = ours.Close()
	t.Cleanup(func() {
		_ = w.Close()
		_ = theirs.Close()
	})
	return &wire{w, theirs}
}

// frame wraps a payload for the gateway.
func frame(kind tcpip.NetworkProtocolNumber, payload []byte) []byte {
	eth := make(header.Ethernet, header.EthernetMinimumSize)
	eth.Encode(&header.EthernetFields{SrcAddr: guestMAC,
		DstAddr: tcpip.LinkAddress(netstack.LinkAddress()), Type: kind})
	return append(eth, payload...)
}

// packet is an IP packet in a frame.
func packet(src, dst string, proto tcpip.TransportProtocolNumber, payload []byte) []byte {
	s, d := netip.MustParseAddr(src), netip.MustParseAddr(dst)
	if s.Is4() {
		h := make(header.IPv4, header.IPv4MinimumSize)
		h.Encode(&header.IPv4Fields{TotalLength: uint16(len(h) + len(payload)), TTL: 64, Protocol: uint8(proto),
			SrcAddr: tcpip.AddrFromSlice(s.AsSlice()), DstAddr: tcpip.AddrFromSlice(d.AsSlice())})
		h.SetChecksum(^h.CalculateChecksum())
		return frame(header.IPv4ProtocolNumber, append(h, payload...))
	}
	h := make(header.IPv6, header.IPv6MinimumSize)
	h.Encode(&header.IPv6Fields{PayloadLength: uint16(len(payload)), TransportProtocol: proto, HopLimit: 255,
		SrcAddr: tcpip.AddrFromSlice(s.AsSlice()), DstAddr: tcpip.AddrFromSlice(d.AsSlice())})
	return frame(header.IPv6ProtocolNumber, append(h, payload...))
}

func syn(port uint16) []byte {
	h := make(header.TCP, header.TCPMinimumSize)
	h.Encode(&header.TCPFields{SrcPort: 40000 + port%1000, DstPort: port, SeqNum: 77, DataOffset: header.TCPMinimumSize,
		Flags: header.TCPFlagSyn, WindowSize: 1000})
	return h
}

func datagram(port uint16, payload string) []byte {
	h := make(header.UDP, header.UDPMinimumSize)
	h.Encode(&header.UDPFields{SrcPort: 5353, DstPort: port, Length: uint16(len(h) + len(payload))})
	return append(h, payload...)
}

func echo4(payload string) []byte {
	m := append(make(header.ICMPv4, header.ICMPv4MinimumSize), payload...)
	m.SetType(header.ICMPv4Echo)
	m.SetIdent(9)
	m.SetChecksum(^checksum.Checksum(m, 0))
	return m
}

func (w *wire) send(t testing.TB, f []byte) {
	t.Helper()
	if _, err := w.end.Write(f); err != nil {
		t.Fatal(err)
	}
}

// receive returns the next frame that fits. It gives up when no frame at all has arrived for a while.
func (w *wire) receive(t testing.TB, fits func(header.Ethernet) bool) header.Ethernet {
	t.Helper()
	b := make([]byte, 70000)
	for {
		if err := w.end.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		n, err := w.end.Read(b)
		if err != nil {
			t.Fatalf("no frame came: %v", err)
		}
		if f := header.Ethernet(b[:n]); n >= header.EthernetMinimumSize && fits(f) {
			return f
		}
	}
}

func ip4(f header.Ethernet) header.IPv4 { return header.IPv4(f[header.EthernetMinimumSize:]) }
func ip6(f header.Ethernet) header.IPv6 { return header.IPv6(f[header.EthernetMinimumSize:]) }

const guest4, guest6 = "10.0.2.100", "fd68:6172:7665:7374::64"

// alive sends an echo to the gateway itself, and expects its answer to be the next frame: earlier frames got no answer.
func (w *wire) alive(t testing.TB, after string) {
	t.Helper()
	w.send(t, packet(guest4, "10.0.2.2", header.ICMPv4ProtocolNumber, echo4("alive")))
	f := w.receive(t, func(header.Ethernet) bool { return true })
	if f.Type() != header.IPv4ProtocolNumber || ip4(f).TransportProtocol() != header.ICMPv4ProtocolNumber ||
		header.ICMPv4(ip4(f).Payload()).Type() != header.ICMPv4EchoReply {
		t.Errorf("%s was answered with % x", after, []byte(f))
	}
}

// mission: A6
func TestHostileFrames(t *testing.T) {
	t.Parallel()
	w := newWire(t, policy(t, "default"))
	arp := func(op header.ARPOp, sender, target string) []byte {
		a := make(header.ARP, header.ARPSize)
		a.SetIPv4OverEthernet()
		a.SetOp(op)
		copy(a.HardwareAddressSender(), guestMAC)
		copy(a.ProtocolAddressSender(), netip.MustParseAddr(sender).AsSlice())
		copy(a.ProtocolAddressTarget(), netip.MustParseAddr(target).AsSlice())
		return frame(header.ARPProtocolNumber, a)
	}
	other := frame(header.IPv4ProtocolNumber, nil)
	copy(other, "\x02\x00\x00\x00\x00\x09")
	options := packet(guest4, "203.0.113.7", header.TCPProtocolNumber, syn(80))
	options[14] = 0x46
	fragment := packet(guest4, "203.0.113.7", header.TCPProtocolNumber, syn(80))
	fragment[14+6] = 0x20
	solicit := func(target string) []byte {
		m := make(header.ICMPv6, header.ICMPv6NeighborSolicitMinimumSize)
		m.SetType(header.ICMPv6NeighborSolicit)
		copy(m[8:], netip.MustParseAddr(target).AsSlice())
		return m
	}
	for name, f := range map[string][]byte{
		"one byte": {1}, "a short frame": make([]byte, 13),
		"an empty frame of ours": frame(header.IPv4ProtocolNumber, nil),
		"another's frame": append(other, packet(guest4, "203.0.113.7", header.TCPProtocolNumber,
			syn(80))[14:]...),
		"an unknown protocol": frame(0x88cc, []byte("hello")), "half an address": frame(header.ARPProtocolNumber,
			[]byte{0, 1}),
		"a spoofed source":         packet("10.0.2.101", "203.0.113.7", header.TCPProtocolNumber, syn(80)),
		"the gateway's source":     packet("10.0.2.2", "203.0.113.7", header.TCPProtocolNumber, syn(80)),
		"a source of the internet": packet("203.0.113.9", "203.0.113.7", header.UDPProtocolNumber, datagram(53, "x")),
		"loopback as source":       packet("127.0.0.1", "10.0.2.3", header.UDPProtocolNumber, datagram(53, "x")),
		"a spoofed source of IPv6": packet("fd68:6172:7665:7374::65", "2001:db8::7", header.TCPProtocolNumber, syn(80)),
		"a link-local source":      packet("fe80::1", "2001:db8::7", header.TCPProtocolNumber, syn(80)),
		"to itself":                packet(guest4, guest4, header.TCPProtocolNumber, syn(80)),
		"to itself in IPv6":        packet(guest6, guest6, header.TCPProtocolNumber, syn(80)),
		"multicast":                packet(guest4, "224.0.0.251", header.UDPProtocolNumber, datagram(5353, "x")),
		"broadcast":                packet(guest4, "255.255.255.255", header.UDPProtocolNumber, datagram(67, "x")),
		"multicast of IPv6":        packet(guest6, "ff02::fb", header.UDPProtocolNumber, datagram(5353, "x")),
		"options":                  options, "a fragment of TCP": fragment,
		"half a TCP header":         packet(guest4, "203.0.113.7", header.TCPProtocolNumber, syn(80)[:10]),
		"half a TCP header of IPv6": packet(guest6, "2001:db8::7", header.TCPProtocolNumber, syn(80)[:10]),
		"GRE": packet(guest4, "203.0.113.7", 47,
			[]byte("hello")), "hop-by-hop options": packet(guest6, "2001:db8::7",
			0, make([]byte, 16)),
		"routing header": packet(guest6, "2001:db8::7", 43, make([]byte, 24)),
		"a fragment of TCP in IPv6": packet(guest6, "2001:db8::7", 44,
			append([]byte{6, 0, 0, 1, 0, 0, 0, 1}, syn(80)...)),
		"half an IPv6 header": packet(guest6, "2001:db8::7", 17, nil)[:30],
		"half an IPv4 header": packet(guest4, "203.0.113.7", 17, nil)[:30],
		"redirect": packet(guest4, "10.0.2.2", header.ICMPv4ProtocolNumber, append([]byte{5, 1},
			make([]byte, 30)...)),
		"a router's advertisement": packet("fe80::1", "ff02::1", header.ICMPv6ProtocolNumber,
			append([]byte{134, 0}, make([]byte, 30)...)),
		"redirect of IPv6": packet(guest6, "fd68:6172:7665:7374::2", header.ICMPv6ProtocolNumber,
			append([]byte{137, 0}, make([]byte, 50)...)), "short ICMP": packet(guest4, "10.0.2.2",
			header.ICMPv4ProtocolNumber, []byte{8}),
		"short ICMP of IPv6": packet(guest6, "fd68:6172:7665:7374::2",
			header.ICMPv6ProtocolNumber, []byte{128}),
		"an address resolution reply":  arp(header.ARPReply, "10.0.2.2", guest4),
		"asking for another's address": arp(header.ARPRequest, guest4, "10.0.2.50"),
		"asking for its own":           arp(header.ARPRequest, "0.0.0.0", guest4),
		"soliciting its own": packet("fe80::1", "ff02::1:ff00:64", header.ICMPv6ProtocolNumber,
			solicit(guest6)),
		"soliciting as another": packet("2001:db8::1", "ff02::1:ff00:2", header.ICMPv6ProtocolNumber,
			solicit("fd68:6172:7665:7374::2")),
	} {
		w.send(t, f)
		w.alive(t, name)
	}
	if len(w.dialled) > 0 {
		t.Errorf("dialled %v", w.dialled)
	}
	w.send(t, arp(header.ARPRequest, guest4, "10.0.2.3"))
	if f := w.receive(t,
		func(f header.Ethernet) bool { return f.Type() == header.ARPProtocolNumber }); !bytes.Equal(header.ARP(f[14:]).HardwareAddressSender(), netstack.LinkAddress()) {
		t.Errorf("who has the DNS address: % x", []byte(f))
	}
	if s := w.Stats(); s.Dropped < 30 {
		t.Errorf("%+v", s)
	}
}

// mission: A6
func TestRefusalsAreHonest(t *testing.T) {
	t.Parallel()
	failures := map[uint16]error{1: unix.ECONNREFUSED, 2: unix.EHOSTUNREACH, 3: unix.ENETUNREACH, 4: unix.EACCES,
		5: errors.New("strange"), 6: context.DeadlineExceeded}
	w := newWire(t, policy(t, "default"), func(o *netstack.Options) {
		o.Dial = func(_ context.Context, _ string, a netip.AddrPort) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: failures[a.Port()]}
		}
	})
	type answer struct{ proto, kind, code uint8 } // for TCP the flags are the kind
	const rst = uint8(header.TCPFlagRst | header.TCPFlagAck)
	for port, want := range map[uint16][2]answer{
		1: {{6, rst, 0}, {6, rst, 0}}, 5: {{6, rst, 0}, {6, rst, 0}},
		2: {{1, 3, 1}, {58, 1, 0}}, 3: {{1, 3, 0}, {58, 1, 0}}, 4: {{1, 3, 13}, {58, 1, 0}},
	} {
		w.send(t, packet(guest4, "203.0.113.7", header.TCPProtocolNumber, checked(guest4, "203.0.113.7", syn(port))))
		f := w.receive(t, func(f header.Ethernet) bool { return f.Type() == header.IPv4ProtocolNumber })
		if got := describe(ip4(f).Protocol(), ip4(f).Payload()); got != want[0] {
			t.Errorf("port %d: %v, want %v", port, got, want[0])
		}
		if p := ip4(f).Payload(); want[0].proto == 1 && (ip4(f).SourceAddress().String() != "203.0.113.7" ||
			binary.BigEndian.Uint32(p[8+20+4:]) != 77 || checksum.Checksum(p, 0) != 0xffff) {
			t.Errorf("port %d: the answer does not quote the packet: % x", port, p)
		}
		w.send(t, packet(guest6, "2001:db8::7", header.TCPProtocolNumber, checked(guest6, "2001:db8::7", syn(port))))
		f = w.receive(t, func(f header.Ethernet) bool { return f.Type() == header.IPv6ProtocolNumber })
		if got := describe(ip6(f).NextHeader(), ip6(f).Payload()); got != want[1] {
			t.Errorf("port %d of IPv6: %v, want %v", port, got, want[1])
		}
	}
	// A time limit is not a refusal: the sandbox waits, as it would.
	w.send(t, packet(guest4, "203.0.113.7", header.TCPProtocolNumber, checked(guest4, "203.0.113.7", syn(6))))
	w.alive(t, "a connection that timed out")
	// Traffic that the policy denies is refused, and a ping is answered as prohibited.
	w.send(t, packet(guest4, "10.1.2.3", header.TCPProtocolNumber, checked(guest4, "10.1.2.3", syn(80))))
	f := w.receive(t, func(f header.Ethernet) bool { return f.Type() == header.IPv4ProtocolNumber })
	if got := describe(ip4(f).Protocol(), ip4(f).Payload()); got != (answer{6, rst, 0}) {
		t.Errorf("a forbidden connection: %v", got)
	}
	for _, test := range []struct {
		name string
		p    []byte
		code uint8
	}{
		{"an echo that is forbidden", packet(guest4, "10.1.2.3", header.ICMPv4ProtocolNumber, echo4("x")), 13},
		// In UDP gVisor hears one answer only.
		{"a datagram that is forbidden", packet(guest4, "10.1.2.3", header.UDPProtocolNumber, datagram(443, "hello")),
			3},
		{"a datagram to nowhere", packet(guest4, "203.0.113.7", header.UDPProtocolNumber, datagram(3, "hello")), 3},
		{"a datagram that the host forbids", packet(guest4, "203.0.113.7", header.UDPProtocolNumber,
			datagram(4, "hello")), 3},
	} {
		w.send(t, test.p)
		f := w.receive(t, func(f header.Ethernet) bool { return f.Type() == header.IPv4ProtocolNumber })
		if got := describe(ip4(f).Protocol(), ip4(f).Payload()); got != (answer{1, 3, test.code}) {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

func describe(proto uint8, p []byte) struct{ proto, kind, code uint8 } {
	if proto == uint8(header.TCPProtocolNumber) {
		return struct{ proto, kind, code uint8 }{proto, uint8(header.TCP(p).Flags()), 0}
	}
	return struct{ proto, kind, code uint8 }{proto, p[0], p[1]}
}

// checked sets the checksum of a TCP header.
func checked(src, dst string, h header.TCP) []byte {
	s, d := netip.MustParseAddr(src), netip.MustParseAddr(dst)
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, tcpip.AddrFromSlice(s.AsSlice()),
		tcpip.AddrFromSlice(d.AsSlice()), uint16(len(h)))
	h.SetChecksum(^h.CalculateChecksum(sum))
	return h
}

// mission: A11
func TestAFloodIsBounded(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	w := newWire(t, policy(t, "default"), func(o *netstack.Options) { o.Rate = 50 })
	for n := range 5000 {
		w.send(t, packet(guest4, "203.0.113.7", header.TCPProtocolNumber,
			checked(guest4, "203.0.113.7", syn(uint16(n+1)))))
		if n%50 == 0 { // so that the answers do not fill the link
			_ = w.end.SetReadDeadline(time.Now())
			for b := make([]byte, 70000); ; {
				if _, err := w.end.Read(b); err != nil {
					break
				}
			}
		}
	}
	dialled := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.dialled)
	}
	waitFor(t, func() bool { return dialled() > 0 })
	if n := dialled(); n > 2500 {
		t.Errorf("of 5000 attempts %d were dialled", n)
	}
}

// mission: A11
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, policy(t, "default"), func(o *netstack.Options) { o.Connections = 3 })
	w.serve("tcp", "203.0.113.7:80", listen(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }))
	var conns []net.Conn
	for range 3 {
		c, err := w.guest.dial(t, "203.0.113.7:80")
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	waitFor(t, func() bool { return w.Stats().Open == 3 })
	if _, err := w.guest.dial(t, "203.0.113.7:80"); err == nil {
		t.Error("one connection too many")
	}
	w.expectDenial(t, "tcp", "", "203.0.113.7", "too many")
	_ = conns[0].Close()
	waitFor(t, func() bool { return w.Stats().Open == 2 })
	if _, err := w.guest.dial(t, "203.0.113.7:80"); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
}

// patience is how long tests wait for an event that comes at once unless the machine is very busy.
const patience = 2 * time.Minute

// waitFor polls for a condition that has no notification.
func waitFor(t testing.TB, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("it does not happen")
		}
	}
}

func TestEndsAreCarried(t *testing.T) {
	t.Parallel()
	w := newWorld(t, policy(t, "default"))
	w.serve("tcp", "203.0.113.7:1", listen(t, func(c net.Conn) { // answers after the end
		b, _ := io.ReadAll(c)
		_, _ = c.Write(append(b, " back"...))
	}))
	w.serve("tcp", "203.0.113.7:2", listen(t, func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) })) // resets
	reset := make(chan error, 1)
	w.serve("tcp", "203.0.113.7:3", listen(t, func(c net.Conn) {
		_, err := c.Read(make([]byte, 1))
		reset <- err
	}))
	c, err := w.guest.dial(t, "203.0.113.7:1")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write([]byte("there"))
	_ = c.CloseWrite()
	_ = c.SetDeadline(time.Now().Add(patience))
	if b, err := io.ReadAll(c); string(b) != "there back" {
		t.Errorf("%q, %v", b, err)
	}
	if c, err = w.guest.dial(t, "203.0.113.7:2"); err == nil {
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err = c.Read(make([]byte, 1)); err == io.EOF || err == nil || !strings.Contains(err.Error(), "reset") {
			t.Errorf("a reset reads as %v", err)
		}
	}
	if _, err = w.guest.dial(t, "203.0.113.7:3"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return w.Stats().Open == 1 })
	_ = w.Close()
	if err := <-reset; err == nil || err == io.EOF {
		t.Errorf("a connection that was cut ends with %v", err)
	}
}

func TestUDPEnds(t *testing.T) {
	t.Parallel()
	w := newWire(t, policy(t, "default"),
		func(o *netstack.Options) { o.Dial = nil; o.Policy = policy(t, "default", "127.0.0.1") })
	// A port without a listener: the host's kernel reports it, and so does the gateway to the sandbox.
	s, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(s.LocalAddr().(*net.UDPAddr).Port)
	_ = s.Close()
	w.send(t, packet(guest4, "10.0.2.2", header.UDPProtocolNumber, datagram(port, "hello")))
	f := w.receive(t, func(f header.Ethernet) bool { return f.Type() == header.IPv4ProtocolNumber })
	if p := ip4(f).Payload(); ip4(f).Protocol() != 1 || p[0] != 3 || p[1] != 3 {
		t.Errorf("a closed port: % x", []byte(f))
	}
	waitFor(t, func() bool { return w.Stats().Open == 0 })
}

// mission: A8
func TestNothingIsLeftBehind(t *testing.T) {
	testenv.Long(t)
	for range 3 {
		t.Run("once", func(t *testing.T) {
			w := newWorld(t, policy(t, "default"))
			w.serve("tcp", "203.0.113.7:80", listen(t, func(c net.Conn) { _, _ = io.Copy(c, c) }))
			u, err := net.ListenPacket("udp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer u.Close()
			w.serve("udp", "203.0.113.7:80", u.LocalAddr().String())
			if _, err := w.guest.dial(t, "203.0.113.7:80"); err != nil {
				t.Fatal(err)
			}
			_, _ = w.guest.dialUDP(t, "203.0.113.7:80").Write([]byte("hello"))
			if _, err := w.guest.dial(t, dns4); err != nil {
				t.Fatal(err)
			}
			waitFor(t, func() bool { return w.Stats().Open == 2 })
			if err := w.Close(); err != nil {
				t.Error(err)
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
			<-w.Done()
		})
	}
	// The guest's own link leaves goroutines of gVisor's. Those of the gateway and its stack must end.
	waitFor(t, func() bool {
		var all bytes.Buffer
		_ = pprof.Lookup("goroutine").WriteTo(&all, 1)
		return !strings.Contains(all.String(), "internal/engine/gateway/netstack.(") &&
			!strings.Contains(all.String(), "tcpip/transport/")
	})
}

// TestIdleCost logs the cost of an idle gateway.
func TestIdleCost(t *testing.T) {
	measure := func() (uint64, int) {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse, runtime.NumGoroutine()
	}
	const many = 20
	before, goroutines := measure()
	for range many {
		newWire(t, policy(t, "default"))
	}
	after, more := measure()
	t.Logf("an idle gateway has %d KiB and %d goroutines", (int64(after)-int64(before))/many>>10,
		(more-goroutines)/many)
}

func TestTheLinkEnds(t *testing.T) {
	t.Parallel()
	w := newWire(t, policy(t, "default"))
	_ = w.end.Close()
	<-w.Done()
	if _, err := netstack.New(t.Context(), netstack.Options{}); err == nil {
		t.Error("a gateway without a link")
	}
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := netstack.New(t.Context(), netstack.Options{Link: f}); err == nil {
		t.Error("a gateway whose link is a file")
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(packet(guest4, "203.0.113.7", header.TCPProtocolNumber, checked(guest4, "203.0.113.7", syn(80))))
	f.Add(packet(guest6, "2001:db8::7", header.UDPProtocolNumber, datagram(443, "hello")))
	f.Add(packet(guest4, "10.0.2.3", header.UDPProtocolNumber, datagram(53, "hello")))
	f.Add(packet(guest4, "203.0.113.7", header.ICMPv4ProtocolNumber, echo4("x")))
	f.Add(packet(guest4, "203.0.113.7", header.ICMPv4ProtocolNumber, append([]byte{3, 4, 0, 0}, make([]byte, 40)...)))
	f.Add(packet(guest6, "2001:db8::7", 44, append([]byte{17, 0, 0, 1, 0, 0, 0, 1}, datagram(1, "x")...)))
	w := newWire(f, policy(f, "default"), func(o *netstack.Options) {
		o.Rate = 1 << 20
		o.Dial = func(context.Context, string, netip.AddrPort) (net.Conn, error) { return nil, unix.ECONNREFUSED }
	})
	go func() {
		b := make([]byte, 70000)
		for {
			if _, err := w.end.Read(b); err != nil {
				return
			}
		}
	}()
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) > 0 && len(frame) < 60000 {
			_, _ = w.end.Write(frame)
		}
		// With the addresses of an honest frame, more of it is looked at.
		if len(frame) > 34 && frame[12] == 8 {
			copy(frame, netstack.LinkAddress())
			copy(frame[26:], []byte{10, 0, 2, 100})
			_, _ = w.end.Write(frame)
		}
	})
}

// mission: A6
func TestPingIsHonest(t *testing.T) {
	t.Parallel()
	w := newWire(t, policy(t, "default", "127.0.0.1", "::1"))
	echo6 := append(make(header.ICMPv6, header.ICMPv6EchoMinimumSize), "hello"...)
	echo6.SetType(header.ICMPv6EchoRequest)
	echo6.SetIdent(9)
	for dst, p := range map[string][]byte{
		"127.0.0.1": packet(guest4, "127.0.0.1", header.ICMPv4ProtocolNumber, echo4("hello")),
		"::1":       packet(guest6, "::1", header.ICMPv6ProtocolNumber, echo6),
	} {
		w.send(t, p)
		f := w.receive(t, func(f header.Ethernet) bool { return f.Type() != header.ARPProtocolNumber })
		var m []byte
		reply := uint8(header.ICMPv4EchoReply)
		if f.Type() == header.IPv4ProtocolNumber {
			m = ip4(f).Payload()
		} else {
			m, reply = ip6(f).Payload(), uint8(header.ICMPv6EchoReply)
		}
		if m[0] == reply {
			if binary.BigEndian.Uint16(m[4:]) != 9 || string(m[8:]) != "hello" {
				t.Errorf("%s: the answer is another's: % x", dst, m)
			}
			continue
		}
		// If the host does not let ordinary programs ping, the sandbox gets an error, and the denial has the reason.
		w.expectDenial(t, "icmp", "", dst, "does not let ordinary programs ping")
	}
}
