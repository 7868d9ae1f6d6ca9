package gvisor_test

import (
	"bufio"
	"bytes"
	"fmt"
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
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// netnsEnv names the part of this process in a test with separate network namespaces.
const netnsEnv = "HARVEST_TEST_NETNS"

// outside are addresses of all kinds, which a machine beyond a router has, and whether the mode default leads there.
var outside = map[string]bool{
	"8.8.8.8": true, "1.2.3.4": true, "198.51.100.9": true, "2600::1": true, "2a00:1450::5": true,
	"10.1.2.3": false, "172.20.1.1": false, "192.168.7.7": false, "100.64.1.1": false, "169.254.169.254": false,
	"169.254.1.1": false,
	"192.0.0.192": false, "100.100.100.200": false, "fd00:ec2::254": false, "fd12::1": false,
}

// TestPolicyAgainstServersEverywhere checks that a sandbox reaches exactly the targets of its policy. Behind a separate
// router, test servers have addresses of all kinds.
// mission: A6, A11
func TestPolicyAgainstServersEverywhere(t *testing.T) {
	switch os.Getenv(netnsEnv) {
	case "servers":
		serveEverywhere(t)
		return
	case "engine":
		reachEverything(t)
		return
	}
	testenv.Root(t)
	testenv.RequireTool(t, "ip", "iproute2")
	cmd := again(t, "engine")
	cmd.Env = append(cmd.Env, "HARVEST_TEST_BINARY="+testenv.Binary(t), "HARVEST_COVERDIR="+testenv.CoverDir())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("in network namespaces of its own: %v\n%s", err, failures(string(out)))
	}
}

// again is this test in another process, with a separate network namespace.
func again(t *testing.T, part string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(testenv.CleanEnv(), netnsEnv+"="+part)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	return cmd
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %v: %v\n%s", args, err, out)
	}
}

// greet answers every connection on port 80 of all addresses of this namespace.
func greet(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello\n")
			_ = c.Close()
		}
	}()
}

// serveEverywhere is the other machine, until its input ends.
func serveEverywhere(t *testing.T) {
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil { // the link is there
		t.Fatal(err)
	}
	ip(t, "link", "set", "lo", "up")
	ip(t, "addr", "add", "203.0.113.2/24", "dev", "inner")
	ip(t, "-6", "addr", "add", "2001:db8:1::2/64", "dev", "inner", "nodad")
	ip(t, "link", "set", "inner", "up")
	for addr := range outside {
		ip(t, "addr", "add", addr, "dev", "lo")
	}
	greet(t)
	fmt.Println("\nserving")
	_, _ = io.Copy(io.Discard, in)
}

// reachEverything makes a sandbox try all addresses.
func reachEverything(t *testing.T) {
	servers := again(t, "servers")
	in, err := servers.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	said, err := servers.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := servers.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = servers.Wait() })
	ip(t, "link", "set", "lo", "up")
	ip(t, "link", "add", "outer", "type", "veth", "peer", "name", "inner", "netns", strconv.Itoa(servers.Process.Pid))
	ip(t, "addr", "add", "203.0.113.1/24", "dev", "outer")
	ip(t, "-6", "addr", "add", "2001:db8:1::1/64", "dev", "outer", "nodad")
	ip(t, "link", "set", "outer", "up")
	_, _ = io.WriteString(in, "go\n")
	for scan := bufio.NewScanner(said); scan.Scan() && scan.Text() != "serving"; {
	}
	ip(t, "route", "add", "default", "via", "203.0.113.2")
	ip(t, "-6", "route", "add", "default", "via", "2001:db8:1::2")
	greet(t) // on this machine, too
	for addr := range outside {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(addr, "80"), 10*time.Second)
		if err != nil {
			t.Fatalf("the test's own network: %v", err)
		}
		_ = c.Close()
	}

	e := open(t, testenv.DataDir(t))
	sb := create(t, e, engine.Spec{ID: "box", Network: engine.Network{Mode: engine.NetworkNone}})
	internet := map[string]bool{}
	for addr, public := range outside {
		if public {
			internet[addr] = true
		}
	}
	with := func(more ...string) map[string]bool {
		all := map[string]bool{}
		for addr := range internet {
			all[addr] = true
		}
		for _, addr := range more {
			all[addr] = true
		}
		return all
	}
	only := func(addrs ...string) map[string]bool {
		all := map[string]bool{}
		for _, addr := range addrs {
			all[addr] = true
		}
		return all
	}
	allow := func(rules ...string) engine.Network {
		return engine.Network{Mode: engine.NetworkAllow, Allow: rules}
	}
	for _, c := range []struct {
		network engine.Network
		want    map[string]bool
	}{
		{engine.Network{Mode: engine.NetworkNone}, only()},
		{engine.Network{Mode: engine.NetworkDefault}, internet},
		{engine.Network{Mode: engine.NetworkDefault, Deny: []string{"8.0.0.0/8", "2600::/16"}},
			only("1.2.3.4", "198.51.100.9", "2a00:1450::5")},
		{engine.Network{Mode: engine.NetworkDefault, Allow: []string{"10.1.0.0/16", "192.168.7.7:81"}},
			with("10.1.2.3")},
		{allow("1.2.3.4"), only("1.2.3.4")},
		{allow("1.2.3.4:80", "8.8.8.8:81", "2600::1"), only("1.2.3.4", "2600::1")},
		{allow("192.168.0.0/16", "[fd12::1]:80"), only("192.168.7.7", "fd12::1")},
		{allow("0.0.0.0/0", "::/0"), internet},
		{allow("169.254.169.254"), only("169.254.169.254")},
		{allow("127.0.0.1:80"), only("10.0.2.2")},
		{allow("203.0.113.1:80", "203.0.113.2"), only("203.0.113.1", "203.0.113.2")},
		{engine.Network{Mode: engine.NetworkNone}, only()},
	} {
		if err := sb.(engine.Networker).SetNetwork(t.Context(), c.network); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, reached(t, sb)); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", c.network, diff)
		}
	}
}

// reached returns the addresses at which a sandbox finds a server.
func reached(t *testing.T, sb engine.Sandbox) map[string]bool {
	t.Helper()
	args := []string{"python3", "-c", `
import concurrent.futures, socket, sys
def reach(host):
    try:
        with socket.create_connection((host, 80), timeout=20) as s:
            s.settimeout(20)
            return host if s.recv(6) == b"hello\n" else None
    except OSError:
        return None
with concurrent.futures.ThreadPoolExecutor(40) as pool:
    print(*filter(None, pool.map(reach, sys.argv[1:])))
`}
	for addr := range outside {
		args = append(args, addr)
	}
	// This machine, its router, the gateway and forms of addresses that stand for other addresses.
	args = append(args, "127.0.0.1", "127.0.0.2", "::1", "0.0.0.0", "203.0.113.1", "203.0.113.2", "2001:db8:1::1",
		"2001:db8:1::2", "10.0.2.2", "10.0.2.3",
		"64:ff9b::a01:203", "2002:a01:203::1")
	for form := range forms {
		args = append(args, form)
	}
	_, out := run(t, sb, args...)
	found := map[string]bool{}
	for _, addr := range strings.Fields(out) {
		if same, ok := forms[addr]; ok { // forms of the same address count as that address
			addr = same
		}
		found[addr] = true
	}
	return found
}

// forms are ways to write other addresses that an address is the same as.
var forms = map[string]string{
	"::ffff:10.1.2.3": "10.1.2.3", "167838211": "10.1.2.3", "0xa010203": "10.1.2.3",
	"::ffff:169.254.169.254": "169.254.169.254",
}

// Programs that people use work over the network: Debian's package sources, git and curl.
// mission: A6, B1
func TestProgramsOverTheNetwork(t *testing.T) {
	testenv.Root(t)
	host := ""
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			host = n.IP.String()
		}
	}
	if host == "" {
		t.Skip("this machine has no address but its loopback's")
	}
	repo := filepath.Join(t.TempDir(), "repo.git")
	git := testenv.RequireTool(t, "git", "git")
	for _, args := range [][]string{{"init", "-q", "--bare", repo}, {"-C", repo, "update-server-info"}} {
		if out, err := exec.CommandContext(t.Context(), git, args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	if err := os.WriteFile(filepath.Join(repo, "info", "refs"),
		[]byte("0123456789012345678901234567890123456789\trefs/heads/main\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.FileServer(http.Dir(filepath.Dir(repo)))}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })

	e := open(t, testenv.DataDir(t))
	sb := create(t, e, engine.Spec{ID: "box", Network: engine.Network{Mode: engine.NetworkDefault,
		Allow: []string{l.Addr().String()}}})
	if exit, out := run(t, sb, "git", "ls-remote", "http://"+l.Addr().String()+"/repo.git"); exit.Code != 0 ||
		!strings.Contains(out, "refs/heads/main") {
		t.Errorf("git ls-remote: %+v\n%s", exit, out)
	}
	if exit, out := run(t, sb, "curl", "-sS", "http://"+l.Addr().String()+"/repo.git/HEAD"); exit.Code != 0 ||
		!strings.Contains(out, "refs/heads") {
		t.Errorf("curl: %+v\n%s", exit, out)
	}
	t.Run("apt", func(t *testing.T) {
		exit, out := run(t, sb, "sh", "-c", "apt-get update 2>&1")
		if strings.Contains(out, "Could not resolve") || strings.Contains(out, "Could not connect") {
			t.Skipf("Debian's packages cannot be reached from this machine; connect it and run the test again\n%s", out)
		}
		if exit.Code != 0 || !strings.Contains(out, "Reading package lists") {
			t.Errorf("%+v\n%s", exit, out)
		}
	})
}

// TestFloodOfConnectionsHurtsNobodyElse checks that a sandbox that connects as fast as it can, from several processes,
// does not keep another from working and connecting. The log has the speed of both.
// mission: A11
func TestFloodOfConnectionsHurtsNobodyElse(t *testing.T) {
	testenv.Long(t)
	testenv.Root(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-served })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	e := open(t, testenv.DataDir(t))
	limits := engine.Limits{CPU: 1, Memory: 1 << 30}
	flooding := create(t, e, engine.Spec{ID: "flood", Limits: limits,
		Network: engine.Network{Mode: engine.NetworkDefault}})
	other := create(t, e, engine.Spec{ID: "other", Limits: limits, Network: engine.Network{Mode: engine.NetworkAllow,
		Allow: []string{l.Addr().String()}}})
	var out bytes.Buffer
	p, err := flooding.Start(t.Context(), engine.Command{Stdout: &out, Args: []string{"python3", "-c", flood}})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		exit, out := run(t, other, "python3", "-c", connectOnce, port)
		if exit.Code != 0 {
			t.Errorf("%+v %s", exit, out)
		}
		t.Logf("a connection of another sandbox: %s ms", strings.TrimSpace(out))
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 0 {
		t.Errorf("the flood: %+v, %v", exit, err)
	}
	t.Logf("attempts a second: %s", strings.TrimSpace(out.String()))
	if exit, out := run(t, flooding, "true"); exit.Code != 0 {
		t.Errorf("after the flood: %+v %s", exit, out)
	}
}

// flood tries new flows for some seconds, over TCP and with single datagrams, which need the fewest system calls.
const flood = `
import os, socket, time
def tcp(n):
    with socket.socket() as s:
        s.setblocking(False)
        s.connect_ex(("198.51.100.%d" % (n % 250 + 1), n % 60000 + 1))
def udp(n, s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM)):
    try:
        s.sendto(b"x", socket.MSG_DONTWAIT, ("198.51.100.%d" % (n % 250 + 1), n % 60000 + 1))
    except OSError:
        pass
end = time.monotonic() + 6
for attempt in tcp, udp, udp:
    if os.fork() == 0:
        n = 0
        while time.monotonic() < end:
            attempt(n)
            n += 1
        print(attempt.__name__, n // 6, flush=True)
        os._exit(0)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
`

// connectOnce prints how many milliseconds it took to connect.
const connectOnce = `
import socket, sys, time
begin = time.monotonic()
with socket.create_connection(("10.0.2.2", int(sys.argv[1])), timeout=60):
    print(round((time.monotonic() - begin) * 1000, 1))
`
