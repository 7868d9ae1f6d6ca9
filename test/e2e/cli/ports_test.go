package cli

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
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
	h.Must("sandbox", "exec", id, "--", "python3", "-c",
		"import socket, time\nwhile socket.socket().connect_ex(('127.0.0.1', 8092)): time.sleep(0.05)")
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

// silent is a program that reads a connection to its end, and then keeps it open without a word. The process that
// starts it ends first, so that it does not keep the sandbox from being idle.
const silent = `
import os, signal, socket
l = socket.create_server(("127.0.0.1", 8093))
if os.fork():
    os._exit(0)
os.setsid()
for fd in range(3):
    os.dup2(os.open("/dev/null", os.O_RDWR), fd)
kept, _ = l.accept()
while kept.recv(4096):
    pass
open("/tmp/ended", "w").close()
signal.pause()
`

// TestIdleLimitAfterPortIsLeft checks that a connection does not keep a sandbox running after its client has left, even
// if the client had sent everything, and the program in the sandbox says nothing and keeps the connection open.
//
// mission: A6
func TestIdleLimitAfterPortIsLeft(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	for name, leave := range map[string]func(port *exec.Cmd, c *net.TCPConn) error{
		"harvest killed": func(port *exec.Cmd, _ *net.TCPConn) error { return port.Process.Kill() },
		"client reset": func(_ *exec.Cmd, c *net.TCPConn) error {
			return errors.Join(c.SetLinger(0), c.Close())
		},
		"client closed": func(_ *exec.Cmd, c *net.TCPConn) error { return c.Close() }, // noticed by keep-alive messages
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := h.Must("sandbox", "create", "--network", "none")
			h.Must("sandbox", "exec", id, "--", "python3", "-c", silent)
			port := h.Command(t.Context(), "sandbox", "port", id, "8093")
			out, err := port.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := port.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = port.Process.Kill()
				_ = port.Wait()
			}()
			address, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			dialled, err := net.Dial("tcp", strings.TrimSpace(address))
			if err != nil {
				t.Fatal(err)
			}
			defer dialled.Close()
			c := dialled.(*net.TCPConn)
			if _, err := c.Write([]byte("all")); err != nil {
				t.Fatal(err)
			}
			if err := c.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			h.Must("sandbox", "exec", id, "--", "sh", "-c", "until test -e /tmp/ended; do sleep 0.1; done")
			h.Must("sandbox", "extend", id, "--idle-timeout", "2s")
			if err := leave(port, c); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, "the sandbox ends, since it is idle",
				func() bool { return h.Sandbox(id).Status == "terminated" })
			if why := h.Sandbox(id).Reason; !strings.Contains(why, "idle") {
				t.Errorf("it ended for another reason: %q", why)
			}
		})
	}
}
