package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

func open(t *testing.T, dir string) *Authority {
	t.Helper()
	a, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestAuthorityIsKept checks that clients that trust the authority trust the certificates of the next server, too.
func TestAuthorityIsKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(open(t, dir).PEM())) {
		t.Fatal("the authority is not a certificate")
	}
	next := open(t, dir)
	pair, err := next.Certificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"localhost", "127.0.0.1", "::1"} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if again, err := next.Certificate(nil); err != nil || again != pair {
		t.Errorf("a second certificate is made: %v", err)
	}
	info, err := os.Stat(filepath.Join(dir, fileName))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("the key has the mode %v, %v", info.Mode(), err)
	}
}

// TestAuthoritySignsLocalNamesOnly checks that clients refuse a certificate of the authority for another host, so that
// a stolen key is of no use there.
func TestAuthoritySignsLocalNamesOnly(t *testing.T) {
	t.Parallel()
	a := open(t, t.TempDir())
	secret, err := a.Secret()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(secret, secret)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(pair.Leaf)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1),
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"example.org"}}, pair.Leaf, &key.PublicKey, pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	_, err = cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: "example.org"})
	var invalid x509.CertificateInvalidError
	if !errors.As(err, &invalid) || invalid.Reason != x509.CANotAuthorizedForThisName {
		t.Errorf("a certificate for another host: %v", err)
	}
}

// TestProgramsTrustTheAuthority checks the variables of "harvest modal env" with programs that do not use Go's TLS.
func TestProgramsTrustTheAuthority(t *testing.T) {
	t.Parallel()
	a := open(t, t.TempDir())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })}
	go func() {
		_ = server.Serve(tls.NewListener(l, &tls.Config{GetCertificate: a.Certificate, MinVersion: tls.VersionTLS12}))
	}()
	defer server.Close()
	url := "https://" + l.Addr().String()
	file := filepath.Join(t.TempDir(), "authority.pem")
	if err := os.WriteFile(file, []byte(a.PEM()), 0o600); err != nil {
		t.Fatal(err)
	}
	for variable, args := range map[string][]string{
		"SSL_CERT_FILE": {"python3", "-c",
			"import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode(), end='')"},
		"NODE_EXTRA_CA_CERTS": {"node", "-e", "fetch(process.argv[1]).then(r => r.text()).then(console.log)"},
		"CURL_CA_BUNDLE":      {"curl", "-fsS"},
	} {
		if _, err := exec.LookPath(args[0]); err != nil {
			t.Logf("%s is not installed", args[0])
			continue
		}
		for _, trusts := range []bool{true, false} {
			cmd := exec.CommandContext(t.Context(), args[0], append(args[1:len(args):len(args)], url)...)
			cmd.Env = append(os.Environ(), "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
			if trusts {
				cmd.Env = append(cmd.Env, variable+"="+file)
			}
			out, err := cmd.CombinedOutput()
			if trusts && (err != nil || strings.TrimSpace(string(out)) != "hello") || !trusts && err == nil {
				t.Errorf("%s, trusts %t: %v: %s", args[0], trusts, err, out)
			}
		}
	}
}

func TestDamagedAuthorityIsNotReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, fileName), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, errors.Invalid) || errors.RemedyOf(err) == "" {
		t.Errorf("%v", err)
	}
}
