package trust_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image/trust"
)

// authority returns a certificate authority as PEM.
func authority(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a test"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// TestRead checks that text other than certificates is skipped, in any position, and that private keys never go into an
// image.
func TestRead(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"", filepath.Join(t.TempDir(), "none")} {
		if certs, err := trust.Read(dir); certs != nil || err != nil {
			t.Errorf("%q has %v, %v", dir, certs, err)
		}
	}
	dir := t.TempDir()
	one, two, three := authority(t), authority(t), authority(t)
	secret := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("secret")})
	junk := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("nonsense")})
	for name, text := range map[string][]byte{
		"b.crt":     bytes.Join([][]byte{[]byte("a comment\n"), one, secret, junk, two}, nil),
		"a/c.crt":   three,
		"d.pem":     authority(t),
		"empty.crt": nil,
	} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "dangling.crt")); err != nil {
		t.Fatal(err)
	}
	certs, err := trust.Read(dir)
	if err != nil || len(certs) != 3 || certs[0].PEM != string(three) || certs[1].PEM != string(one) ||
		certs[2].PEM != string(two) {
		t.Fatalf("got %d, %v", len(certs), err)
	}
	names := map[string]bool{}
	for _, c := range certs {
		names[c.Name] = true
		if time.Since(c.Modified) > time.Hour { // the files were just written
			t.Errorf("%s has the time %v", c.Name, c.Modified)
		}
		if !strings.HasPrefix(c.Name, "host-") || !strings.HasSuffix(c.Name, ".crt") ||
			strings.Contains(c.PEM, "PRIVATE") {
			t.Errorf("got %+v", c)
		}
	}
	if len(names) != 3 {
		t.Errorf("the names are %v", names)
	}
	// Again it is the same: images are known by it.
	if again, err := trust.Read(dir); err != nil || len(again) != 3 || again[0] != certs[0] {
		t.Errorf("got %v, %v", again, err)
	}
	if err := os.Mkdir(filepath.Join(dir, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("..", filepath.Join(dir, "x", "dir.crt")); err != nil { // a directory by the name of a file
		t.Fatal(err)
	}
	if _, err := trust.Read(dir); errors.KindOf(err) != errors.Denied || errors.RemedyOf(err) == "" {
		t.Errorf("what cannot be read: %v", err)
	}
}
