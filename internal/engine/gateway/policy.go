// Package gateway decides which destinations a sandbox reaches, from the policy of its network, the names in
// its connections, and the DNS messages that it may see. It is pure: it opens no connections and reads no
// clock. Package netstack enforces its decisions.
//
// A rule is a domain ("example.org"), all domains below one ("*.example.org", at any depth, without example.org
// itself), an address or a CIDR, each with an optional port ("example.org:443", "[2001:db8::1]:443"). Deny
// rules win over allow rules.
//
// # Domains
//
// Connections go to addresses, so domain rules are enforced in two steps. First, the gateway itself answers the
// sandbox's DNS queries, and records the addresses of allowed names (Pins). The rule opens only these
// addresses. Because they are the very addresses that were checked, a second lookup cannot change the
// destination. Second, the gateway reads the names in the connection: the server name in a TLS or QUIC
// ClientHello, the Host of each HTTP request, and the target of CONNECT. It refuses a connection to an allowed
// name that names a server which is not allowed. So an allowed address cannot be used to reach other servers at
// that address. If a domain rule decides, the gateway is conservative:
//
//   - It refuses TLS without a server name, and HTTP/1 without a Host: nothing identifies the server.
//   - It refuses Encrypted ClientHello, including the empty imitation that some browsers send, because the two
//     cannot be distinguished. The gateway removes ECH keys from DNS answers, so clients that rely on DNS do not
//     use ECH.
//   - It refuses HTTP/2 without TLS, because its header compression spans requests.
//   - UDP to port 443 must be QUIC. The gateway refuses a flow that does not begin with a readable QUIC
//     ClientHello, and clients fall back to TCP. On other ports, UDP need not be QUIC.
//   - Other protocols (ssh, databases) are allowed by the pinned address alone.
//
// The gateway cannot see inside TLS: a server can serve the content of another name under an allowed server
// name.
//
// # Addresses
//
// The modes default and allow never open the addresses of special ranges (loopback, private, link-local,
// shared, unique local, benchmarks, multicast, reserved), metadata services, this machine or its router. This
// includes IPv6 addresses that embed such an IPv4 address, and holds for every name that resolves to one. An
// allowed CIDR opens a special range only if it lies within that range: 10.1.0.0/16 opens its own addresses,
// 0.0.0.0/0 opens no private address. Only a rule for the exact address opens loopback, metadata services, this
// machine and its router.
package gateway

import (
	"net/netip"
	"slices"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/iprange"
)

// The network modes, as in package engine.
const (
	ModeNone    = "none"    // nothing
	ModeDefault = "default" // the internet
	ModeAllow   = "allow"   // only destinations with an allow rule
)

// maxRules limits the work for each connection.
const maxRules = 1000

// Policy is the network policy of one sandbox. It is immutable. A nil Policy allows nothing.
type Policy struct {
	mode        string
	allow, deny rules
	intercept   rules
}

// Compile validates and prepares a policy. Its errors are Invalid, and name the wrong rule.
func Compile(mode string, allow, deny []string) (*Policy, error) {
	p := &Policy{mode: mode}
	var err error
	switch {
	case mode != ModeNone && mode != ModeDefault && mode != ModeAllow:
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "there is no network mode %.80q", mode),
			"use none, default or allow")
	case mode == ModeNone && len(allow) > 0:
		return nil, errors.Remedy(errors.Newf(errors.Invalid,
			"the network mode none reaches nothing, so %.80q cannot be allowed", allow[0]),
			"use the mode allow, or leave the rules out")
	case mode == ModeAllow && len(allow) == 0:
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "the network mode allow needs at least one rule"),
			"name a domain, an address or a CIDR, or use the mode none")
	case len(allow)+len(deny) > maxRules:
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "there are %d network rules; %d is the most",
			len(allow)+len(deny), maxRules), "use wildcards and larger CIDRs")
	}
	if p.allow, err = parseRules(allow); err != nil {
		return nil, err
	}
	if p.deny, err = parseRules(deny); err != nil {
		return nil, err
	}
	return p, nil
}

// Intercepting returns the policy with servers whose connections are intercepted: their names, with a port each. It
// does not allow them. Its errors are Invalid, and name the wrong server.
func (p *Policy) Intercepting(servers []string) (*Policy, error) {
	copied := *p
	var err error
	if copied.intercept, err = parseRules(servers); err != nil {
		return nil, err
	}
	return &copied, nil
}

// Check determines which names a connection must contain before its data is forwarded.
type Check int

// The checks, from the weakest to the strictest.
const (
	CheckNothing   Check = iota // the address alone decides
	CheckIntercept              // the connection is intercepted if it contains a certain name
	CheckDenied                 // besides, the connection must not contain a denied name
	CheckAllowed                // besides, the connection must contain an allowed name, if its protocol has names
)

// Verdict is a decision.
type Verdict struct {
	Allowed bool
	Check   Check  // with Allowed
	Reason  string // without Allowed: one sentence for users
	// Intercept is set with Allowed if the connection, because of its name, is intercepted.
	Intercept bool
}

func deny(reason string) Verdict { return Verdict{Reason: reason} }

// Target is the destination of a connection.
type Target struct {
	Addr  netip.Addr
	Port  uint16   // 0 for protocols without ports
	Names []string // names by which the sandbox looked Addr up, from Pins
	Host  bool     // Addr is this machine's or its router's
}

// Connect decides on a connection by its address and the names of that address.
func (p *Policy) Connect(t Target) Verdict {
	if p == nil || p.mode == ModeNone {
		return deny("the sandbox has no network")
	}
	addr := t.Addr.Unmap().WithZone("")
	forms := append(iprange.Embedded(addr), addr)
	for _, a := range forms {
		if p.deny.address(a, t.Port) {
			return deny("the address is denied by a rule")
		}
	}
	if len(t.Names) > 0 && !slices.ContainsFunc(t.Names, func(n string) bool { return !p.deny.name(n, t.Port) }) {
		return deny("the name is denied by a rule")
	}
	check := CheckNothing
	if p.intercept.names()+len(p.intercept.prefixes) > 0 {
		check = CheckIntercept
	}
	if p.deny.names() > 0 {
		check = CheckDenied
	}
	if p.opened(addr, t.Port, t.Host) {
		return Verdict{Allowed: true, Check: check}
	}
	if t.Host {
		return deny("the address is this machine's or its router's")
	}
	for _, a := range forms {
		if k := iprange.Of(a); k != iprange.Ordinary {
			return deny(k.Reason())
		}
	}
	switch {
	case p.mode == ModeDefault:
		return Verdict{Allowed: true, Check: check}
	case slices.ContainsFunc(t.Names, func(n string) bool { return p.allowedName(n, t.Port) }):
		return Verdict{Allowed: true, Check: CheckAllowed}
	}
	return deny("no rule allows it")
}

// opened reports whether an allow rule opens the address without a name.
func (p *Policy) opened(addr netip.Addr, port uint16, host bool) bool {
	kind := iprange.Strictest(addr)
	return slices.ContainsFunc(p.allow.prefixes, func(r prefixRule) bool {
		if !r.matches(addr, port) {
			return false
		}
		switch {
		case kind == iprange.Never:
			return false
		case host || kind >= iprange.Loopback:
			return r.prefix.IsSingleIP()
		case kind == iprange.Special:
			return iprange.Within(r.prefix, iprange.Special)
		}
		return true
	})
}

func (p *Policy) allowedName(name string, port uint16) bool {
	return p.allow.name(name, port) && !p.deny.name(name, port) && !p.metadata(name, port)
}

// metadata reports whether name belongs to a metadata service and is not named exactly by a rule.
func (p *Policy) metadata(name string, port uint16) bool {
	return iprange.MetadataName(name) && !p.allow.exactName(name, port)
}

// LookUp decides whether a name may be looked up at all. If so, Connect still decides on each address.
func (p *Policy) LookUp(name string) Verdict {
	switch {
	case p == nil || p.mode == ModeNone:
		return deny("the sandbox has no network")
	case p.deny.nameOnAllPorts(name):
		return deny("the name is denied by a rule")
	case p.metadata(name, 0):
		return deny("the name is a metadata service's")
	case p.mode == ModeDefault || p.allow.name(name, 0):
		return Verdict{Allowed: true}
	}
	return deny("no rule allows the name")
}

// Name decides on a name in a connection, such as a TLS server name, under the check that Connect returned. The
// name may be an address.
func (p *Policy) Name(check Check, name string, port uint16) Verdict {
	if check <= CheckIntercept {
		return Verdict{Allowed: true}
	}
	if addr, err := netip.ParseAddr(name); err == nil {
		if check == CheckAllowed && !p.opened(addr.Unmap().WithZone(""), port, false) ||
			p.deny.address(addr.Unmap().WithZone(""), port) {
			return deny("the connection names the address " + addr.String() + ", which no rule allows")
		}
		return Verdict{Allowed: true}
	}
	canonical, ok := CanonicalName(name)
	switch {
	case !ok:
		return deny("the connection names a server in a form that cannot be checked")
	case p == nil || p.deny.name(canonical, port):
		return deny("the connection names " + canonical + ", which is denied by a rule")
	case p.metadata(canonical, port):
		return deny("the connection names " + canonical + ", which is a metadata service's")
	case check == CheckAllowed && !p.allow.name(canonical, port):
		return deny("the connection names " + canonical + ", which no rule allows")
	}
	return Verdict{Allowed: true}
}

// Intercepts reports whether connections that name a server are intercepted. The name may be an address.
func (p *Policy) Intercepts(name string, port uint16) bool {
	if p == nil {
		return false
	}
	if addr, err := netip.ParseAddr(name); err == nil {
		return p.intercept.address(addr.Unmap().WithZone(""), port)
	}
	canonical, ok := CanonicalName(name)
	return ok && p.intercept.name(canonical, port)
}

// Names reports whether a rule allows exactly this name.
func (p *Policy) Names(name string) bool { return p != nil && p.allow.exactName(name, 0) }
