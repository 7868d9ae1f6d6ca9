package modal

import (
	"context"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/modal/policy"
)

// mission: A6
func TestNetwork(t *testing.T) {
	t.Parallel()
	allow := func(rules ...string) engine.Network {
		return engine.Network{Mode: engine.NetworkAllow, Allow: rules}
	}
	of := func(n engine.Network) (*sdk.SandboxCreateParams, error) {
		p := &sdk.SandboxCreateParams{Tags: map[string]string{}}
		err := network(p, n)
		return p, err
	}
	for _, n := range []engine.Network{{}, {Mode: engine.NetworkNone}} {
		if p, err := of(n); err != nil || !p.BlockNetwork || p.OutboundCIDRAllowlist != nil ||
			p.OutboundDomainAllowlist != nil || p.Tags[tagNetwork] != "none" {
			t.Errorf("%+v: %+v, %v", n, p, err)
		}
	}
	if p, err := of(engine.Network{Mode: engine.NetworkDefault}); err != nil || p.BlockNetwork ||
		p.OutboundCIDRAllowlist != nil || p.OutboundDomainAllowlist != nil || p.Tags[tagNetwork] != "default" {
		t.Errorf("the internet: %+v, %v", p, err)
	}
	p, err := of(allow("Example.ORG.", "*.example.com", "192.0.2.1", "10.0.0.0/8", "192.0.2.1", "2001:db8::1",
		"[2001:db8::2]", "::ffff:192.0.2.7", "::ffff:192.0.2.0/120"))
	if err != nil || p.BlockNetwork || strings.Join(p.OutboundDomainAllowlist.Entries,
		" ") != "*.example.com example.org" ||
		strings.Join(p.OutboundCIDRAllowlist.Entries,
			" ") != "10.0.0.0/8 192.0.2.0/24 192.0.2.1/32 192.0.2.7/32 2001:db8::1/128 2001:db8::2/128" {
		t.Fatalf("%+v, %v", p, err)
	}
	if p, err := of(allow("192.0.2.1")); err != nil || p.OutboundDomainAllowlist == nil ||
		len(p.OutboundDomainAllowlist.Entries) != 0 {
		t.Errorf("addresses alone leave names as they are: %+v, %v", p, err)
	}
	a, _ := policy.Of(allow("a.org", "b.org"))
	b, _ := policy.Of(allow("b.org", "a.org", "a.org"))
	if c, _ := policy.Of(allow("a.org")); a.String() != b.String() || a.String() == c.String() {
		t.Errorf("%s, %s, %s", a, b, c)
	}
	for want, list := range map[errors.Kind][]engine.Network{
		errors.Invalid: {{Mode: "odd"}, allow(), allow("http://example.org"), allow("10.0.0.0/99"),
			{Mode: engine.NetworkNone, Allow: []string{"a.org"}}},
		errors.Unsupported: {
			allow("example.org:443"), allow("192.0.2.1:80"), allow("10.0.0.0/8:80"), allow("[2001:db8::1]:80"),
			{Mode: engine.NetworkDefault, Allow: []string{"10.0.0.1"}},
			{Mode: engine.NetworkDefault, Deny: []string{"example.org"}},
			{Mode: engine.NetworkAllow, Allow: []string{"a.org"}, Deny: []string{"b.org"}},
		},
	} {
		for _, n := range list {
			if _, err := of(n); errors.KindOf(err) != want || errors.RemedyOf(err) == "" {
				t.Errorf("%+v: %v, %q", n, err, errors.RemedyOf(err))
			}
			s := &Sandbox{e: &Engine{}}
			if err := s.SetNetwork(t.Context(), n); errors.KindOf(err) != want {
				t.Errorf("%+v while it runs: %v", n, err)
			}
		}
	}
}

// A sandbox that has ended answers with Conflict, without asking Modal.
func TestNetworkOfAnEnd(t *testing.T) {
	t.Parallel()
	e := &Engine{ended: map[string]seenEnd{"sb-1": {end: &engine.End{Destroyed: true}}}}
	s := e.sandbox(engine.Handle{ID: "box", Ref: "sb-1"}, nil)
	if err := s.SetNetwork(t.Context(),
		engine.Network{Mode: engine.NetworkNone}); errors.KindOf(err) != errors.Conflict {
		t.Errorf("SetNetwork: %v", err)
	}
	if _, err := s.Denials(t.Context(), 0); errors.KindOf(err) != errors.Conflict {
		t.Errorf("Denials: %v", err)
	}
	if _, err := s.Dial(t.Context(), 80); errors.KindOf(err) != errors.Conflict {
		t.Errorf("Dial: %v", err)
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limits                     engine.Limits
		cpu, cpuLimit              float64
		memory, memoryLimit, extra int
	}{
		{},
		{limits: engine.Limits{CPU: 2, Memory: 1 << 30}, cpu: 0.125, cpuLimit: 2, memory: 128, memoryLimit: 1024},
		{limits: engine.Limits{CPU: 0.1, Memory: 64<<20 + 5}, cpu: 0.1, cpuLimit: 0.1, memory: 64, memoryLimit: 64},
		{limits: engine.Limits{Memory: 5}, memory: 1, memoryLimit: 1},
	} {
		p := &sdk.SandboxCreateParams{}
		limits(p, c.limits)
		if p.CPU != c.cpu || p.CPULimit != c.cpuLimit || p.MemoryMiB != c.memory || p.MemoryLimitMiB != c.memoryLimit {
			t.Errorf("%+v: %+v", c.limits, p)
		}
	}
}

func TestAppName(t *testing.T) {
	t.Parallel()
	if got := appName("harvest", "personal"); got != "harvest-personal" {
		t.Error(got)
	}
	a, b := appName(strings.Repeat("x", 60), "one"), appName(strings.Repeat("x", 60), "two")
	if len(a) >= 64 || a == b {
		t.Errorf("%s, %s", a, b)
	}
}

// The names of apps are noted once each, and a file that cannot be read or written is an error before anything is made.
func TestNotedApps(t *testing.T) {
	t.Parallel()
	a := &apps{file: t.TempDir() + "/apps", own: &sdk.App{Name: "harvest"}, found: map[string]*sdk.App{}}
	if app, err := a.of(t.Context(), ""); err != nil || app != a.own {
		t.Errorf("of no account: %v, %v", app, err)
	}
	if all, err := a.all(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	for _, name := range []string{"harvest-a", "harvest-b", "harvest-a"} {
		if err := a.note(name); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := a.names(); err != nil || !slices.Equal(names, []string{"harvest-a", "harvest-b"}) {
		t.Errorf("%q, %v", names, err)
	}
	a.e = &Engine{opts: Options{App: "harvest"}}
	a.found["harvest-c"] = &sdk.App{Name: "harvest-c"}
	if app, err := a.of(t.Context(), "c"); err != nil || app.Name != "harvest-c" {
		t.Errorf("%v, %v", app, err)
	}
	a.file = t.TempDir() // a directory instead of a file
	if _, err := a.of(context.Background(), "d"); err == nil {
		t.Error("an app was made that cannot be noted")
	}
	if _, err := a.all(t.Context()); err == nil {
		t.Error("apps that cannot be read")
	}
}
