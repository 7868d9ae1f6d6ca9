package authority

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

func create(t *testing.T, only Limits) *Authority {
	t.Helper()
	a, err := New("Test", only)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// verify returns an error if a client that trusts a refuses the certificate for a name at a time.
func verify(a *Authority, pair *tls.Certificate, name string, at time.Time) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(a.PEM()))
	_, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: at})
	return err
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	a := create(t, Limits{})
	long := "a-label-that-is-rather-long-for-a-name.another-label-that-is-long.example.org"
	for _, name := range []string{"api.example.org", "192.0.2.1", "2001:db8::1", long} {
		pair, err := a.Certificate(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, skew := range []time.Duration{0, -23 * time.Hour, 29 * 24 * time.Hour} {
			if err := verify(a, pair, name, time.Now().Add(skew)); err != nil {
				t.Errorf("%s, clock off by %s: %v", name, skew, err)
			}
		}
		if err := verify(a, pair, "example.com", time.Now()); err == nil {
			t.Errorf("the certificate of %s is good for example.com", name)
		}
		if next, err := a.Certificate(name); err != nil || next != pair {
			t.Errorf("%s: a second certificate was made: %v", name, err)
		}
	}
}

// TestSecretKeepsTheAuthority checks that clients that trust an authority accept certificates that it signs after a
// restart.
func TestSecretKeepsTheAuthority(t *testing.T) {
	t.Parallel()
	a := create(t, Limits{})
	secret, err := a.Secret()
	if err != nil {
		t.Fatal(err)
	}
	next, err := Parse(secret)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := next.Certificate("example.org")
	if err != nil {
		t.Fatal(err)
	}
	if err := verify(a, pair, "example.org", time.Now()); err != nil || next.PEM() != a.PEM() || next.Expired() {
		t.Errorf("got another authority: %v", err)
	}
	for _, damaged := range [][]byte{nil, []byte("text"), []byte(a.PEM()), secret[:len(secret)/2]} {
		if _, err := Parse(damaged); !errors.Is(err, errors.Invalid) {
			t.Errorf("%.20q: got %v, want Invalid", damaged, err)
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	a := create(t, Limits{Names: []string{"localhost"},
		Addrs: []*net.IPNet{{IP: net.IPv4(127, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)}}})
	for name, good := range map[string]bool{"localhost": true, "127.0.0.9": true, "example.org": false,
		"192.0.2.1": false} {
		pair, err := a.Certificate(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := verify(a, pair, name, time.Now()); (err == nil) != good {
			t.Errorf("%s: accepted %t, want %t: %v", name, err == nil, good, err)
		}
	}
}

func TestKeptCertificatesAreBounded(t *testing.T) {
	t.Parallel()
	a := create(t, Limits{})
	for i := range maxKept + 10 {
		if _, err := a.Certificate(fmt.Sprintf("host-%d.example.org", i)); err != nil {
			t.Fatal(err)
		}
	}
	if len(a.leaves) != maxKept {
		t.Errorf("%d certificates are kept, want %d", len(a.leaves), maxKept)
	}
}
