package netstack_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
	"github.com/RelevanceAI/harvest/internal/engine/gateway/netstack"
)

// broker takes intercepted connections, as a server of Harvest does: it speaks TLS with those that do, sends "broker "
// and the name, and then all that it receives.
type broker struct {
	mu  sync.Mutex
	got []netstack.Interception // guarded by mu
	err error                   // guarded by mu: the answer to all
}

func (b *broker) intercept(t testing.TB) func(*netstack.Options) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return func(o *netstack.Options) {
		o.Intercept = func(_ context.Context, i netstack.Interception) (net.Conn, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.got = append(b.got, i)
			if b.err != nil {
				return nil, b.err
			}
			ours, err := net.Dial("unix", socket)
			if err != nil {
				return nil, err
			}
			theirs, err := l.Accept()
			if err != nil {
				return nil, err
			}
			go answer(t, theirs, i)
			return ours, nil
		}
	}
}

func answer(t testing.TB, c net.Conn, i netstack.Interception) {
	defer c.Close()
	if i.TLS {
		c = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{certificate(t, i.Name)}})
		_, _ = fmt.Fprintf(c, "broker %s", i.Name)
		_ = c.(*tls.Conn).CloseWrite()
		_, _ = io.Copy(io.Discard, c)
		return
	}
	_, _ = fmt.Fprintf(c, "broker %s\n", i.Name)
	_, _ = io.Copy(c, c)
}

func (b *broker) taken() []netstack.Interception {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]netstack.Interception(nil), b.got...)
}

func intercepting(t testing.TB, p *gateway.Policy, servers ...string) *gateway.Policy {
	t.Helper()
	p, err := p.Intercepting(servers)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// answering is a server that sends a text after the first line of a client.
func answering(t testing.TB, text string) string {
	t.Helper()
	return listen(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		if _, err := r.ReadString('\n'); err == nil {
			_, _ = io.WriteString(c, text)
			_, _ = io.Copy(io.Discard, r)
		}
	})
}

// mission: 9.1
func TestConnectionsToBoundHostsAreIntercepted(t *testing.T) {
	t.Parallel()
	z, b := &zone{}, &broker{}
	w := newWorld(t, intercepting(t, policy(t, "default"), "bound.example:443", "*.below.example:443",
		"plain.example:80", "203.0.113.14:443"), func(o *netstack.Options) { o.Exchange = z.exchange }, b.intercept(t))
	addr := map[string]string{"bound.example": "203.0.113.10", "a.below.example": "203.0.113.11",
		"plain.example": "203.0.113.12", "free.example": "203.0.113.13",
		"203.0.113.14": "203.0.113.14", "203.0.113.15": "203.0.113.15"}
	for name, a := range addr {
		z.set(name, a)
		for _, port := range []string{":443", ":8443"} {
			w.serve("tcp", a+port, hello(t, "server"))
		}
		w.serve("tcp", a+":80", answering(t, "server\n"))
		if _, err := w.lookUp(t, name); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ name, port, want string }{
		{"bound.example", ":443", "broker bound.example"},
		{"BOUND.example.", ":443", "broker bound.example"},
		{"a.below.example", ":443", "broker a.below.example"},
		{"bound.example", ":8443", "server"},
		{"plain.example", ":443", "server"},
		{"free.example", ":443", "server"},
		{"203.0.113.14", ":443", "broker 203.0.113.14"},
		{"203.0.113.14", ":8443", "server"},
		{"203.0.113.15", ":443", "server"},
	} {
		host := strings.TrimSuffix(strings.ToLower(c.name), ".")
		if got, err := w.tls(t, addr[host]+c.port, c.name); got != c.want || err != nil {
			t.Errorf("TLS to %s%s: got %q, %v, want %q", c.name, c.port, got, err, c.want)
		}
	}
	for name, want := range map[string]string{"plain.example": "broker plain.example\n", "bound.example": "server\n"} {
		if got, err := w.http(t, addr[name]+":80", name); got != want || err != nil {
			t.Errorf("HTTP to %s: got %q, %v, want %q", name, got, err, want)
		}
	}
	for _, i := range b.taken() {
		if i.Addr.Addr().String() != addr[i.Name] || i.TLS != (i.Addr.Port() == 443) || i.Connect {
			t.Errorf("got %+v", i)
		}
	}
	// An address that the sandbox did not look up as the host may be anybody's.
	if got, err := w.tls(t, addr["free.example"]+":443", "bound.example"); err == nil {
		t.Errorf("a bound host at another address answers %q", got)
	}
	w.expectDenial(t, "tcp", "bound.example", addr["free.example"], "its address is not one of that host")
}

// TestServersOfThisMachineAreIntercepted checks connections to the gateway's own address, which stands for this
// machine.
//
// mission: 9.1
func TestServersOfThisMachineAreIntercepted(t *testing.T) {
	t.Parallel()
	b, own := &broker{}, netstack.IPv4().Gateway.String()
	w := newWorld(t, intercepting(t, policy(t, "allow", "127.0.0.1"), own+":443"), b.intercept(t))
	for _, port := range []string{":443", ":8443"} {
		w.serve("tcp", "127.0.0.1"+port, hello(t, "server"))
	}
	for port, want := range map[string]string{":443": "broker " + own, ":8443": "server"} {
		if got, err := w.tls(t, own+port, own); got != want || err != nil {
			t.Errorf("TLS to %s: got %q, %v, want %q", port, got, err, want)
		}
	}
}

// TestInterceptedThroughAProxy checks that CONNECT to a bound host is intercepted, and that a request for it on a
// connection that has served others is refused.
func TestInterceptedThroughAProxy(t *testing.T) {
	t.Parallel()
	b := &broker{}
	w := newWorld(t, intercepting(t, policy(t, "default"), "bound.example:443"), b.intercept(t))
	w.serve("tcp", "203.0.113.9:3128", answering(t, "proxy\n"))
	connect := func(first string) (string, error) {
		c, err := w.guest.dial(t, "203.0.113.9:3128")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(c, first); err != nil {
			return "", err
		}
		r := bufio.NewReader(c)
		line, err := r.ReadString('\n')
		if strings.HasPrefix(line, "broker") {
			next, _ := r.ReadString('\n')
			return line + next, err
		}
		return line, err
	}
	head := " HTTP/1.1\r\nHost: bound.example:443\r\n\r\n"
	if got, err := connect("CONNECT bound.example:443" + head); err != nil ||
		got != "broker bound.example\nCONNECT bound.example:443 HTTP/1.1\r\n" {
		t.Errorf("got %q, %v", got, err)
	}
	want := netstack.Interception{Name: "bound.example", Addr: netip.MustParseAddrPort("203.0.113.9:3128"),
		Connect: true}
	if got := b.taken(); len(got) != 1 || got[0] != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, err := connect("CONNECT free.example:443 HTTP/1.1\r\nHost: free.example:443\r\n\r\n"); err != nil ||
		got != "proxy\n" {
		t.Errorf("another host: got %q, %v", got, err)
	}
	if _, err := connect("GET http://free.example/ HTTP/1.1\r\nHost: free.example\r\n\r\nCONNECT bound.example:443" +
		head); err == nil && len(b.taken()) > 1 {
		t.Error("a used connection was intercepted")
	}
	w.expectDenial(t, "tcp", "bound.example", "203.0.113.9", "need a connection of their own")
}

// TestOthersAreLeftAlone checks that other protocols work while a policy intercepts: those whose servers speak first,
// and those with an incomplete or unreadable first line.
func TestOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, intercepting(t, policy(t, "default"), "bound.example:443"), (&broker{}).intercept(t))
	w.serve("tcp", "203.0.113.7:443", listen(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "hello\n")
		_, _ = io.Copy(c, c)
	}))
	for _, first := range []string{"PING", "GET", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"\x16\x03\x01\x00\x05abcde"} {
		c, err := w.guest.dial(t, "203.0.113.7:443")
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		got := make([]byte, len("hello\n"+first))
		_, err = io.WriteString(c, first)
		if err == nil {
			_, err = io.ReadFull(c, got)
		}
		if err != nil || string(got) != "hello\n"+first {
			t.Errorf("%q: got %q, %v", first, got, err)
		}
		_ = c.Close()
	}
}

// TestBindingsChange checks that a new binding closes the connections of its host, and no others.
func TestBindingsChange(t *testing.T) {
	t.Parallel()
	z, b := &zone{}, &broker{}
	w := newWorld(t, policy(t, "default"), func(o *netstack.Options) { o.Exchange = z.exchange }, b.intercept(t))
	open := map[string]net.Conn{}
	for name, a := range map[string]string{"bound.example": "203.0.113.10", "free.example": "203.0.113.11"} {
		z.set(name, a)
		w.serve("tcp", a+":443", listen(t, func(c net.Conn) { _, _ = io.Copy(c, c) }))
		if _, err := w.lookUp(t, name); err != nil {
			t.Fatal(err)
		}
		c, err := w.guest.dial(t, a+":443")
		if err != nil {
			t.Fatal(err)
		}
		open[name] = c
	}
	echo := func(name string) error {
		c := open[name]
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(c, "x"); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}
	for name := range open {
		if err := echo(name); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	w.SetPolicy(intercepting(t, policy(t, "default"), "bound.example:443"))
	if err := echo("bound.example"); err == nil {
		t.Error("the connection to the bound host is still open")
	}
	if err := echo("free.example"); err != nil {
		t.Errorf("the connection to another host: %v", err)
	}
	if got, err := w.tls(t, "203.0.113.10:443", "bound.example"); got != "broker bound.example" || err != nil {
		t.Errorf("a new connection: got %q, %v", got, err)
	}
}

func TestNobodyTakesAnInterceptedConnection(t *testing.T) {
	t.Parallel()
	z, b := &zone{}, &broker{err: errors.Newf(errors.Unavailable, "no server")}
	w := newWorld(t, intercepting(t, policy(t, "default"), "bound.example:443"),
		func(o *netstack.Options) { o.Exchange = z.exchange }, b.intercept(t))
	z.set("bound.example", "203.0.113.10")
	w.serve("tcp", "203.0.113.10:443", hello(t, "server"))
	if _, err := w.lookUp(t, "bound.example"); err != nil {
		t.Fatal(err)
	}
	if got, err := w.tls(t, "203.0.113.10:443", "bound.example"); err == nil {
		t.Errorf("got %q", got)
	}
	w.expectDenial(t, "tcp", "bound.example", "203.0.113.10", "does not answer")
}

func TestQUICToBoundHostsIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, intercepting(t, policy(t, "default"), "bound.example:443"), (&broker{}).intercept(t))
	w.serve("udp", "203.0.113.10:443", helloQUIC(t, "server"))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if got, err := w.quic(ctx, t, "203.0.113.10:443", "free.example"); got != "server" || err != nil {
		t.Errorf("another host: got %q, %v", got, err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if got, err := w.quic(ctx, t, "203.0.113.10:443", "bound.example"); err == nil {
		t.Errorf("got %q", got)
	}
	w.expectDenial(t, "udp", "bound.example", "203.0.113.10", "use TCP")
}
