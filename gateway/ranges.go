package gateway

import (
	"net/netip"
	"slices"
)

// kind says how much of a wish it takes to reach an address.
type kind int

const (
	ordinary kind = iota
	special       // opened by a rule within the special range
	loopback      // opened by a rule for the very address; the kinds from here on too
	metadata
	never // no rule opens it
)

func (k kind) reason() string {
	switch k {
	case special:
		return "the address is in a private or otherwise special range"
	case loopback:
		return "the address is this machine's loopback"
	case metadata:
		return "the address is a metadata service's"
	}
	return "the address is no host's"
}

type namedRange struct {
	prefix netip.Prefix
	kind   kind
}

// ranges are all that are not the internet's, after https://www.iana.org/assignments/iana-ipv4-special-registry and
// iana-ipv6-special-registry, and the documentation of the clouds' metadata services. The first that fits counts. Ranges for documentation are
// not among them: some networks use them.
var ranges = []namedRange{
	{netip.MustParsePrefix("169.254.169.254/32"), metadata}, // EC2, GCE, Azure, OpenStack and others
	{netip.MustParsePrefix("169.254.170.2/32"), metadata},   // ECS
	{netip.MustParsePrefix("169.254.170.23/32"), metadata},  // EKS
	{netip.MustParsePrefix("169.254.169.253/32"), metadata}, // EC2's resolver
	{netip.MustParsePrefix("100.100.100.200/32"), metadata}, // Alibaba
	{netip.MustParsePrefix("168.63.129.16/32"), metadata},   // Azure's wire server
	{netip.MustParsePrefix("192.0.0.192/32"), metadata},     // Oracle
	{netip.MustParsePrefix("fd00:ec2::254/128"), metadata},  // EC2
	{netip.MustParsePrefix("fd00:ec2::23/128"), metadata},   // EKS
	{netip.MustParsePrefix("fd20:ce::254/128"), metadata},   // GCE

	{netip.MustParsePrefix("0.0.0.0/8"), never},
	{netip.MustParsePrefix("127.0.0.0/8"), loopback},
	{netip.MustParsePrefix("10.0.0.0/8"), special},
	{netip.MustParsePrefix("172.16.0.0/12"), special},
	{netip.MustParsePrefix("192.168.0.0/16"), special},
	{netip.MustParsePrefix("169.254.0.0/16"), special},
	{netip.MustParsePrefix("100.64.0.0/10"), special},
	{netip.MustParsePrefix("192.0.0.0/24"), special},
	{netip.MustParsePrefix("224.0.0.0/4"), never},
	{netip.MustParsePrefix("240.0.0.0/4"), never},

	{netip.MustParsePrefix("::1/128"), loopback},
	{netip.MustParsePrefix("::/128"), never},
	{netip.MustParsePrefix("64:ff9b:1::/48"), special}, // NAT64 of a local network
	{netip.MustParsePrefix("100::/64"), never},         // discard
	{netip.MustParsePrefix("fc00::/7"), special},
	{netip.MustParsePrefix("fe80::/10"), special},
	{netip.MustParsePrefix("fec0::/10"), special},
	{netip.MustParsePrefix("ff00::/8"), never},
}

// metadataNames are those by which programs look metadata services up.
var metadataNames = []string{"metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal", "metadata.tencentyun.com",
	"metadata.oraclecloud.com", "metadata.azure.com", "metadata.azure.internal"}

func kindOf(addr netip.Addr) kind {
	for _, r := range ranges {
		if r.prefix.Contains(addr) {
			return r.kind
		}
	}
	return ordinary
}

// withinSpecial reports whether all of prefix is in one special range.
func withinSpecial(prefix netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(r namedRange) bool {
		return r.kind == special && r.prefix.Bits() <= prefix.Bits() && r.prefix.Contains(prefix.Addr())
	})
}

// The forms of IPv6 that carry an IPv4 address, and where. RFC 4291, 6052, 2765, 3056, 4380.
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

// embedded returns the IPv4 addresses that addr carries, whatever a translator on the way would make of it.
func embedded(addr netip.Addr) []netip.Addr {
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
