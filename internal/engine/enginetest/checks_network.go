package enginetest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
)

// mission: A6

var (
	networks = needs(func(c engine.Capabilities) bool { return c.Network }, "the engine announces no network")
	rules    = needs(func(c engine.Capabilities) bool { return c.Rules },
		"the engine announces no rules with ports, that deny, or beside the internet")
	norules = needs(func(c engine.Capabilities) bool { return !c.Rules }, "the engine announces all rules")
	denials = needs(func(c engine.Capabilities) bool { return c.Denials }, "the engine announces no denials")
	silence = needs(func(c engine.Capabilities) bool { return !c.Denials }, "the engine announces denials")
)

var networkChecks = []check{
	{"network/default", "with the internet, no address of this machine, private or metadata address is reached",
		networks, checkDefaultNetwork},
	{"network/allow", "allow reaches exactly the named hosts", networks, checkAllow},
	{"network/rules", "rules may have ports, deny wins, and allowed addresses beside the internet are reached",
		both(networks, rules), checkRules},
	{"network/no rules", "impossible rules are refused with a remedy", both(networks, norules), checkNoRules},
	{"network/change", "a policy changes while the sandbox runs, and connections that it forbids are cut",
		networks, checkChange},
	{"network/denials", "denials are reported once, in order, to waiting and to later callers", both(networks, denials),
		checkDenials},
	{"network/no denials", "a caller that waits for denials returns at the end of the sandbox", both(networks, silence),
		checkNoDenials},
	{"network/names", "the files that say who answers for names belong to the sandbox", networks, checkNames},
	{"network/volume", "a sandbox with a volume has the same network", both(networks, mounts), checkVolumeNetwork},
	{"network/restart", "connections outlive a restart of the server, and its policy can be changed after",
		both(networks, reopen), checkNetworkRestart},
	{"network/apart", "sandboxes do not reach one another", networks, checkApart},
	{"network/warm", "a warm sandbox becomes one with any network", both(networks, warmth), checkWarmNetwork},
	{"network/refused", "a policy that cannot be is refused, and the old one stays", networks, checkBadNetwork},
}

// server accepts connections on addr, greets each client, and echoes its data.
func server(t *testing.T, addr string) (port int) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
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
			go func() {
				defer c.Close()
				if _, err := io.WriteString(c, "hello\n"); err == nil {
					_, _ = io.Copy(c, c)
				}
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// hostAddress returns an address of this machine other than loopback.
func hostAddress(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && p.Addr().IsGlobalUnicast() {
			return p.Addr().String()
		}
	}
	t.Skip("this machine has no address but its loopback's")
	return ""
}

// reach returns which of the targets a sandbox reaches.
func reach(t *testing.T, sb engine.Sandbox, targets ...string) string {
	t.Helper()
	cmd := python(`
import socket, sys
for target in sys.argv[1:]:
    host, port = target.rsplit(":", 1)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=20) as s:
            s.settimeout(20)
            if s.recv(6) == b"hello\n":
                print(target)
    except OSError:
        pass
`)
	cmd.Args = append(cmd.Args, targets...)
	return strings.Join(strings.Fields(probe.Output(t, sb, cmd)), " ")
}

func allowed(rules ...string) engine.Network {
	return engine.Network{Mode: engine.NetworkAllow, Allow: rules}
}

// setNetwork replaces the policy of a sandbox.
func setNetwork(t *testing.T, sb engine.Sandbox, n engine.Network) {
	t.Helper()
	if err := sb.(engine.Networker).SetNetwork(probe.Patient(t), n); err != nil {
		t.Fatalf("SetNetwork: %v", err)
	}
}

func checkDefaultNetwork(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{Network: engine.Network{Mode: engine.NetworkDefault}})
	port := server(t, "")
	var targets []string
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	hosts := []string{"127.0.0.1", "0.0.0.0", "127.0.0.2", "::1", "::ffff:127.0.0.1", "2130706433", "0x7f.1"}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			hosts = append(hosts, p.Addr().WithZone("").String())
		}
	}
	inside := strings.Fields(probe.Output(t, sb,
		probe.Sh(`ip -4 route 2>/dev/null | sed -n 's/^default via \([0-9.]*\).*/\1/p'; `+
			`sed -n 's/^nameserver //p' /etc/resolv.conf`)))
	if len(inside) == 0 {
		t.Error("the sandbox has no name server")
	}
	for _, host := range append(hosts, inside...) {
		targets = append(targets, fmt.Sprintf("%s:%d", host, port))
	}
	targets = append(targets, "169.254.169.254:80", "[fd00:ec2::254]:80", "100.100.100.200:80",
		"metadata.google.internal:80", "10.255.255.1:80",
		"192.168.0.1:80", "172.16.0.1:80", "100.64.0.1:80", "[fe80::1]:80", "[fc00::1]:80",
		"[::ffff:169.254.169.254]:80")
	if got := reach(t, sb, targets...); got != "" {
		t.Errorf("it reaches %s", got)
	}
}

// rule returns a rule that allows a target: its host, and its port if the engine supports rules with ports.
func (s *suite) rule(t *testing.T, target string) string {
	t.Helper()
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		t.Fatal(err)
	}
	if s.engine.Capabilities().Rules {
		return target
	}
	return host
}

func checkAllow(t *testing.T, s *suite) {
	host := hostAddress(t)
	one, two := fmt.Sprintf("%s:%d", host, server(t, host)), fmt.Sprintf("%s:%d", host, server(t, host))
	for want, n := range map[string]engine.Network{one + " " + two: allowed(host),
		"": allowed("example.org", "192.0.2.0/24")} {
		sb := s.create(t, engine.Spec{Network: n})
		if got := reach(t, sb, one, two, "169.254.169.254:80"); got != want {
			t.Errorf("with %+v it reaches %q, want %q", n, got, want)
		}
	}
}

func checkRules(t *testing.T, s *suite) {
	host := hostAddress(t)
	one, two := fmt.Sprintf("%s:%d", host, server(t, host)), fmt.Sprintf("%s:%d", host, server(t, host))
	for _, c := range []struct {
		network engine.Network
		want    string
	}{
		{allowed(one), one},
		{engine.Network{Mode: engine.NetworkAllow, Allow: []string{host}, Deny: []string{one}}, two},
		{engine.Network{Mode: engine.NetworkDefault, Allow: []string{two}}, two},
	} {
		sb := s.create(t, engine.Spec{Network: c.network})
		if got := reach(t, sb, one, two, "169.254.169.254:80"); got != c.want {
			t.Errorf("with %+v it reaches %q, want %q", c.network, got, c.want)
		}
	}
}

func checkNoRules(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{})
	for _, n := range []engine.Network{
		allowed("192.0.2.1:80"), allowed("example.org:22"), allowed("[2001:db8::1]:80"),
		{Mode: engine.NetworkDefault, Allow: []string{"192.0.2.1"}},
		{Mode: engine.NetworkDefault, Deny: []string{"example.org"}},
		{Mode: engine.NetworkAllow, Allow: []string{"example.org"}, Deny: []string{"192.0.2.1"}},
	} {
		_, created := s.engine.Create(probe.Patient(t), s.spec(engine.Spec{Network: n}))
		for what, err := range map[string]error{"Create": created,
			"SetNetwork": sb.(engine.Networker).SetNetwork(probe.Patient(t), n)} {
			probe.WantKind(t, fmt.Sprintf("%s with %+v", what, n), err, errors.Unsupported)
			if errors.RemedyOf(err) == "" {
				t.Errorf("%s with %+v says not what to do: %v", what, n, err)
			}
		}
	}
}

func checkNoDenials(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{Network: allowed("192.0.2.1")})
	waiting := make(chan error, 1)
	go func() {
		_, err := sb.(engine.Networker).Denials(probe.Patient(t), 0)
		waiting <- err
	}()
	reach(t, sb, "169.254.169.254:81")
	select {
	case err := <-waiting:
		t.Errorf("Denials told %v", err)
		return
	default:
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sb.(engine.Networker).Denials(ctx, 0); !errors.Is(err, errors.Canceled) {
		t.Errorf("Denials after the end of ctx: %v", err)
	}
	if err := sb.Destroy(probe.Patient(t)); err != nil {
		t.Fatal(err)
	}
	probe.WantKind(t, "Denials of a sandbox that has ended", <-waiting, errors.Conflict)
}

func checkChange(t *testing.T, s *suite) {
	host := hostAddress(t)
	port := server(t, host)
	target := fmt.Sprintf("%s:%d", host, port)
	rule := s.rule(t, target)
	sb := s.create(t, engine.Spec{Network: engine.Network{Mode: engine.NetworkNone}})
	if got := reach(t, sb, target); got != "" {
		t.Errorf("without a network it reaches %s", got)
	}
	setNetwork(t, sb, allowed(rule))
	if got := reach(t, sb, target); got != target {
		t.Error("what a new policy allows is not reached")
	}
	open := probe.Start(t, sb, connected(host, port))
	open.Stdout.Until(t, "connected")
	setNetwork(t, sb, allowed(rule, "192.0.2.0/24"))
	if got := reach(t, sb, target); got != target {
		t.Error("what both policies allow is not reached")
	}
	if open.Stdout.String() != "connected\n" {
		t.Error("a policy that allows a connection cuts it")
	}
	setNetwork(t, sb, engine.Network{Mode: engine.NetworkNone})
	open.Expect(t, engine.Exit{}, "connected\ncut\n")
	if got := reach(t, sb, target); got != "" {
		t.Errorf("without a network again it reaches %s", got)
	}
	setNetwork(t, sb, allowed(rule))
	if got := reach(t, sb, target); got != target {
		t.Error("an address that is allowed again is not reached")
	}
}

// connected returns a command that holds a connection and reports its end.
func connected(host string, port int) engine.Command {
	cmd := python(`
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60)
s.recv(6)
print("connected", flush=True)
try:
    s.settimeout(None)
    print("cut" if s.recv(1) == b"" else "data")
except OSError:
    print("cut")
`)
	cmd.Args = append(cmd.Args, host, fmt.Sprint(port))
	return cmd
}

func checkDenials(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{Network: allowed("192.0.2.1")})
	n := sb.(engine.Networker)
	type answer struct {
		denied []engine.Denial
		err    error
	}
	waiting := make(chan answer, 1)
	go func() {
		denied, err := n.Denials(probe.Patient(t), 0)
		waiting <- answer{denied, err}
	}()
	reach(t, sb, "169.254.169.254:81")
	first := <-waiting
	if first.err != nil || len(first.denied) != 1 {
		t.Fatalf("Denials: %+v, %v", first.denied, first.err)
	}
	d := first.denied[0]
	if d.Seq == 0 || d.Protocol != "tcp" || d.Address != "169.254.169.254" || d.Port != 81 || d.Reason == "" ||
		d.Time.IsZero() {
		t.Errorf("the denial is %+v", d)
	}
	probe.Output(t, sb, probe.Sh("getent ahosts denied.example.org; true"))
	next, err := n.Denials(probe.Patient(t), d.Seq)
	if err != nil || len(next) == 0 || next[0].Seq <= d.Seq || next[0].Protocol != "dns" ||
		next[0].Domain != "denied.example.org" {
		t.Errorf("after a look-up: %+v, %v", next, err)
	}
	all, err := n.Denials(probe.Patient(t), 0)
	if err != nil || len(all) < 2 || all[0] != d {
		t.Errorf("all: %+v, %v", all, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.Denials(ctx, all[len(all)-1].Seq+1000); err == nil {
		t.Error("Denials does not wait")
	}
}

func checkNames(t *testing.T, s *suite) {
	for _, n := range []engine.Network{{Mode: engine.NetworkNone}, {Mode: engine.NetworkDefault}} {
		sb := s.create(t, engine.Spec{Hostname: "some-host", Network: n})
		got := probe.Output(t, sb,
			probe.Sh(`cat /etc/resolv.conf; ls -A /etc | grep harvest; stat -c '%a %U' /etc/resolv.conf /etc/hosts
for name in localhost some-host; do getent hosts $name | cut -d ' ' -f 1; done`))
		lines := strings.Split(strings.TrimSpace(got), "\n")
		if len(lines) != 5 || !strings.HasPrefix(lines[0], "nameserver ") || lines[1] != "644 root" ||
			lines[2] != "644 root" || lines[3] != "::1" ||
			!strings.HasPrefix(lines[4], "127.") {
			t.Errorf("mode %s: %q", n.Mode, got)
		}
	}
}

func checkVolumeNetwork(t *testing.T, s *suite) {
	host := hostAddress(t)
	target := fmt.Sprintf("%s:%d", host, server(t, host))
	spec := mounted(newVolume(t, s), "/mnt/data")
	spec.Network = allowed(s.rule(t, target))
	sb := s.create(t, spec)
	if got := reach(t, sb, target); got != target {
		t.Error("an allowed address is not reached")
	}
	if got := probe.Output(t, sb, probe.Sh("grep -c nameserver /etc/resolv.conf")); got != "1\n" {
		t.Errorf("name servers: %s", got)
	}
}

func checkNetworkRestart(t *testing.T, s *suite) {
	s = s.separate(t)
	host := hostAddress(t)
	port := server(t, host)
	target := fmt.Sprintf("%s:%d", host, port)
	sb := s.create(t, engine.Spec{Network: allowed(s.rule(t, target))})
	open := probe.Start(t, sb, connected(host, port))
	open.Stdout.Until(t, "connected")
	s.restart(t)
	sb, opener := s.reopened(t, sb.Handle())
	if got := reach(t, sb, target); got != target {
		t.Error("after a restart an allowed address is not reached")
	}
	out := new(testenv.Output)
	again, err := opener.OpenProcess(probe.Patient(t), open.ID(), engine.Stdio{Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	setNetwork(t, sb, engine.Network{Mode: engine.NetworkNone})
	if exit, err := again.Wait(probe.Patient(t)); err != nil || exit.Code != 0 || out.String() != "connected\ncut\n" {
		t.Errorf("the connection's command ended with %+v, %v, %q", exit, err, out)
	}
}

func checkApart(t *testing.T, s *suite) {
	a, b := s.create(t, engine.Spec{Network: engine.Network{Mode: engine.NetworkDefault}}),
		s.create(t, engine.Spec{Network: engine.Network{Mode: engine.NetworkDefault}})
	listening := probe.Start(t, a, greeter("0.0.0.0", 7001))
	listening.Stdout.Until(t, "listening")
	addrs := strings.Fields(probe.Output(t, a, probe.Sh("hostname -I")))
	if len(addrs) == 0 {
		t.Fatal("the sandbox has no address")
	}
	for _, addr := range addrs {
		target := fmt.Sprintf("%s:7001", addr)
		if strings.Contains(addr, ":") {
			target = fmt.Sprintf("[%s]:7001", addr)
		} else if got := reach(t, a, target); got != target {
			t.Errorf("the sandbox does not reach itself at %s", target)
		}
		if got := reach(t, b, target); got != "" {
			t.Errorf("another sandbox reaches %s", got)
		}
	}
}

func checkWarmNetwork(t *testing.T, s *suite) {
	s = s.separate(t)
	host := hostAddress(t)
	target := fmt.Sprintf("%s:%d", host, server(t, host))
	for want, n := range map[string]engine.Network{"": {Mode: engine.NetworkNone}, target: allowed(s.rule(t, target))} {
		sb, err := newWarm(t, s).Claim(probe.Patient(t), s.spec(engine.Spec{Limits: someLimits, Network: n}))
		if err != nil {
			t.Fatalf("Claim: %v", err)
		}
		t.Cleanup(func() { s.destroy(t, sb.Handle(), sb) })
		if got := reach(t, sb, target); got != want {
			t.Errorf("with %+v it reaches %q", n, got)
		}
	}
}

func checkBadNetwork(t *testing.T, s *suite) {
	host := hostAddress(t)
	target := fmt.Sprintf("%s:%d", host, server(t, host))
	sb := s.create(t, engine.Spec{Network: allowed(s.rule(t, target))})
	for _, bad := range []engine.Network{{Mode: "odd"}, {Mode: engine.NetworkAllow}, allowed("http://example.org/"),
		allowed("10.0.0.0/99")} {
		probe.WantKind(t, fmt.Sprintf("%+v", bad), sb.(engine.Networker).SetNetwork(probe.Patient(t), bad),
			errors.Invalid)
		_, err := s.engine.Create(probe.Patient(t), s.spec(engine.Spec{Network: bad}))
		if !errors.Is(err, errors.Invalid) {
			t.Errorf("Create with %+v: %v", bad, err)
		}
	}
	if got := reach(t, sb, target); got != target {
		t.Error("the old policy no longer holds")
	}
}
