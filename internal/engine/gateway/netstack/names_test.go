package netstack_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/quic"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"github.com/RelevanceAI/harvest/internal/engine/gateway/netstack"
)

// helloQUIC is a QUIC server that sends its name on the first stream of each connection.
func helloQUIC(t testing.TB, me string) string {
	t.Helper()
	config := &quic.Config{TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate(t, me)},
		MinVersion: tls.VersionTLS13, NextProtos: []string{"hello"}}}
	e, err := quic.Listen("udp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := e.Accept(ctx)
			if err != nil {
				return
			}
			if s, err := c.AcceptStream(ctx); err == nil {
				_, _ = io.WriteString(s, me)
				_ = s.Close()
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		_ = e.Close(ctx)
	})
	return e.LocalAddr().String()
}

// quic speaks QUIC to an address under a name, and returns the server's text. ctx limits the time.
func (w *world) quic(ctx context.Context, t testing.TB, to, name string) (string, error) {
	t.Helper()
	guest := netstack.IPv4().Guest
	pc, err := gonet.DialUDP(w.guest.Stack, full(guest, 0), nil, proto(guest))
	if err != nil {
		t.Fatal(err)
	}
	config := &quic.Config{TLSConfig: &tls.Config{ServerName: name, InsecureSkipVerify: true,
		MinVersion: tls.VersionTLS13, NextProtos: []string{"hello"}}}
	e, err := quic.NewEndpoint(asUDP{pc}, config)
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	defer e.Close(gone)
	c, err := e.Dial(ctx, "udp", to, config)
	if err != nil {
		return "", err
	}
	s, err := c.NewStream(ctx)
	if err != nil {
		return "", err
	}
	s.SetReadContext(ctx)
	if _, err := s.Write([]byte("who?")); err != nil {
		return "", err
	}
	_ = s.Flush()
	b, err := io.ReadAll(s)
	return string(b), err
}

// asUDP ignores ICMP errors, like an unconnected socket.
type asUDP struct{ *gonet.UDPConn }

func (c asUDP) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		n, from, err := c.UDPConn.ReadFrom(b)
		if err != nil && strings.Contains(err.Error(), "refused") {
			continue
		}
		return n, from, err
	}
}

// TestQUICReachesExactlyWhatIsNamed checks that QUIC's server name is read and enforced like that of TLS over TCP.
// mission: A6
func TestQUICReachesExactlyWhatIsNamed(t *testing.T) {
	t.Parallel()
	z := &zone{}
	w := newWorld(t, policy(t, "allow", "good.example"), func(o *netstack.Options) { o.Exchange = z.exchange })
	z.set("good.example", "203.0.113.10")
	if _, err := w.lookUp(t, "good.example"); err != nil {
		t.Fatal(err)
	}
	w.serve("udp", "203.0.113.10:443", helloQUIC(t, "good"))
	w.serve("udp", "203.0.113.66:443", helloQUIC(t, "evil"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if got, err := w.quic(ctx, t, "203.0.113.10:443", "good.example"); got != "good" || err != nil {
		t.Errorf("the allowed name: %q, %v", got, err)
	}
	for _, test := range []struct{ to, name, domain, address, reason string }{
		{"203.0.113.10:443", "evil.example", "evil.example", "203.0.113.10",
			"no rule"}, // an allowed address used for another
		{"203.0.113.66:443", "good.example", "", "203.0.113.66",
			"no rule"}, // an allowed name at a foreign address
	} {
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan string, 1)
		go func() {
			got, _ := w.quic(ctx, t, test.to, test.name)
			result <- got
		}()
		w.expectDenial(t, "udp", test.domain, test.address, test.reason)
		cancel()
		if got := <-result; got != "" {
			t.Errorf("QUIC to %s as %s: %q", test.to, test.name, got)
		}
	}
	if w.wasDialled("203.0.113.66:443") {
		t.Error("a foreign address was dialled")
	}
	// Data other than QUIC on its port contains no name.
	c := w.guest.dialUDP(t, "203.0.113.10:443")
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	w.expectDenial(t, "udp", "good.example", "203.0.113.10", "use TCP")
	waitFor(t, func() bool {
		_, err := c.Write([]byte("hello"))
		return err != nil && strings.Contains(err.Error(), "refused")
	})
}

// TestAConnectionThatDoesNotSayWhomItMeans checks that a connection with an incomplete name is not forwarded.
// mission: A6
func TestAConnectionThatDoesNotSayWhomItMeans(t *testing.T) {
	t.Parallel()
	z := &zone{}
	w := newWorld(t, policy(t, "allow", "good.example"), func(o *netstack.Options) { o.Exchange = z.exchange })
	z.set("good.example", "203.0.113.10")
	if _, err := w.lookUp(t, "good.example"); err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	w.serve("tcp", "203.0.113.10:443", listen(t, func(c net.Conn) {
		b, _ := io.ReadAll(c)
		got <- string(b)
	}))
	c, err := w.guest.dial(t, "203.0.113.10:443")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte{22, 3, 1, 2, 0, 1}); err != nil { // the beginning of a ClientHello
		t.Fatal(err)
	}
	_ = c.CloseWrite()
	w.expectDenial(t, "tcp", "good.example", netip.MustParseAddr("203.0.113.10").String(), "before it names its host")
	if b := <-got; b != "" {
		t.Errorf("%q went on", b)
	}
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if n, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("the sandbox reads %d bytes, %v", n, err)
	}
}
