package lending

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
	"github.com/RelevanceAI/harvest/internal/fleet/broker"
)

// Notes says what its creator may not expect of the sandbox's secrets under a network policy: hosts that the policy
// forbids, and a policy that forbids none.
func (b *Borrower) Notes(ctx context.Context, n engine.Network) ([]string, error) {
	all, err := b.lent(ctx)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	policy, err := gateway.Compile(string(n.Mode), n.Allow, n.Deny)
	if err != nil {
		return nil, err
	}
	var notes []string
	for _, name := range b.sandbox.Lent() {
		if hosts := unreachable(policy, all, name); len(hosts) > 0 {
			notes = append(notes, "the network policy forbids the hosts of the secret "+name+
				", which the sandbox cannot use: "+
				strings.Join(hosts, ", "))
		}
	}
	if n.Mode == engine.NetworkDefault {
		notes = append(notes,
			"the network policy allows every public host: secrets stay outside of the sandbox, but commands "+
				"can send other data to any host; allow only the hosts that they need, with --network allow=HOST,…")
	}
	return notes, nil
}

// unreachable returns the hosts of a secret if a policy forbids all of them.
func unreachable(policy *gateway.Policy, all []broker.Credential, name string) []string {
	var hosts []string
	for _, c := range all {
		if c.Secret != name {
			continue
		}
		for _, p := range c.Binding.Places {
			if reaches(policy, p.Host.Name, p.Host.Port) {
				return nil
			}
			if !slices.Contains(hosts, p.Host.String()) {
				hosts = append(hosts, p.Host.String())
			}
		}
	}
	return hosts
}

// reaches reports whether a policy may allow a host.
func reaches(policy *gateway.Policy, name string, port int) bool {
	if addr, err := netip.ParseAddr(name); err == nil {
		return policy.Connect(gateway.Target{Addr: addr, Port: uint16(port)}).Allowed
	}
	return policy.LookUp(strings.TrimPrefix(name, "*.")).Allowed
}
