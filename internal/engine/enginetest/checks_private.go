package enginetest

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
)

var private = needs(func(c engine.Capabilities) bool { return c.Private }, "the engine announces no private networks")

var privateChecks = []check{
	{"private/reach", "members of a private network reach each other by name, and nothing else, whatever their network",
		private, checkPrivate},
	{"private/ended", "peers may end at any time, and a refused address changes nothing", private, checkPrivateEnded},
	{"private/restart", "a private network outlives a restart of the server", both(private, reopen),
		checkPrivateRestart},
}

// member returns the place of the sandbox i in a private network of all.
func member(all []engine.Sandbox, i int) engine.Private {
	name := func(i int) []string { return []string{string(rune('a' + i))} }
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 104, 97, byte(1 + i)}) }
	p := engine.Private{Addr: addr(i), Names: name(i)}
	for j, other := range all {
		if j != i {
			p.Peers = append(p.Peers, engine.Peer{Addr: addr(j), Names: name(j), Handle: other.Handle()})
		}
	}
	return p
}

func join(t *testing.T, all ...engine.Sandbox) {
	t.Helper()
	for i, sb := range all {
		if err := sb.(engine.Peered).SetPeers(probe.Patient(t), member(all, i)); err != nil {
			t.Fatalf("SetPeers: %v", err)
		}
	}
}

func checkPrivate(t *testing.T, s *suite) {
	a := s.create(t, engine.Spec{Network: engine.Network{Mode: engine.NetworkNone}})
	b := s.create(t, engine.Spec{Network: engine.Network{Mode: engine.NetworkDefault}})
	c := s.create(t, engine.Spec{Network: engine.Network{Mode: engine.NetworkDefault}})
	probe.Start(t, a, greeter("0.0.0.0", 7001)).Stdout.Until(t, "listening")
	probe.Start(t, b, greeter("0.0.0.0", 7002)).Stdout.Until(t, "listening")
	probe.Start(t, b, greeter("127.0.0.1", 7003)).Stdout.Until(t, "listening")
	join(t, a, b)
	host := hostAddress(t)
	targets := []string{"a:7001", "b:7002", "b:7003", "c:7001", "10.104.97.1:7001", "10.104.97.2:7002"}
	for who, sb := range map[string]engine.Sandbox{"a": a, "b": b} {
		if got := reach(t, sb, targets...); got != "a:7001 b:7002 10.104.97.1:7001 10.104.97.2:7002" {
			t.Errorf("%s reaches %q", who, got)
		}
	}
	if got := reach(t, c, targets...); got != "" {
		t.Errorf("a sandbox outside reaches %q", got)
	}
	if outside := fmt.Sprintf("%s:%d", host, server(t, host)); reach(t, a, outside) != "" {
		t.Error("the private network leads to this machine")
	}
	// A change of the policy does not affect the private network.
	setNetwork(t, b, engine.Network{Mode: engine.NetworkNone})
	if got := reach(t, b, "a:7001"); got != "a:7001" {
		t.Errorf("without the internet it reaches %q", got)
	}
	join(t, a)
	join(t, b)
	if got := reach(t, a, targets[1:]...) + reach(t, b, targets[0]); got != "" {
		t.Errorf("former members reach %q", got)
	}
}

func checkPrivateEnded(t *testing.T, s *suite) {
	a, b := s.create(t, engine.Spec{}), s.create(t, engine.Spec{})
	join(t, a, b)
	if err := b.Destroy(probe.Patient(t)); err != nil {
		t.Fatal(err)
	}
	bad := member([]engine.Sandbox{a, b}, 0)
	bad.Addr = netip.MustParseAddr("fd00::1")
	probe.WantKind(t, "an IPv6 address", a.(engine.Peered).SetPeers(probe.Patient(t), bad), errors.Invalid)
	c := s.create(t, engine.Spec{})
	probe.Start(t, c, greeter("0.0.0.0", 7001)).Stdout.Until(t, "listening")
	join(t, a, c) // at the address of the one that has ended
	if got := reach(t, a, "b:7001"); got != "b:7001" {
		t.Error("the successor of an ended peer is not reached")
	}
}

func checkPrivateRestart(t *testing.T, s *suite) {
	s = s.separate(t)
	a, b := s.create(t, engine.Spec{}), s.create(t, engine.Spec{})
	join(t, a, b)
	probe.Start(t, b, greeter("0.0.0.0", 7001)).Stdout.Until(t, "listening")
	s.restart(t)
	a, _ = s.reopened(t, a.Handle())
	if got := reach(t, a, "b:7001"); strings.TrimSpace(got) != "b:7001" {
		t.Errorf("after a restart it reaches %q", got)
	}
}
