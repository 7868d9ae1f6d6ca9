package gateway_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
)

func compile(t testing.TB, mode string, allow, deny []string) *gateway.Policy {
	t.Helper()
	p, err := gateway.Compile(mode, allow, deny)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// mission: F6
func TestWrongRulesAreNamed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		mode, rule, want string
	}{
		{"allow", "", "names nothing"},
		{"allow", "http://example.org", "neither a domain"},
		{"allow", "user@example.org", "neither a domain"},
		{"allow", "exa mple.org", "neither a domain"},
		{"allow", "*", "*"},
		{"allow", "*.", "neither a domain"},
		{"allow", "a.*.example.org", "first label"},
		{"allow", "*example.org", "first label"},
		{"allow", "example.org:0", "port from 1"},
		{"allow", "example.org:", "port from 1"},
		{"allow", "example.org:65536", "port from 1"},
		{"allow", "example.org:http", "port from 1"},
		{"allow", "10.0.0.1/8", "10.0.0.0/8"},
		{"allow", "10.0.0.0/33", "no CIDR"},
		{"allow", "example.org/24", "no CIDR"},
		{"allow", "::ffff:0:0/80", "IPv4-mapped"},
		{"allow", "[10.0.0.1]:80", "not an IPv6"},
		{"allow", "[::1", "brackets"},
		{"allow", "[::1]x", "brackets"},
		{"allow", "fe80::1%eth0", "zone"},
		{"allow", "0.0.0.0", "0.0.0.0/0"},
		{"allow", "2130706433", "neither a domain"},
		{"allow", "0177.0.0.1", "neither a domain"},
		{"allow", "127.1", "neither a domain"},
		{"allow", "0x7f.0.0.1", "neither a domain"},
		{"allow", "-a.org", "neither a domain"},
		{"allow", "a..org", "neither a domain"},
		{"allow", strings.Repeat("a", 64) + ".org", "neither a domain"},
		{"allow", "xn--a\u00e4.org", "neither a domain"},
		{"none", "example.org", "none"},
		{"open", "example.org", "mode"},
	} {
		_, err := gateway.Compile(test.mode, []string{test.rule}, nil)
		if errors.KindOf(err) != errors.Invalid || !strings.Contains(errors.Message(err), test.want) ||
			errors.RemedyOf(err) == "" {
			t.Errorf("%s %q: %v, %q", test.mode, test.rule, err, errors.RemedyOf(err))
		}
	}
	for name, err := range map[string]error{
		"nothing to allow": func() error { _, err := gateway.Compile("allow", nil, nil); return err }(),
		"too many": func() error {
			_,
				err := gateway.Compile("default", nil, make([]string, 1001))
			return err
		}(),
		"wrong deny": func() error { _, err := gateway.Compile("default", nil, []string{"a b"}); return err }(),
	} {
		if errors.KindOf(err) != errors.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// mission: A6
func TestConnectByAddress(t *testing.T) {
	t.Parallel()
	host := map[string]bool{"198.51.100.1": true, "10.9.9.9": true}
	for _, test := range []struct {
		name        string
		mode        string
		allow, deny []string
		yes, no     string // "address" or "address:port", separated by blanks
	}{
		{name: "none", mode: "none", no: "203.0.113.7 10.0.0.1 127.0.0.1"},
		{name: "default", mode: "default",
			yes: "1.1.1.1 203.0.113.7 192.0.2.7 198.51.100.7 2606:4700::1 2001:db8::7 64:ff9b::1.1.1.1 " +
				"2002:101:101::1 198.17.255.255 198.20.0.0",
			no: "127.0.0.1 127.8.8.8 0.0.0.0 0.1.2.3 10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 169.254.1.1 " +
				"169.254.169.254 100.64.0.1 100.100.100.200 " +
				"198.18.0.1 198.19.255.255 168.63.129.16 192.0.0.192 224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255 " +
				"198.51.100.1 10.9.9.9 " +
				":: ::1 fe80::1 fec0::1 fc00::1 fd00:ec2::254 fd20:ce::254 ff02::1 100::1 " +
				"::ffff:127.0.0.1 ::ffff:169.254.169.254 ::ffff:10.0.0.1 ::127.0.0.1 ::169.254.169.254 " +
				"::ffff:0:10.0.0.1 64:ff9b::10.0.0.1 64:ff9b::a9fe:a9fe 64:ff9b:1::1 " +
				"2002:7f00:1::1 2002:a9fe:a9fe::1 2002:a00:1:: 2001:0:a00:1::1 2001:0:101:101:0:0:f5ff:fffe " +
				"fe80::5efe:10.0.0.1 2606:4700::5efe:a00:1 2606:4700::200:5efe:a00:1"},
		{name: "allow addresses", mode: "allow", allow: []string{"1.1.1.1", "2.2.2.2:443", "3.3.0.0/16",
			"[2606:4700::1]:443", "2001:db8::/32"},
			yes: "1.1.1.1:1 1.1.1.1:443 2.2.2.2:443 3.3.3.3:22 [2606:4700::1]:443 [2001:db8::9]:1 [::ffff:1.1.1.1]:1",
			no: "1.1.1.2:1 2.2.2.2:80 3.4.0.1:22 [2606:4700::1]:80 [2606:4700::2]:443 10.0.0.1:1 127.0.0.1:1 " +
				"[64:ff9b::1.1.1.1]:1"},
		{name: "private by CIDR", mode: "default", allow: []string{"10.1.0.0/16", "fd00:1::/32", "192.168.1.1:80"},
			yes: "10.1.2.3:1 [fd00:1::1]:1 192.168.1.1:80 1.1.1.1:1",
			no:  "10.2.0.1:1 192.168.1.1:81 [fd00:2::1]:1 [64:ff9b::10.1.2.3]:1 [2002:a01:203::1]:1"},
		{name: "everything is the internet", mode: "allow", allow: []string{"0.0.0.0/0", "::/0"},
			yes: "1.1.1.1:1 [2606:4700::1]:1",
			no: "10.0.0.1:1 127.0.0.1:1 169.254.169.254:1 198.51.100.1:1 [fd00::1]:1 [::1]:1 [64:ff9b::10.0.0.1]:1 " +
				"[2002:a00:1::1]:1 0.0.0.0:1 224.0.0.1:1"},
		{name: "the machine only by its very address", mode: "default", allow: []string{"127.0.0.0/8", "169.254.0.0/16",
			"10.0.0.0/8", "198.51.100.0/24"},
			yes: "10.0.0.1:1 169.254.1.1:1 198.51.100.2:1",
			no:  "127.0.0.1:1 169.254.169.254:1 10.9.9.9:1 198.51.100.1:1"},
		{name: "by its very address", mode: "allow", allow: []string{"127.0.0.1:8080", "169.254.169.254", "10.9.9.9",
			"198.51.100.1:22", "::1"},
			yes: "127.0.0.1:8080 169.254.169.254:80 10.9.9.9:1 198.51.100.1:22 [::1]:1 [::ffff:127.0.0.1]:8080",
			no:  "127.0.0.1:8081 127.0.0.2:8080 198.51.100.1:23 100.100.100.200:80"},
		{name: "no rule opens these", mode: "allow", allow: []string{"224.0.0.1", "0.0.0.1", "255.255.255.255",
			"ff02::1"}, no: "224.0.0.1 0.0.0.1 255.255.255.255 ff02::1 ::ffff:224.0.0.1"},
		{name: "deny wins", mode: "default", allow: []string{"10.0.0.0/8"}, deny: []string{"10.1.0.0/16", "1.1.1.1",
			"2.2.2.2:25", "2606:4700::/32"},
			yes: "10.2.0.1:1 2.2.2.2:80 1.1.1.2:1",
			no: "10.1.0.1:1 1.1.1.1:1 2.2.2.2:25 [2606:4700::1]:1 [64:ff9b::1.1.1.1]:1 [2002:101:101::1]:1 " +
				"[::ffff:1.1.1.1]:1"},
	} {
		p := compile(t, test.mode, test.allow, test.deny)
		check := func(texts string, want bool) {
			for text := range strings.FieldsSeq(texts) {
				addr, port := netip.Addr{}, uint16(443)
				if ap, err := netip.ParseAddrPort(text); err == nil {
					addr, port = ap.Addr(), ap.Port()
				} else {
					addr = netip.MustParseAddr(text)
				}
				v := p.Connect(gateway.Target{Addr: addr, Port: port, Host: host[addr.Unmap().String()]})
				if v.Allowed != want {
					t.Errorf("%s: %s allowed: %v (%s)", test.name, text, v.Allowed, v.Reason)
				}
				if !v.Allowed && v.Reason == "" {
					t.Errorf("%s: %s is refused without a reason", test.name, text)
				}
			}
		}
		check(test.yes, true)
		check(test.no, false)
	}
}

// mission: A6
func TestNames(t *testing.T) {
	t.Parallel()
	p := compile(t, "allow", []string{"example.org", "*.wild.org", "Caf\u00e9.example", "db.example:5432",
		"metadata.google.internal"}, []string{"bad.wild.org", "*.worse.wild.org"})
	addr := netip.MustParseAddr("203.0.113.7")
	for _, test := range []struct {
		name string
		port uint16
		want bool
	}{
		{"example.org", 443, true}, {"EXAMPLE.org.", 443, true}, {"www.example.org", 443, false},
		{"example.org.evil.com", 443, false},
		{"evil-example.org", 443, false}, {"a.wild.org", 443, true}, {"a.b.wild.org", 1, true},
		{"wild.org", 443, false}, {"evilwild.org", 443, false},
		{"a.evil-wild.org", 443, false}, {"bad.wild.org", 443, false}, {"a.bad.wild.org", 443, true},
		{"x.worse.wild.org", 443, false},
		{"caf\u00e9.example", 443, true}, {"xn--caf-dma.example", 443, true}, {"CAF\u00c9.example", 443, true},
		{"cafe.example", 443, false},
		{"db.example", 5432, true}, {"db.example", 22, false}, {"metadata.google.internal", 80, true},
		{"metadata.goog", 80, false},
		{"", 443, false}, {"example.org..", 443, false}, {"exam\x00ple.org", 443, false}, {"127.0.0.1", 443, false},
		{"2130706433", 443, false}, {"::1", 443, false},
	} {
		if v := p.Name(gateway.CheckAllowed, test.name, test.port); v.Allowed != test.want {
			t.Errorf("a connection that names %q, port %d: %v (%s)", test.name, test.port, v.Allowed, v.Reason)
		}
		if canonical, ok := gateway.CanonicalName(test.name); ok && test.name != "metadata.goog" {
			if v := p.Connect(gateway.Target{Addr: addr, Port: test.port,
				Names: []string{canonical}}); v.Allowed != test.want || v.Allowed && v.Check != gateway.CheckAllowed {
				t.Errorf("an address of %q, port %d: %+v", test.name, test.port, v)
			}
		}
	}
	private := netip.MustParseAddr("10.0.0.1")
	if p.Connect(gateway.Target{Addr: private, Port: 443, Names: []string{"example.org"}}).Allowed {
		t.Error("an allowed name opens a private address")
	}
	for name, want := range map[string]bool{"example.org": true, "db.example": true, "x.wild.org": true,
		"wild.org": false, "bad.wild.org": false, "other.org": false, "metadata.goog": false} {
		if v := p.LookUp(name); v.Allowed != want {
			t.Errorf("look up %s: %+v", name, v)
		}
	}
}

// mission: A6
func TestDeniedNamesInTheDefaultMode(t *testing.T) {
	t.Parallel()
	p := compile(t, "default", nil, []string{"bad.org", "*.bad.org", "half.org:25"})
	addr := netip.MustParseAddr("203.0.113.7")
	if v := p.Connect(gateway.Target{Addr: addr, Port: 443}); !v.Allowed || v.Check != gateway.CheckDenied {
		t.Errorf("an address: %+v", v)
	}
	if p.Connect(gateway.Target{Addr: addr, Port: 443, Names: []string{"x.bad.org"}}).Allowed {
		t.Error("an address of a denied name is allowed")
	}
	if !p.Connect(gateway.Target{Addr: addr, Port: 443, Names: []string{"x.bad.org", "good.org"}}).Allowed {
		t.Error("an address that an allowed name has too is denied")
	}
	for name, want := range map[string]bool{"bad.org": false, "x.bad.org": false, "good.org": true, "203.0.113.7": true,
		"half.org": true, "metadata": false} {
		if v := p.Name(gateway.CheckDenied, name, 443); v.Allowed != want {
			t.Errorf("a connection that names %s: %+v", name, v)
		}
	}
	for name, want := range map[string]bool{"bad.org": false, "half.org": true, "good.org": true,
		"metadata.google.internal": false} {
		if v := p.LookUp(name); v.Allowed != want {
			t.Errorf("look up %s: %+v", name, v)
		}
	}
	if p.Names("good.org") || !compile(t, "allow", []string{"db"}, nil).Names("db") {
		t.Error("Names does not tell what rules name")
	}
	var nobody *gateway.Policy
	if nobody.LookUp("a.org").Allowed || nobody.Connect(gateway.Target{Addr: addr}).Allowed ||
		nobody.Name(gateway.CheckAllowed, "a.org", 1).Allowed || nobody.Names("a") {
		t.Error("no policy allows something")
	}
	if !nobody.Name(gateway.CheckNothing, "a.org", 1).Allowed {
		t.Error("a name that is not checked is refused")
	}
}

func FuzzCompile(f *testing.F) {
	for _, rule := range []string{"example.org", "*.example.org:443", "10.0.0.0/8", "[::1]:80", "fd00::/8",
		"caf\u00e9.example", "::ffff:1.2.3.4/128", "0x7f.1"} {
		f.Add(rule, "example.org", []byte{10, 0, 0, 1})
	}
	f.Fuzz(func(t *testing.T, rule, name string, ip []byte) {
		p, err := gateway.Compile("allow", []string{rule}, []string{"bad.example"})
		if err != nil {
			if errors.KindOf(err) != errors.Invalid {
				t.Errorf("%q: %v", rule, err)
			}
			return
		}
		p.LookUp(name)
		p.Name(gateway.CheckAllowed, name, 443)
		addr, ok := netip.AddrFromSlice(ip)
		if !ok {
			return
		}
		v := p.Connect(gateway.Target{Addr: addr, Port: 443, Names: []string{name}})
		if a := addr.Unmap(); v.Allowed && (a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() ||
			a.IsUnspecified()) && !strings.ContainsAny(rule, "0123456789abcdefABCDEF") {
			t.Errorf("%q opens %s", rule, addr)
		}
	})
}
