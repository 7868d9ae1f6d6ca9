package gateway

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/RelevanceAI/harvest/client/errors"
)

// ednsSize is the maximum size of UDP messages that the gateway requests and accepts. It follows
// https://www.dnsflagday.net/2020/.
const ednsSize = 1232

// maxNegativeTTL limits how long negative answers are cached.
const maxNegativeTTL = 5 * time.Minute

// Query is a DNS query of a sandbox. Only the question itself is forwarded to the host's name servers. Flags,
// options and the rest of the message are not.
type Query struct {
	Name     string // canonical
	Type     dnsmessage.Type
	question dnsmessage.Question // as asked, for the answer
	id       uint16
	edns     bool
	size     int // maximum size of an answer over UDP
}

// ParseQuery parses a query. If it returns false, the caller sends reply instead, unless that is nil: some
// messages get no reply.
func ParseQuery(msg []byte) (q Query, reply []byte, ok bool) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || h.Response {
		return q, nil, false
	}
	q.id, q.size = h.ID, 512
	fail := func(code dnsmessage.RCode) (Query, []byte, bool) {
		m := dnsmessage.Message{Header: q.header(code)}
		if q.question.Name.Length > 0 {
			m.Questions = []dnsmessage.Question{q.question}
		}
		b, err := m.Pack()
		if err != nil {
			return q, nil, false
		}
		return q, b, false
	}
	if h.OpCode != 0 {
		return fail(dnsmessage.RCodeNotImplemented)
	}
	questions, err := p.AllQuestions()
	if err != nil || len(questions) != 1 {
		return fail(dnsmessage.RCodeFormatError)
	}
	q.question = questions[0]
	q.Type = q.question.Type
	const ixfr, axfr = 251, 252
	if q.question.Class != dnsmessage.ClassINET || q.Type == ixfr || q.Type == axfr {
		return fail(dnsmessage.RCodeRefused)
	}
	name, valid := CanonicalName(q.question.Name.String())
	if !valid {
		return fail(dnsmessage.RCodeNameError)
	}
	q.Name = name
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return fail(dnsmessage.RCodeFormatError)
	}
	for {
		rh, err := p.AdditionalHeader()
		if err == dnsmessage.ErrSectionDone {
			return q, nil, true
		}
		if err != nil || p.SkipAdditional() != nil {
			return fail(dnsmessage.RCodeFormatError)
		}
		if rh.Type == dnsmessage.TypeOPT {
			q.edns, q.size = true, min(max(int(rh.Class), 512), 4096)
		}
	}
}

func (q Query) header(code dnsmessage.RCode) dnsmessage.Header {
	return dnsmessage.Header{ID: q.id, Response: true, RecursionDesired: true, RecursionAvailable: true, RCode: code}
}

// Message returns the query to a name server.
func (q Query) Message(id uint16) ([]byte, error) {
	name, err := dnsmessage.NewName(q.Name + ".")
	if err != nil {
		return nil, errors.Wrapf(err, "ask for a name")
	}
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: name, Type: q.Type, Class: dnsmessage.ClassINET}},
	}
	m.Additionals = append(m.Additionals, opt())
	b, err := m.Pack()
	return b, errors.Wrapf(err, "ask for a name")
}

func opt() dnsmessage.Resource {
	var h dnsmessage.ResourceHeader
	_ = h.SetEDNS0(ednsSize, dnsmessage.RCodeSuccess, false) // the root is a valid name
	h.Name.Data[0], h.Name.Length = '.', 1
	return dnsmessage.Resource{Header: h, Body: &dnsmessage.OPTResource{}}
}

// Answers reports whether msg is a name server's answer to this query, with this id.
func (q Query) Answers(msg []byte, id uint16) bool {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || !h.Response || h.ID != id {
		return false
	}
	asked, err := p.Question()
	if err != nil || asked.Type != q.Type || asked.Class != dnsmessage.ClassINET {
		return false
	}
	name, _ := CanonicalName(asked.Name.String())
	return name == q.Name
}

// Truncated reports whether a name server's answer is truncated, so that the query must be repeated over TCP.
func Truncated(msg []byte) bool {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	return err == nil && h.Truncated
}

// TTL returns how long a name server's answer may be cached. It is 0 for failures.
func TTL(msg []byte) time.Duration {
	var m dnsmessage.Message
	if m.Unpack(msg) != nil || m.RCode != dnsmessage.RCodeSuccess && m.RCode != dnsmessage.RCodeNameError {
		return 0
	}
	if len(m.Answers) == 0 || m.RCode == dnsmessage.RCodeNameError {
		for _, r := range m.Authorities {
			if soa, ok := r.Body.(*dnsmessage.SOAResource); ok {
				return min(time.Duration(min(r.Header.TTL, soa.MinTTL))*time.Second, maxNegativeTTL)
			}
		}
		return 0
	}
	least := m.Answers[0].Header.TTL
	for _, r := range m.Answers {
		least = min(least, r.Header.TTL)
	}
	return min(time.Duration(least)*time.Second, maxPinTime)
}

// Reply is the answer to a sandbox.
type Reply struct {
	Message []byte       // for TCP
	UDP     []byte       // the same for UDP; a truncated one if it is too large
	Addrs   []netip.Addr // allowed addresses of the name, for Pins
	TTL     time.Duration
	Refused []netip.Addr // addresses of the name that the policy forbids
}

// Refuse answers that the name does not exist. Programs accept that immediately, but they would retry after
// REFUSED.
func (q Query) Refuse() Reply { return q.Fail(dnsmessage.RCodeNameError) }

// Fail answers with a response code only.
func (q Query) Fail(code dnsmessage.RCode) Reply {
	return q.pack(dnsmessage.Message{Header: q.header(code)}, Reply{})
}

// Address answers with the only address of the name, which is not for Pins. ttl is in seconds.
func (q Query) Address(addr netip.Addr, ttl uint32) Reply {
	m := dnsmessage.Message{Header: q.header(dnsmessage.RCodeSuccess)}
	if q.Type == dnsmessage.TypeA {
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.question.Name, Type: q.Type, Class: dnsmessage.ClassINET,
				TTL: ttl},
			Body: &dnsmessage.AResource{A: addr.As4()},
		}}
	}
	return q.pack(m, Reply{})
}

// Reply converts a name server's answer, which was received age ago, into the answer to the sandbox. It removes
// addresses that the policy forbids, records of unrelated names, additional records, and data that would bypass
// the policy (addresses and ECH keys in HTTPS records).
func (q Query) Reply(p *Policy, host func(netip.Addr) bool, msg []byte, age time.Duration) Reply {
	var m dnsmessage.Message
	if err := m.Unpack(msg); err != nil {
		return q.Fail(dnsmessage.RCodeServerFailure)
	}
	var r Reply
	out := dnsmessage.Message{Header: q.header(m.RCode)}
	names := q.aliases(m.Answers)
	r.TTL = max(TTL(msg)-age, 0)
	for _, rec := range m.Answers {
		if owner, ok := CanonicalName(rec.Header.Name.String()); !ok || rec.Header.Class != dnsmessage.ClassINET ||
			!slices.Contains(names, owner) {
			continue
		}
		if addr := addressOf(rec.Body); addr.IsValid() {
			if v := p.Connect(Target{Addr: addr, Names: []string{q.Name}, Host: host(addr.Unmap())}); !v.Allowed {
				r.Refused = append(r.Refused, addr)
				continue
			}
			r.Addrs = append(r.Addrs, addr)
		}
		if rec, ok := scrubbed(rec, age); ok {
			out.Answers = append(out.Answers, rec)
		}
	}
	for _, rec := range m.Authorities {
		if _, ok := rec.Body.(*dnsmessage.SOAResource); ok {
			rec.Header.TTL = older(rec.Header.TTL, age)
			out.Authorities = append(out.Authorities, rec)
		}
	}
	if len(r.Refused) > 0 && len(r.Addrs) == 0 {
		refusal := q.Refuse()
		refusal.Refused = r.Refused
		return refusal
	}
	return q.pack(out, r)
}

// aliases returns the name of the question and all names that the answers' CNAME records lead to from it.
func (q Query) aliases(answers []dnsmessage.Resource) []string {
	names := []string{q.Name}
	for range 16 { // resolvers refuse long chains, too
		before := len(names)
		for _, rec := range answers {
			c, ok := rec.Body.(*dnsmessage.CNAMEResource)
			if !ok {
				continue
			}
			owner, _ := CanonicalName(rec.Header.Name.String())
			target, valid := CanonicalName(c.CNAME.String())
			if valid && slices.Contains(names, owner) && !slices.Contains(names, target) && len(names) < 32 {
				names = append(names, target)
			}
		}
		if len(names) == before {
			break
		}
	}
	return names
}

func addressOf(body dnsmessage.ResourceBody) netip.Addr {
	switch b := body.(type) {
	case *dnsmessage.AResource:
		return netip.AddrFrom4(b.A)
	case *dnsmessage.AAAAResource:
		return netip.AddrFrom16(b.AAAA)
	}
	return netip.Addr{}
}

// scrubbed returns a record in the form that the sandbox may see, with a TTL reduced by age. It returns false
// if the record makes no sense without the removed parameters.
func scrubbed(rec dnsmessage.Resource, age time.Duration) (dnsmessage.Resource, bool) {
	rec.Header.TTL = older(rec.Header.TTL, age)
	var s *dnsmessage.SVCBResource
	switch b := rec.Body.(type) {
	case *dnsmessage.SVCBResource:
		s = b
	case *dnsmessage.HTTPSResource:
		s = &b.SVCBResource
	default:
		return rec, true
	}
	// RFC 9460: key 0 lists mandatory parameters, 4 and 6 are addresses, 5 is ECH keys.
	if _, mandatory := s.GetParam(0); mandatory {
		return rec, false
	}
	for _, key := range []dnsmessage.SVCParamKey{4, 5, 6} {
		s.DeleteParam(key)
	}
	return rec, true
}

func older(ttl uint32, age time.Duration) uint32 {
	seconds := uint32(min(age, maxPinTime) / time.Second)
	if seconds > ttl {
		return 0
	}
	return ttl - seconds
}

func (q Query) pack(m dnsmessage.Message, r Reply) Reply {
	m.Questions = []dnsmessage.Question{q.question}
	if q.edns {
		m.Additionals = []dnsmessage.Resource{opt()}
	}
	var err error
	if r.Message, err = m.Pack(); err != nil || len(r.Message) > 65535 {
		m.Answers, m.Authorities, m.RCode = nil, nil, dnsmessage.RCodeServerFailure
		r.Message, _ = m.Pack() // a question that was unpacked can be packed
	}
	r.UDP = r.Message
	if len(r.UDP) > q.size {
		m.Answers, m.Authorities, m.Truncated = nil, nil, true
		r.UDP, _ = m.Pack()
	}
	return r
}

// ReverseAddr returns the address in a reverse lookup, such as 1.2.3.4 for "4.3.2.1.in-addr.arpa".
func ReverseAddr(name string) (netip.Addr, bool) {
	if rest, ok := strings.CutSuffix(name, ".in-addr.arpa"); ok {
		labels := strings.Split(rest, ".")
		slices.Reverse(labels)
		if len(labels) != 4 {
			return netip.Addr{}, false
		}
		var b [4]byte
		for i, l := range labels {
			n, err := strconv.ParseUint(l, 10, 8)
			if err != nil {
				return netip.Addr{}, false
			}
			b[i] = byte(n)
		}
		return netip.AddrFrom4(b), true
	}
	if rest, ok := strings.CutSuffix(name, ".ip6.arpa"); ok {
		labels := strings.Split(rest, ".")
		slices.Reverse(labels)
		b, err := hex.DecodeString(strings.Join(labels, ""))
		if err != nil || len(labels) != 32 || len(b) != 16 {
			return netip.Addr{}, false
		}
		return netip.AddrFrom16([16]byte(b)), true
	}
	return netip.Addr{}, false
}
