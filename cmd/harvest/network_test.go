package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/testenv"
)

func TestParseNetwork(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]api.Network{
		"":                                  {},
		"none":                              {Mode: "none"},
		"default":                           {Mode: "default"},
		"none none":                         {Mode: "none"},
		"allow=a.org,b.org allow=c.org:443": {Mode: "allow", Allow: []string{"a.org", "b.org", "c.org:443"}},
		"default allow=10.0.0.0/8":          {Mode: "default", Allow: []string{"10.0.0.0/8"}},
		"deny=a.org":                        {Mode: "default", Deny: []string{"a.org"}},
		"allow=*.a.org deny=x.a.org,":       {Mode: "allow", Allow: []string{"*.a.org"}, Deny: []string{"x.a.org"}},
	} {
		got, err := parseNetwork(strings.Fields(text))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", text, err, diff)
		}
		again, err := parseNetwork(strings.Fields(networkText(got)))
		if diff := cmp.Diff(want, again); err != nil || diff != "" {
			t.Errorf("%s as it is shown, %s: %v\n%s", text, networkText(got), err, diff)
		}
	}
	for _, text := range []string{"odd", "allow", "allow=", "allow=,", "deny", "none=a", "none default", "=a", "allow a.org"} {
		if got, err := parseNetwork(strings.Fields(text)); !errors.Is(err, errors.Invalid) || errors.RemedyOf(err) == "" {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
}

func TestParseForwards(t *testing.T) {
	t.Parallel()
	got, err := parseForwards([]string{"8080", "18081:8081"})
	if err != nil || len(got) != 2 || got[0].address != "" || got[0].port != 8080 || got[1].address != "127.0.0.1:18081" || got[1].port != 8081 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"0", "x", "65536", ":80", "80:", "80:x", "1:2:3", "-1"} {
		if got, err := parseForwards([]string{bad}); !errors.Is(err, errors.Invalid) {
			t.Errorf("%s: %+v, %v", bad, got, err)
		}
	}
	if _, err := parseForwards([]string{"80", "81:80"}); !errors.Is(err, errors.Invalid) {
		t.Errorf("twice: %v", err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	opened, err := listenAll([]forward{{port: port}})
	if err != nil || opened[0].listener.Addr().String() == taken.Addr().String() {
		t.Errorf("a port that is taken: %v", err)
	}
	closeAll(opened)
	if _, err := listenAll([]forward{{port: 80, address: "127.0.0.1:0"}, {port: 81, address: taken.Addr().String()}}); !errors.Is(err, errors.Invalid) {
		t.Errorf("an address that is taken: %v", err)
	}
}

// serve is a program that serves its first argument's port on the loopback, and says when it does.
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
	h := newHost(t, "gvisor", gvisorSetup(t))

	run := h.command(t.Context(), "run", "--network", "none", "-w", "/etc", "-p", "8091", "--code", serve, "8091")
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
	expect(t, served, "serving")
	wantPage(t, address, "resolv.conf")
	_ = run.Process.Signal(syscall.SIGINT)
	_, _ = io.Copy(io.Discard, notes)
	_ = run.Wait()
	if _, err := net.Dial("tcp", address); err == nil {
		t.Error("the port is still open after the run")
	}

	id := h.must("sandbox", "create", "--network", "none", "-p", "8092")
	port := h.command(t.Context(), "sandbox", "port", id)
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
	h.must("sandbox", "exec", "-d", "-w", "/etc", id, "--", "python3", "-c", serve, "8092")
	h.must("sandbox", "exec", id, "--", "python3", "-c", "import socket, time\nwhile socket.socket().connect_ex(('127.0.0.1', 8092)): time.sleep(0.05)")
	wantPage(t, strings.TrimSpace(address), "resolv.conf")
	_ = port.Process.Signal(syscall.SIGINT)
	_ = port.Wait()
	_, stderr, code := h.run("sandbox", "port", h.must("sandbox", "create"))
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
