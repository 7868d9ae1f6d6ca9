package netguard_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
)

func allow(t *testing.T, cidrs ...string) []netip.Prefix {
	t.Helper()
	all, err := netguard.ParseAllow(cidrs)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestAllows(t *testing.T) {
	t.Parallel()
	everywhere := "1.1.1.1 2606:4700::1 64:ff9b::1.1.1.1"
	local := "127.0.0.1 127.8.8.8 ::1 ::ffff:127.0.0.1"
	other := "10.0.0.1 172.16.0.1 192.168.1.1 169.254.1.1 100.64.0.1 198.18.0.1 fe80::1 fc00::1 fec0::1 " +
		"64:ff9b::10.0.0.1 2002:a00:1::1 64:ff9b::127.0.0.1"
	never := "0.0.0.0 :: 0.1.2.3 224.0.0.1 255.255.255.255 ff02::1 100::1"
	meta := "169.254.169.254 ::ffff:169.254.169.254 100.100.100.200 fd00:ec2::254 64:ff9b::a9fe:a9fe"
	for _, test := range []struct {
		name    string
		rules   netguard.Rules
		yes, no string
	}{
		{"the internet", netguard.Rules{}, everywhere, strings.Join([]string{local, other, never, meta}, " ")},
		{"loopback", netguard.Rules{Loopback: true}, everywhere + " " + local,
			strings.Join([]string{other, never, meta}, " ")},
		{"exceptions", netguard.Rules{Allow: allow(t, "10.0.0.0/16", "127.0.0.1", "fd00::/8", "169.254.0.0/16")},
			everywhere + " 10.0.0.1 127.0.0.1 fd01::1 169.254.1.1",
			"10.1.0.1 127.0.0.2 192.168.1.1 fd00:ec2::254 64:ff9b::10.0.0.1 " + never + " 169.254.169.254"},
		{"a metadata service by its address", netguard.Rules{Allow: allow(t, "169.254.169.254/32")}, "169.254.169.254",
			"169.254.170.2"},
		{"anything", netguard.Rules{Any: true}, strings.Join([]string{everywhere, local, other, meta}, " "), ""},
	} {
		check := func(texts string, want bool) {
			for text := range strings.FieldsSeq(texts) {
				if ok, reason := test.rules.Allows(netip.MustParseAddr(text)); ok != want || !ok && reason == "" {
					t.Errorf("%s: %s allowed: %v (%s)", test.name, text, ok, reason)
				}
			}
		}
		check(test.yes, true)
		check(test.no, false)
	}
}

func TestParseAllowRefusesRangesThatOpenNothing(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"0.0.0.0/0", "::/0", "1.1.1.1", "10.0.0.0/7", "224.0.0.1", "x", "10.0.0.1:80", ""} {
		if _, err := netguard.ParseAllow([]string{text}); errors.KindOf(err) != errors.Invalid ||
			errors.RemedyOf(err) == "" {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// server counts the connections that it accepts.
func server(t *testing.T, h http.HandlerFunc) (s *httptest.Server, accepted func() int) {
	t.Helper()
	n := make(chan struct{}, 1000)
	s = httptest.NewUnstartedServer(h)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			n <- struct{}{}
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s, func() int { return len(n) }
}

func get(t *testing.T, c *http.Client, address string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// Open and closed ports are refused with the same words, and nothing is connected to.
func TestRefusedAddressesAreNotConnectedTo(t *testing.T) {
	t.Parallel()
	open, accepted := server(t, func(http.ResponseWriter, *http.Request) {})
	_, port, _ := net.SplitHostPort(open.Listener.Addr().String())
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, unused, _ := net.SplitHostPort(closed.Addr().String())
	closed.Close()
	c := netguard.Rules{}.Client(time.Minute)
	for _, host := range []string{"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]",
		"metadata.google.internal"} {
		texts := map[string]bool{}
		for _, p := range []string{port, unused} {
			_, err := get(t, c, "http://"+host+":"+p+"/x")
			if errors.KindOf(err) != errors.Denied || errors.RemedyOf(err) == "" || netguard.Refusal(err) == nil {
				t.Fatalf("%s:%s: %v", host, p, err)
			}
			texts[errors.Message(err)] = true
		}
		if len(texts) != 1 {
			t.Errorf("%s: open and closed ports differ: %v", host, texts)
		}
	}
	if n := accepted(); n != 0 {
		t.Errorf("%d connections arrived", n)
	}
	if text, err := get(t, netguard.Rules{Loopback: true}.Client(time.Minute), open.URL); err != nil || text != "" {
		t.Errorf("with loopback allowed: %q, %v", text, err)
	}
	if netguard.Refusal(io.EOF) != nil {
		t.Error("the end of a stream is taken for a refusal")
	}
}

func TestRedirectsPassTheRules(t *testing.T) {
	t.Parallel()
	inner, accepted := server(t, func(http.ResponseWriter, *http.Request) {})
	outer, _ := server(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, inner.URL,
			http.StatusFound)
	})
	host := strings.TrimPrefix(outer.URL, "http://")
	_, err := get(t, netguard.Rules{Hosts: []string{host}}.Client(time.Minute), outer.URL)
	if errors.KindOf(err) != errors.Denied || accepted() != 0 {
		t.Fatalf("%v; %d connections arrived", err, accepted())
	}
	if _, err := get(t, netguard.Rules{Any: true}.Client(time.Minute), outer.URL); err != nil {
		t.Fatal(err)
	}
}

func TestBadAddresses(t *testing.T) {
	t.Parallel()
	if _, err := (netguard.Rules{}).DialContext(t.Context(), "tcp", "no port"); err == nil {
		t.Error("an address without a port is dialed")
	}
	if _, err := (netguard.Rules{}).DialContext(t.Context(), "udp",
		"127.0.0.1:53"); errors.KindOf(err) != errors.Denied {
		t.Errorf("UDP: %v", err)
	}
}

// alternating is a resolver of DNS that answers queries for an IPv4 address with the first answer, then with the
// second, and so on.
func alternating(t *testing.T, answers ...[4]byte) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf, asked := make([]byte, 4096), 0
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m = dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true},
				Questions: m.Questions}
			if q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type,
					Class: q.Class}, Body: &dnsmessage.AResource{A: answers[asked%len(answers)]}}}
				asked++
			}
			if out, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(out, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// A name that has an allowed address first and a refused one next (DNS rebinding) does not lead to the refused one.
// The test replaces the resolver of the process, so it is not parallel.
func TestRebindingLeadsNowhere(t *testing.T) {
	inner, accepted := server(t, func(http.ResponseWriter, *http.Request) {})
	_, port, _ := net.SplitHostPort(inner.Listener.Addr().String())
	usual := net.DefaultResolver
	defer func() { net.DefaultResolver = usual }()
	net.DefaultResolver = alternating(t, [4]byte{127, 0, 0, 2}, [4]byte{127, 0, 0, 1})
	c := netguard.Rules{Allow: allow(t, "127.0.0.2")}.Client(time.Minute)
	var denied int
	for range 4 {
		_, err := get(t, c, "http://rebinding.test:"+port+"/")
		if err == nil {
			t.Error("a request succeeds")
		}
		if netguard.Refusal(err) != nil {
			denied++
		}
	}
	if accepted() != 0 || denied != 2 {
		t.Errorf("%d connections arrived; %d of 4 were refused, want 2", accepted(), denied)
	}
}

// TestProxy checks that an operator's proxy may have any address, and gets no request that the rules refuse.
func TestProxy(t *testing.T) {
	t.Parallel()
	proxy, asked := server(t, func(w http.ResponseWriter, r *http.Request) {
		_,
			_ = io.WriteString(w, "proxied "+r.URL.Host)
	})
	at, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	client := func(r netguard.Rules) *http.Client {
		tr := r.NewTransport(&http.Transport{Proxy: http.ProxyURL(at)})
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr}
	}
	c := client(netguard.Rules{})
	for _, host := range []string{"127.0.0.1", "localhost", "x.localhost", "[::1]", "10.0.0.1:5000", "127.1",
		"2130706433", "0x7f000001", "0x7f.1", "metadata.google.internal", "metadata", "169.254.169.254"} {
		if _, err := get(t, c, "http://"+host+"/"); errors.KindOf(err) != errors.Denied {
			t.Errorf("%s: %v", host, err)
		}
	}
	if asked() != 0 {
		t.Fatal("the proxy was asked for a refused address")
	}
	// Names that this machine cannot resolve are the proxy's business.
	for host, rules := range map[string]netguard.Rules{"registry.invalid": {}, "203.0.113.7": {},
		"10.0.0.1:5000": {Allow: allow(t, "10.0.0.0/8")},
		"localhost:1":   {Loopback: true}, "10.1.1.1": {Any: true},
		"10.0.0.2:5000": {Hosts: []string{"10.0.0.2:5000"}}} {
		if text, err := get(t, client(rules), "http://"+host+"/"); err != nil || text != "proxied "+host {
			t.Errorf("%s: %q, %v", host, text, err)
		}
	}
}

func TestProxyThatCannotBeFound(t *testing.T) {
	t.Parallel()
	broken := &http.Transport{Proxy: func(*http.Request) (*url.URL, error) { return nil, io.ErrUnexpectedEOF }}
	_, err := get(t, &http.Client{Transport: netguard.Rules{}.NewTransport(broken)}, "http://example.invalid/")
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

func TestRulesPassAsJSON(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(netguard.Rules{Allow: allow(t, "10.0.0.0/8"), Loopback: true})
	if err != nil {
		t.Fatal(err)
	}
	var got netguard.Rules
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if ok, _ := got.Allows(netip.MustParseAddr("10.1.1.1")); !ok || got.Any {
		t.Errorf("%s became %+v", text, got)
	}
}

func TestDirect(t *testing.T) {
	t.Parallel()
	base := &url.URL{Scheme: "http", Host: "127.0.0.1:1"} // no proxy of the environment is used for this machine
	tr, ok := netguard.Rules{}.NewTransport(nil).Direct(base)
	if !ok {
		t.Fatal("this machine is reached through a proxy")
	}
	if _, err := tr.DialContext(context.WithoutCancel(t.Context()), "tcp",
		"127.0.0.1:1"); netguard.Refusal(err) == nil {
		t.Error(err)
	}
	proxied := netguard.Rules{}.NewTransport(&http.Transport{Proxy: http.ProxyURL(base)})
	if _, ok := proxied.Direct(base); ok {
		t.Error("a proxy is ignored")
	}
	if tr, ok := netguard.Unguarded(&http.Transport{MaxIdleConns: 7}).Direct(base); !ok || tr.MaxIdleConns != 7 {
		t.Error("it is not the transport of the caller")
	}
}
