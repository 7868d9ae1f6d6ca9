// Package gateway decides what a sandbox reaches: the policy of its network, the names that its connections tell, and the DNS messages
// that it may see. It is pure: it opens no connection and reads no clock of its own; package netstack carries out what it decides.
//
// A rule is a domain ("example.org"), all domains below one ("*.example.org", at any depth, not example.org itself), an address or a
// CIDR, each with an optional port ("example.org:443", "[2001:db8::1]:443"). What is denied wins over what is allowed.
//
// # Domains
//
// Connections go to addresses, so a domain rule holds through two observations. First, the gateway answers the sandbox's DNS itself and
// remembers which addresses an allowed name had (Pins): only these are reachable by the rule, at the very address that was checked, so
// a second look-up cannot lead elsewhere. Second, what a connection says about itself is read: the server name of a TLS or QUIC ClientHello, the
// Host of each HTTP request, the target of CONNECT. A connection by an allowed name that names a server which is not allowed is refused, so
// an allowed address cannot be used to reach what else is served there. Conservatively, where a domain rule decides:
//
//   - TLS without a server name, and HTTP/1 without a Host, are refused: nothing says whom they mean.
//   - Encrypted ClientHello is refused, also the empty imitation of it that some browsers send, since the two cannot be told apart. The gateway
//     takes ECH keys out of DNS answers, so what follows DNS does not use it.
//   - HTTP/2 without TLS is refused: its requests are compressed across one another.
//   - UDP is by QUIC only where the port is 443; a flow there that does not begin with a readable QUIC ClientHello is refused, and clients fall back to TCP.
//   - Anything else (ssh, databases) goes by the pinned address alone.
//
// What is said inside TLS cannot be seen: a server that serves another name's content under an allowed server name can do so.
//
// # Addresses
//
// The modes default and allow never lead to the addresses of special ranges (loopback, private, link-local, shared, unique local,
// benchmarks, multicast, reserved), to metadata services, nor to this machine or its router, also not in the forms of IPv6 that embed such
// an IPv4 address, and whatever name has them. An allowed CIDR opens a special range if it lies within it: 10.1.0.0/16 opens what it names, 0.0.0.0/0 opens no private address.
// Loopback, metadata services, this machine and its router are opened only by a rule that names the very address.
package gateway

import (
	"net/netip"
	"slices"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/iprange"
)

// The modes, as in package engine.
const (
	ModeNone    = "none"    // nothing
	ModeDefault = "default" // the internet
	ModeAllow   = "allow"   // what is allowed by a rule
)

// maxRules bounds the work that each connection costs.
const maxRules = 1000

// Policy is what one sandbox may reach. It does not change; a nil Policy allows nothing.
type Policy struct {
	mode        string
	allow, deny rules
}

// Compile checks a policy and prepares it. Its errors are Invalid, and name the rule that is wrong.
func Compile(mode string, allow, deny []string) (*Policy, error) {
	p := &Policy{mode: mode}
	var err error
	switch {
	case mode != ModeNone && mode != ModeDefault && mode != ModeAllow:
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "there is no network mode %.80q", mode), "use none, default or allow")
	case mode == ModeNone && len(allow) > 0:
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "the network mode none reaches nothing, so %.80q cannot be allowed", allow[0]), "use the mode allow, or leave the rules out")
	case mode == ModeAllow && len(allow) == 0:
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "the network mode allow needs at least one rule"), "name a domain, an address or a CIDR, or use the mode none")
	case len(allow)+len(deny) > maxRules:
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "there are %d network rules; %d is the most", len(allow)+len(deny), maxRules), "use wildcards and larger CIDRs")
	}
	if p.allow, err = parseRules(allow); err != nil {
		return nil, err
	}
	if p.deny, err = parseRules(deny); err != nil {
		return nil, err
	}
	return p, nil
}

// Check is what must be seen of a connection's names before its bytes go on.
type Check int

// The checks, from the least to the most.
const (
	CheckNothing Check = iota // the address alone decides
	CheckDenied               // a name that the connection tells must not be denied
	CheckAllowed              // the connection must tell an allowed name, if its protocol tells names at all
)

// Verdict is a decision.
type Verdict struct {
	Allowed bool
	Check   Check  // with Allowed
	Reason  string // without Allowed: one sentence for users
}

func deny(reason string) Verdict { return Verdict{Reason: reason} }

// Target is where a connection leads.
type Target struct {
	Addr  netip.Addr
	Port  uint16   // 0 for protocols without ports
	Names []string // by which the sandbox looked Addr up, as Pins tells them
	Host  bool     // Addr is this machine's or its router's
}

// Connect decides on a connection by its address and the names by which that was looked up.
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

// opened reports whether an allow rule opens the address by itself.
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

// metadata reports whether name is a metadata service's that no rule names exactly.
func (p *Policy) metadata(name string, port uint16) bool {
	return iprange.MetadataName(name) && !p.allow.exactName(name, port)
}

// LookUp decides whether a name may be looked up at all. Where it may, Connect still decides on each address.
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

// Name decides on a name that a connection tells, such as a TLS server name, under the check that Connect asked for. The name may be
// an address.
func (p *Policy) Name(check Check, name string, port uint16) Verdict {
	if check == CheckNothing {
		return Verdict{Allowed: true}
	}
	if addr, err := netip.ParseAddr(name); err == nil {
		if check == CheckAllowed && !p.opened(addr.Unmap().WithZone(""), port, false) || p.deny.address(addr.Unmap().WithZone(""), port) {
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

// Names reports whether a rule allows just this name.
func (p *Policy) Names(name string) bool { return p != nil && p.allow.exactName(name, 0) }
