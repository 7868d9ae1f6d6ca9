// Package netguard makes the connections that the server makes on behalf of an account: to registries, to S3, to GitHub and to models.
//
// An account chooses where such a connection leads: in the name of an image, the endpoint or region of a secret, or through a redirect
// that its own server answers with. Without a check, a member of a shared server could use the server to reach the network of its host.
// Rules therefore check the address that a connection is about to be made to, after the name was resolved and in the same step, so that
// a second resolution cannot give another address. Refused addresses are refused alike, whether something listens there or not.
//
// A proxy of the environment (HTTP_PROXY, HTTPS_PROXY) resolves names itself. Then the connection leads to the proxy, which the operator
// has chosen, and Rules check what they can before the request is sent: an address is checked as it is, numbers that are not written as an
// address are refused, and a name is resolved here. If it has a refused address here, the request is refused. If it cannot be resolved
// here, the proxy decides.
package netguard

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/iprange"
)

// Rules say which addresses beside those of the internet the server may connect to. The zero value allows the internet only. They are
// plain values, so that they can be passed to another process.
type Rules struct {
	// Any allows everything. It is for addresses that the operator has configured.
	Any bool `json:",omitempty"`
	// Loopback allows this machine's loopback.
	Loopback bool `json:",omitempty"`
	// Allow opens ranges, as ParseAllow checks them.
	Allow []netip.Prefix `json:",omitempty"`
	// Hosts are servers that the operator has configured, "host" or "host:port", which are not checked.
	Hosts []string `json:",omitempty"`
}

// ParseAllow reads exceptions. Invalid for one that no range of special addresses contains, because it would open nothing.
func ParseAllow(cidrs []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, text := range cidrs {
		prefix, err := netip.ParsePrefix(text)
		if addr, aerr := netip.ParseAddr(text); aerr == nil {
			prefix, err = netip.PrefixFrom(addr.WithZone(""), addr.BitLen()), nil
		}
		if err != nil {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "%.80q is not a CIDR", text), "write it as 10.1.0.0/16")
		}
		prefix = prefix.Masked()
		switch {
		case iprange.Within(prefix, iprange.Special), iprange.Within(prefix, iprange.Loopback), prefix.IsSingleIP() && iprange.Of(prefix.Addr()) == iprange.Metadata:
		default:
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "%s is not within a private or otherwise special range", text),
				"name a part of one, such as 10.1.0.0/16; addresses of the internet need no exception")
		}
		all = append(all, prefix)
	}
	return all, nil
}

// Allows reports whether the server may connect to addr, and why not.
func (r Rules) Allows(addr netip.Addr) (ok bool, reason string) {
	addr = addr.Unmap().WithZone("")
	kind := iprange.Strictest(addr)
	contains := func(p netip.Prefix) bool { return p.Contains(addr) }
	switch {
	case r.Any, kind == iprange.Ordinary:
		return true, ""
	case kind == iprange.Loopback && r.Loopback && iprange.Of(addr) == iprange.Loopback:
		return true, ""
	case kind == iprange.Metadata:
		ok = slices.ContainsFunc(r.Allow, func(p netip.Prefix) bool { return p.IsSingleIP() && contains(p) })
	case kind != iprange.Never:
		ok = slices.ContainsFunc(r.Allow, contains)
	}
	return ok, kind.Reason()
}

// refused is the error of a connection that Rules do not allow. It does not say which address the name has: names of the host's own
// network are not for everybody.
func refused(host, reason string) error {
	err := errors.Newf(errors.Denied, "the server does not connect to %.200q for this account: %s", host, reason)
	return errors.Remedy(err, "use a server on the internet, or have the operator add its network to connect.allow")
}

// Deny returns the error of a connection that a caller has reasons of its own to refuse. Refusal tells it.
func Deny(format string, args ...any) error {
	return &refusal{errors.Remedy(errors.Newf(errors.Denied, format, args...), "use another server")}
}

// Refusal returns the error of a connection that was not allowed from err, nil if err has another cause.
func Refusal(err error) error {
	var r *refusal
	if !errors.As(err, &r) {
		return nil
	}
	return r.err
}

// refusal marks errors of this package. It is no timeout and not temporary, so that nobody tries again.
type refusal struct{ err error }

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// connectTime is how long a connection may take.
const connectTime = 15 * time.Second

// DialContext connects to "host:port" over TCP if the rules allow the address.
func (r Rules) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, errors.Wrapf(err, "read an address")
	}
	dialer := net.Dialer{Timeout: connectTime, KeepAlive: 30 * time.Second}
	if r.Any || r.configured(address) {
		return dialer.DialContext(ctx, network, address)
	}
	if iprange.MetadataName(canonical(host)) {
		return nil, &refusal{refused(host, iprange.Metadata.Reason())}
	}
	// Control runs after the name was resolved, with the very address that is connected to.
	dialer.ControlContext = func(_ context.Context, network, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil || network != "tcp4" && network != "tcp6" {
			return &refusal{refused(host, "it is not an address of the internet")}
		}
		if ok, reason := r.Allows(at.Addr()); !ok {
			return &refusal{refused(host, reason)}
		}
		return nil
	}
	return dialer.DialContext(ctx, network, address)
}

// configured reports whether the operator has configured the server at address.
func (r Rules) configured(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return slices.ContainsFunc(r.Hosts, func(h string) bool {
		return strings.EqualFold(h, address) || err == nil && strings.EqualFold(h, host)
	})
}

// canonical returns a name as lists have it.
func canonical(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

// lookTime is how long a name is looked up that a proxy will resolve.
const lookTime = 2 * time.Second

// CheckHost refuses what a proxy must not be asked for. host has no port; see the package comment for what can be known.
func (r Rules) CheckHost(ctx context.Context, host string) error {
	if r.Any {
		return nil
	}
	name := canonical(strings.Trim(host, "[]"))
	if addr, err := netip.ParseAddr(name); err == nil {
		if ok, reason := r.Allows(addr); !ok {
			return &refusal{refused(host, reason)}
		}
		return nil
	}
	switch last := name[strings.LastIndex(name, ".")+1:]; {
	case iprange.MetadataName(name):
		return &refusal{refused(host, iprange.Metadata.Reason())}
	case name == "localhost" || last == "localhost":
		if ok, reason := r.Allows(netip.AddrFrom4([4]byte{127, 0, 0, 1})); !ok {
			return &refusal{refused(host, reason)}
		}
		return nil
	case numeric(last):
		return &refusal{refused(host, "it is a number, but not written as an address")}
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return nil
	}
	for _, addr := range addrs {
		if ok, reason := r.Allows(addr); !ok {
			return &refusal{refused(host, reason)}
		}
	}
	return nil
}

// numeric reports whether a name with this last label is taken for an IPv4 address by some programs: 127.1, 0x7f000001.
func numeric(last string) bool {
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}
