package host

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// KillAll kills the processes that have the data directory in their arguments or environment, but this one.
func KillAll(t *testing.T, data string) {
	t.Helper()
	testenv.Eventually(t, "no process of "+data+" is left",
		func() bool { // a process that was starting is found in the next round
			dirs, err := filepath.Glob("/proc/[0-9]*")
			if err != nil {
				t.Fatal(err)
			}
			found := false
			for _, dir := range dirs {
				args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
				env, _ := os.ReadFile(filepath.Join(dir, "environ"))
				pid, _ := strconv.Atoi(filepath.Base(dir))
				if pid > 1 && pid != os.Getpid() &&
					(bytes.Contains(args, []byte(data)) || bytes.Contains(env, []byte("HARVEST_DATA="+data))) {
					found = true
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			return !found
		})
}

// Up runs harvest up in the foreground until the test ends, and returns its URL.
func (h *Host) Up(args ...string) string {
	h.T.Helper()
	cmd := h.Command(context.WithoutCancel(h.T.Context()),
		append([]string{"up", "--listen", "127.0.0.1:0"}, args...)...)
	url := h.started(cmd)
	h.T.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			h.T.Errorf("harvest up: %v\n%s", err, h.Log())
		}
	})
	return url
}

// started starts a server in the foreground and returns where it listens.
func (h *Host) started(cmd *exec.Cmd) string {
	h.T.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.T.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(h.Data, logName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		h.T.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		h.T.Fatal(err)
	}
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			h.T.Fatalf("%v\n%s", err, h.Log())
		}
		if _, url, ok := strings.Cut(strings.TrimSpace(line), "listens on "); ok {
			go io.Copy(io.Discard, lines)
			return url
		}
	}
}

// OverSocket returns an HTTP client that connects to the host's server over its Unix socket.
func (h *Host) OverSocket() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _,
		_ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(h.Data, client.Socket))
	}}}
}

// Post sends a request to the host's server.
func (h *Host) Post(ctx context.Context, path, body string) *http.Response {
	h.T.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://harvest"+path, strings.NewReader(body))
	if err != nil {
		h.T.Fatal(err)
	}
	resp, err := h.OverSocket().Do(req)
	if err != nil {
		h.T.Fatal(err)
	}
	return resp
}

// Sent is an event of a stream of server-sent events.
type Sent struct {
	Name string
	Data string
}

// NextSent reads the next event of a stream; ok is false at its end.
func NextSent(lines *bufio.Scanner) (e Sent, ok bool) {
	for lines.Scan() {
		line := lines.Text()
		if name, found := strings.CutPrefix(line, "event: "); found {
			e.Name = name
		}
		if data, found := strings.CutPrefix(line, "data: "); found {
			e.Data = data
			return e, true
		}
	}
	return e, false
}

// UpUntil runs harvest up in the foreground until the returned function is called.
func (h *Host) UpUntil(args ...string) func() {
	h.T.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(h.T.Context()))
	cmd := h.Command(ctx, append([]string{"up"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	h.started(cmd)
	return func() {
		h.T.Helper()
		cancel()
		_ = cmd.Wait() // which was told to end
	}
}

// Kill kills the server with SIGKILL.
func (h *Host) Kill() {
	h.T.Helper()
	if err := syscall.Kill(h.Server().PID, syscall.SIGKILL); err != nil {
		h.T.Fatal(err)
	}
}
