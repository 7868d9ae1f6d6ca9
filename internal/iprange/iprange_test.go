package iprange_test

import (
	"net/netip"
	"testing"

	"github.com/RelevanceAI/harvest/internal/iprange"
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
		"0.0.0.0":       iprange.Never, "::": iprange.Never, "224.0.0.1": iprange.Never, "255.255.255.255": iprange.Never,
		"ff02::1": iprange.Never,
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
