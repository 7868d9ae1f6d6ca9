package enginetest

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
)

// mission: A1, A11

var isolationChecks = []check{
	{"isolation/files", "a sandbox has a file system of its own", nil, checkOwnFiles},
	{"isolation/host files", "a sandbox sees no file of the host", isolated, checkHostFiles},
	{"isolation/processes", "a sandbox sees no process of the host, nor of another sandbox", isolated,
		checkProcessesHidden},
	{"isolation/environment", "nothing of the environment of Harvest is seen inside", isolated, checkHostEnvironment},
	{"network/none", "without a network nothing but the own loopback is reached, and connecting fails at once",
		isolated, checkNoNetwork},
	{"network/loopback", "the loopback of a sandbox works", nil, checkLoopback},
}

func checkOwnFiles(t *testing.T, s *suite) {
	a, b := s.create(t, engine.Spec{}), s.create(t, engine.Spec{})
	probe.Script(t, a, "/tmp", "echo secret >file-of-a; mkdir /tmp/dir-of-a 2>/dev/null; true")
	for _, sb := range []engine.Sandbox{b, s.create(t, engine.Spec{})} {
		if got := probe.Script(t, sb, "/tmp", "ls -A | grep of-a; true"); got != "" {
			t.Errorf("another sandbox sees %q", got)
		}
	}
	if got := probe.Script(t, a, "/tmp", "cat file-of-a"); got != "secret\n" {
		t.Errorf("the sandbox itself has %q", got)
	}
	if s.engine.Capabilities().Isolated {
		return
	}
	probe.Script(t, a, "/tmp", "rmdir /tmp/dir-of-a 2>/dev/null; true")
}

func checkHostFiles(t *testing.T, s *suite) {
	name := t.TempDir() + "/on-the-host"
	if err := os.WriteFile(name, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := probe.Sh(`for f in "$1" "$2"; do test -e "$f" && echo "sees $f"; done; ` +
		`test -e "/proc/1/root$1" && echo "sees through init"; true`)
	cmd.Args = append(cmd.Args, "sh", name, s.dataDir)
	if got := probe.Output(t, s.shared, cmd); got != "" {
		t.Errorf("it %q", got)
	}
}

func checkProcessesHidden(t *testing.T, s *suite) {
	sleep := probe.Sleeper()
	other := s.create(t, engine.Spec{})
	probe.Start(t, other, probe.Sh(sleep))
	probe.AliveAtLeast(t, other, sleep, 1)
	for _, token := range []string{sleep, os.Args[0]} {
		if n := probe.Alive(t, s.shared, token); n != 0 {
			t.Errorf("the sandbox sees %d foreign processes %q", n, token)
		}
	}
	cmd := probe.Sh(`kill -0 "$1" 2>/dev/null && echo reached; true`)
	cmd.Args = append(cmd.Args, "sh", fmt.Sprint(os.Getppid()))
	if got := probe.Output(t, s.shared, cmd); got != "" && os.Getppid() > 1000 {
		t.Error("a process of the host can be signalled")
	}
}

func checkHostEnvironment(t *testing.T, s *suite) {
	inside := probe.Output(t, s.shared, probe.Sh("env"))
	img, err := s.engine.Images().Find(probe.Patient(t), s.image)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range os.Environ() {
		name, value, _ := strings.Cut(line, "=")
		if _, fromImage := img.Config.Env[name]; !fromImage && len(value) > 8 && strings.Contains(inside, line+"\n") {
			t.Errorf("%s of the host is set inside", name)
		}
	}
}

func checkNoNetwork(t *testing.T, s *suite) {
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	targets := []string{"1.1.1.1:53", "8.8.8.8:443", "169.254.169.254:80", fmt.Sprintf("127.0.0.1:%d", port)}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil {
			targets = append(targets, fmt.Sprintf("%s:%d", ip.IP, port))
		}
	}
	cmd := python(`
import socket, sys, time
for target in sys.argv[1:]:
    host, port = target.rsplit(":", 1)
    begin = time.monotonic()
    try:
        socket.create_connection((host, int(port)), timeout=20).close()
        print("reached", target)
    except OSError as e:
        if time.monotonic() - begin > 10:
            print("hangs", target, e)
try:
    socket.getaddrinfo("example.com", 80)
    print("resolves example.com")
except OSError:
    pass
`)
	cmd.Args = append(cmd.Args, targets...)
	if got := probe.Output(t, s.shared, cmd); got != "" {
		t.Errorf("without a network: %s", got)
	}
}

func checkLoopback(t *testing.T, s *suite) {
	got := probe.Output(t, s.shared, python(`
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
def serve():
    conn, _ = server.accept()
    conn.sendall(conn.recv(100).upper())
    conn.close()
threading.Thread(target=serve).start()
client = socket.create_connection(server.getsockname(), timeout=20)
client.sendall(b"hello")
print(client.recv(100).decode())
`))
	if got != "HELLO\n" {
		t.Errorf("got %q", got)
	}
}
