package netstack_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine/gateway/netstack"
)

// Addresses of a private network of two.
var (
	addrOne = netip.MustParseAddr("10.104.97.1")
	addrTwo = netip.MustParseAddr("10.104.97.2")
)

// newPair starts two sandboxes without a network of their own that share a private one.
func newPair(t *testing.T) (one, two *world) {
	t.Helper()
	worlds := map[string]*world{}
	peer := func(o *netstack.Options) {
		o.Peer = func(_ context.Context, target string) (net.Conn, error) {
			if worlds[target] == nil {
				return nil, net.ErrClosed
			}
			ours, theirs := net.Pipe()
			go func() { _ = worlds[target].Admit(theirs) }()
			t.Cleanup(func() { _ = theirs.Close() })
			return ours, nil
		}
	}
	one, two = newWorld(t, policy(t, "none"), peer), newWorld(t, policy(t, "none"), peer)
	worlds["one"], worlds["two"] = one, two
	one.SetPrivate(netstack.Private{Addr: addrOne, Names: []string{"main"},
		Peers: []netstack.Peer{{Addr: addrTwo, Names: []string{"db", "Cache_1"}, Target: "two"}}})
	two.SetPrivate(netstack.Private{Addr: addrTwo, Names: []string{"db", "Cache_1"},
		Peers: []netstack.Peer{{Addr: addrOne, Names: []string{"main"}, Target: "one"}}})
	return one, two
}

// greet serves text at a TCP port of a guest.
func (w *world) greet(t *testing.T, port int, text string) {
	t.Helper()
	guest := netstack.IPv4().Guest
	l, err := gonet.ListenTCP(w.guest.Stack, *full(guest, port), proto(guest))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, text+" "+c.RemoteAddr().String())
			_ = c.Close()
		}
	}()
}

// read connects to a TCP port, and returns what is served there.
func (w *world) read(t *testing.T, to string) string {
	t.Helper()
	c, err := w.guest.dial(t, to)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	b, _ := io.ReadAll(c)
	return string(b)
}

func TestPrivateTCP(t *testing.T) {
	t.Parallel()
	one, two := newPair(t)
	one.greet(t, 80, "one")
	two.greet(t, 80, strings.Repeat("two", 1<<20))
	if got := one.read(t, "10.104.97.2:80"); len(got) < 3<<20 || !strings.Contains(got, "two 10.104.97.1:") {
		t.Errorf("one reads %d bytes of two", len(got))
	}
	if got := two.read(t, "10.104.97.1:80"); !strings.HasPrefix(got, "one 10.104.97.2:") {
		t.Errorf("two reads %q of one", got)
	}
	if got := one.read(t, "10.104.97.1:80"); !strings.HasPrefix(got, "one 10.104.97.1:") {
		t.Errorf("one reads %q of itself", got)
	}
	if got := one.read(t, "10.104.97.2:81"); !strings.Contains(got, "refused") {
		t.Errorf("a port without a server: %q", got)
	}
	if got := one.read(t, "10.104.97.3:80"); !strings.Contains(got, "refused") {
		t.Errorf("an address without a member: %q", got)
	}
	two.SetPrivate(netstack.Private{})
	one.SetPrivate(netstack.Private{})
	if got := one.read(t, "10.104.97.2:80"); !strings.Contains(got, "refused") {
		t.Errorf("a former member: %q", got)
	}
}

func TestPrivateUDP(t *testing.T) {
	t.Parallel()
	one, two := newPair(t)
	guest := netstack.IPv4().Guest
	server, err := gonet.DialUDP(two.guest.Stack, full(guest, 53), nil, proto(guest))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		b := make([]byte, 1<<16)
		for {
			n, from, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(append([]byte(from.String()+" "), b[:n]...), from)
		}
	}()
	c := one.guest.dialUDP(t, "10.104.97.2:53")
	var got string
	testenv.Eventually(t, "an answer", func() bool {
		_, _ = io.WriteString(c, "hello")
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		b := make([]byte, 100)
		n, _ := c.Read(b)
		got = string(b[:n])
		return strings.HasPrefix(got, "10.104.97.1:") && strings.HasSuffix(got, " hello")
	})
	// A port without a server is refused: the error that the other side sends quotes this side's own address.
	shut := one.guest.dialUDP(t, "10.104.97.2:54")
	testenv.Eventually(t, "no error from a port without a server", func() bool {
		_, err := io.WriteString(shut, "hello") // returns the error of an earlier one
		return err != nil && strings.Contains(err.Error(), "refused")
	})
}

func TestPrivateNames(t *testing.T) {
	t.Parallel()
	one, two := newPair(t)
	for _, c := range []struct {
		w    *world
		name string
		kind dnsmessage.Type
		want string
	}{
		{one, "db.", dnsmessage.TypeA, addrTwo.String()},
		{one, "CACHE_1.", dnsmessage.TypeA, addrTwo.String()},
		{one, "main.", dnsmessage.TypeA, addrOne.String()},
		{two, "main.", dnsmessage.TypeA, addrOne.String()},
		{one, "db.", dnsmessage.TypeAAAA, ""},
		{one, "other.", dnsmessage.TypeA, "RCodeNameError"},
	} {
		if got := c.w.resolve(t, c.name, c.kind); got != c.want {
			t.Errorf("%s %s is %q, not %q", c.name, c.kind, got, c.want)
		}
	}
}

// resolve asks the gateway for a name, and returns the address, or the code of a failure.
func (w *world) resolve(t *testing.T, name string, kind dnsmessage.Type) string {
	t.Helper()
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind,
			Class: dnsmessage.ClassINET}}}
	query, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	c := w.guest.dialUDP(t, "10.0.2.3:53")
	b := make([]byte, 1500)
	n := 0
	testenv.Eventually(t, "no answer", func() bool {
		_, _ = c.Write(query)
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		n, err = c.Read(b)
		return err == nil
	})
	var reply dnsmessage.Message
	if err := reply.Unpack(b[:n]); err != nil {
		t.Fatal(err)
	}
	if reply.RCode != dnsmessage.RCodeSuccess {
		return reply.RCode.String()
	}
	for _, a := range reply.Answers {
		if body, ok := a.Body.(*dnsmessage.AResource); ok {
			return netip.AddrFrom4(body.A).String()
		}
	}
	return ""
}
