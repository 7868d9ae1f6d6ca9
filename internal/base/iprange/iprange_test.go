package iprange_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/iprange"
)

func TestStrictestSeesEmbeddedAddresses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]iprange.Kind{
		"1.1.1.1": iprange.Ordinary, "2606:4700::1": iprange.Ordinary, "64:ff9b::1.1.1.1": iprange.Ordinary,
		"198.17.0.1": iprange.Ordinary,
		"127.0.0.1":  iprange.Loopback, "::1": iprange.Loopback, "::ffff:127.0.0.1": iprange.Loopback,
		"64:ff9b::127.0.0.1": iprange.Loopback, "2002:7f00:1::": iprange.Loopback,
		"10.0.0.1": iprange.Special, "198.18.0.1": iprange.Special, "198.19.255.255": iprange.Special,
		"100.64.0.1": iprange.Special, "fe80::1%eth0": iprange.Special,
		"fc00::1": iprange.Special, "2001:2::1": iprange.Special, "64:ff9b::10.0.0.1": iprange.Special,
		"2606:4700::5efe:a00:1": iprange.Special,
		"169.254.169.254":       iprange.Metadata, "::ffff:169.254.169.254": iprange.Metadata,
		"fd00:ec2::254": iprange.Metadata,
		"0.0.0.0":       iprange.Never, "::": iprange.Never, "224.0.0.1": iprange.Never,
		"255.255.255.255": iprange.Never,
		"ff02::1":         iprange.Never,
	} {
		got := iprange.Strictest(netip.MustParseAddr(text))
		if got != want {
			t.Errorf("%s is of the kind %d, want %d", text, got, want)
		}
		if got.Reason() == "" {
			t.Errorf("%s: the kind %d has no reason", text, got)
		}
	}
}

// The kind of an address depends on each range, and on each form that contains an IPv4 address.
func TestEveryRangeAndFormCounts(t *testing.T) {
	t.Parallel()
	for kind, texts := range map[iprange.Kind]string{
		iprange.Metadata: "169.254.169.254 169.254.170.2 169.254.170.23 169.254.169.253 100.100.100.200 " +
			"168.63.129.16 " +
			"192.0.0.192 fd00:ec2::254 fd00:ec2::23 fd20:ce::254",
		iprange.Never: "0.0.0.0 0.255.255.255 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 :: 100::1 ff02::1 " +
			"ffff::1",
		iprange.Loopback: "127.0.0.1 127.255.255.255 ::1 ::127.0.0.1 ::ffff:0:127.0.0.1 64:ff9b::127.0.0.1 " +
			"2002:7f00:1::1 2001:0:7f00:1::fefe:fefe 2001:0:101:101::80ff:fffe 2606:4700::5efe:7f00:1 " +
			"2606:4700::200:5efe:7f00:1",
		iprange.Special: "10.0.0.1 10.255.255.255 172.16.0.1 172.31.255.255 192.168.0.1 192.168.255.255 169.254.0.1 " +
			"169.254.255.255 100.64.0.1 100.127.255.255 192.0.0.1 198.18.0.1 198.19.255.255 64:ff9b:1::1 2001:2::1 " +
			"5f00::1 fc00::1 fdff::1 fe80::1 febf::1 fec0::1 feff::1",
		iprange.Ordinary: "9.255.255.255 11.0.0.0 126.255.255.255 128.0.0.0 172.15.255.255 172.32.0.0 " +
			"192.167.255.255 " +
			"192.169.0.0 169.253.255.255 169.255.0.0 100.63.255.255 100.128.0.0 192.0.1.0 198.17.255.255 198.20.0.0 " +
			"223.255.255.255 fbff::1 fe00::1 ::1.1.1.1 2002:101:101::1 2001:0:101:101::fefe:fefe",
	} {
		for text := range strings.FieldsSeq(texts) {
			if got := iprange.Strictest(netip.MustParseAddr(text)); got != kind {
				t.Errorf("%s is of the kind %d, want %d", text, got, kind)
			}
		}
	}
	mapped := netip.MustParseAddr("::ffff:10.0.0.1")
	if all := iprange.Embedded(mapped); !slices.Contains(all, netip.MustParseAddr("10.0.0.1")) {
		t.Errorf("%s contains %v", mapped, all)
	}
}

func TestWithin(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"10.1.0.0/16": true, "10.0.0.0/8": true, "10.0.0.0/7": false,
		"0.0.0.0/0": false, "127.0.0.1/32": false, "fd00::/8": true} {
		if iprange.Within(netip.MustParsePrefix(text), iprange.Special) != want {
			t.Errorf("%s within a special range: %v", text, !want)
		}
	}
	if !iprange.MetadataName("metadata.google.internal") || iprange.MetadataName("example.org") {
		t.Error("the names of metadata services are wrong")
	}
}
