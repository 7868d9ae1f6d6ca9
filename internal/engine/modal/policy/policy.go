// Package policy translates networks of sandboxes to those that Modal has.
package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
)

// Policy is a network policy in Modal's terms: unrestricted, or limited to the lists. Empty lists allow
// nothing.
type Policy struct {
	Open           bool
	CIDRs, Domains []string // sorted
}

// Of translates a network. Invalid for a malformed one, Unsupported for one that Modal cannot express.
func Of(n engine.Network) (Policy, error) {
	if n.Mode == "" {
		n.Mode = engine.NetworkNone
	}
	if _, err := gateway.Compile(string(n.Mode), n.Allow, n.Deny); err != nil {
		return Policy{}, err
	}
	p := Policy{Open: n.Mode == engine.NetworkDefault, CIDRs: []string{}, Domains: []string{}}
	switch {
	case len(n.Intercept) > 0:
		return Policy{}, errors.Remedy(errors.Newf(errors.Unsupported,
			"connections of sandboxes at Modal cannot be intercepted, so credentials cannot be kept outside of them"),
			"use another engine, or let the sandbox have the values of the secret")
	case len(n.Deny) > 0:
		return Policy{}, errors.Remedy(errors.Newf(errors.Unsupported,
			"Modal's networks cannot deny %.120q: they have no rules that deny", n.Deny[0]),
			"use the network mode allow, and list the permitted hosts")
	case p.Open && len(n.Allow) > 0:
		return Policy{}, errors.Remedy(errors.Newf(errors.Unsupported,
			"Modal's networks cannot allow %.120q beside the internet", n.Allow[0]),
			"leave the rules out, or use the network mode allow to reach nothing else")
	}
	for _, rule := range n.Allow {
		if err := p.add(rule); err != nil {
			return Policy{}, err
		}
	}
	slices.Sort(p.CIDRs)
	slices.Sort(p.Domains)
	p.CIDRs, p.Domains = slices.Compact(p.CIDRs), slices.Compact(p.Domains)
	return p, nil
}

// add adds a rule in the syntax of package gateway.
func (p *Policy) add(rule string) error {
	host, port := rule, strings.Count(rule, ":") == 1
	if inside, ok := strings.CutPrefix(rule, "["); ok {
		var after string
		host, after, _ = strings.Cut(inside, "]")
		port = after != ""
	}
	if port {
		return errors.Remedy(errors.Newf(errors.Unsupported,
			"the network rule %.120q names a port, which Modal's networks do not support", rule),
			"leave the port out: at Modal an address is reached at every port, and a domain by TLS at port 443 alone")
	}
	if prefix, err := netip.ParsePrefix(host); err == nil {
		if prefix.Addr().Is4In6() {
			prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
		}
		p.CIDRs = append(p.CIDRs, prefix.String())
		return nil
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		addr = addr.Unmap()
		p.CIDRs = append(p.CIDRs, netip.PrefixFrom(addr, addr.BitLen()).String())
		return nil
	}
	domain, below := strings.CutPrefix(host, "*.")
	name, ok := gateway.CanonicalName(domain)
	if !ok {
		return errors.Newf(errors.Invalid, "the network rule %.120q names no domain", rule)
	}
	if below {
		name = "*." + name
	}
	p.Domains = append(p.Domains, name)
	return nil
}

// None reports whether the policy allows nothing.
func (p Policy) None() bool { return !p.Open && len(p.CIDRs) == 0 && len(p.Domains) == 0 }

// String returns a name for the policy. Equal policies have the same name.
func (p Policy) String() string {
	switch {
	case p.Open:
		return string(engine.NetworkDefault)
	case p.None():
		return string(engine.NetworkNone)
	}
	sum := sha256.Sum256([]byte(strings.Join(p.CIDRs, " ") + "\n" + strings.Join(p.Domains, " ")))
	return string(engine.NetworkAllow) + "-" + hex.EncodeToString(sum[:8])
}
