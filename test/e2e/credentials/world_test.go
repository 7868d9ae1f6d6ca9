// Package credentials tests credentials outside of sandboxes with real clients: git, npm, pip, curl, and libraries of
// several languages. They run unchanged in sandboxes of both kinds, and reach hosts that the test plays.
package credentials

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/internal/base/authority"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/test/host"
)

// The hosts of the world. Secrets are bound to those of the first line.
const (
	gitHost, npmHost, pipHost, apiHost, oldHost = "git.test", "npm.test", "pip.test", "api.test", "old.test"
	filesHost, otherHost                        = "files.test", "other.test"
)

var hosts = []string{gitHost, npmHost, pipHost, apiHost, oldHost, filesHost, otherHost}

// world is a network of its own, in which a server of Harvest and the hosts run. Each host has an address of its own,
// with the usual ports.
type world struct {
	*host.Host
	*host.Network
	t     *testing.T
	signs *authority.Authority
	repos *host.Git // of git.test

	mu       sync.Mutex
	requests map[string][]request // guarded by mu; that came, by host
	large    map[string][]byte    // guarded by mu; the files of files.test, by their paths
	accepted string               // guarded by mu; the value that the API accepts
}

// request is what a host saw of a request.
type request struct {
	method, uri string
	header      http.Header
	user, pass  string // of Basic
}

// newWorld starts the network, the hosts, and a server of Harvest with the secrets.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, requests: map[string][]request{}, large: map[string][]byte{}, accepted: apiToken}
	var err error
	if w.signs, err = authority.New("the authority of the test", authority.Limits{}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	resolv := filepath.Join(dir, "resolv.conf")
	testenv.WriteFile(t, resolv, []byte("nameserver 127.0.0.1\n"))
	var addresses []string
	for i := range hosts {
		addresses = append(addresses, address(i))
	}
	w.Network = host.NewNetwork(t, resolv, addresses...)
	w.serveNames()
	for i, name := range hosts {
		w.serve(name, address(i))
	}
	w.Host = host.NewClients(t)
	w.Hold(w.Host)
	testenv.WriteFile(t, filepath.Join(dir, "ca.pem"), []byte(w.signs.PEM()))
	w.Env.Setenv("SSL_CERT_FILE", filepath.Join(dir, "ca.pem"))
	w.Env.Setenv("HARVEST_ISOLATION_ALLOWED", "gvisor,container")
	return w
}

// address returns the address of the host with an index.
func address(i int) string { return fmt.Sprintf("192.0.2.%d", i+1) }

// serveNames answers lookups of the hosts.
func (w *world) serveNames() {
	w.t.Helper()
	var conn net.PacketConn
	w.Inside(func() (err error) {
		conn, err = net.ListenPacket("udp", "127.0.0.1:53")
		return err
	})
	w.t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if b, err := answer(buf[:n]); err == nil {
				_, _ = conn.WriteTo(b, from)
			}
		}
	}()
}

// answer answers a DNS query.
func answer(query []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil || len(m.Questions) != 1 {
		return nil, fmt.Errorf("an unusual query: %w", err)
	}
	q := m.Questions[0]
	m.Response, m.RecursionAvailable, m.RCode, m.Additionals = true, true, dnsmessage.RCodeNameError, nil
	for i, name := range hosts {
		if strings.ToLower(q.Name.String()) != name+"." {
			continue
		}
		m.RCode = dnsmessage.RCodeSuccess
		if q.Type == dnsmessage.TypeA {
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 60},
				Body:   &dnsmessage.AResource{A: netip.MustParseAddr(address(i)).As4()}}}
		}
	}
	return m.Pack()
}

// serve starts a host, with TLS and without.
func (w *world) serve(name, addr string) {
	w.t.Helper()
	pair, err := w.signs.Certificate(name, addr)
	if err != nil {
		w.t.Fatal(err)
	}
	handler := w.handler(name)
	recorded := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		user, pass, _ := r.BasicAuth()
		w.mu.Lock()
		w.requests[name] = append(w.requests[name], request{r.Method, r.RequestURI, r.Header.Clone(), user, pass})
		w.mu.Unlock()
		handler.ServeHTTP(rw, r)
	})
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(name != oldHost)
	for port, secure := range map[int]bool{443: true, 80: false} {
		s := &http.Server{Handler: recorded, Protocols: protocols, ErrorLog: log.New(io.Discard, "", 0),
			TLSConfig: &tls.Config{Certificates: []tls.Certificate{*pair}}}
		l := w.Listen(addr, port)
		if secure {
			go func() { _ = s.ServeTLS(l, "", "") }()
		} else {
			go func() { _ = s.Serve(l) }()
		}
		w.t.Cleanup(func() { _ = s.Close() })
	}
}

// seen returns the requests that a host got so far, and forgets them.
func (w *world) seen(name string) []request {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.requests[name]
	delete(w.requests, name)
	return all
}

// set stores a secret.
func (w *world) set(name, key, value string, flags ...string) {
	w.t.Helper()
	cmd := w.Command(w.t.Context(), append([]string{"secret", "set", name, "--env-file", "-"}, flags...)...)
	cmd.Stdin = strings.NewReader(key + "=" + value + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("set the secret %s: %v: %s\n%s", name, err, out, w.Log())
	}
}

// create creates a sandbox that may reach the hosts, with the secrets.
func (w *world) create(name, isolation string, flags ...string) {
	w.t.Helper()
	args := []string{"sandbox", "create", "--name", name, "--image", "clients", "--isolation", isolation, "--network",
		"default"}
	for i := range hosts {
		args = append(args, "--network", "allow="+address(i))
	}
	w.Must(append(args, flags...)...)
	trust := w.Command(w.t.Context(), "sandbox", "exec", name, "--", "sh", "-c",
		"cat >/tmp/ca && cat /tmp/ca >>/etc/ssl/certs/ca-certificates.crt && "+
			"cat /tmp/ca >>$SSL_CERT_FILE && rm /tmp/ca")
	trust.Stdin = strings.NewReader(w.signs.PEM()) // for the hosts without a secret
	if out, err := trust.CombinedOutput(); err != nil {
		w.t.Fatalf("trust the authority of the test: %v: %s", err, out)
	}
}

// sh runs a script in a sandbox that must succeed, and returns its trimmed output.
func (w *world) sh(t *testing.T, box, script string) string {
	t.Helper()
	stdout, stderr, code := w.Run("sandbox", "exec", box, "--", "bash", "-ec", script)
	if code != 0 {
		t.Fatalf("exit code %d\n%s\n%s", code, stdout, stderr)
	}
	return strings.TrimSpace(stdout)
}

// use waits for the first event of a type of a sandbox that is wanted.
func (w *world) use(t *testing.T, box string, kind record.EventType, wanted func(record.Use) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Limit)
	defer cancel()
	c, err := client.Connect(ctx, w.Data)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var seen []string
	for e, err := range c.Events(ctx, client.Follow{Stream: box}) {
		if err != nil {
			t.Fatalf("no event %s that is wanted: %v; there are %q", kind, err, seen)
		}
		var data struct{ Use record.Use }
		if err := json.Unmarshal(e.Data, &data); err != nil {
			t.Fatal(err)
		}
		if e.Type == string(kind) && wanted(data.Use) {
			return
		}
		seen = append(seen, e.Type+" "+string(e.Data))
	}
}
