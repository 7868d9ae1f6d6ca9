package app

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/modal"
	"github.com/RelevanceAI/harvest/internal/modal/tunnels"
)

func TestModalCallsAreInTheAuditLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := &App{}
	var err error
	if a.audit, err = openAudit(dir); err != nil {
		t.Fatal(err)
	}
	a.auditModal(t.Context(), modal.Call{Account: "acme", KeyID: "key_1", Address: "10.0.0.1:99",
		Method: "/s/QueueGet", Code: codes.PermissionDenied})
	a.auditModal(t.Context(), modal.Call{Method: "/s/X", Code: codes.DataLoss})
	const known = "CANARY-known-secret-of-calls"
	release := logf.Redact(known)
	a.auditModal(t.Context(), modal.Call{Method: "connect/" + known + "/hv_" + strings.Repeat("a2", 26)})
	release()
	use := record.Use{Secret: "github", Host: "api.example.org", Method: "GET", Path: "/user", Status: 403,
		Refused: "no"}
	published := 0
	publish := a.auditUses(t.Context(), func(record.Event) { published++ })
	for _, kind := range []record.EventType{record.EventReady, record.EventCredentialRefused} {
		publish(record.Event{Type: kind, Sandbox: record.Sandbox{ID: "sbx_1", Account: "acme"}, Use: use})
	}
	if published != 2 {
		t.Errorf("%d of 2 events are published", published)
	}
	if err := a.audit.Close(); err != nil {
		t.Fatal(err)
	}
	a.auditModal(t.Context(), modal.Call{Method: "/s/Lost"}) // only the log has it
	text, err := os.ReadFile(filepath.Join(dir, auditName))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 4 || !strings.Contains(lines[0],
		`"account":"acme","key_id":"key_1","address":"10.0.0.1","method":"gRPC","path":"/s/QueueGet","status":403`) ||
		!strings.Contains(lines[1], `"status":500`) ||
		!strings.Contains(lines[2], `"path":"connect/`+logf.Hidden+"/"+logf.Hidden+`"`) ||
		!strings.Contains(lines[3], `"account":"acme","method":"GET","path":"api.example.org/user","status":403,`+
			`"sandbox_id":"sbx_1","secret":"github","refused":"no"`) {
		t.Errorf("%s", text)
	}
}

// TestTunnelCertificate checks that tunnels have the operator's certificate if it is valid for their address.
func TestTunnelCertificate(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{tunnels.Host: true, "192.0.2.1": false} {
		cert, key := certificate(t, net.ParseIP(address))
		cfg := config.Config{Server: config.Server{Cert: cert, Key: key}}
		get, err := tunnelCertificate(cfg)
		if err != nil || (get != nil) != want {
			t.Errorf("%s: %t, %v", address, get != nil, err)
		}
		if get == nil {
			continue
		}
		if pair, err := get(nil); err != nil || pair.Leaf.VerifyHostname(address) != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
	if get, err := tunnelCertificate(config.Config{}); get != nil || err != nil {
		t.Errorf("without a certificate: %t, %v", get != nil, err)
	}
	missing := config.Config{Server: config.Server{Cert: "/nonexistent", Key: "/nonexistent"}}
	if _, err := tunnelCertificate(missing); err == nil {
		t.Error("a missing certificate is accepted")
	}
}

// certificate writes a certificate that is valid for an address, and returns the files of it and its key.
func certificate(t *testing.T, ip net.IP) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{ip}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{
		cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}
