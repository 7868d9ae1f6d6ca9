package cli_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/internal/base/privilege"
	"github.com/RelevanceAI/harvest/internal/base/processes"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestCapabilities checks that the processes of a server that root started have given up all capabilities that they do
// not use, in all threads, and that gVisor's processes have theirs in their own user namespace only.
//
// mission: A11
func TestCapabilities(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Must("volume", "create", "data")
	h.Must("sandbox", "create", "--volume", "data:/data")
	server := serverOf(t, h)
	hostUsers := usersOf(t, os.Getpid())
	seen := map[string]int{}
	for _, pid := range append([]int{server}, processes.Below(server)...) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue // it has ended
		}
		name, _, _ := strings.Cut(string(b), "\x00")
		name = filepath.Base(name)
		switch {
		case pid == server:
			seen["server"]++
			atMost(t, "server", pid, privilege.Server)
		case name == "harvest-keeper":
			seen["keeper"]++
			atMost(t, name, pid, privilege.Keeper)
		case name == "runsc-sandbox" || name == "runsc-gofer":
			seen[name]++
			if usersOf(t, pid) == hostUsers {
				t.Errorf("%s is in the host's user namespace", name)
			}
		}
	}
	for _, name := range []string{"server", "keeper", "runsc-sandbox", "runsc-gofer"} {
		if seen[name] == 0 {
			t.Errorf("no process %s: %v", name, seen)
		}
	}
}

// serverOf returns the PID of the server.
func serverOf(t *testing.T, h *host.Host) int {
	t.Helper()
	conn, err := net.Dial("unix", filepath.Join(h.Data, client.Socket))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	pid := 0
	err = raw.Control(func(fd uintptr) {
		if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(peer.Pid)
		}
	})
	if err != nil || pid == 0 {
		t.Fatalf("the server's PID is %d, %v", pid, err)
	}
	return pid
}

func usersOf(t *testing.T, pid int) string {
	t.Helper()
	users, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", pid))
	if err != nil {
		t.Fatal(err)
	}
	return users
}

// atMost checks that no thread of a process has other capabilities than those in allowed.
func atMost(t *testing.T, name string, pid int, allowed []int) {
	t.Helper()
	var mask uint64
	for _, c := range allowed {
		mask |= 1 << c
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("%s has no threads: %v", name, err)
	}
	for _, thread := range threads {
		b, _ := os.ReadFile(thread)
		for line := range strings.Lines(string(b)) {
			field, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
			if !strings.HasPrefix(field, "Cap") {
				continue
			}
			if has, err := strconv.ParseUint(value, 16, 64); err != nil || has&^mask != 0 {
				t.Errorf("%s of the %s is %s, more than %x, %v", field, name, value, mask, err)
			}
		}
	}
}
