package netstack

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/RelevanceAI/harvest/internal/engine/gateway"
)

func TestRouters(t *testing.T) {
	t.Parallel()
	got := routers("Iface\tDestination\tGateway \tFlags\tRefCnt\n" +
		"eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n" +
		"eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n")
	if len(got) != 1 || got[0].String() != "192.0.2.1" {
		t.Errorf("IPv4: %v", got)
	}
	got = routers("00000000000000000000000000000000 00 00000000000000000000000000000000 00 " +
		"fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth0\n" +
		"fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 " +
		"00000100 00000001 00000000 00000001 eth0\n")
	if len(got) != 1 || got[0].String() != "fe80::1" {
		t.Errorf("IPv6: %v", got)
	}
}

// mission: A6
func TestHostAddresses(t *testing.T) {
	t.Parallel()
	h := &hostAddresses{more: []netip.Addr{netip.MustParseAddr("203.0.113.9")}}
	if !h.contains(netip.MustParseAddr("::ffff:203.0.113.9")) {
		t.Error("a further address is not known as this machine's")
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if p := netip.MustParsePrefix(a.String()); !h.contains(p.Addr()) {
			t.Errorf("%s is not known as this machine's", p)
		}
	}
	if h.contains(netip.MustParseAddr("203.0.113.250")) {
		t.Error("an address of nobody is this machine's")
	}
	if got := broadcast(netip.MustParsePrefix("192.0.2.7/24")); got.String() != "192.0.2.255" {
		t.Errorf("broadcast: %s", got)
	}
	if broadcast(netip.MustParsePrefix("192.0.2.7/32")).IsValid() ||
		broadcast(netip.MustParsePrefix("fd00::1/64")).IsValid() {
		t.Error("a broadcast address of a network that has none")
	}
}

func TestNameServers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "127.0.0.1:53", "nameserver x\nsearch corp.example\n": "127.0.0.1:53",
		"# nameserver 1.1.1.1\nnameserver 192.0.2.53\nnameserver fd00::53\noptions ndots:5\nnameserver 1.1.1.1\nnameserver 2.2.2.2\n": "192.0.2.53:53 [fd00::53]:53 1.1.1.1:53",
	} {
		var got []string
		for _, s := range nameServers(text) {
			got = append(got, s.String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	h := new(hostServers)
	if a, b := h.current(), h.current(); len(a) == 0 || !slices.Equal(a, b) {
		t.Errorf("%v, %v", a, b)
	}
	h.checked = time.Time{}
	if len(h.current()) == 0 {
		t.Error("no servers after the file was looked at again")
	}
}

// server answers DNS over UDP and TCP on one port of the loopback. Over UDP it forges first, and announces that the
// full answer is available over TCP.
func server(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr).AddrPort()
	u, err := net.ListenPacket("udp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(); _ = u.Close() })
	answer := func(query []byte, truncated bool) []byte {
		var m dnsmessage.Message
		if m.Unpack(query) != nil {
			return nil
		}
		m.Response, m.Truncated, m.Additionals = true, truncated, nil
		if !truncated {
			m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name,
				Class: dnsmessage.ClassINET, TTL: 60}, Body: &dnsmessage.AResource{A: [4]byte{203, 0, 113, 1}}}}
		}
		b, _ := m.Pack()
		return b
	}
	go func() {
		b := make([]byte, 4096)
		for {
			n, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			a := answer(b[:n], true)
			forged := slices.Clone(a)
			forged[0] ^= 1
			_, _ = u.WriteTo(forged, from)
			_, _ = u.WriteTo(a, from)
		}
	}()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if q, err := readMessage(c, 4096); err == nil {
				a := answer(q, false)
				_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...))
			}
			_ = c.Close()
		}
	}()
	return at
}

// mission: A6
func TestTheHostsNameServersAreAsked(t *testing.T) {
	t.Parallel()
	dead, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := dead.LocalAddr().(*net.UDPAddr).AddrPort()
	_ = dead.Close()
	h := &hostServers{checked: time.Now().Add(time.Hour), servers: []netip.AddrPort{closed, server(t)}}
	r := newResolver(h.exchange)
	ask := func(name string) (gateway.Query, []byte, time.Duration, error) {
		m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7},
			Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA,
				Class: dnsmessage.ClassINET}}}
		b, _ := m.Pack()
		q, _, ok := gateway.ParseQuery(b)
		if !ok {
			t.Fatal("no query")
		}
		msg, age, err := r.ask(t.Context(), q)
		return q, msg, age, err
	}
	q, msg, _, err := ask("good.example.")
	if err != nil || len(q.Reply(everything(t), func(netip.Addr) bool { return false }, msg, 0).Addrs) != 1 {
		t.Fatalf("%v", err)
	}
	h.servers = []netip.AddrPort{closed} // now only the cache can answer
	if _, again, _, err := ask("good.example."); err != nil || len(again) == 0 {
		t.Errorf("from the cache: %v", err)
	}
	if _, _, _, err := ask("other.example."); err == nil {
		t.Error("nobody answered, and there was an answer")
	}
	for n := range maxCached * 2 {
		now := time.Now()
		r.keep(cacheKey{string(rune(n)), dnsmessage.TypeA}, cached{nil, now, now.Add(time.Duration(n%2) * time.Hour)})
	}
	if len(r.cache) > maxCached {
		t.Errorf("the cache has %d entries", len(r.cache))
	}
	liar := newResolver(func(_ context.Context, q []byte) ([]byte, error) { q[2] |= 0x80; q[0] ^= 1; return q, nil })
	if _, _, err := liar.ask(t.Context(), q); err == nil {
		t.Error("an answer to another question was taken")
	}
	if _, err := readMessage(strings.NewReader("\xff\xffx"), 4096); err == nil {
		t.Error("too long a message was read")
	}
	if _, err := readMessage(strings.NewReader("\x00"), 4096); err != io.ErrUnexpectedEOF {
		t.Errorf("half a length: %v", err)
	}
}

func everything(t *testing.T) *gateway.Policy {
	t.Helper()
	p, err := gateway.Compile("default", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestDenialsAreCounted(t *testing.T) {
	t.Parallel()
	var told []gateway.Denial
	d := denials{tell: func(x gateway.Denial) { told = append(told, x) }}
	for range 10 {
		d.add(gateway.Denial{Protocol: "tcp", Address: "10.0.0.1", Port: 80, Reason: "x"})
	}
	for n := range 1000 {
		d.add(gateway.Denial{Protocol: "tcp", Address: "10.0.0.2", Port: n, Reason: "x"})
	}
	d.flush()
	d.flush()
	sum, others := 0, 0
	for _, x := range told {
		sum += x.Count
		if x.Address == "" {
			others = x.Count
		}
	}
	if sum != 1010 || d.total.Load() != 1010 || others != 1000-maxDenials+1 || len(told) > maxDenials+5 {
		t.Errorf("%d denials in %d, %d without an address", sum, len(told), others)
	}
}

func TestFlowsEnd(t *testing.T) {
	t.Parallel()
	f := &udpFlow{}
	f.touch()
	if d := time.Until(f.expires()); d > udpUnanswered || d < udpUnanswered/2 {
		t.Errorf("an unanswered flow ends in %v", d)
	}
	f.answered.Store(true)
	if d := time.Until(f.expires()); d < udpAnswered/2 {
		t.Errorf("an answered flow ends in %v", d)
	}
}
