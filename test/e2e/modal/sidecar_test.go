package modal

import (
	"strings"
	"testing"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host/modalhost"
	"github.com/RelevanceAI/harvest/test/stubs/modaltest"
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

// sidecars makes sandboxes with sidecars.
type sidecars struct {
	*modalClient
	t   *testing.T
	img *modal.Image
}

func newSidecars(t *testing.T, h *modalhost.Host) *sidecars {
	t.Helper()
	m := newModalClient(t, h, "sidecars")
	img, err := m.sdk.Images.FromRegistry("base", nil).Build(t.Context(), m.app, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &sidecars{m, t, img}
}

// add adds a sidecar that serves a word.
func (s *sidecars) add(sb *modal.Sandbox, name string, command []string) *modal.SidecarContainer {
	s.t.Helper()
	c, err := sb.ExperimentalSidecars.Create(s.t.Context(), name, s.img, &modal.SidecarCreateParams{Command: command})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// answers asks the named containers from within one, and returns their answers.
func answers[P any](t *testing.T, from modaltest.Container[P], names ...string) string {
	t.Helper()
	out, errs, _ := modaltest.Run(t, from, nil, append([]string{"python3", "-c", ask}, names...)...)
	return strings.TrimSpace(out + errs)
}

// TestModalSidecars checks that a sandbox and its sidecars find each other by name, also without the internet, as
// the proxies of Modal's guide require, and that nothing else is reached that way.
//
// mission: A6
func TestModalSidecars(t *testing.T) {
	testenv.Long(t)
	testenv.Root(t)
	s := newSidecars(t, modalhost.WithBase(t))
	s.find()
	t.Run("blocked later", func(t *testing.T) { s.t = t; s.block() })
}

// TestModalSidecarsWithoutRoot is TestModalSidecars with a server of an ordinary user.
//
// mission: A6, A9
func TestModalSidecarsWithoutRoot(t *testing.T) {
	testenv.Long(t)
	newSidecars(t, modalhost.Ordinary(t)).find()
}

// find checks which containers find each other.
func (s *sidecars) find() {
	t := s.t
	t.Helper()
	sb := s.create(t, "base", &modal.SandboxCreateParams{Command: serve("0.0.0.0", "main"),
		OutboundCIDRAllowlist: &modal.Allowlist{}})
	db := s.add(sb, "db", serve("0.0.0.0", "one"))
	s.add(sb, "my_cache.local", serve("0.0.0.0", "two"))
	s.add(sb, "shut", serve("127.0.0.1", "three"))
	const all = "db one\nmy_cache.local two\nmain main\n-shut ConnectionRefusedError\n-other gaierror"
	if got := answers(t, sb, "db", "my_cache.local", "main", "-shut", "-other"); got != all {
		t.Errorf("the main container:\n%s", got)
	}
	if got := answers(t, db, "db", "my_cache.local", "main", "-shut", "-other"); got != all {
		t.Errorf("a sidecar:\n%s", got)
	}
	other := s.create(t, "base", &modal.SandboxCreateParams{BlockNetwork: true, Command: serve("0.0.0.0", "other")})
	second := s.add(other, "db", serve("0.0.0.0", "four"))
	if got := answers(t, other, "-db"); got != "-db gaierror" {
		t.Errorf("a sandbox whose network is blocked:\n%s", got)
	}
	if got := answers(t, second, "-main"); got != "-main gaierror" {
		t.Errorf("its sidecar:\n%s", got)
	}
	// An ended sidecar is not found any longer; another one may have its name.
	if _, err := db.Terminate(t.Context(), &modal.SidecarTerminateParams{Wait: true}); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the name of an ended sidecar is free", func() bool {
		return answers(t, sb, "-db") == "-db gaierror"
	})
	s.add(sb, "db", serve("0.0.0.0", "five"))
	if got := answers(t, sb, "db", "my_cache.local"); got != "db five\nmy_cache.local two" {
		t.Errorf("with another sidecar of the name:\n%s", got)
	}
}

// block checks that a sandbox whose network is blocked while it runs leaves the private network, in which its sidecars
// stay, also over a restart of the server, and that it returns.
func (s *sidecars) block() {
	t := s.t
	t.Helper()
	sb := s.create(t, "base", &modal.SandboxCreateParams{Command: serve("0.0.0.0", "main")})
	one := s.add(sb, "one", serve("0.0.0.0", "1"))
	s.add(sb, "two", serve("0.0.0.0", "2"))
	want := func(when, fromMain, fromSidecar string) {
		t.Helper()
		if got := answers(t, sb, strings.Fields(fromMain)[0]); got != fromMain {
			t.Errorf("%s, the sandbox: %s", when, got)
		}
		if got := answers(t, one, "two", strings.Fields(fromSidecar)[0]); got != "two 2\n"+fromSidecar {
			t.Errorf("%s, a sidecar: %s", when, got)
		}
	}
	access := func(kind pb.NetworkAccess_NetworkAccessType) {
		t.Helper()
		address := strings.TrimPrefix(s.h.Modal[0], "MODAL_SERVER_URL=http://")
		y := s.typing(t, sb, address)
		if _, err := y.router.TaskSetNetworkAccess(y.ctx, pb.TaskSetNetworkAccessRequest_builder{TaskId: y.task,
			NetworkAccess: pb.NetworkAccess_builder{NetworkAccessType: kind}.Build()}.Build()); err != nil {
			t.Fatal(err)
		}
	}
	want("at first", "one 1", "main main")
	access(pb.NetworkAccess_BLOCKED)
	want("blocked", "-one gaierror", "-main gaierror")
	s.killServer(t)
	want("blocked, after a restart", "-one gaierror", "-main gaierror")
	access(pb.NetworkAccess_OPEN)
	want("open again", "one 1", "main main")
	s.killServer(t)
	want("after another restart", "one 1", "main main")
}

// TestModalSidecarsOfSnapshots checks that a snapshot of memory has no sidecars: those of the sandbox end with it, and
// the restored sandbox can have others under the same names.
//
// mission: A4, A6
func TestModalSidecarsOfSnapshots(t *testing.T) {
	testenv.Long(t)
	testenv.Root(t)
	s := newSidecars(t, modalhost.WithBase(t))
	sb := s.create(t, "base", &modal.SandboxCreateParams{Command: serve("0.0.0.0", "main"),
		ExperimentalEnableSnapshot: true})
	db := s.add(sb, "db", serve("0.0.0.0", "one"))
	if got := answers(t, sb, "db", "main"); got != "db one\nmain main" {
		t.Fatalf("before the snapshot: %s", got)
	}
	snapshot, err := sb.ExperimentalSnapshot(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Wait(t.Context(), nil); err != nil {
		t.Errorf("the sidecar does not end with the sandbox: %v", err)
	}
	for range 2 {
		again := s.restored(t, snapshot, nil)
		if got := answers(t, again, "-db"); got != "-db gaierror" {
			t.Errorf("the restored sandbox finds the sidecar: %s", got)
		}
		next := s.add(again, "db", serve("0.0.0.0", "two"))
		if got := answers(t, again, "db", "main"); got != "db two\nmain main" {
			t.Errorf("the restored sandbox with another sidecar: %s", got)
		}
		if got := answers(t, next, "main"); got != "main main" {
			t.Errorf("that sidecar: %s", got)
		}
	}
}
