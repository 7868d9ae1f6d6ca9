// Package netguard makes the connections that the server makes on behalf of an account: to registries, to S3,
// to GitHub and to models.
//
// The account chooses the target of such a connection: in the name of an image, in the endpoint or region of a
// secret, or by a redirect from its own server. Without a check, a member of a shared server could use the
// server to reach the network of its host. Rules therefore check the address of each connection after the name
// was resolved and in the same step, so that a second resolution cannot return another address. Refused
// addresses are all refused in the same way, whether a server listens there or not.
//
// A proxy of the environment (HTTP_PROXY, HTTPS_PROXY) resolves names itself. The connection then leads to the
// proxy, which the operator has chosen, and Rules check the request before it is sent. They check an address as
// it is, refuse numbers that are not written as an address, and resolve a name locally. If the name has a
// refused address here, the request is refused. If it cannot be resolved here, the proxy decides.
package netguard

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/iprange"
)

// Rules determine the addresses, beside those of the internet, to which the server may connect. The zero value
// allows the internet only. Rules are plain values, so that they can be passed to another process.
type Rules struct {
	// Any allows everything. It is for addresses that the operator has configured.
	Any bool `json:",omitempty"`
	// Loopback allows this machine's loopback.
	Loopback bool `json:",omitempty"`
	// Allow opens ranges, as returned by ParseAllow.
	Allow []netip.Prefix `json:",omitempty"`
	// Hosts are servers that the operator has configured, "host" or "host:port". They are not checked.
	Hosts []string `json:",omitempty"`
}

// ParseAllow parses exceptions. It returns Invalid for an exception outside all special ranges, because it
// would open nothing.
func ParseAllow(cidrs []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, text := range cidrs {
		prefix, err := netip.ParsePrefix(text)
		if addr, aerr := netip.ParseAddr(text); aerr == nil {
			prefix, err = netip.PrefixFrom(addr.WithZone(""), addr.BitLen()), nil
		}
		if err != nil {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "%.80q is not a CIDR", text),
				"write it as 10.1.0.0/16")
		}
		prefix = prefix.Masked()
		switch {
		case iprange.Within(prefix, iprange.Special), iprange.Within(prefix, iprange.Loopback), prefix.IsSingleIP() &&
			iprange.Of(prefix.Addr()) == iprange.Metadata:
		default:
			return nil, errors.Remedy(errors.Newf(errors.Invalid,
				"%s is not within a private or otherwise special range", text),
				"name a part of one, such as 10.1.0.0/16; addresses of the internet need no exception")
		}
		all = append(all, prefix)
	}
	return all, nil
}

// Allows reports whether the server may connect to addr, and the reason if not.
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

// refused is the error of a connection that Rules do not allow. It does not contain the resolved address,
// because the names of the host's own network are not public.
func refused(host, reason string) error {
	err := errors.Newf(errors.Denied, "the server does not connect to %.200q for this account: %s", host, reason)
	return errors.Remedy(err, "use a server on the internet, or have the operator add its network to connect.allow")
}

// Deny returns the error of a connection that a caller refuses for its own reasons. Refusal recognizes it.
func Deny(format string, args ...any) error {
	return &refusal{errors.Remedy(errors.Newf(errors.Denied, format, args...), "use another server")}
}

// Refusal returns the refusal in err, nil if err has another cause.
func Refusal(err error) error {
	var r *refusal
	if !errors.As(err, &r) {
		return nil
	}
	return r.err
}

// refusal marks errors of this package. It is neither a timeout nor temporary, so that clients do not retry.
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
	// Control runs after the name was resolved, with the exact address of the connection.
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

// canonical returns a host name in the form that lists use.
func canonical(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

// lookTime is the time limit for the local lookup of a name that a proxy will resolve.
const lookTime = 2 * time.Second

// CheckHost refuses hosts that must not be requested from a proxy. host has no port. The package comment
// describes the limits of this check.
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

// numeric reports whether some programs take a name with this last label for an IPv4 address: 127.1,
// 0x7f000001.
func numeric(last string) bool {
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}
