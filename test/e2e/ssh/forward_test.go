package ssh_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// serving is a program for the sandbox that answers with its own name on a port of the loopback and on a socket.
const serving = `import socketserver, sys, threading
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        self.rfile.readline()
        self.wfile.write(b"from the sandbox\n")
class Unix(socketserver.ThreadingUnixStreamServer): pass
threading.Thread(target=Unix("/root/socket", Handler).serve_forever, daemon=True).start()
tcp = socketserver.ThreadingTCPServer(("127.0.0.1", 8000), Handler)
print("ready", flush=True)
tcp.serve_forever()`

// ask sends a line to an address and returns the answer.
func ask(t *testing.T, network, address string) string {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), network, address)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	fmt.Fprintln(conn, "hello")
	answer, _ := bufio.NewReader(conn).ReadString('\n')
	return answer
}

// background runs ssh until the test ends, and returns after the sandbox has printed a line.
func (c *client) background(args ...string) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	cmd := c.command(ctx, "ssh", args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	var problems strings.Builder
	cmd.Stderr = &problems
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // its signal is an error here
		if problems.Len() > 0 {
			c.t.Logf("ssh: %s", problems.String())
		}
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		c.t.Fatalf("ssh %q: %v\n%s", args, err, c.h.Log())
	}
	go io.Copy(io.Discard, out)
}

// freePort returns a port of this machine that was free a moment ago.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// TestForward forwards connections to ports and sockets of a sandbox, and from a sandbox to this machine.
func TestForward(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "from the machine")
	}))
	defer site.Close()
	local, socks, socket := freePort(t), freePort(t), filepath.Join(c.home, "socket")
	c.write("serving.py", []byte(serving))
	c.must("scp", filepath.Join(c.home, "serving.py"), "dev.harvest:/root/serving.py")
	c.background("-o", "ExitOnForwardFailure=yes",
		"-L", fmt.Sprintf("127.0.0.1:%d:localhost:8000", local),
		"-L", socket+":/root/socket",
		"-D", fmt.Sprintf("127.0.0.1:%d", socks),
		"-R", "9000:"+site.Listener.Addr().String(),
		"-R", "/root/back:"+site.Listener.Addr().String(),
		"dev.harvest", "exec python3 /root/serving.py")

	if got := ask(t, "tcp", fmt.Sprintf("127.0.0.1:%d", local)); got != "from the sandbox\n" {
		t.Errorf("-L of a port: %q", got)
	}
	if got := ask(t, "unix", socket); got != "from the sandbox\n" {
		t.Errorf("-L of a socket: %q", got)
	}
	through := fmt.Sprintf("socks5h://127.0.0.1:%d", socks)
	if got := c.must("curl", "-sS", "--http0.9", "-x", through, "http://localhost:8000/"); got != "from the sandbox\n" {
		t.Errorf("-D: %q", got)
	}
	for _, args := range []string{"curl -sS http://127.0.0.1:9000/", "curl -sS --unix-socket /root/back http://x/"} {
		if got := c.must("ssh", "dev.harvest", args); got != "from the machine" {
			t.Errorf("-R, %s: %q", args, got)
		}
	}
	// What the policy denies is denied to a forwarded connection, too: this machine cannot be reached from inside.
	_, stderr, code := c.run("", "curl", "-sS", "-x", through, site.URL)
	if code == 0 || !strings.Contains(stderr, "curl: ") {
		t.Errorf("a sandbox reaches its machine through SSH: %q", stderr)
	}
	if _, stderr, code := c.run("", "ssh", "-W", "localhost:1", "dev.harvest"); code == 0 ||
		!strings.Contains(stderr, "connect failed: ") {
		t.Errorf("a port on which nothing listens: %q, %d", stderr, code)
	}
	// The listener of -R in the sandbox ends with its client.
	if got := c.must("ssh", "-R", "9001:"+site.Listener.Addr().String(), "dev.harvest",
		"curl -sS http://127.0.0.1:9001/"); got != "from the machine" {
		t.Errorf("-R of a short command: %q", got)
	}
	testenv.Eventually(t, "the port of -R is closed", func() bool {
		_, _, code := c.run("", "ssh", "dev.harvest", "curl -sS http://127.0.0.1:9001/")
		return code == 7 // curl: could not connect
	})
}

// TestAgent forwards an agent only if the client asks for it, to the programs of its session only.
func TestAgent(t *testing.T) {
	t.Parallel()
	testenv.RequireTool(t, "ssh-agent", "openssh-client")
	c := newClient(t)
	key := filepath.Join(c.home, "key")
	c.must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "somebody", "-f", key)
	socket := filepath.Join(c.home, "agent")
	agent := c.command(context.WithoutCancel(t.Context()), "ssh-agent", "-D", "-a", socket)
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = agent.Process.Kill()
		_ = agent.Wait()
	})
	c.h.Env.Setenv("SSH_AUTH_SOCK", socket)
	testenv.Eventually(t, "the agent has the key", func() bool {
		_, _, code := c.run("", "ssh-add", "-q", key)
		return code == 0
	})
	if got, _, code := c.run("", "ssh", "dev.harvest", "ssh-add -l; echo $SSH_AUTH_SOCK"); code != 0 || got != "\n" {
		t.Errorf("without -A: %q", got)
	}
	got := c.must("ssh", "-A", "dev.harvest",
		"ssh-add -l && stat -c %a $(dirname $SSH_AUTH_SOCK) && echo $SSH_AUTH_SOCK")
	lines := strings.Split(strings.TrimSpace(got), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], "somebody") || lines[1] != "700" {
		t.Fatalf("with -A: %q", got)
	}
	testenv.Eventually(t, "the socket is removed", func() bool {
		_, _, code := c.run("", "ssh", "dev.harvest", "test ! -e "+lines[2])
		return code == 0
	})
}
