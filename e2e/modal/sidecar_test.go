package modal

import (
	"io"
	"strings"
	"testing"

	modal "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/e2e/modalhost"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/testenv"
)

// serve answers each connection to port 8000 with a word, on the addresses of the container or on loopback only.
func serve(address, word string) []string {
	return []string{"python3", "-c", `
import socket, sys
s = socket.create_server((sys.argv[1], 8000))
while True:
    s.accept()[0].sendall(sys.argv[2].encode())
`, address, word}
}

// ask connects to the port of each name, once something listens there, and prints the answers. It gives up early if
// the name must not be found.
const ask = `
import socket, sys, time
for name in sys.argv[1:]:
    optional, end = name.startswith("-"), time.time() + 60
    while True:
        try:
            print(name, socket.create_connection((name.lstrip("-"), 8000), timeout=10).recv(100).decode())
            break
        except OSError as e:
            if optional or time.time() > end:
                print(name, type(e).__name__)
                break
            time.sleep(0.1)
`

// TestModalSidecars checks that a sandbox and its sidecars find each other by name, also without the internet, as
// the proxies of Modal's guide require, and that nothing else is reached that way.
//
// mission: 8.1
func TestModalSidecars(t *testing.T) {
	testenv.Long(t)
	testenv.Root(t)
	h := modalhost.WithBase(t)
	m := newModalClient(t, h, "sidecars")
	img, err := m.sdk.Images.FromRegistry("base", nil).Build(t.Context(), m.app, nil)
	if err != nil {
		t.Fatal(err)
	}
	said := func(p *modal.ContainerProcess, err error) string {
		t.Helper()
		if err != nil {
			return err.Error()
		}
		out, err := io.ReadAll(p.Stdout)
		errs, err2 := io.ReadAll(p.Stderr)
		if err := errors.Join(err, err2); err != nil {
			return err.Error()
		}
		return strings.TrimSpace(string(out) + string(errs))
	}
	query := func(names ...string) []string { return append([]string{"python3", "-c", ask}, names...) }
	side := func(sb *modal.Sandbox, name string, command []string) *modal.SidecarContainer {
		t.Helper()
		c, err := sb.ExperimentalSidecars.Create(t.Context(), name, img, &modal.SidecarCreateParams{Command: command})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	sb := m.create(t, "base", &modal.SandboxCreateParams{Command: serve("0.0.0.0", "main"),
		OutboundCIDRAllowlist: &modal.Allowlist{}})
	db := side(sb, "db", serve("0.0.0.0", "one"))
	side(sb, "my_cache.local", serve("0.0.0.0", "two"))
	side(sb, "shut", serve("127.0.0.1", "three"))
	const all = "db one\nmy_cache.local two\nmain main\n-shut ConnectionRefusedError\n-other gaierror"
	if got := said(sb.Exec(t.Context(), query("db", "my_cache.local", "main", "-shut", "-other"), nil)); got != all {
		t.Errorf("the main container:\n%s", got)
	}
	if got := said(db.Exec(t.Context(), query("db", "my_cache.local", "main", "-shut", "-other"), nil)); got != all {
		t.Errorf("a sidecar:\n%s", got)
	}
	other := m.create(t, "base", &modal.SandboxCreateParams{BlockNetwork: true, Command: serve("0.0.0.0", "other")})
	second := side(other, "db", serve("0.0.0.0", "four"))
	if got := said(other.Exec(t.Context(), query("-db"), nil)); got != "-db gaierror" {
		t.Errorf("a sandbox whose network is blocked:\n%s", got)
	}
	if got := said(second.Exec(t.Context(), query("-main"), nil)); got != "-main gaierror" {
		t.Errorf("its sidecar:\n%s", got)
	}
	// An ended sidecar is not found any longer; another one may have its name.
	if _, err := db.Terminate(t.Context(), &modal.SidecarTerminateParams{Wait: true}); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the name of an ended sidecar is free", func() bool {
		return said(sb.Exec(t.Context(), query("-db"), nil)) == "-db gaierror"
	})
	side(sb, "db", serve("0.0.0.0", "five"))
	if got := said(sb.Exec(t.Context(), query("db", "my_cache.local"), nil)); got != "db five\nmy_cache.local two" {
		t.Errorf("with another sidecar of the name:\n%s", got)
	}
}
