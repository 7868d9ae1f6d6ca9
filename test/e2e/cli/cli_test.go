package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/transport/socket"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// mission: A4, 4.7
func TestTerminal(t *testing.T) {
	t.Parallel()
	host.OnEngines(t, func(t *testing.T, h *host.Host) {
		cmd := h.Command(t.Context(), "run", "-it", "--", "sh", "-c",
			"stty size; until [ \"$(stty size)\" = '22 44' ]; do sleep 0.05; done; echo resized; read -r line; echo "+
				"got $line; read -r never")
		tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 11, Cols: 33})
		if err != nil {
			t.Fatal(err)
		}
		defer tty.Close()
		host.Expect(t, tty, "11 33")
		if err := pty.Setsize(tty, &pty.Winsize{Rows: 22, Cols: 44}); err != nil {
			t.Fatal(err)
		}
		host.Expect(t, tty, "resized")
		io.WriteString(tty, "hello\r")
		host.Expect(t, tty, "got hello")
		io.WriteString(tty, "\x03") // control-C is the command's
		_, _ = io.Copy(io.Discard, tty)
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
			t.Errorf("it ended with %v", err)
		}
	})
}

// TestSignals checks that signals reach the command, and that a command which ignores them is killed at the end.
// mission: A4
func TestSignals(t *testing.T) {
	t.Parallel()
	host.OnEngines(t, func(t *testing.T, h *host.Host) {
		for name, c := range map[string]struct {
			script string
			sig    syscall.Signal
			again  bool
			code   int
		}{
			"trapped": {"trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.05; done",
				syscall.SIGTERM, false, 9},
			"not trapped": {"echo ready; while :; do sleep 0.05; done", syscall.SIGHUP, false, 129},
			"ignored":     {"trap '' INT; echo ready; while :; do sleep 0.05; done", syscall.SIGINT, true, 130},
		} {
			cmd := h.Command(t.Context(), "run", "--", "sh", "-c", c.script)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			host.Expect(t, out, "ready")
			if err := cmd.Process.Signal(c.sig); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			var again sync.WaitGroup
			if c.again {
				// Signals in quick succession merge into one, so more are sent than needed.
				again.Go(func() {
					for {
						select {
						case <-ended:
							return
						case <-time.After(50 * time.Millisecond):
							_ = cmd.Process.Signal(c.sig)
						}
					}
				})
			}
			_, _ = io.Copy(io.Discard, out)
			close(ended)
			again.Wait()
			if err := cmd.Wait(); cmd.ProcessState.ExitCode() != c.code {
				t.Errorf("%s: %v, want %d", name, err, c.code)
			}
		}
	})
}

// TestClientKilled checks that a client that runs a command and is killed leaves nothing behind.
// mission: A3
func TestClientKilled(t *testing.T) {
	t.Parallel()
	host.OnEngines(t, func(t *testing.T, h *host.Host) {
		cmd := h.Command(t.Context(), "run", "--", "sh", "-c", "echo ready; sleep 1000")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		host.Expect(t, out, "ready")
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		testenv.Eventually(t, "the sandbox is gone", func() bool { return h.Server().Sandboxes == 0 })
	})
}

// The server is killed while commands run: the next one has their whole output and exit codes.
// mission: A4
func TestServerKilled(t *testing.T) {
	t.Parallel()
	host.OnEngines(t, func(t *testing.T, h *host.Host) {
		h.Must("sandbox", "create", "--name", "box")
		const script = "i=0; while [ $i -lt 20 ]; do echo line $i; i=$((i+1)); sleep 1; done; echo err >&2; exit 7"
		detached := h.Must("sandbox", "exec", "-d", "box", "--", "sh", "-c", script)
		cmd := h.Command(t.Context(), "sandbox", "exec", "box", "--", "sh", "-c", script)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		host.Expect(t, out, "line 3")
		if err := syscall.Kill(h.Server().PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 75 ||
			!strings.Contains(stderr.String(), "harvest sandbox logs sbx_") {
			t.Errorf("who waited for the command got exit code %d and %q", code, stderr.String())
		}
		var all []api.Process
		if err := json.Unmarshal([]byte(h.Must("sandbox", "ps", "-o", "json", "box")), &all); err != nil ||
			len(all) != 2 {
			t.Fatalf("processes: %v, %v", all, err)
		}
		want := ""
		for i := range 20 {
			want += "line " + strconv.Itoa(i) + "\n"
		}
		for _, p := range all {
			stdout, stderr, code := h.Run("sandbox", "logs", "box", p.ID)
			if stdout != want || stderr != "err\n" || code != 7 {
				t.Errorf("process %s (detached: %t): %q, %q, %d", p.ID, p.ID == detached, stdout, stderr, code)
			}
		}
	})
}

// TestStartTogether checks that concurrent commands that need a server start only one.
// mission: A11
func TestStartTogether(t *testing.T) {
	t.Parallel()
	h := host.New(t, "fake", nil)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, stderr, code := h.Run("sandbox", "create"); code != 0 {
				t.Errorf("exit code %d: %s", code, stderr)
			}
		})
	}
	wg.Wait()
	if s := h.Server(); s.Sandboxes != 8 || !s.Background {
		t.Errorf("%+v", s)
	}
}

// TestSomebodyElsesData checks that a data directory of another user is refused, and nothing is written there.
func TestSomebodyElsesData(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "fake", nil)
	theirs := filepath.Join(t.TempDir(), "theirs")
	if err := os.Mkdir(theirs, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(theirs, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"sandbox ls", "up"} {
		_, stderr, code := h.Run(append([]string{"--data", theirs}, strings.Fields(command)...)...)
		if code != 3 || !strings.Contains(stderr, "belongs to") || !strings.Contains(stderr, "try:") {
			t.Errorf("%s: exit code %d, %s", command, code, stderr)
		}
	}
	if left, err := os.ReadDir(theirs); err != nil || len(left) > 0 {
		t.Errorf("written there: %v, %v", left, err)
	}
}

// TestServerDiesAtStart checks that the client does not wait for a server that dies while it starts, and names its log.
func TestServerDiesAtStart(t *testing.T) {
	t.Parallel()
	h := host.New(t, "fake", nil)
	if err := os.WriteFile(filepath.Join(h.Data, "harvest.db"), bytes.Repeat([]byte("no database "), 1000),
		0o600); err != nil {
		t.Fatal(err)
	}
	_, stderr, code := h.Run("sandbox", "ls")
	if code != 1 || !strings.Contains(stderr, "damaged") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if err := os.Remove(filepath.Join(h.Data, "harvest.db")); err != nil {
		t.Fatal(err)
	}
}

// oldServer answers like a server of another version, until it is asked to stop.
func oldServer(t *testing.T, data string, background bool) (ended <-chan struct{}) {
	t.Helper()
	l, err := socket.Listen(data, client.Socket)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) {
		if err := json.NewEncoder(w).Encode(v); err != nil {
			t.Error(err)
		}
	}
	mux.HandleFunc("GET "+api.Readyz, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, api.Server{Status: "ready", Version: "0.0.1", Background: background})
	})
	mux.HandleFunc("GET "+api.Sandboxes,
		func(w http.ResponseWriter, _ *http.Request) { answer(w, api.List[api.Sandbox]{}) })
	s := &http.Server{Handler: mux}
	mux.HandleFunc("POST "+api.Shutdown, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		close(asked)
		go s.Close()
	})
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return asked
}

func TestOtherVersions(t *testing.T) {
	t.Parallel()
	h := host.New(t, "fake", nil)
	asked := oldServer(t, h.Data, true)
	h.Must("sandbox", "ls")
	<-asked
	if s := h.Server(); s.Version == "0.0.1" {
		t.Errorf("the old server still serves")
	}
	h.Must("down")
	oldServer(t, h.Data, false)
	_, stderr, code := h.Run("sandbox", "ls")
	if code != 0 || !strings.Contains(stderr, "0.0.1") || !strings.Contains(stderr, "harvest down") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

// TestOrdinaryUser checks that everything works the same for an ordinary user.
func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	h := host.Ordinary(t)
	if out := h.Must("run", "--code", "import os; print(6*7, os.getuid())"); out != "42 0" {
		t.Errorf("it printed %q", out)
	}
	if _, stderr, code := h.Run("run", "-v", "data:/data", "--", "sh", "-c",
		"echo kept > /data/file; exit 3"); code != 3 {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if out := h.Must("run", "-v", "data:/data", "--", "cat", "/data/file"); out != "kept" {
		t.Errorf("it printed %q", out)
	}
	if out, _, _ := h.Run("doctor"); !strings.Contains(out, "subordinate ids") || !strings.Contains(out, "rootless") {
		t.Errorf("doctor: %s", out)
	}
}

// TestOrdinaryUserWithoutNamespaces checks that ordinary users on a host without user namespaces get a remedy, and that
// nothing runs without isolation.
//
// mission: A9
func TestOrdinaryUserWithoutNamespaces(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := host.Ordinary(t)
	cmd := h.Command(t.Context(), "run", "--code", "print(6*7)")
	// The limit of user namespaces belongs to a user namespace, of which this is one.
	const without = `echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --reuid "$1" --regid "$1" ` +
		`--clear-groups "$0" "${@:2}"`
	cmd.Args = append([]string{"bash", "-c", without, cmd.Path, strconv.Itoa(h.UID)}, cmd.Args[1:]...)
	cmd.Path = "/bin/bash"
	everybody := []syscall.SysProcIDMap{{Size: 1 << 16}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: everybody,
		GidMappings: everybody, GidMappingsEnableSetgroups: true}
	out, err := cmd.CombinedOutput()
	if err == nil || bytes.Contains(out, []byte("42\n")) ||
		!bytes.Contains(out, []byte("only root may create user namespaces")) ||
		!bytes.Contains(out, []byte("run as root, or allow them")) {
		t.Errorf("%v\n%s", err, out)
	}
}
