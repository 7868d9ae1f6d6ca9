package host

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// Network is a network of its own, which needs root. A server of Harvest, and hosts that a test plays, run in it.
type Network struct {
	t      *testing.T
	netns  *os.File
	holder int // the process that holds the namespaces
}

// NewNetwork makes a network with loopback and the addresses. Programs in it have the file resolv as their resolv.conf,
// if one is given. It lasts until the test ends.
func NewNetwork(t *testing.T, resolv string, addresses ...string) *Network {
	t.Helper()
	testenv.Root(t)
	script := "set -e; ip link set lo up\n"
	if resolv != "" {
		script += "mount --bind " + resolv + " /etc/resolv.conf\n"
	}
	for _, address := range addresses {
		script += "ip address add " + address + "/32 dev lo\n"
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), testenv.RequireTool(t, "unshare", "util-linux"),
		"--net", "--mount", "--propagation", "private", "sh", "-c", script+"echo ready; exec cat")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	out, piped := cmd.StdoutPipe()
	if err = errors.Join(err, piped); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close() // which ends it
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("make a network: %q, %v", line, err)
	}
	n := &Network{t: t, holder: cmd.Process.Pid}
	if n.netns, err = os.Open(fmt.Sprintf("/proc/%d/ns/net", n.holder)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.netns.Close() })
	return n
}

// Inside calls f in the network.
func (n *Network) Inside(f func() error) {
	n.t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and not unlocked, so that the thread ends
		err := unix.Setns(int(n.netns.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		n.t.Fatal(err)
	}
}

// Listen listens in the network.
func (n *Network) Listen(address string, port int) (l net.Listener) {
	n.t.Helper()
	n.Inside(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		return err
	})
	return l
}

// Hold makes all further commands of h, and the servers that they start, run in the network.
func (n *Network) Hold(h *Host) {
	n.t.Helper()
	bin := n.t.TempDir()
	program, _, _ := strings.Cut(h.Env.Getenv("PATH"), ":")
	testenv.WriteFile(n.t, filepath.Join(bin, "harvest"), fmt.Appendf(nil, `#!/bin/sh
exec nsenter -t %d -n -m -- sh -c 'cd "$0" && exec %s/harvest "$@"' "$PWD" "$@"
`, n.holder, program))
	if err := os.Chmod(filepath.Join(bin, "harvest"), 0o755); err != nil {
		n.t.Fatal(err)
	}
	h.Env.Setenv("PATH", bin+":"+h.Env.Getenv("PATH"))
}
