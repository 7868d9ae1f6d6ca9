package modal

import (
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host/modalhost"
)

// boundValue is the value of a secret that no sandbox has.
const boundValue = "Jq8Zr5Wn2Xc7Vt4Bm9Lk6Ph3Gd1Fs0Ya"

// checking is a host on an address of this machine, without TLS. It answers whether requests have the value.
func checking(t *testing.T) (address string) {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || !p.Addr().Is4() || !p.Addr().IsGlobalUnicast() {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(p.Addr().String(), "0"))
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, r.Header.Get("Authorization") == "Bearer "+boundValue)
		}))
		_ = s.Listener.Close()
		s.Listener = l
		s.Start()
		t.Cleanup(s.Close)
		return l.Addr().String()
	}
	t.Skip("this machine has no address but its loopback's: connect it to a network")
	return ""
}

// TestModalMemoryHasNoCredentials checks that a sandbox whose memory was saved uses a bound secret as before, and that
// its checkpoint does not have the value.
func TestModalMemoryHasNoCredentials(t *testing.T) {
	testenv.Long(t)
	h := modalhost.WithBase(t)
	address := checking(t)
	set := exec.CommandContext(t.Context(), h.Program, "secret", "set", "api", "--env-file", "-", "--hosts",
		"http://"+address)
	set.Env, set.Stdin = h.Environ, strings.NewReader("API_TOKEN="+boundValue+"\n")
	if out, err := set.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	m := newModalClient(t, h, "credentials")
	secret, err := m.sdk.Secrets.FromName(t.Context(), "api", nil)
	if err != nil {
		t.Fatal(err)
	}
	ip, _, _ := strings.Cut(address, ":")
	sb := m.create(t, "base", &modal.SandboxCreateParams{Command: []string{"sleep", "600"}, Timeout: 10 * time.Minute,
		Secrets: []*modal.Secret{secret}, OutboundCIDRAllowlist: &modal.Allowlist{Entries: []string{ip + "/32"}},
		ExperimentalEnableSnapshot: true})
	use := func(what string, sb *modal.Sandbox) {
		t.Helper()
		if out, code := m.run(t, sb, `curl -sS -H "Authorization: Bearer $API_TOKEN" http://`+address); code != 0 ||
			out != "true" {
			t.Errorf("%s: got %q, %d", what, out, code)
		}
		if out, _ := m.run(t, sb, "cat /proc/[0-9]*/environ"); strings.Contains(out, boundValue) ||
			!strings.Contains(out, "API_TOKEN=") {
			t.Errorf("%s: the environments are %q", what, out)
		}
	}
	use("at first", sb)
	m.run(t, sb, "env >/dev/shm/held; env >/root/held")
	snapshot, err := sb.ExperimentalSnapshot(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	searched := int64(0)
	checkpoints := filepath.Join(h.Data(), "checkpoints")
	if err := filepath.WalkDir(checkpoints, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), boundValue) {
			t.Errorf("%s has the value", path)
		}
		searched += int64(len(b))
		return err
	}); err != nil || searched < 1<<20 {
		t.Errorf("searched %d bytes, %v", searched, err)
	}
	m.killServer(t)
	use("restored", m.restored(t, snapshot, nil))
}
