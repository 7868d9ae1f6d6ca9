package enginetest

import (
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
)

// mission: A12

var metered = needs(func(c engine.Capabilities) bool { return c.Usage }, "the engine announces no usage")

var usageChecks = []check{
	{"usage/cpu", "a busy command raises the processor time, which never goes back, also over a restart of the server",
		metered, checkUsedCPU},
	{"usage/memory", "memory that a command touches is counted, and no longer when it has ended", metered,
		checkUsedMemory},
	{"usage/network", "what goes through the network is counted, by direction", both(metered, networks),
		checkUsedNetwork},
	{"usage/ended", "a sandbox that has ended answers with Conflict", metered, checkUsedEnded},
}

// measured returns a sandbox's usage.
func measured(t *testing.T, sb engine.Sandbox) engine.Usage {
	t.Helper()
	meter, ok := sb.(engine.Meter)
	if !ok {
		t.Fatalf("%T is no Meter, although Capabilities.Usage says so", sb)
	}
	u, err := meter.Usage(probe.Patient(t))
	if err != nil {
		t.Fatalf("Usage: %v", err)
	}
	return u
}

// measuredUntil polls the usage until enough returns true.
func measuredUntil(t *testing.T, sb engine.Sandbox, what string, enough func(engine.Usage) bool) engine.Usage {
	t.Helper()
	for end := time.Now().Add(probe.Patience); ; time.Sleep(20 * time.Millisecond) {
		u := measured(t, sb)
		if enough(u) {
			return u
		}
		if time.Now().After(end) {
			t.Fatalf("%s; it is %+v", what, u)
		}
	}
}

func checkUsedCPU(t *testing.T, s *suite) {
	own := s.separate(t)
	sb := own.create(t, engine.Spec{})
	before := measured(t, sb)
	c := probe.Start(t, sb, probe.Sh("while :; do :; done"))
	busy := measuredUntil(t, sb, "a busy loop does not raise the processor time by half a second",
		func(u engine.Usage) bool { return u.CPU >= before.CPU+0.5 })
	if err := c.Kill(probe.Patient(t)); err != nil {
		t.Fatalf("Kill: %v", err)
	}
	c.End(t)
	if after := measured(t, sb); after.CPU < busy.CPU {
		t.Errorf("the processor time went back from %.3f to %.3f s when the command ended", busy.CPU, after.CPU)
	}
	for range 10 { // short commands count, too, and never reduce the sum
		probe.Output(t, sb, probe.Sh("true"))
	}
	last := measured(t, sb)
	if last.CPU < busy.CPU {
		t.Errorf("the processor time went back from %.3f to %.3f s", busy.CPU, last.CPU)
	}
	if own.engine.Capabilities().Reopen {
		own.restart(t)
		again, _ := own.reopened(t, sb.Handle())
		if u := measured(t, again); u.CPU < last.CPU {
			t.Errorf("the processor time went back from %.3f to %.3f s over a restart", last.CPU, u.CPU)
		}
	}
}

func checkUsedMemory(t *testing.T, s *suite) {
	const touched = 100 << 20
	sb := s.create(t, engine.Spec{})
	before := measured(t, sb)
	c := probe.Start(t, sb,
		python("import time\nb = bytearray(b'x') * (100 << 20)\nprint('held', flush=True)\ntime.sleep(600)"))
	c.Stdout.Until(t, "held")
	measuredUntil(t, sb, "100 MiB that a command touched are not counted",
		func(u engine.Usage) bool { return u.Memory >= before.Memory+touched*9/10 })
	if u := measured(t, sb); u.Memory > before.Memory+2*touched {
		t.Errorf("100 MiB that a command touched are counted as %d", u.Memory-before.Memory)
	}
	if err := c.Kill(probe.Patient(t)); err != nil {
		t.Fatalf("Kill: %v", err)
	}
	measuredUntil(t, sb, "the memory of a command that has ended is still counted",
		func(u engine.Usage) bool { return u.Memory < before.Memory+touched/2 })
}

func checkUsedNetwork(t *testing.T, s *suite) {
	addr := hostAddress(t)
	target := net.JoinHostPort(addr, strconv.Itoa(server(t, addr)))
	sb := s.create(t, engine.Spec{Network: allowed(target)})
	before := measured(t, sb)
	cmd := python(`
import socket, sys
host, port = sys.argv[1].rsplit(":", 1)
with socket.create_connection((host, int(port))) as s:
    s.recv(6)
    got, block = 0, b"x" * 1000
    for i in range(1000):
        s.sendall(block)
        while got < (i + 1) * 1000:
            got += len(s.recv(1 << 16))
print(got)
`)
	cmd.Args = append(cmd.Args, target)
	if got := probe.Output(t, sb, cmd); got != "1000000\n" {
		t.Fatalf("it got %q back", got)
	}
	after := measured(t, sb)
	if sent, received := after.Sent-before.Sent, after.Received-before.Received; sent < 1e6 || received < 1e6 ||
		sent > 4e6 || received > 4e6 {
		t.Errorf("a megabyte there and back is counted as %d sent and %d received", sent, received)
	}
	if quiet := measured(t, s.create(t, engine.Spec{})); quiet.Sent != 0 || quiet.Received != 0 {
		t.Errorf("without a network %d bytes were sent and %d received", quiet.Sent, quiet.Received)
	}
}

func checkUsedEnded(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{})
	measured(t, sb)
	if err := sb.Destroy(probe.Patient(t)); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	_, err := sb.(engine.Meter).Usage(probe.Patient(t))
	probe.WantKind(t, "Usage of a sandbox that has ended", err, errors.Conflict)
}
