package cli

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/e2e/host"
	"github.com/RelevanceAI/harvest/internal/testenv"
)

// serve is a program that serves its first argument's port on the loopback, and reports when it does.
const serve = `
import http.server, sys
s = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler)
print("serving", flush=True)
s.serve_forever()
`

// mission: A6
func TestPortsAreReachedFromThisMachine(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))

	run := h.Command(t.Context(), "run", "--network", "none", "-w", "/etc", "-p", "8091", "--code", serve, "8091")
	said, err := run.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	served, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	notes := bufio.NewReader(said)
	address := ""
	for address == "" {
		line, err := notes.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		_, address, _ = strings.Cut(strings.TrimSpace(line), "is at ")
	}
	host.Expect(t, served, "serving")
	wantPage(t, address, "resolv.conf")
	_ = run.Process.Signal(syscall.SIGINT)
	_, _ = io.Copy(io.Discard, notes)
	_ = run.Wait()
	if _, err := net.Dial("tcp", address); err == nil {
		t.Error("the port is still open after the run")
	}

	id := h.Must("sandbox", "create", "--network", "none", "-p", "8092")
	port := h.Command(t.Context(), "sandbox", "port", id)
	out, err := port.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	port.Stderr = os.Stderr
	if err := port.Start(); err != nil {
		t.Fatal(err)
	}
	address, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("tcp", strings.TrimSpace(address)); err != nil {
		t.Error(err)
	} else if n, _ := c.Read(make([]byte, 1)); n != 0 {
		t.Error("a port on which nobody listens says something")
	}
	h.Must("sandbox", "exec", "-d", "-w", "/etc", id, "--", "python3", "-c", serve, "8092")
	h.Must("sandbox", "exec", id, "--", "python3", "-c", "import socket, time\nwhile socket.socket().connect_ex(('127.0.0.1', 8092)): time.sleep(0.05)")
	wantPage(t, strings.TrimSpace(address), "resolv.conf")
	_ = port.Process.Signal(syscall.SIGINT)
	_ = port.Wait()
	_, stderr, code := h.Run("sandbox", "port", h.Must("sandbox", "create"))
	if code != 2 || !strings.Contains(stderr, "without ports") {
		t.Errorf("without ports: %d, %s", code, stderr)
	}
}

// wantPage reads a page that must have text.
func wantPage(t *testing.T, address, text string) {
	t.Helper()
	resp, err := http.Get("http://" + address + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if page, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(page), text) {
		t.Errorf("%v, page %.200s", err, page)
	}
}
