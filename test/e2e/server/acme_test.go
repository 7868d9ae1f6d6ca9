package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestCertificateOfAnAuthority checks that the server gets its certificate from a real authority, Let's Encrypt's own
// for tests (https://github.com/letsencrypt/pebble), which connects to the server to check that it owns the name.
// mission: F1
func TestCertificateOfAnAuthority(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	const name = "harvest.example.org"
	h := host.New(t, "fake", nil)
	listen := testenv.FreePort(t)
	directory, management, trust := pebble(t, listen)
	h.Env.Setenv("HARVEST_SERVER_ACME_URL", directory)
	h.Env.Setenv("SSL_CERT_FILE", trust)
	if url := h.Up("--listen", "127.0.0.1:"+listen, "--acme", name); url != "https://"+name+":"+listen {
		t.Errorf("it listens on %s", url)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(fetch(t, trust, management+"/roots/0"))
	client := &http.Client{Transport: &http.Transport{
		ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, "127.0.0.1:"+listen)
		},
	}}
	defer client.CloseIdleConnections()
	resp, err := client.Get("https://" + name + ":" + listen + "/readyz")
	if err != nil {
		t.Fatalf("%v\n%s", err, h.Log())
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 ||
		resp.TLS.PeerCertificates[0].VerifyHostname(name) != nil {
		t.Errorf("%s %s with a certificate for %v", resp.Proto, resp.Status, resp.TLS.PeerCertificates[0].DNSNames)
	}
	// The certificate is kept for the next start, and other users cannot read it.
	if info, err := os.Stat(filepath.Join(h.Data, "acme", name)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the certificate is kept as %v, %v", info, err)
	}
	// Other names have no certificate.
	if conn, err := tls.Dial("tcp", "127.0.0.1:"+listen, &tls.Config{ServerName: "evil.example.org",
		RootCAs: roots}); err == nil {
		conn.Close()
		t.Error("there is a certificate for another name")
	}
}

// pebble starts the authority, for which every name is this machine. It returns its directory, its management address,
// and the file of the certificate that both use. It checks names at the given port.
func pebble(t *testing.T, port string) (directory, management, trust string) {
	t.Helper()
	dir := t.TempDir()
	cert, key := host.Certificate(t, dir)
	at, managed := "127.0.0.1:"+testenv.FreePort(t), "127.0.0.1:"+testenv.FreePort(t)
	config, err := json.Marshal(map[string]any{"pebble": map[string]any{
		"listenAddress": at, "managementListenAddress": managed, "certificate": cert, "privateKey": key, "httpPort": 1,
		"tlsPort":    json.Number(port),
		"retryAfter": map[string]int{"authz": 1, "order": 1},
	}})
	if err != nil {
		t.Fatal(err)
	}
	testenv.WriteFile(t, filepath.Join(dir, "config.json"), config)
	cmd := exec.CommandContext(t.Context(), testenv.Peer(t, "github.com/letsencrypt/pebble/v2/cmd/pebble"), "-config",
		filepath.Join(dir, "config.json"), "-dnsserver", names(t))
	cmd.Env = append(os.Environ(), "PEBBLE_VA_NOSLEEP=1")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("the authority:\n%s", text)
		}
	})
	fetch(t, cert, "https://"+at+"/dir")
	fetch(t, cert, "https://"+managed+"/roots/0")
	return "https://" + at + "/dir", "https://" + managed, cert
}

// fetch reads a page, once it is available, from a server whose certificate is in a file.
func fetch(t *testing.T, trust, url string) []byte {
	t.Helper()
	text, err := os.ReadFile(trust)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots},
		DisableKeepAlives: true}}
	var body []byte
	testenv.Try(t, func() error {
		resp, err := client.Get(url)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err = io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s %v", url, resp.Status, err)
		}
		return nil
	})
	return body
}

// names starts a DNS server to which every name is 127.0.0.1, over TCP, and returns its address.
func names(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for {
					query := make([]byte, 2)
					if _, err := io.ReadFull(conn, query); err != nil {
						return
					}
					query = make([]byte, binary.BigEndian.Uint16(query))
					if _, err := io.ReadFull(conn, query); err != nil {
						return
					}
					answer := resolve(query)
					if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))),
						answer...)); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

func resolve(query []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	m.Header = dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true, RecursionAvailable: true}
	m.Additionals = nil
	if q.Type == dnsmessage.TypeA {
		m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class},
			Body: &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}}}}
	}
	answer, err := m.Pack()
	if err != nil {
		return nil
	}
	return answer
}
