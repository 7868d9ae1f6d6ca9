package server

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestUpTakesOverFromBackgroundServer checks that harvest up replaces a server that a command has started: sandboxes
// and commands continue, and attached clients miss nothing.
// mission: A4, E10
func TestUpTakesOverFromBackgroundServer(t *testing.T) {
	t.Parallel()
	host.OnEngines(t, func(t *testing.T, h *host.Host) {
		id := h.Must("sandbox", "create", "--name", "kept")
		before := h.Server()
		if !before.Background {
			t.Fatalf("%+v is not in the background", before)
		}
		h.Must("sandbox", "exec", "-d", "kept", "--", "sh", "-c",
			"echo begun; until [ -e go ]; do sleep 0.1; done; echo done; exit 6")
		var out testenv.Output
		logs := h.Command(t.Context(), "sandbox", "logs", "kept", "-q")
		logs.Stdout = &out
		if err := logs.Start(); err != nil {
			t.Fatal(err)
		}
		out.Until(t, "begun")

		url := h.Up()
		after := h.Server()
		if after.Background || after.PID == before.PID || after.Sandboxes != 1 {
			t.Errorf("%+v, after %+v", after, before)
		}
		remote, err := client.At(url, h.Must("key", "create", "program", "--quiet"))
		if err != nil {
			t.Fatal(err)
		}
		defer remote.Close()
		if sb, err := remote.Sandbox(t.Context(), "kept"); err != nil || sb.ID != id {
			t.Errorf("%+v, %v", sb, err)
		}
		h.Must("sandbox", "exec", id, "--", "touch", "go")
		_ = logs.Wait()
		if got, code := out.String(), logs.ProcessState.ExitCode(); got != "begun\ndone\n" || code != 6 {
			t.Errorf("exit code %d\n%s\n%s", code, got, h.Log())
		}

		_, stderr, code := h.Run("up", "--listen", "127.0.0.1:0")
		if code != 5 || !strings.Contains(stderr, "already runs in the foreground") ||
			!strings.Contains(stderr, "harvest down") {
			t.Errorf("exit code %d: %s", code, stderr)
		}
	})
}

// TestUpWithoutAddressKeepsBackgroundServer checks that harvest up ends no server if it cannot listen itself.
func TestUpWithoutAddressKeepsBackgroundServer(t *testing.T) {
	t.Parallel()
	h := host.New(t, "fake", nil)
	h.Must("volume", "ls")
	before := h.Server()
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, args := range [][]string{
		{"--listen", taken.Addr().String()},
		{"--listen", "none", "--modal-listen", taken.Addr().String()},
		{"--listen", "127.0.0.1:0", "--tls-cert", "missing.pem", "--tls-key", "missing.pem"},
	} {
		_, stderr, code := h.Run(append([]string{"up"}, args...)...)
		if code == 0 || !strings.Contains(stderr, "already in use") && !strings.Contains(stderr, "certificate") {
			t.Errorf("%q: exit code %d: %s", args, code, stderr)
		}
		if now := h.Server(); now.PID != before.PID {
			t.Errorf("%q: the server is process %d, not %d", args, now.PID, before.PID)
		}
	}
}

// TestCommandsDuringTakeover checks that commands that need a server wait during the takeover, and start none.
func TestCommandsDuringTakeover(t *testing.T) {
	t.Parallel()
	h := host.New(t, "fake", nil)
	h.Must("sandbox", "create", "--name", "kept")
	ctx, cancel := context.WithCancel(t.Context())
	var g sync.WaitGroup
	for range 4 {
		g.Go(func() {
			for ctx.Err() == nil {
				out, err := h.Command(t.Context(), "sandbox", "ls", "-o", "name").CombinedOutput()
				if err != nil || strings.TrimSpace(string(out)) == "" {
					t.Errorf("sandbox ls: %v: %s", err, out)
				}
			}
		})
	}
	h.Up()
	cancel()
	g.Wait()
	if now := h.Server(); now.Background || now.Status != "ready" {
		t.Errorf("%+v", now)
	}
}
