package modalengine

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	modalengine "github.com/RelevanceAI/harvest/internal/engine/modal"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/host/modalhost"
)

// modalFleet is a Fleet whose sandboxes are at Modal. Our own server stands in for Modal.
type modalFleet struct {
	*fleet.Fleet
	h    *modalhost.Host
	dir  string                              // the engine's
	open func() (*modalengine.Engine, error) // of the same directory
	eng  *modalengine.Engine
	sdk  *modal.Client

	mu     sync.Mutex
	events []string // guarded by mu; type, sandbox and reason
}

func newModalFleet(t *testing.T) *modalFleet {
	t.Helper()
	h := modalhost.WithBase(t)
	for _, pair := range h.Modal { // the SDK takes its server from the environment alone
		name, value, _ := strings.Cut(pair, "=")
		t.Setenv(name, value)
	}
	t.Setenv("MODAL_CONFIG_PATH", filepath.Join(t.TempDir(), "none.toml"))
	dir := testenv.DataDir(t)
	f := &modalFleet{h: h, dir: dir, open: func() (*modalengine.Engine, error) {
		return modalengine.Open(t.Context(), modalengine.Options{Dir: dir, Executable: h.Program, Image: "base",
			OutputBytes: 1 << 20})
	}}
	var err error
	if f.eng, err = f.open(); err != nil {
		t.Fatal(err)
	}
	if f.sdk, err = modal.NewClient(); err != nil {
		t.Fatal(err)
	}
	f.Fleet, err = fleet.Open(t.Context(), fleet.Options{Engine: f.eng, Store: testdb.Open(t).Sandboxes(),
		Event: func(e record.Event) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.events = append(f.events, string(e.Type)+" "+e.Sandbox.ID+" "+e.Sandbox.Reason)
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		all, err := f.List(ctx, "", record.Filter{})
		if err != nil {
			t.Error(err)
		}
		for _, sb := range all {
			if err := f.Destroy(ctx, sb.Account, sb.ID); err != nil {
				t.Error(err)
			}
		}
		if err := errors.Join(f.Close(ctx), f.eng.Close()); err != nil {
			t.Error(err)
		}
		f.sdk.Close()
	})
	return f
}

func (f *modalFleet) create(t *testing.T, account string, req spec.Request) record.Sandbox {
	t.Helper()
	sb, err := f.Create(t.Context(), account, req)
	if err != nil {
		t.Fatalf("%v: %s", err, errors.RemedyOf(err))
	}
	return sb
}

// inApp returns the sandboxes that run in an app at Modal, and fails if the app does not exist.
func (f *modalFleet) inApp(t *testing.T, name string) []*modal.Sandbox {
	t.Helper()
	app, err := f.sdk.Apps.FromName(t.Context(), name, nil)
	if err != nil {
		t.Fatalf("the app %s: %v", name, err)
	}
	all, err := f.sdk.Sandboxes.List(t.Context(), &modal.SandboxListParams{AppID: app.AppID})
	if err != nil {
		t.Fatal(err)
	}
	var list []*modal.Sandbox
	for box, err := range all {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, box)
	}
	return list
}

// TestModalEngineFleet checks that each account has its own app at Modal, that sandboxes have the internet by default,
// that their ports are reachable, and that a sandbox which is ended at Modal becomes lost, with the reason.
//
// mission: A6, A7, 1.4, 5.6
func TestModalEngineFleet(t *testing.T) {
	testenv.Long(t)
	f := newModalFleet(t)
	one := f.create(t, "personal", spec.Request{Image: "base"})
	two := f.create(t, "acme", spec.Request{Image: "base", Network: spec.Network{Mode: "none"},
		Memory: 512 << 20})
	if one.Network.Mode != "default" {
		t.Errorf("the network is %+v by default", one.Network)
	}
	_, err := f.Create(t.Context(), "personal",
		spec.Request{Image: "base", GPU: "T4"}) // our own server, which has no GPU, gets the request
	if errors.KindOf(err) != errors.Unsupported || !strings.Contains(errors.Message(err), "there are no GPUs here") ||
		!strings.Contains(errors.RemedyOf(err), "leave the GPU out") {
		t.Errorf("with a GPU: %v: %q, %q", err, errors.Message(err), errors.RemedyOf(err))
	}
	t.Run("apps", func(t *testing.T) { f.apps(t, one, two) })
	t.Run("port", func(t *testing.T) { f.port(t, two) })
	t.Run("network", func(t *testing.T) { f.network(t, two) })
	t.Run("lost", func(t *testing.T) { f.lost(t, one) })
}

// apps checks that a reopened engine finds the sandboxes of all accounts.
func (f *modalFleet) apps(t *testing.T, one, two record.Sandbox) {
	for name, sb := range map[string]record.Sandbox{"harvest-personal": one, "harvest-acme": two} {
		if list := f.inApp(t, name); len(list) != 1 || list[0].SandboxID != sb.Handle.Ref {
			t.Errorf("the app %s has %d sandboxes", name, len(list))
		}
	}
	if list := f.inApp(t, "harvest"); len(list) != 0 {
		t.Errorf("%d sandboxes belong to no account", len(list))
	}
	again, err := f.open()
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	handles, err := again.List(t.Context())
	found := map[engine.Handle]bool{}
	for _, h := range handles {
		found[h] = true
	}
	if err != nil || len(handles) != 2 || !found[one.Handle] || !found[two.Handle] {
		t.Errorf("%+v, %v", handles, err)
	}
}

// port sends HTTP to a port of a sandbox without a network, on persistent connections.
func (f *modalFleet) port(t *testing.T, sb record.Sandbox) {
	x, err := f.Exec(t.Context(), sb.Account, sb.ID,
		fleet.ExecRequest{Args: []string{"sh", "-c",
			"mkdir /www && head -c 3000000 /dev/zero >/www/big && cd /www && exec python3 -m http.server 8000"},
			Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _,
		_ string) (net.Conn, error) {
		return f.Dial(ctx, sb.Account, sb.ID, 8000)
	}}}
	defer web.CloseIdleConnections()
	testenv.Try(t, func() error {
		resp, err := web.Get("http://sandbox/big")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != 3_000_000 {
			return errors.Errorf("%d bytes, %v", n, err)
		}
		return nil
	})
	if err := x.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}

// network changes the network while the sandbox runs, to rules that Modal supports, and back to the internet.
func (f *modalFleet) network(t *testing.T, sb record.Sandbox) {
	for _, n := range []spec.Network{{Mode: "allow", Allow: []string{"192.0.2.0/24", "example.org"}},
		{Mode: "default"}, {Mode: "none"}, {Mode: "none"}} {
		got, err := f.SetNetwork(t.Context(), sb.Account, sb.ID, n)
		if err != nil || got.Network.Mode != n.Mode {
			t.Errorf("%+v: %+v, %v", n, got.Network, err)
		}
		there, err := f.h.Run("sandbox", "get", "sbx_"+strings.ToLower(strings.TrimPrefix(sb.Handle.Ref, "sb-")), "-o",
			"json")
		if want := `"mode":"` + n.Mode + `"`; err != nil ||
			!strings.Contains(strings.ReplaceAll(there, `": "`, `":"`), want) {
			t.Errorf("at Modal's place it is %s, %v; want %s", there, err, want)
		}
	}
	_, err := f.SetNetwork(t.Context(), sb.Account, sb.ID,
		spec.Network{Mode: "default", Deny: []string{"example.org"}})
	if errors.KindOf(err) != errors.Unsupported || errors.RemedyOf(err) == "" {
		t.Errorf("what Modal cannot say: %v", err)
	}
	if now, err := f.Get(t.Context(), sb.Account, sb.ID); err != nil || now.Network.Mode != "none" {
		t.Errorf("afterwards: %+v, %v", now.Network, err)
	}
}

// A sandbox that is terminated at Modal behind Harvest's back is lost, and then over.
func (f *modalFleet) lost(t *testing.T, sb record.Sandbox) {
	for _, box := range f.inApp(t, "harvest-personal") {
		if _, err := box.Terminate(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	ended, err := f.Ended(t.Context(), sb.Account, sb.ID)
	if err != nil || ended.Status != record.Terminated || !strings.Contains(ended.Reason, "terminated at Modal") {
		t.Errorf("%s: %s, %v", ended.Status, ended.Reason, err)
	}
	f.mu.Lock()
	log := strings.Join(f.events, "\n")
	f.mu.Unlock()
	if !strings.Contains(log, "sandbox.lost "+sb.ID+" It was terminated at Modal") {
		t.Errorf("it was never lost:\n%s", log)
	}
	if _, err := f.Exec(t.Context(), sb.Account, sb.ID,
		fleet.ExecRequest{Args: []string{"true"}}); errors.KindOf(err) != errors.Gone ||
		!strings.Contains(errors.Message(err), "terminated at Modal") {
		t.Errorf("a command afterwards: %v", err)
	}
	if next := f.create(t, sb.Account, spec.Request{Image: "base"}); next.ID == sb.ID {
		t.Error("the next sandbox is the one before")
	}
}

// TestModalEngineSecrets checks that a secret that Modal stores under a name is in the environment of commands, in
// copies of the sandbox too, and in no data stored here. A missing secret is reported before anything is created.
//
// mission: F3, F4
func TestModalEngineSecrets(t *testing.T) {
	testenv.Long(t)
	f := newModalFleet(t)
	const value = "open-sesame-4711"
	if out, err := f.h.Run("secret", "set", "keys", "WORD="+value, "SAME=of Modal"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	said := func(sb record.Sandbox) string {
		t.Helper()
		x, err := f.Exec(t.Context(), sb.Account, sb.ID,
			fleet.ExecRequest{Args: []string{"sh", "-c", `echo "$WORD,$SAME"`}})
		if err != nil {
			t.Fatal(err)
		}
		result, err := x.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return result.Stdout
	}
	// The first sandbox of its image, for which the engine records the environment that it finds.
	one := f.create(t, "personal", spec.Request{Image: "base", Secrets: []string{"modal:keys"},
		Env: map[string]string{"SAME": "own"}})
	if got := said(one); got != value+",own\n" {
		t.Errorf("commands have %q", got)
	}
	if got := said(f.create(t, "personal", spec.Request{Image: "base"})); got != ",\n" {
		t.Errorf("a sandbox of the same image without the secret has %q", got)
	}
	next, err := f.Fork(t.Context(), one.Account, one.ID, fleet.ForkRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got := said(next); got != value+",of Modal\n" {
		t.Errorf("a copy has %q", got)
	}
	box, err := f.eng.Open(t.Context(), one.Handle)
	if err != nil {
		t.Fatal(err)
	}
	carried, err := box.(engine.Carrier).Carry(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	p, err := carried.Start(t.Context(), engine.Command{Args: []string{"sh", "-c", `echo "$WORD"`}, Stdout: &out})
	if err == nil {
		_, err = p.Wait(t.Context())
	}
	if err := errors.Join(err, carried.Destroy(context.WithoutCancel(t.Context()))); err != nil ||
		out.String() != value+"\n" {
		t.Errorf("carried over it has %q, %v", out.String(), err)
	}
	for _, file := range host.InFiles(t, f.dir, value) {
		t.Errorf("the value is in %s", file)
	}
	_, err = f.Create(t.Context(), "personal", spec.Request{Image: "base", Secrets: []string{"modal:lost"}})
	if errors.KindOf(err) != errors.NotFound || !strings.Contains(errors.Message(err), `Modal has no secret "lost"`) ||
		!strings.Contains(errors.RemedyOf(err), "modal secret create lost") {
		t.Errorf("one that is not there: %v, %s", err, errors.RemedyOf(err))
	}
	if list := f.inApp(t, "harvest-personal"); len(list) != 3 {
		t.Errorf("%d sandboxes are at Modal, want 3", len(list))
	}
}
