// Package iprange is the only list of address ranges that do not belong to the internet. The network policy of
// sandboxes and the connections of the server both use it.
package iprange

import (
	"net/netip"
	"slices"
)

// Kind is the condition for reaching an address. The kinds are ordered from the least to the most special.
type Kind int

// The kinds.
const (
	Ordinary Kind = iota // an address of the internet
	Special              // a rule within the special range opens it
	Loopback             // this machine
	Metadata             // a metadata service; only a rule for this very address opens it
	Never                // no rule opens it
)

// Reason describes an address of the kind to users, in one sentence.
func (k Kind) Reason() string {
	switch k {
	case Special:
		return "the address is in a private or otherwise special range"
	case Loopback:
		return "the address is this machine's loopback"
	case Metadata:
		return "the address is a metadata service's"
	}
	return "the address is no host's"
}

type namedRange struct {
	prefix netip.Prefix
	kind   Kind
}

// ranges follow https://www.iana.org/assignments/iana-ipv4-special-registry, iana-ipv6-special-registry, and
// the documentation of the clouds' metadata services. The first match counts. Documentation ranges are missing,
// because some networks use them.
var ranges = []namedRange{
	{netip.MustParsePrefix("169.254.169.254/32"), Metadata}, // EC2, GCE, Azure, OpenStack and others
	{netip.MustParsePrefix("169.254.170.2/32"), Metadata},   // ECS
	{netip.MustParsePrefix("169.254.170.23/32"), Metadata},  // EKS
	{netip.MustParsePrefix("169.254.169.253/32"), Metadata}, // EC2's resolver
	{netip.MustParsePrefix("100.100.100.200/32"), Metadata}, // Alibaba
	{netip.MustParsePrefix("168.63.129.16/32"), Metadata},   // Azure's wire server
	{netip.MustParsePrefix("192.0.0.192/32"), Metadata},     // Oracle
	{netip.MustParsePrefix("fd00:ec2::254/128"), Metadata},  // EC2
	{netip.MustParsePrefix("fd00:ec2::23/128"), Metadata},   // EKS
	{netip.MustParsePrefix("fd20:ce::254/128"), Metadata},   // GCE

	{netip.MustParsePrefix("0.0.0.0/8"), Never},
	{netip.MustParsePrefix("127.0.0.0/8"), Loopback},
	{netip.MustParsePrefix("10.0.0.0/8"), Special},
	{netip.MustParsePrefix("172.16.0.0/12"), Special},
	{netip.MustParsePrefix("192.168.0.0/16"), Special},
	{netip.MustParsePrefix("169.254.0.0/16"), Special},
	{netip.MustParsePrefix("100.64.0.0/10"), Special},
	{netip.MustParsePrefix("192.0.0.0/24"), Special},
	{netip.MustParsePrefix("198.18.0.0/15"), Special}, // benchmarks of networks, RFC 2544
	{netip.MustParsePrefix("224.0.0.0/4"), Never},
	{netip.MustParsePrefix("240.0.0.0/4"), Never},

	{netip.MustParsePrefix("::1/128"), Loopback},
	{netip.MustParsePrefix("::/128"), Never},
	{netip.MustParsePrefix("64:ff9b:1::/48"), Special}, // NAT64 of a local network
	{netip.MustParsePrefix("100::/64"), Never},         // discard
	{netip.MustParsePrefix("2001:2::/48"), Special},    // benchmarks, RFC 5180
	{netip.MustParsePrefix("5f00::/16"), Special},      // segment routing, RFC 9602
	{netip.MustParsePrefix("fc00::/7"), Special},
	{netip.MustParsePrefix("fe80::/10"), Special},
	{netip.MustParsePrefix("fec0::/10"), Special},
	{netip.MustParsePrefix("ff00::/8"), Never},
}

// metadataNames are the usual names of metadata services.
var metadataNames = []string{"metadata", "metadata.google.internal", "metadata.goog", "instance-data",
	"instance-data.ec2.internal", "metadata.tencentyun.com",
	"metadata.oraclecloud.com", "metadata.azure.com", "metadata.azure.internal"}

// MetadataName reports whether name belongs to a metadata service. name is in lower case and has no trailing
// dot.
func MetadataName(name string) bool { return slices.Contains(metadataNames, name) }

// Of returns the kind of the address itself; see Embedded.
func Of(addr netip.Addr) Kind {
	for _, r := range ranges {
		if r.prefix.Contains(addr) {
			return r.kind
		}
	}
	return Ordinary
}

// Strictest returns the most special kind of an address and of the IPv4 addresses embedded in it.
func Strictest(addr netip.Addr) Kind {
	addr = addr.Unmap().WithZone("")
	kind := Of(addr)
	for _, e := range Embedded(addr) {
		kind = max(kind, Of(e))
	}
	return kind
}

// Within reports whether all of prefix lies in one range of the kind.
func Within(prefix netip.Prefix, kind Kind) bool {
	return slices.ContainsFunc(ranges, func(r namedRange) bool {
		return r.kind == kind && r.prefix.Bits() <= prefix.Bits() && r.prefix.Contains(prefix.Addr())
	})
}

// The forms of IPv6 addresses that contain an IPv4 address, and its offset. RFC 4291, 6052, 2765, 3056, 4380.
var embeddings = []struct {
	prefix netip.Prefix
	at     int
	invert bool
}{
	{netip.MustParsePrefix("::/96"), 12, false},           // IPv4-compatible
	{netip.MustParsePrefix("::ffff:0:0/96"), 12, false},   // IPv4-mapped
	{netip.MustParsePrefix("::ffff:0:0:0/96"), 12, false}, // IPv4-translated
	{netip.MustParsePrefix("64:ff9b::/96"), 12, false},    // NAT64
	{netip.MustParsePrefix("2002::/16"), 2, false},        // 6to4
	{netip.MustParsePrefix("2001::/32"), 4, false},        // Teredo: its server
	{netip.MustParsePrefix("2001::/32"), 12, true},        // Teredo: its client
}

// Embedded returns the IPv4 addresses that addr contains. A translator on the way may connect to them instead.
func Embedded(addr netip.Addr) []netip.Addr {
	if !addr.Is6() {
		return nil
	}
	b := addr.As16()
	var all []netip.Addr
	add := func(at int, mask byte) {
		all = append(all, netip.AddrFrom4([4]byte{b[at] ^ mask, b[at+1] ^ mask, b[at+2] ^ mask, b[at+3] ^ mask}))
	}
	if addr == netip.IPv6Loopback() || addr == netip.IPv6Unspecified() {
		return nil
	}
	for _, e := range embeddings {
		switch {
		case !e.prefix.Contains(addr):
		case e.invert:
			add(e.at, 0xff)
		default:
			add(e.at, 0)
		}
	}
	if b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe { // ISATAP, RFC 5214
		add(12, 0)
	}
	return all
}
