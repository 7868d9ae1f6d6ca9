package gateway_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/RelevanceAI/harvest/internal/engine/gateway"
)

func name(s string) dnsmessage.Name { return dnsmessage.MustNewName(s) }

func query(t testing.TB, domain string, kind dnsmessage.Type, change ...func(*dnsmessage.Message)) []byte {
	t.Helper()
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: name(domain), Type: kind, Class: dnsmessage.ClassINET}}}
	for _, c := range change {
		c(&m)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func withSize(size int) func(*dnsmessage.Message) {
	return func(m *dnsmessage.Message) {
		var h dnsmessage.ResourceHeader
		_ = h.SetEDNS0(size, dnsmessage.RCodeSuccess, true)
		h.Name = name(".")
		m.Additionals = append(m.Additionals,
			dnsmessage.Resource{Header: h, Body: &dnsmessage.OPTResource{Options: []dnsmessage.Option{{Code: 65001,
				Data: []byte("secret")}}}})
	}
}

// mission: A6
func TestQueries(t *testing.T) {
	t.Parallel()
	ok := query(t, "WWW.Example.org.", dnsmessage.TypeA, withSize(4000))
	q, _, fine := gateway.ParseQuery(ok)
	if !fine || q.Name != "www.example.org" || q.Type != dnsmessage.TypeA {
		t.Fatalf("%+v", q)
	}
	asked, err := q.Message(99)
	if err != nil || strings.Contains(string(asked), "secret") || strings.Contains(string(asked), "WWW") {
		t.Errorf("the name server hears %q, %v", asked, err)
	}
	for what, test := range map[string]struct {
		msg  []byte
		code dnsmessage.RCode
		none bool
	}{
		"nothing":       {msg: nil, none: true},
		"half a header": {msg: ok[:5], none: true},
		"an answer": {msg: query(t, "a.org.", dnsmessage.TypeA,
			func(m *dnsmessage.Message) { m.Response = true }), none: true},
		"a status query": {msg: query(t, "a.org.", dnsmessage.TypeA, func(m *dnsmessage.Message) { m.OpCode = 2 }),
			code: dnsmessage.RCodeNotImplemented},
		"two questions": {msg: query(t, "a.org.", dnsmessage.TypeA,
			func(m *dnsmessage.Message) { m.Questions = append(m.Questions, m.Questions[0]) }),
			code: dnsmessage.RCodeFormatError},
		"no question": {msg: query(t, "a.org.", dnsmessage.TypeA,
			func(m *dnsmessage.Message) { m.Questions = nil }), code: dnsmessage.RCodeFormatError},
		"another class": {msg: query(t, "version.bind.", dnsmessage.TypeTXT,
			func(m *dnsmessage.Message) { m.Questions[0].Class = dnsmessage.ClassCHAOS }),
			code: dnsmessage.RCodeRefused},
		"a zone transfer": {msg: query(t, "a.org.", 252), code: dnsmessage.RCodeRefused},
		"a number":        {msg: query(t, "2130706433.", dnsmessage.TypeA), code: dnsmessage.RCodeNameError},
		"the root":        {msg: query(t, ".", dnsmessage.TypeNS), code: dnsmessage.RCodeNameError},
		"cut short":       {msg: ok[:len(ok)-3], code: dnsmessage.RCodeFormatError},
	} {
		_, reply, fine := gateway.ParseQuery(test.msg)
		var m dnsmessage.Message
		switch {
		case fine || (reply == nil) != test.none:
			t.Errorf("%s: %v, reply %q", what, fine, reply)
		case reply != nil && (m.Unpack(reply) != nil || m.RCode != test.code || !m.Response || m.ID != 7):
			t.Errorf("%s: %+v", what, m.Header)
		}
	}
}

// answer is a name server's, of records, to a query for www.good.org.
func answer(t testing.TB, kind dnsmessage.Type, records ...dnsmessage.Resource) []byte {
	t.Helper()
	return query(t, "www.good.org.", kind, func(m *dnsmessage.Message) {
		m.Response = true
		m.Answers = records
		m.Authorities = []dnsmessage.Resource{{Header: head("good.org.", 30),
			Body: &dnsmessage.SOAResource{NS: name("ns.good.org."), MBox: name("x.good.org."), MinTTL: 20}},
			{Header: head("good.org.", 30), Body: &dnsmessage.NSResource{NS: name("ns.good.org.")}}}
		m.Additionals = []dnsmessage.Resource{{Header: head("ns.good.org.", 30),
			Body: &dnsmessage.AResource{A: [4]byte{10, 0, 0, 1}}}}
	})
}

func head(owner string, ttl uint32) dnsmessage.ResourceHeader {
	return dnsmessage.ResourceHeader{Name: name(owner), Class: dnsmessage.ClassINET, TTL: ttl}
}

func a(owner string, ip ...byte) dnsmessage.Resource {
	return dnsmessage.Resource{Header: head(owner, 60), Body: &dnsmessage.AResource{A: [4]byte(ip)}}
}

func cname(owner, target string) dnsmessage.Resource {
	return dnsmessage.Resource{Header: head(owner, 50), Body: &dnsmessage.CNAMEResource{CNAME: name(target)}}
}

func nobody(netip.Addr) bool { return false }

// mission: A6
func TestReplies(t *testing.T) {
	t.Parallel()
	p := compile(t, "allow", []string{"*.good.org"}, nil)
	parse := func(kind dnsmessage.Type, change ...func(*dnsmessage.Message)) gateway.Query {
		q, _, ok := gateway.ParseQuery(query(t, "WWW.good.org.", kind, change...))
		if !ok {
			t.Fatal("no query")
		}
		return q
	}
	unpack := func(b []byte) (m dnsmessage.Message) {
		if err := m.Unpack(b); err != nil {
			t.Fatal(err)
		}
		return m
	}
	q := parse(dnsmessage.TypeA, withSize(1232))
	msg := answer(t, dnsmessage.TypeA, cname("www.good.org.", "cdn.net."), a("edge.cdn.net.", 203, 0, 113, 1),
		a("edge.cdn.net.", 127, 0, 0, 1), cname("cdn.net.", "edge.cdn.net."), a("evil.org.", 203, 0, 113, 66))
	if !q.Answers(msg, 7) || q.Answers(msg, 8) || q.Answers(nil, 7) || parse(dnsmessage.TypeAAAA).Answers(msg, 7) ||
		gateway.Truncated(msg) {
		t.Error("answers are not told from others")
	}
	r := q.Reply(p, nobody, msg, 10*time.Second)
	m := unpack(r.Message)
	if len(m.Answers) != 3 || len(r.Addrs) != 1 || len(r.Refused) != 1 || r.TTL != 40*time.Second ||
		m.Answers[0].Header.TTL != 40 || m.ID != 7 || m.Questions[0].Name.String() != "WWW.good.org." ||
		len(m.Authorities) != 1 || len(m.Additionals) != 1 || m.Additionals[0].Header.Type != dnsmessage.TypeOPT {
		t.Errorf("%+v, %v", m, r)
	}
	r = q.Reply(p, nobody, answer(t, dnsmessage.TypeA, a("www.good.org.", 10, 0, 0, 1)), 0)
	if m := unpack(r.UDP); m.RCode != dnsmessage.RCodeNameError || len(m.Answers) != 0 || len(r.Refused) != 1 {
		t.Errorf("a name of a private address: %+v", m)
	}
	host := func(a netip.Addr) bool { return a.String() == "203.0.113.1" }
	if r := q.Reply(p, host, msg, 0); len(r.Addrs) != 0 || len(r.Refused) != 2 {
		t.Errorf("a name of this machine: %+v", r)
	}
	if m := unpack(q.Reply(p, nobody, []byte("nonsense"), 0).UDP); m.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("nonsense: %+v", m)
	}
	// HTTPS records lose the parameters that would bypass the policy.
	svcb := func(keys ...dnsmessage.SVCParamKey) dnsmessage.Resource {
		b := dnsmessage.SVCBResource{Priority: 1, Target: name(".")}
		for _, k := range keys {
			b.SetParam(k, []byte{1, 2, 3, 4})
		}
		return dnsmessage.Resource{Header: head("www.good.org.", 60), Body: &dnsmessage.HTTPSResource{SVCBResource: b}}
	}
	m = unpack(parse(dnsmessage.TypeHTTPS).Reply(p, nobody, answer(t, dnsmessage.TypeHTTPS, svcb(1, 4, 5, 6),
		svcb(0, 1)), 0).Message)
	if len(m.Answers) != 1 || len(m.Answers[0].Body.(*dnsmessage.HTTPSResource).Params) != 1 {
		t.Errorf("an HTTPS record: %+v", m.Answers)
	}
	// An answer that is too large is requested again over TCP.
	var many []dnsmessage.Resource
	for n := range 100 {
		many = append(many, a("www.good.org.", 203, 0, 113, byte(n)))
	}
	r = parse(dnsmessage.TypeA).Reply(p, nobody, answer(t, dnsmessage.TypeA, many...), 0)
	if m := unpack(r.UDP); !m.Truncated || len(m.Answers) != 0 || len(r.UDP) > 512 ||
		len(unpack(r.Message).Answers) != 100 || !gateway.Truncated(r.UDP) {
		t.Errorf("a large answer: %+v", m)
	}
	if got := gateway.TTL(answer(t, dnsmessage.TypeA)); got != 20*time.Second {
		t.Errorf("that there is no address is kept for %v", got)
	}
	failure := query(t, "www.good.org.", dnsmessage.TypeA, func(m *dnsmessage.Message) {
		m.Response, m.RCode = true,
			dnsmessage.RCodeServerFailure
	})
	if gateway.TTL(failure) != 0 || gateway.TTL(nil) != 0 || gateway.TTL(query(t, "a.org.", 1)) != 0 {
		t.Error("a failure is kept")
	}
	if r := q.Reply(p, nobody, msg, 48*time.Hour); r.TTL != 0 || unpack(r.Message).Answers[0].Header.TTL != 0 {
		t.Errorf("an old answer: %+v", r)
	}
	if m := unpack(q.Refuse().UDP); m.RCode != dnsmessage.RCodeNameError {
		t.Errorf("a refusal: %+v", m)
	}
}

func TestLongChainsEnd(t *testing.T) {
	t.Parallel()
	q, _, _ := gateway.ParseQuery(query(t, "www.good.org.", dnsmessage.TypeA))
	chain := []dnsmessage.Resource{cname("www.good.org.", "c0.net.")}
	for n := range 60 {
		chain = append(chain, cname(fmt.Sprintf("c%d.net.", n), fmt.Sprintf("c%d.net.", n+1)))
	}
	chain = append(chain, a("c60.net.", 203, 0, 113, 1))
	if r := q.Reply(compile(t, "default", nil, nil), nobody, answer(t, dnsmessage.TypeA, chain...),
		0); len(r.Addrs) != 0 {
		t.Error("an endless chain was followed")
	}
}

func TestReverseNames(t *testing.T) {
	t.Parallel()
	six := strings.Repeat("0.", 31) + "1.ip6.arpa"
	for name, want := range map[string]string{"4.3.2.1.in-addr.arpa": "1.2.3.4", six: "1000::",
		"3.2.1.in-addr.arpa": "", "x.3.2.1.in-addr.arpa": "", "1.ip6.arpa": "", "example.org": ""} {
		got, ok := gateway.ReverseAddr(name)
		if ok != (want != "") || ok && got.String() != want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestPins(t *testing.T) {
	t.Parallel()
	var p gateway.Pins
	now := time.Unix(1000000, 0)
	addr := netip.MustParseAddr("203.0.113.7")
	p.Add(addr, "a.org", time.Hour, now)
	p.Add(netip.MustParseAddr("::ffff:203.0.113.7"), "b.org", 0, now)
	p.Add(addr, "a.org", time.Hour, now)
	if got := strings.Join(p.Names(addr, now), " "); got != "a.org b.org" {
		t.Errorf("now: %s", got)
	}
	if got := strings.Join(p.Names(addr, now.Add(10*time.Minute)), " "); got != "a.org" {
		t.Errorf("later: %s", got)
	}
	if got := p.Names(addr, now.Add(2*time.Hour)); len(got) != 0 {
		t.Errorf("at last: %v", got)
	}
	for n := range 40 {
		p.Add(addr, fmt.Sprintf("n%d.org", n), time.Hour, now)
	}
	if got := p.Names(addr, now); len(got) > 20 || got[0] != "n39.org" {
		t.Errorf("many names: %v", got)
	}
	for n := range 20000 {
		p.Add(netip.AddrFrom4([4]byte{9, 9, byte(n >> 8), byte(n)}), "many.org", time.Hour, now)
	}
	last := netip.AddrFrom4([4]byte{9, 9, byte(19999 >> 8), byte(19999 & 0xff)})
	kept := 0
	for n := range 20000 {
		kept += len(p.Names(netip.AddrFrom4([4]byte{9, 9, byte(n >> 8), byte(n)}), now))
	}
	if kept > 4096 || kept < 3000 || len(p.Names(last, now)) != 1 {
		t.Errorf("of many addresses %d are kept", kept)
	}
}

func FuzzDNS(f *testing.F) {
	ask := query(f, "www.good.org.", dnsmessage.TypeA, withSize(1232))
	f.Add(ask, answer(f, dnsmessage.TypeA, cname("www.good.org.", "cdn.net."), a("cdn.net.", 203, 0, 113, 1)))
	f.Add(query(f, "www.good.org.", dnsmessage.TypeHTTPS),
		answer(f, dnsmessage.TypeA, a("www.good.org.", 127, 0, 0, 1)))
	p := compile(f, "allow", []string{"*.good.org"}, nil)
	f.Fuzz(func(t *testing.T, ask, answer []byte) {
		q, reply, ok := gateway.ParseQuery(ask)
		var m dnsmessage.Message
		if !ok {
			if reply != nil && m.Unpack(reply) != nil {
				t.Errorf("an unreadable reply % x", reply)
			}
			return
		}
		if _, err := q.Message(1); err != nil {
			t.Errorf("%q cannot be asked: %v", q.Name, err)
		}
		gateway.TTL(answer)
		r := q.Reply(p, nobody, answer, time.Second)
		if err := m.Unpack(r.Message); err != nil {
			t.Errorf("an unreadable reply: %v", err)
		}
		for _, rec := range m.Answers {
			if b, ok := rec.Body.(*dnsmessage.AResource); ok &&
				(netip.AddrFrom4(b.A).IsPrivate() || netip.AddrFrom4(b.A).IsLoopback()) {
				t.Errorf("%v was told", b.A)
			}
		}
	})
}
