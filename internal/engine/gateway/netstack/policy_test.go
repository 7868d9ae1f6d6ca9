package netstack_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/RelevanceAI/harvest/internal/engine/gateway"
	"github.com/RelevanceAI/harvest/internal/engine/gateway/netstack"
)

// zone answers DNS queries: addresses by name, with a TTL of zero.
type zone struct {
	mu    sync.Mutex
	addrs map[string][]string // guarded by mu
	asked []string            // guarded by mu
}

func (z *zone) set(name string, addrs ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.addrs == nil {
		z.addrs = map[string][]string{}
	}
	z.addrs[name] = addrs
}

func (z *zone) questions() []string {
	z.mu.Lock()
	defer z.mu.Unlock()
	return append([]string(nil), z.asked...)
}

func (z *zone) exchange(_ context.Context, query []byte) ([]byte, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	q := m.Questions[0]
	name := strings.TrimSuffix(q.Name.String(), ".")
	z.asked = append(z.asked, name)
	m.Response = true
	m.Additionals = nil
	addrs, known := z.addrs[name]
	if !known {
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, text := range addrs {
		a := netip.MustParseAddr(text)
		h := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET}
		switch {
		case a.Is4() && q.Type == dnsmessage.TypeA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
		case a.Is6() && q.Type == dnsmessage.TypeAAAA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h,
				Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	return m.Pack()
}

// resolver looks names up as a program in the sandbox does.
func (g *guest) resolver(t testing.TB, network, server string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		if network == "tcp" {
			return g.dial(t, server)
		}
		return g.dialUDP(t, server), nil
	}}
}

const dns4, dns6 = "10.0.2.3:53", "[fd68:6172:7665:7374::3]:53"

func (w *world) lookUp(t testing.TB, name string) ([]netip.Addr, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return w.guest.resolver(t, "udp", dns4).LookupNetIP(ctx, "ip", name)
}

// expectDenial waits for a denial that fits.
func (w *world) expectDenial(t testing.TB, protocol, domain, address, reason string) {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case d := <-w.refused:
			if d.Protocol == protocol && d.Domain == domain && d.Address == address &&
				strings.Contains(d.Reason, reason) && d.Count > 0 && !d.Time.IsZero() {
				return
			}
		case <-timeout:
			w.mu.Lock()
			defer w.mu.Unlock()
			t.Fatalf("no denial %q %q %q %q among %+v", protocol, domain, address, reason, w.denied)
		}
	}
}

// certificate is one of a server's own making.
func certificate(t testing.TB, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{name}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{cert}, PrivateKey: key}
}

// hello is a TLS server that sends its name.
func hello(t testing.TB, me string) string {
	t.Helper()
	config := &tls.Config{Certificates: []tls.Certificate{certificate(t, me)}}
	return listen(t, func(c net.Conn) {
		s := tls.Server(c, config)
		_, _ = io.WriteString(s, me)
		_ = s.CloseWrite()
		_, _ = io.Copy(io.Discard, s)
	})
}

// tls speaks TLS to an address under a name, and returns the server's text.
func (w *world) tls(t testing.TB, to, name string) (string, error) {
	t.Helper()
	c, err := w.guest.dial(t, to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	s := tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	b, err := io.ReadAll(s)
	return string(b), err
}

// http requests a host over plain HTTP at an address.
func (w *world) http(t testing.TB, to, host string) (string, error) {
	t.Helper()
	c, err := w.guest.dial(t, to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host); err != nil {
		return "", err
	}
	return bufio.NewReader(c).ReadString('\n')
}

func (w *world) wasDialled(addr string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.dialled {
		if d == addr {
			return true
		}
	}
	return false
}

// mission: A6
func TestAllowReachesExactlyWhatItNames(t *testing.T) {
	t.Parallel()
	z := &zone{}
	w := newWorld(t, policy(t, "allow", "good.example", "*.wild.example", "b\u00fccher.example", "203.0.113.50",
		"six.example"),
		func(o *netstack.Options) { o.Exchange = z.exchange })
	z.set("good.example", "203.0.113.10")
	z.set("a.b.wild.example", "203.0.113.11")
	z.set("wild.example", "203.0.113.12")
	z.set("evil-wild.example", "203.0.113.12")
	z.set("evil.example", "203.0.113.66")
	z.set("xn--bcher-kva.example", "203.0.113.13")
	z.set("six.example", "2001:db8::10")
	for _, a := range []string{"203.0.113.10", "203.0.113.11", "203.0.113.12", "203.0.113.13", "203.0.113.50",
		"203.0.113.66", "[2001:db8::10]"} {
		w.serve("tcp", a+":443", hello(t, a))
		w.serve("tcp", a+":80", listen(t, func(c net.Conn) {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			}
			_, _ = io.Copy(io.Discard, c)
		}))
		w.serve("tcp", a+":22", listen(t, func(c net.Conn) {
			_, _ = io.WriteString(c, "SSH-2.0-x\r\n")
			_,
				_ = io.Copy(io.Discard, c)
		}))
	}

	// Before a look-up of its name, an address has no name.
	if _, err := w.tls(t, "203.0.113.10:443", "good.example"); err == nil {
		t.Error("an allowed server name at an address that was never looked up is reached")
	}
	w.expectDenial(t, "tcp", "", "203.0.113.10", "no rule")

	for name, want := range map[string]string{"good.example": "203.0.113.10", "GOOD.example.": "203.0.113.10",
		"a.b.wild.example":      "203.0.113.11",
		"xn--bcher-kva.example": "203.0.113.13", "six.example": "2001:db8::10"} {
		got, err := w.lookUp(t, name)
		if err != nil || len(got) != 1 || got[0].Unmap().String() != want {
			t.Errorf("%s is %v, %v", name, got, err)
		}
	}
	for _, name := range []string{"evil.example", "wild.example", "evil-wild.example", "good.example.evil.example",
		"203.0.113.66.nip.example"} {
		if got, err := w.lookUp(t, name); err == nil {
			t.Errorf("%s is %v", name, got)
		}
		w.expectDenial(t, "dns", name, "", "no rule")
	}
	for _, asked := range z.questions() {
		if strings.Contains(asked, "evil") {
			t.Errorf("the name servers heard of %s", asked)
		}
	}

	for _, test := range []struct{ to, name, want, domain string }{
		{"203.0.113.10:443", "good.example", "203.0.113.10", ""},
		{"203.0.113.11:443", "a.b.wild.example", "203.0.113.11", ""},
		{"[2001:db8::10]:443", "six.example", "[2001:db8::10]", ""},
		{"203.0.113.50:443", "anything.example", "203.0.113.50", ""}, // by its address
		{"203.0.113.10:443", "evil.example", "", "evil.example"},     // an allowed address used for another
		{"203.0.113.10:443", "", "", "good.example"},                 // no name at all
		{"203.0.113.66:443", "good.example", "", ""},                 // an allowed name at a foreign address
		{"203.0.113.12:443", "a.b.wild.example", "", ""},             // and at another
	} {
		got, err := w.tls(t, test.to, test.name)
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("TLS to %s as %q: %q, %v", test.to, test.name, got, err)
		}
		if test.domain != "" {
			w.expectDenial(t, "tcp", test.domain, netip.MustParseAddrPort(test.to).Addr().String(), "")
		}
	}
	for _, test := range []struct {
		to, host string
		want     bool
	}{{"203.0.113.10:80", "good.example", true}, {"203.0.113.10:80", "evil.example", false},
		{"203.0.113.50:80", "evil.example", true}, {"203.0.113.66:80", "good.example", false}} {
		if got, err := w.http(t, test.to, test.host); strings.HasPrefix(got, "HTTP/1.1 200") != test.want {
			t.Errorf("HTTP to %s as %s: %q, %v", test.to, test.host, got, err)
		}
	}
	// Protocols without names are judged by address. The server speaks first.
	for to, want := range map[string]bool{"203.0.113.10:22": true, "203.0.113.66:22": false} {
		c, err := w.guest.dial(t, to)
		if (err == nil) != want {
			t.Errorf("ssh to %s: %v", to, err)
		}
		if err == nil {
			_ = c.SetDeadline(time.Now().Add(patience))
			if line, err := bufio.NewReader(c).ReadString('\n'); err != nil {
				t.Errorf("ssh says %q, %v", line, err)
			}
			_ = c.Close()
		}
	}
	for _, never := range []string{"203.0.113.66:443", "203.0.113.66:80", "203.0.113.66:22", "203.0.113.12:443"} {
		if w.wasDialled(never) {
			t.Errorf("%s was dialled", never)
		}
	}
}

// mission: A6
func TestForbiddenAddressesAreNeverDialled(t *testing.T) {
	t.Parallel()
	z := &zone{}
	forbidden := []string{"127.0.0.1", "10.1.2.3", "192.168.1.1", "172.17.0.1", "169.254.169.254", "100.100.100.200",
		"198.51.100.1", "10.9.9.9", "100.64.0.1", "168.63.129.16",
		"fd00:ec2::254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:7f00:1::1", "fe80::1",
		"fd68:6172:7665:7374::77", "10.0.2.50"}
	for _, mode := range []string{"default", "none", "allow"} {
		var allow []string
		if mode == "allow" {
			allow = []string{"lies.example", "0.0.0.0/0", "::/0"}
		}
		w := newWorld(t, policy(t, mode, allow...), func(o *netstack.Options) { o.Exchange = z.exchange })
		for _, a := range forbidden {
			addr := netip.MustParseAddr(a)
			if !addr.IsLoopback() {
				if c, err := w.guest.dial(t, netip.AddrPortFrom(addr.Unmap(), 80).String()); err == nil {
					_ = c.Close()
					t.Errorf("%s: %s is reached", mode, a)
				}
			}
			// A name that lies.
			z.set("lies.example", a)
			if got, err := w.lookUp(t, "lies.example"); err == nil {
				t.Errorf("%s: a name that has %s leads to %v", mode, a, got)
			}
		}
		if mode != "none" {
			w.expectDenial(t, "dns", "lies.example", "169.254.169.254", "metadata")
		}
		w.mu.Lock()
		if len(w.dialled) > 0 {
			t.Errorf("%s: dialled %v", mode, w.dialled)
		}
		w.mu.Unlock()
	}
}

// mission: A6
func TestTheGatewayStandsForTheLoopback(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		rule, to, dialled string
	}{{"127.0.0.1:8080", "10.0.2.2:8080", "127.0.0.1:8080"}, {"::1", "[fd68:6172:7665:7374::2]:8080", "[::1]:8080"}} {
		w := newWorld(t, policy(t, "default"))
		w.serve("tcp", test.dialled, listen(t, func(c net.Conn) {}))
		if c, err := w.guest.dial(t, test.to); err == nil {
			_ = c.Close()
			t.Errorf("%s is reached without a rule", test.to)
		}
		w.expectDenial(t, "tcp", "", netip.MustParseAddrPort(test.dialled).Addr().String(), "loopback")
		w.SetPolicy(policy(t, "default", test.rule))
		c, err := w.guest.dial(t, test.to)
		if err != nil {
			t.Errorf("%s is not reached with the rule %s: %v", test.to, test.rule, err)
			continue
		}
		_ = c.Close()
		if c, err := w.guest.dial(t, strings.Replace(test.to, "8080", "53", 1)); err == nil && test.rule != "::1" {
			_ = c.Close()
			t.Error("another port is reached")
		}
	}
}

// mission: A6
func TestRebindingLeadsNowhere(t *testing.T) {
	t.Parallel()
	z := &zone{}
	w := newWorld(t, policy(t, "default"), func(o *netstack.Options) { o.Exchange = z.exchange })
	z.set("rebind.example", "203.0.113.10")
	if _, err := w.lookUp(t, "rebind.example"); err != nil {
		t.Fatal(err)
	}
	z.set("rebind.example", "127.0.0.1", "203.0.113.11")
	got, err := w.lookUp(t, "rebind.example") // a TTL of zero is not cached
	if err != nil || len(got) != 1 || got[0].Unmap().String() != "203.0.113.11" {
		t.Errorf("after rebinding: %v, %v", got, err)
	}
	w.expectDenial(t, "dns", "rebind.example", "127.0.0.1", "loopback")
	// The gateway dials the checked address, and never a name.
	w.serve("tcp", "203.0.113.10:80", listen(t, func(net.Conn) {}))
	c, err := w.guest.dial(t, "203.0.113.10:80")
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if !w.wasDialled("203.0.113.10:80") {
		t.Error("another address was dialled")
	}
}

// mission: A6
func TestANewPolicyCutsWhatItForbids(t *testing.T) {
	t.Parallel()
	z := &zone{}
	w := newWorld(t, policy(t, "allow", "good.example", "203.0.113.50"),
		func(o *netstack.Options) { o.Exchange = z.exchange })
	z.set("good.example", "203.0.113.10")
	if _, err := w.lookUp(t, "good.example"); err != nil {
		t.Fatal(err)
	}
	echo := listen(t, func(c net.Conn) { _, _ = io.Copy(c, c) })
	w.serve("tcp", "203.0.113.10:22", echo)
	w.serve("tcp", "203.0.113.50:22", echo)
	open := func(to string) (net.Conn, func() error) {
		c, err := w.guest.dial(t, to)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		say := func() error {
			_ = c.SetDeadline(time.Now().Add(patience))
			if _, err := c.Write([]byte("hi\n")); err != nil {
				return err
			}
			_, err := io.ReadFull(c, make([]byte, 3))
			return err
		}
		if err := say(); err != nil {
			t.Fatal(err)
		}
		return c, say
	}
	_, named := open("203.0.113.10:22")
	_, addressed := open("203.0.113.50:22")
	w.SetPolicy(policy(t, "allow", "good.example"))
	if err := addressed(); err == nil {
		t.Error("a connection goes on that the new policy forbids")
	}
	if err := named(); err != nil {
		t.Errorf("a connection was cut that the new policy allows: %v", err)
	}
	w.expectDenial(t, "tcp", "", "203.0.113.50", "changed")
	w.SetPolicy(policy(t, "default"))
	_, unread := open("203.0.113.50:22")
	if err := named(); err != nil {
		t.Errorf("cut by more freedom: %v", err)
	}
	// Once names count, connections that were not read from the beginning cannot continue.
	p, err := gateway.Compile("default", nil, []string{"evil.example"})
	if err != nil {
		t.Fatal(err)
	}
	w.SetPolicy(p)
	if err := unread(); err == nil {
		t.Error("a connection goes on whose names nobody has read")
	}
	w.SetPolicy(policy(t, "none"))
	if err := named(); err == nil {
		t.Error("a connection goes on without a network")
	}
	if s := w.Stats(); s.Denied == 0 || s.Connections != 3 || s.In == 0 || s.Out == 0 {
		t.Errorf("%+v", s)
	}
}

// mission: A6
func TestNamesWithoutDotAreRefused(t *testing.T) {
	t.Parallel()
	z := &zone{}
	w := newWorld(t, policy(t, "default", "database"), func(o *netstack.Options) { o.Exchange = z.exchange })
	z.set("intranet", "203.0.113.10")
	z.set("database", "203.0.113.11")
	if _, err := w.lookUp(t, "intranet"); err == nil {
		t.Error("a name without a dot was looked up")
	}
	w.expectDenial(t, "dns", "intranet", "", "without a dot")
	if _, err := w.lookUp(t, "database"); err != nil {
		t.Error(err)
	}
}

// mission: A6
func TestDNSOverTCPAndIPv6(t *testing.T) {
	t.Parallel()
	z := &zone{}
	w := newWorld(t, policy(t, "default"), func(o *netstack.Options) { o.Exchange = z.exchange })
	z.set("good.example", "203.0.113.10", "2001:db8::1")
	for network, server := range map[string]string{"tcp": dns4, "udp": dns6} {
		got, err := w.guest.resolver(t, network, server).LookupNetIP(t.Context(), "ip", "good.example")
		if err != nil || len(got) != 2 {
			t.Errorf("%s %s: %v, %v", network, server, got, err)
		}
	}
	// A name server elsewhere is a connection as any other.
	if c, err := w.guest.dial(t, "10.0.2.3:80"); err == nil {
		_ = c.Close()
		t.Error("something but DNS answers at the DNS address")
	}
	if _, err := w.guest.dial(t, "203.0.113.53:53"); err == nil || !w.wasDialled("203.0.113.53:53") {
		t.Errorf("a name server elsewhere: %v", err)
	}
	for _, name := range []string{"router", "3.2.1.10.in-addr.arpa"} {
		if got, err := w.guest.resolver(t, "udp", dns4).LookupHost(t.Context(), name+"."); err == nil {
			t.Errorf("%s is %v", name, got)
		}
	}
	for _, asked := range z.questions() {
		if asked != "good.example" {
			t.Errorf("the name servers heard of %s", asked)
		}
	}
}
