package modal

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host/modalhost"
	"github.com/RelevanceAI/harvest/test/stubs/modaltest"
)

// apartDir names the directory of a process of TestModalNetwork that has a separate network.
const apartDir = "HARVEST_TEST_APART"

// Addresses in that network: the server's, and two of an internet that consists of them.
const (
	apartServer = "198.51.100.9"
	siteOne     = "203.0.113.10"
	siteTwo     = "203.0.113.11"
)

// sites are the names of that internet.
var sites = map[string]string{"allowed.example.org.": siteOne, "a.below.example.org.": siteOne,
	"other.example.org.": siteTwo}

// TestModalNetwork checks that Modal's SDK works beyond the loopback interface: TLS with a certificate of a trusted
// authority, and sandboxes that reach only the targets that their client allows. Server, SDK and internet are in a
// network namespace, which is not reachable from elsewhere.
//
// mission: A6
func TestModalNetwork(t *testing.T) {
	testenv.Long(t)
	if dir := os.Getenv(apartDir); dir != "" {
		modalApart(t, dir)
		return
	}
	t.Parallel()
	testenv.Root(t)
	testenv.RequireTool(t, "ip", "iproute2")
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "registry"))
	if err != nil {
		t.Fatal(err)
	}
	joinTo(t, l, "tcp", modalhost.StandIns(t))
	certify(t, dir)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestModalNetwork$", "-test.v")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	cmd.Env = append(os.Environ(), apartDir+"="+dir, "HARVEST_TEST_BINARY="+testenv.Binary(t),
		"SSL_CERT_FILE="+filepath.Join(dir, "authority.pem"), "NO_PROXY=*", "no_proxy=*")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestModalNetwork ") {
		t.Errorf("%v\n%s", err, out)
	}
}

// modalApart is the test, in its own network.
func modalApart(t *testing.T, dir string) {
	internet(t, dir)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	joinTo(t, l, "unix", filepath.Join(dir, "registry"))
	registry := l.Addr().String()
	h := &modalhost.Host{T: t, Program: testenv.Binary(t)}
	h.Environ = append(modalhost.Env(testenv.DataDir(t)), "HARVEST_MODAL_LISTEN="+apartServer+":0",
		"HARVEST_LIMITS_CPU=1", "HARVEST_LIMITS_MEMORY=256MiB",
		"HARVEST_REGISTRIES_MIRRORS=docker.io="+registry, "HARVEST_REGISTRIES_INSECURE="+registry)
	if out, err := h.Run("up"); err == nil ||
		!strings.Contains(out, "keys must not be sent unencrypted; set server.tls_cert") {
		t.Fatalf("without a certificate: %v\n%s", err, out)
	}
	h.Environ = append(h.Environ, "HARVEST_SERVER_TLS_CERT="+filepath.Join(dir, "cert.pem"),
		"HARVEST_SERVER_TLS_KEY="+filepath.Join(dir, "key.pem"))
	h.Start()
	t.Cleanup(h.Stop)
	h.Modal = h.ClientEnv()
	m := newModalClient(t, h, "apart")
	t.Run("tls", m.overTLS)
	t.Run("tunnels", m.tunnels)
	t.Run("inbound", m.inbound)
	t.Run("egress", m.egress)
	t.Run("changes", m.changes)
	t.Run("remembers", m.remembers)
}

// overTLS uses both services at the server's own address, and tries requests that must be refused.
func (m *modalClient) overTLS(t *testing.T) {
	address, ok := strings.CutPrefix(os.Getenv("MODAL_SERVER_URL"), "https://")
	if !ok || !strings.HasPrefix(address, apartServer+":") {
		t.Fatalf("clients are told %s", os.Getenv("MODAL_SERVER_URL"))
	}
	sb := m.create(t, "alpine:3.21", nil)
	p, err := sb.Exec(t.Context(), []string{"cat"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Stdin.Write([]byte("over TLS")); err != nil {
		t.Fatal(err)
	}
	if err := p.Stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(p.Stdout); err != nil || string(out) != "over TLS" {
		t.Errorf("the command said %q, %v", out, err)
	}
	if err := sb.Filesystem.WriteText(t.Context(), "a file", "/f", nil); err != nil {
		t.Fatal(err)
	}
	if text, err := sb.Filesystem.ReadText(t.Context(), "/f", nil); err != nil || text != "a file" {
		t.Errorf("the file has %q, %v", text, err)
	}
	if c, err := tls.Dial("tcp", address, &tls.Config{RootCAs: x509.NewCertPool(),
		NextProtos: []string{"h2"}}); err == nil {
		c.Close()
		t.Error("who trusts nobody is let in")
	}
	if resp, err := http.Get("http://" + address + "/"); err == nil {
		resp.Body.Close()
		t.Errorf("without TLS there is an answer: %s", resp.Status)
	}
}

// inbound: tunnels and connect tokens accept connections only from the addresses that the client allows.
func (m *modalClient) inbound(t *testing.T) {
	for from, want := range map[string]string{"127.0.0.0/8": "hello\n", "192.0.2.0/24": ""} {
		sb := m.create(t, "alpine:3.21", &modal.SandboxCreateParams{
			Command: []string{"sh", "-c",
				"mkdir -p /www && echo hello >/www/index.html && httpd -p 8081 -h /www && echo serves && exec sleep 300"},
			UnencryptedPorts: []int{8081}, InboundCIDRAllowlist: []string{from},
		})
		if line, err := bufio.NewReader(sb.Stdout).ReadString('\n'); err != nil {
			t.Fatalf("%q, %v", line, err)
		}
		tunnels, err := sb.Tunnels(t.Context(), time.Minute, nil)
		if err != nil {
			t.Fatal(err)
		}
		host, port, err := tunnels[8081].TCPSocket()
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if resp, err := http.Get(fmt.Sprintf("http://%s:%d/", host, port)); err == nil {
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			got = string(body)
		}
		if got != want {
			t.Errorf("with %s allowed, there comes %q", from, got)
		}
		token, err := sb.CreateConnectToken(t.Context(), &modal.SandboxCreateConnectTokenParams{Port: 8081})
		if err != nil {
			t.Fatal(err)
		}
		code := http.StatusOK
		if want == "" {
			code = http.StatusForbidden
		}
		if err := fetched(t, http.DefaultClient, token.URL+"/", token.Token, code, want); err != nil {
			t.Errorf("with %s allowed, and a connect token: %v", from, err)
		}
	}
}

// visit prints the reachable ones among its arguments: a host, a port, and the server name for TLS, if TLS is used.
const visit = `
import socket, ssl, sys
trusting = ssl._create_unverified_context()
for target in sys.argv[1:]:
    host, port, name = target.split("|")
    try:
        s = socket.create_connection((host, int(port)), timeout=20)
        if name:
            s = trusting.wrap_socket(s, server_hostname=name)
        s.sendall(b"GET / HTTP/1.0\r\nHost: %s\r\n\r\n" % (name or host).encode())
        got = b""
        while part := s.recv(4096):
            got += part
        if got.endswith(b"hello"):
            print(target)
    except OSError:
        pass
`

func (m *modalClient) visited(t *testing.T, sb *modal.Sandbox, targets ...string) string {
	t.Helper()
	out, said, code := modaltest.Run(t, sb, nil, append([]string{"python3", "-c", visit}, targets...)...)
	if code != 0 {
		t.Fatalf("it ended with %d: %s", code, said)
	}
	return strings.Join(strings.Fields(out), " ")
}

// everywhere has the targets that the tests try, by address, by name and by TLS. The last one uses the name of another
// site.
var everywhere = []string{
	siteOne + "|80|", siteTwo + "|80|", "allowed.example.org|80|", "a.below.example.org|80|", "other.example.org|80|",
	"allowed.example.org|443|allowed.example.org", "other.example.org|443|other.example.org",
	"allowed.example.org|443|other.example.org",
}

// egress checks which targets sandboxes reach with their creation parameters. None of them leads to the server's own
// machine.
func (m *modalClient) egress(t *testing.T) {
	for name, c := range map[string]struct {
		params modal.SandboxCreateParams
		want   string
	}{
		"open":    {modal.SandboxCreateParams{}, strings.Join(everywhere, " ")},
		"blocked": {modal.SandboxCreateParams{BlockNetwork: true}, ""},
		"an address": {modal.SandboxCreateParams{OutboundCIDRAllowlist: &modal.Allowlist{Entries: []string{siteOne +
			"/32"}}},
			siteOne + "|80|"},
		"a network": {modal.SandboxCreateParams{OutboundCIDRAllowlist: &modal.Allowlist{Entries: []string{"203.0.113.0/24"}}},
			siteOne + "|80| " + siteTwo + "|80|"},
		"another network": {modal.SandboxCreateParams{OutboundCIDRAllowlist: &modal.Allowlist{Entries: []string{"192.0.2.0/24"}}}, ""},
		"an empty list":   {modal.SandboxCreateParams{OutboundCIDRAllowlist: &modal.Allowlist{}}, ""},
		"a name": {modal.SandboxCreateParams{OutboundDomainAllowlist: &modal.Allowlist{Entries: []string{"allowed.example.org"}}},
			"allowed.example.org|80| allowed.example.org|443|allowed.example.org"},
		"names below": {modal.SandboxCreateParams{OutboundDomainAllowlist: &modal.Allowlist{Entries: []string{"*.below.example.org"}}},
			"a.below.example.org|80|"},
		"both": {modal.SandboxCreateParams{OutboundCIDRAllowlist: &modal.Allowlist{Entries: []string{siteTwo + "/32"}},
			OutboundDomainAllowlist: &modal.Allowlist{Entries: []string{"allowed.example.org"}}},
			siteTwo + "|80| allowed.example.org|80| allowed.example.org|443|allowed.example.org"},
	} {
		sb := m.create(t, "python:3.12-alpine", &c.params)
		got := m.visited(t, sb, append([]string{apartServer + "|80|", apartServer + "|443|other.example.org"},
			everywhere...)...)
		if got != c.want {
			t.Errorf("%s: it reaches %q, want %q", name, got, c.want)
		}
		if _, err := sb.Terminate(t.Context(), nil); err != nil {
			t.Error(err)
		}
	}
}

// changes are made to the network of a sandbox that runs.
func (m *modalClient) changes(t *testing.T) {
	sb := m.create(t, "python:3.12-alpine", nil)
	for _, c := range []struct {
		cidrs, names []string
		want         string
	}{
		{nil, nil, ""},
		{[]string{siteTwo + "/32"}, nil, siteTwo + "|80|"},
		{nil, []string{"allowed.example.org"}, "allowed.example.org|80| allowed.example.org|443|allowed.example.org"},
		{[]string{"0.0.0.0/0"}, []string{"*"}, strings.Join(everywhere, " ")},
	} {
		err := sb.UpdateNetworkPolicy(t.Context(), &modal.SandboxUpdateNetworkPolicyParams{
			OutboundCIDRAllowlist:   &modal.Allowlist{Entries: c.cidrs},
			OutboundDomainAllowlist: &modal.Allowlist{Entries: c.names},
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := m.visited(t, sb, everywhere...); got != c.want {
			t.Errorf("with %v and %v it reaches %q, want %q", c.cidrs, c.names, got, c.want)
		}
	}
}

// internet brings the network up: the server's address, two sites, and the name servers of this machine's
// configuration.
func internet(t *testing.T, dir string) {
	t.Helper()
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v\n%s", args, err, out)
		}
	}
	ip("link", "set", "lo", "up")
	ip("address", "add", apartServer+"/32", "dev", "lo")
	ip("route", "add", "local", "203.0.113.0/24", "dev", "lo") // it does not look like an address of the machine
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	site := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_,
			_ = io.WriteString(w, "hello")
	}), ReadHeaderTimeout: time.Minute}
	t.Cleanup(func() { _ = site.Close() })
	for _, host := range []string{siteOne, siteTwo, apartServer} {
		plain, err := net.Listen("tcp", net.JoinHostPort(host, "80"))
		if err != nil {
			t.Fatal(err)
		}
		sealed, err := tls.Listen("tcp", net.JoinHostPort(host, "443"),
			&tls.Config{Certificates: []tls.Certificate{cert}})
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = site.Serve(plain) }()
		go func() { _ = site.Serve(sealed) }()
	}
	servers := []string{}
	conf, _ := os.ReadFile("/etc/resolv.conf")
	for line := range strings.Lines(string(conf)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" && net.ParseIP(f[1]).To4() != nil {
			servers = append(servers, f[1])
		}
	}
	if len(servers) == 0 {
		servers = append(servers, "127.0.0.1")
	}
	for _, server := range servers {
		if !net.ParseIP(server).IsLoopback() {
			ip("route", "add", "local", server+"/32", "dev", "lo")
		}
		l, err := net.ListenPacket("udp", net.JoinHostPort(server, "53"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go nameSites(l)
	}
}

// nameSites answers questions for the names of sites.
func nameSites(l net.PacketConn) {
	buf := make([]byte, 4096)
	for {
		n, from, err := l.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		q := m.Questions[0]
		m.Header = dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}
		m.Additionals = nil
		address, known := sites[strings.ToLower(q.Name.String())]
		switch {
		case !known:
			m.RCode = dnsmessage.RCodeNameError
		case q.Type == dnsmessage.TypeA:
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 60},
				Body:   &dnsmessage.AResource{A: [4]byte(net.ParseIP(address).To4())},
			}}
		}
		if answer, err := m.Pack(); err == nil {
			_, _ = l.WriteTo(answer, from)
		}
	}
}

// joinTo joins the connections of l to another address until the test ends.
func joinTo(t *testing.T, l net.Listener, network, address string) {
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer from.Close()
				to, err := new(net.Dialer).DialContext(context.WithoutCancel(t.Context()), network, address)
				if err != nil {
					return
				}
				defer to.Close()
				go func() {
					defer to.Close()
					_, _ = io.Copy(to, from)
				}()
				_, _ = io.Copy(from, to)
			}()
		}
	}()
}

// certify makes an authority, and a certificate signed by it for all addresses and names of the test.
func certify(t *testing.T, dir string) {
	t.Helper()
	sign := func(template, parent *x509.Certificate, key, by *ecdsa.PrivateKey, file string) {
		t.Helper()
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
		if err != nil {
			t.Fatal(err)
		}
		testenv.WriteFile(t, filepath.Join(dir, file), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
	var keys [2]*ecdsa.PrivateKey
	for i := range keys {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		keys[i] = key
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of the test"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	sign(authority, authority, keys[0], keys[0], "authority.pem")
	sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "server"},
		IPAddresses: []net.IP{net.ParseIP(apartServer)}, DNSNames: []string{"*.example.org"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, authority, keys[1], keys[0], "cert.pem")
	private, err := x509.MarshalPKCS8PrivateKey(keys[1])
	if err != nil {
		t.Fatal(err)
	}
	testenv.WriteFile(t, filepath.Join(dir, "key.pem"),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}
