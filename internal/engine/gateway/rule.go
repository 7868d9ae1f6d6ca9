package gateway

import (
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/idna"

	"github.com/RelevanceAI/harvest/client/errors"
)

// rules are parsed rules. Names are separate from addresses.
type rules struct {
	exact    map[string][]uint16 // ports by name; 0 for all ports
	below    map[string][]uint16 // the same, by the domain after "*."
	prefixes []prefixRule
}

type prefixRule struct {
	prefix netip.Prefix
	port   uint16 // 0 for all ports
}

func (r prefixRule) matches(addr netip.Addr, port uint16) bool {
	return r.prefix.Contains(addr) && portMatches(r.port, port)
}

// portMatches reports whether a rule for want covers port. Port 0 means that the port is unknown, such as in a
// lookup.
func portMatches(want, port uint16) bool { return want == 0 || port == 0 || want == port }

func (r rules) address(addr netip.Addr, port uint16) bool {
	for _, p := range r.prefixes {
		// If the port is unknown, only a rule without a port covers an address.
		if p.matches(addr, port) && (port != 0 || p.port == 0) {
			return true
		}
	}
	return false
}

func (r rules) names() int { return len(r.exact) + len(r.below) }

func (r rules) name(name string, port uint16) bool {
	return r.match(name, func(p uint16) bool { return portMatches(p, port) })
}

// nameOnAllPorts reports whether a rule without a port covers name.
func (r rules) nameOnAllPorts(name string) bool {
	return r.match(name, func(p uint16) bool { return p == 0 })
}

func (r rules) exactName(name string, port uint16) bool {
	return anyPort(r.exact[name], func(p uint16) bool { return portMatches(p, port) })
}

func (r rules) match(name string, port func(uint16) bool) bool {
	if anyPort(r.exact[name], port) {
		return true
	}
	for rest := name; ; {
		_, parent, more := strings.Cut(rest, ".")
		if !more {
			return false
		}
		if anyPort(r.below[parent], port) {
			return true
		}
		rest = parent
	}
}

func anyPort(ports []uint16, match func(uint16) bool) bool {
	for _, p := range ports {
		if match(p) {
			return true
		}
	}
	return false
}

func parseRules(texts []string) (rules, error) {
	r := rules{exact: map[string][]uint16{}, below: map[string][]uint16{}}
	for _, text := range texts {
		if err := r.add(text); err != nil {
			return rules{}, err
		}
	}
	return r, nil
}

const ruleRemedy = "write a domain (example.org), all below one (*.example.org), an address (192.0.2.1, 2001:db8::1) " +
	"or a CIDR (10.0.0.0/8), each with an optional :port"

func badRule(text, format string, args ...any) error {
	why := append([]any{text}, args...)
	return errors.Remedy(errors.Newf(errors.Invalid, "the network rule %.120q "+format, why...), ruleRemedy)
}

func (r *rules) add(text string) error {
	if strings.ContainsAny(text, " \t\r\n@?#\\") || strings.Contains(text, "://") {
		return badRule(text, "is neither a domain, an address nor a CIDR")
	}
	host, port, err := splitPort(text)
	if err != nil {
		return err
	}
	if host == "" {
		return badRule(text, "names nothing")
	}
	if strings.Contains(host, "/") {
		prefix, err := parsePrefix(text, host)
		if err != nil {
			return err
		}
		r.prefixes = append(r.prefixes, prefixRule{prefix, port})
		return nil
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		if addr.Zone() != "" {
			return badRule(text, "has a zone, which means nothing outside the sandbox")
		}
		addr = addr.Unmap()
		if addr.IsUnspecified() {
			return badRule(text, "is no address that can be reached; 0.0.0.0/0 and ::/0 are everything")
		}
		r.prefixes = append(r.prefixes, prefixRule{netip.PrefixFrom(addr, addr.BitLen()), port})
		return nil
	}
	domain, wildcard := strings.CutPrefix(host, "*.")
	if strings.Contains(domain, "*") {
		return badRule(text, "has a * elsewhere than as its first label")
	}
	name, ok := CanonicalName(domain)
	if !ok {
		return badRule(text, "is neither a domain, an address nor a CIDR")
	}
	if wildcard {
		r.below[name] = append(r.below[name], port)
	} else {
		r.exact[name] = append(r.exact[name], port)
	}
	return nil
}

func parsePrefix(text, host string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(host)
	if err != nil {
		return prefix, badRule(text, "is no CIDR")
	}
	if prefix.Addr().Is4In6() {
		if prefix.Bits() < 96 {
			return prefix, badRule(text, "is a part of the IPv4-mapped addresses; write it as IPv4")
		}
		prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
	}
	if prefix != prefix.Masked() {
		return prefix, badRule(text, "has bits beyond its length; the network is %s", prefix.Masked())
	}
	return prefix, nil
}

// splitPort splits a rule into host and port. An IPv6 address or CIDR needs brackets to have a port.
func splitPort(text string) (host string, port uint16, err error) {
	host = text
	digits, has := "", false
	switch {
	case strings.HasPrefix(text, "["):
		inside, after, closed := strings.Cut(text[1:], "]")
		if !closed || after != "" && !strings.HasPrefix(after, ":") {
			return "", 0, badRule(text, "has brackets that do not match")
		}
		if addr, _, _ := strings.Cut(inside, "/"); !strings.Contains(addr, ":") {
			return "", 0, badRule(text, "has brackets around a text that is not an IPv6 address")
		}
		host = inside
		digits, has = strings.CutPrefix(after, ":")
	case strings.Count(text, ":") == 1:
		host, digits, has = strings.Cut(text, ":")
	}
	if !has {
		return host, 0, nil
	}
	n, perr := strconv.ParseUint(digits, 10, 16)
	if perr != nil || n == 0 {
		return "", 0, badRule(text, "has no port from 1 to 65535 after its colon")
	}
	return host, uint16(n), nil
}

// CanonicalName returns a domain in the form in which rules and connections are compared: lower case, without
// the trailing dot, and with non-ASCII labels as punycode. It returns false if name is not a domain, such as a
// decimal, octal or shortened form of an IPv4 address.
func CanonicalName(name string) (string, bool) {
	name = strings.TrimSuffix(name, ".")
	for i := 0; i < len(name); i++ {
		if name[i] >= 0x80 {
			ascii, err := idna.New(idna.MapForLookup(), idna.Transitional(false),
				idna.StrictDomainName(false)).ToASCII(name)
			if err != nil {
				return "", false
			}
			name = strings.TrimSuffix(ascii, ".")
			break
		}
	}
	name = strings.ToLower(name)
	if name == "" || len(name) > 253 {
		return "", false
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		if !validLabel(label) {
			return "", false
		}
		last = label
	}
	return name, !numeric(last)
}

func validLabel(label string) bool {
	if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
		return false
	}
	for _, c := range []byte(label) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// numeric reports whether a last label makes its name a number, since programs accept "2130706433", "127.1" or
// "0x7f.1" as an address (https://url.spec.whatwg.org/#ends-in-a-number-checker).
func numeric(label string) bool {
	digits, hex := strings.CutPrefix(label, "0x")
	for _, c := range []byte(digits) {
		if (c < '0' || c > '9') && (!hex || c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
