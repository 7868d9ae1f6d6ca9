package broker

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
)

// TestPinnedCertificates checks that a client which does not accept the broker's certificate is reported, with what to
// do, and that one which breaks off for another reason is not.
//
// mission: 9.1
func TestPinnedCertificates(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bound(t, host))
	w.serve(t, echo)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		c := tls.Client(w.dial(t, intercepted), &tls.Config{RootCAs: x509.NewCertPool(), ServerName: host,
			MinVersion: version, MaxVersion: version})
		if err := c.HandshakeContext(t.Context()); err == nil {
			t.Fatal("the client accepts the certificate")
		}
		_ = c.Close()
	}
	uses := w.reported(2)
	for _, u := range uses {
		if u.Secret != "example" || u.Host != host || u.Status != 0 || !strings.Contains(u.Refused,
			"does not accept the certificate") ||
			!strings.Contains(u.Refused, "SSL_CERT_FILE") || !strings.Contains(u.Refused, "--reveal") {
			t.Errorf("reported %+v", u)
		}
	}
	broken := w.dial(t, intercepted)
	if _, err := broken.Write([]byte("\x16\x03\x01\x00\x05hello")); err != nil {
		t.Fatal(err)
	}
	_ = broken.Close()
	w.client(t).CloseIdleConnections()
	if status, _ := get(t, w.client(t), "GET", "https://"+host+"/", nil); status != 200 {
		t.Errorf("status %d", status)
	}
	if n := len(w.taken()); n != len(uses) {
		t.Errorf("%d reports, want %d", n, len(uses))
	}
}
