package netstack_test

import (
	"encoding/binary"
	"flag"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// pingEnv marks a process with a separate network namespace, in which ordinary programs may ping.
const pingEnv = "HARVEST_TEST_PING"

// TestPingsAreAnsweredByTheirDestination checks that a sandbox receives an answer only if the destination has answered.
// mission: A6
func TestPingsAreAnsweredByTheirDestination(t *testing.T) {
	if os.Getenv(pingEnv) == "" {
		testenv.Root(t)
		ip := testenv.RequireTool(t, "ip", "iproute2")
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		args := []string{"-test.run=^" + t.Name() + "$", "-test.v"}
		if dir := flag.Lookup("test.gocoverdir"); testing.CoverMode() != "" && dir != nil {
			args = append(args, "-test.gocoverdir="+dir.Value.String())
		}
		cmd := exec.CommandContext(t.Context(), self, args...)
		cmd.Env = append(os.Environ(), pingEnv+"="+ip)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("in a network namespace of its own: %v\n%s", err, out)
		}
		return
	}
	for _, args := range []string{"link set lo up", "addr add 203.0.113.7/32 dev lo",
		"-6 addr add 2001:db8::7/128 dev lo nodad"} {
		if out, err := exec.CommandContext(t.Context(), os.Getenv(pingEnv),
			strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v\n%s", args, err, out)
		}
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0); err != nil {
		t.Fatal(err)
	}
	// The kernel may take a moment until an IPv6 address answers.
	waitFor(t, func() bool {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})
		to := &unix.SockaddrInet6{Addr: netip.MustParseAddr("2001:db8::7").As16()}
		if unix.Sendto(fd, []byte{128, 0, 0, 0, 0, 0, 0, 0}, 0, to) != nil {
			return false
		}
		n, _, err := unix.Recvfrom(fd, make([]byte, 100), 0)
		return err == nil && n == 8
	})
	w := newWire(t, policy(t, "default"))
	for range 2 { // the second time through the same socket
		w.ping4(t, "203.0.113.7", 9)
		w.ping6(t, "2001:db8::7")
	}
	// The address does not exist, and there is no answer.
	w.send(t, packet(guest4, "203.0.113.99", header.ICMPv4ProtocolNumber, echo4("x")))
	w.alive(t, "an echo to nowhere")
	// Only this many programs may ping at once. Further pings are dropped.
	for id := range uint16(30) {
		w.ping4(t, "203.0.113.7", 100+id)
	}
	m := echo4("x")
	m[5]++
	w.send(t, packet(guest4, "203.0.113.7", header.ICMPv4ProtocolNumber, checkedEcho(m)))
	w.alive(t, "one program too many that pings")
	// Under a new policy the same echo is refused.
	w.SetPolicy(policy(t, "default", "10.9.9.9"))
	w.ping4(t, "203.0.113.7", 9)
	w.SetPolicy(policy(t, "none"))
	w.send(t, packet(guest4, "203.0.113.7", header.ICMPv4ProtocolNumber, echo4("x")))
	f := w.receive(t, func(header.Ethernet) bool { return true })
	if m := ip4(f).Payload(); ip4(f).Protocol() != 1 || m[0] != 3 || m[1] != 13 {
		t.Errorf("a ping without a network: % x", []byte(f))
	}
	w.expectDenial(t, "icmp", "", "203.0.113.7", "no network")
	_ = w.Close() // with sockets open
}

// checkedEcho sets the checksum of an echo request.
func checkedEcho(m header.ICMPv4) header.ICMPv4 {
	m.SetChecksum(0)
	m.SetChecksum(^checksum.Checksum(m, 0))
	return m
}

// ping4 expects an answer with the same identifier and payload.
func (w *wire) ping4(t *testing.T, dst string, id uint16) {
	t.Helper()
	m := header.ICMPv4(echo4("hello"))
	m.SetIdent(id)
	w.send(t, packet(guest4, dst, header.ICMPv4ProtocolNumber, checkedEcho(m)))
	f := w.receive(t, func(f header.Ethernet) bool { return f.Type() == header.IPv4ProtocolNumber })
	p := header.ICMPv4(ip4(f).Payload())
	if p.Type() != header.ICMPv4EchoReply || ip4(f).SourceAddress().String() != dst || p.Ident() != id ||
		string(p[8:]) != "hello" || checksum.Checksum(p, 0) != 0xffff {
		t.Errorf("the answer of %s to %d: % x", dst, id, []byte(f))
	}
}

func (w *wire) ping6(t *testing.T, dst string) {
	t.Helper()
	m := header.ICMPv6(append(make([]byte, header.ICMPv6EchoMinimumSize), "hello"...))
	m.SetType(header.ICMPv6EchoRequest)
	m.SetIdent(9)
	w.send(t, packet(guest6, dst, header.ICMPv6ProtocolNumber, m))
	f := w.receive(t, func(f header.Ethernet) bool { return f.Type() == header.IPv6ProtocolNumber })
	p := ip6(f).Payload()
	sum := checksum.Combine(header.PseudoHeaderChecksum(header.ICMPv6ProtocolNumber, ip6(f).SourceAddress(),
		ip6(f).DestinationAddress(), uint16(len(p))), checksum.Checksum(p, 0))
	if p[0] != uint8(header.ICMPv6EchoReply) || ip6(f).SourceAddress().String() != dst ||
		binary.BigEndian.Uint16(p[4:]) != 9 || string(p[8:]) != "hello" || sum != 0xffff {
		t.Errorf("the answer of %s: % x", dst, []byte(f))
	}
}
