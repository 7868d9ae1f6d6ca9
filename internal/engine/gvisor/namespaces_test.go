package gvisor_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// These tests cover namespaces that programs inside create, as the sandboxes of coding agents do.

// loopback prints the state of lo, and sets it: by netlink as bubblewrap does, or by ioctl as Bazel does.
const loopback = `
import fcntl, os, socket, struct, sys

def request(kind, flags, body):
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    link.send(struct.pack("=IHHII", 16 + len(body), kind, flags | 1, 7, 0) + body)
    answers, done = [], False
    while not done:
        data = link.recv(65536)
        while data:
            size, kind = struct.unpack("=IH", data[:6])
            if kind == 2: # NLMSG_ERROR
                error = -struct.unpack("=i", data[16:20])[0]
                if error: raise OSError(error, "netlink")
            done = done or kind in (2, 3)
            answers.append((kind, data[16:size]))
            data = data[(size + 3) & ~3:]
    return answers

def show(title, connect=True):
    control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    by_ioctl = struct.unpack("16xh", fcntl.ioctl(control, 0x8913, struct.pack("16sh14x", b"lo", 0))[:18])[0] & 1
    links = request(18, 0x300, struct.pack("=B15x", 0))
    by_netlink = [struct.unpack("=I", body[8:12])[0] & 1 for kind, body in links if kind == 16]
    addresses = sorted(
        socket.inet_ntop(body[0], body[12:12 + (4 if body[0] == socket.AF_INET else 16)]) + "/%d" % body[1]
        for kind, body in request(22, 0x300, struct.pack("=B7x", 0)) if kind == 20)
    errors = []
    for family, address in (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"):
        if not connect: break
        try: socket.socket(family, socket.SOCK_STREAM).connect((address, 9))
        except OSError as e: errors.append(e.strerror)
    print(title, by_ioctl, by_netlink, addresses, errors)

def set_by_ioctl(up):
    control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", up))

def set_by_netlink(up):
    request(16, 4, struct.pack("=BxHiII", 0, 0, 1, up, 1))

def add_address():
    request(20, 0x604, struct.pack("=BBBBI", socket.AF_INET, 8, 0x80, 254, 1) +
        struct.pack("=HH4s", 8, 2, bytes([127, 0, 0, 1])) + struct.pack("=HH4s", 8, 1, bytes([127, 0, 0, 1])))
`

const (
	loopbackNew  = " 0 [0] [] ['Network is unreachable', 'Cannot assign requested address']\n"
	loopbackDown = " 0 [0] ['127.0.0.1/8'] []\n"
	loopbackUp   = " 1 [1] ['127.0.0.1/8', '::1/128'] ['Connection refused', 'Connection refused']\n"
)

// TestNetworkNamespacesBeginAsInLinux checks that lo is down and without addresses in a new network namespace, and that
// it gets them when a program brings it up.
func TestNetworkNamespacesBeginAsInLinux(t *testing.T) {
	testenv.Root(t)
	sb := create(t, open(t, testenv.DataDir(t)), engine.Spec{ID: "one"})
	inside := func(user, script string) string {
		t.Helper()
		unshare := "unshare -n"
		if user != "root" {
			unshare = "unshare -rn"
		}
		return runAs(t, sb, user, unshare+" python3 -c '"+loopback+script+"'")
	}
	for _, user := range []string{"root", "1234"} {
		got := inside(user, `
show("new")
set_by_netlink(1); show("up"); set_by_netlink(0); show("down", False)
set_by_netlink(1); show("up")`)
		want := "new" + loopbackNew + "up" + loopbackUp + "down" + loopbackDown + "up" + loopbackUp
		if got != want {
			t.Errorf("as %s, by netlink: got %q, want %q", user, got, want)
		}
		got = inside(user, `
set_by_ioctl(1); show("up")`)
		if want := "up" + loopbackUp; got != want {
			t.Errorf("as %s, by ioctl: got %q, want %q", user, got, want)
		}
		got = inside(user, `
add_address(); set_by_netlink(1); show("up")
try: add_address()
except FileExistsError: print("exists")`)
		if want := "up" + loopbackUp + "exists\n"; got != want {
			t.Errorf("as %s, with an address that the program adds first: got %q, want %q", user, got, want)
		}
	}
	if got, want := runAs(t, sb, "root", "python3 -c '"+loopback+"\nshow(\"own\")'"), "own"+loopbackUp; got != want {
		t.Errorf("the sandbox's own namespace: got %q, want %q", got, want)
	}
	if got := runAs(t, sb, "1234", "python3 -c '"+loopback+"\nset_by_ioctl(0)' 2>&1 | tail -1"); !strings.Contains(got,
		"PermissionError") {
		t.Errorf("a user takes lo of the sandbox down: %q", got)
	}
}

// TestCheckpointsKeepLoopback checks that lo of a namespace has the same state after a checkpoint, and that open
// sockets of netlink still work. gVisor creates namespaces anew when it restores a checkpoint.
//
// mission: A4
func TestCheckpointsKeepLoopback(t *testing.T) {
	testenv.Root(t)
	dir := testenv.DataDir(t)
	e := open(t, dir)
	sb := create(t, e, engine.Spec{ID: "first"})
	for name, prepare := range map[string]string{"up": "set_by_netlink(1)", "new": "pass"} {
		_, err := sb.Start(t.Context(), engine.Command{Args: []string{"unshare", "-n", "python3", "-c", loopback + `
import time
opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
` + prepare + `
open("/tmp/` + name + `-ready", "w").close()
while not os.path.exists("/tmp/restored"): time.sleep(0.05)
sys.stdout = open("/tmp/` + name + `-result", "w")
show("` + name + `")
opened.send(struct.pack("=IHHII", 32, 18, 0x301, 7, 0) + bytes(16))
print(len(opened.recv(65536)) > 32)
sys.stdout.close()
open("/tmp/` + name + `-done", "w").close()`}})
		if err != nil {
			t.Fatal(err)
		}
	}
	const wait = "while [ ! -e /tmp/up-%s ] || [ ! -e /tmp/new-%[1]s ]; do sleep 0.05; done; "
	runAs(t, sb, "root", fmt.Sprintf(wait, "ready"))
	checkpoint := filepath.Join(dir, "checkpoint")
	if err := sb.(engine.Checkpointer).Checkpoint(t.Context(), checkpoint); err != nil {
		t.Fatal(err)
	}
	restored := create(t, e, engine.Spec{ID: "second", Checkpoint: checkpoint})
	got := runAs(t, restored, "root", "touch /tmp/restored; "+fmt.Sprintf(wait, "done")+
		"cat /tmp/up-result /tmp/new-result; unshare -n python3 -c '"+loopback+"\nshow(\"new\")'")
	if want := "up" + loopbackUp + "True\nnew" + loopbackNew + "True\nnew" + loopbackNew; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// addTree unpacks directories and files of this machine in a directory of the sandbox. links are followed.
func addTree(t *testing.T, sb engine.Sandbox, to, from string, names ...string) {
	t.Helper()
	pack := exec.CommandContext(t.Context(), "tar", append([]string{"-ch", "-C", from}, names...)...)
	packed, err := pack.StdoutPipe()
	if err == nil {
		err = pack.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	p, err := sb.Start(t.Context(), engine.Command{Args: []string{"sh", "-ec",
		"mkdir -p $1; tar -xC $1 --no-same-owner",
		"sh", to}, Stdin: packed, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 0 {
		t.Fatalf("unpack %s: %+v, %v, %s", from, exit, err, &out)
	}
	if err := pack.Wait(); err != nil {
		t.Fatalf("pack %s: %v", from, err)
	}
}

// addProgram copies a program of this machine into /usr/local/bin of the sandbox, with the libraries that it needs.
func addProgram(t *testing.T, sb engine.Sandbox, program string) {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatal(err)
	}
	listed, err := exec.Command("ldd", path).Output()
	if err != nil {
		t.Fatalf("ldd %s: %v", path, err)
	}
	libraries := "/usr/local/lib/" + program
	addTree(t, sb, libraries, "/", path)
	for _, word := range strings.Fields(string(listed)) {
		if strings.HasPrefix(word, "/") {
			addTree(t, sb, libraries, filepath.Dir(word), filepath.Base(word))
		}
	}
	runAs(t, sb, "root", "printf '#!/bin/sh\\nexec env LD_LIBRARY_PATH="+libraries+" "+libraries+path+
		" \"$@\"\\n' >/usr/local/bin/"+program+"; chmod 755 /usr/local/bin/"+program)
}

// TestBubblewrap checks that Debian's bubblewrap, on which the sandboxes of coding agents rely, works in each mode.
func TestBubblewrap(t *testing.T) {
	testenv.Root(t)
	testenv.RequireTool(t, "bwrap", "bubblewrap")
	sb := create(t, open(t, testenv.DataDir(t)), engine.Spec{ID: "one"})
	addProgram(t, sb, "bwrap")
	for _, test := range []struct{ mode, script, want string }{
		{"--ro-bind / /", "touch /tmp/x 2>/dev/null || echo read-only", "read-only\n"},
		{"--bind / / --tmpfs /tmp", "touch /tmp/x && ls /tmp", "x\n"},
		{"--bind / / --dev /dev --proc /proc", "echo x >/dev/null && readlink /proc/self", ""},
		{"--ro-bind / / --unshare-user", "echo ok", "ok\n"},
		{"--ro-bind / / --unshare-user --uid 77 --gid 78", "id -u; id -g", "77\n78\n"},
		{"--ro-bind / / --unshare-net", "tail -n +3 /proc/net/dev | cut -d : -f 1 | tr -d ' '", "lo\n"},
		{"--ro-bind / / --proc /proc --unshare-pid", "ls /proc | grep -c '^[0-9]'; readlink /proc/self | wc -l", ""},
		{"--ro-bind / / --unshare-ipc", "echo ok", "ok\n"},
		{"--ro-bind / / --unshare-uts --hostname other", "hostname", "other\n"},
		{"--ro-bind / / --unshare-cgroup", "echo ok", "ok\n"},
		{"--ro-bind / / --unshare-cgroup-try --unshare-user-try", "echo ok", "ok\n"},
		{"--ro-bind / / --unshare-all", "echo ok", "ok\n"},
		{"--ro-bind / / --dev /dev --proc /proc --unshare-all --share-net", "echo ok", "ok\n"},
		{"--ro-bind / / --dev /dev --proc /proc --unshare-all --die-with-parent --new-session --cap-drop ALL",
			"grep CapEff /proc/self/status", "CapEff:\t0000000000000000\n"},
	} {
		for _, user := range []string{"root", "1234"} {
			got := runAs(t, sb, user, "bwrap "+test.mode+" sh -c \""+test.script+"\"")
			if bad := strings.Contains(got, "bwrap:"); bad || test.want != "" && got != test.want {
				t.Errorf("as %s: bwrap %s: got %q, want %q", user, test.mode, got, test.want)
			}
		}
	}
	got := runAs(t, sb, "1234", "bwrap --ro-bind / / --unshare-all python3 -c '"+
		loopback+"\nshow(\"bwrap\")'")
	if !strings.HasPrefix(got, "bwrap 1 [1] ['127.0.0.1/8'") {
		t.Errorf("lo in a sandbox of bubblewrap: %q", got)
	}
}
