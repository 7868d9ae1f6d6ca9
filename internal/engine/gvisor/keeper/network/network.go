// Package network is the network of one sandbox: a policy, a gateway once the policy allows anything, and the denials.
package network

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
	"github.com/RelevanceAI/harvest/internal/engine/gateway/netstack"
)

// Network is the network of a sandbox. It has only loopback, and costs nothing, until the first policy that
// allows anything.
type Network struct {
	Denied denials
	// Hosts are addresses of this machine that its interfaces do not have. They are set before the first Set.
	Hosts []netip.Addr

	intercepted chan Interception

	mu      sync.Mutex
	current engine.Network    // guarded by mu
	gateway *netstack.Gateway // guarded by mu; nil without an interface
}

// New returns a network.
func New() *Network { return &Network{intercepted: make(chan Interception)} }

// Set activates a policy. If it is the first that needs an interface, it calls link, which adds one to the sandbox and
// returns the other end of its link. Before Set returns, it closes the connections that the policy forbids.
func (n *Network) Set(want engine.Network, link func() (*os.File, error)) error {
	if want.Mode == "" {
		want.Mode = engine.NetworkNone
	}
	policy, err := gateway.Compile(string(want.Mode), want.Allow, want.Deny)
	if err == nil {
		policy, err = policy.Intercepting(want.Intercept)
	}
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.gateway != nil:
		n.gateway.SetPolicy(policy)
	case want.Mode != engine.NetworkNone:
		if n.gateway, err = n.connect(policy, link); err != nil {
			return err
		}
	}
	n.current = want
	return nil
}

// connect adds an interface to the sandbox, with a gateway at its other end.
func (n *Network) connect(policy *gateway.Policy, link func() (*os.File, error)) (*netstack.Gateway, error) {
	ours, err := link()
	if err != nil {
		return nil, err
	}
	defer ours.Close() // the gateway has a duplicate
	gw, err := netstack.New(context.Background(), netstack.Options{Link: ours, Policy: policy, Denied: n.Denied.add,
		Peer: dialPeer, Intercept: n.intercept, Hosts: n.Hosts})
	return gw, errors.Wrapf(err, "start the gateway")
}

// State returns the active policy.
func (n *Network) State() engine.Network {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.current
}

// Close closes the gateway, after the end of the sandbox. It is idempotent.
func (n *Network) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gateway == nil {
		return nil
	}
	err := n.gateway.Close()
	n.gateway = nil
	return errors.Wrapf(err, "end the gateway")
}

// keptDenials is how many recent denials are kept for later requests.
const keptDenials = 256

// denials are the denials of the policy. The zero value is ready to use.
type denials struct {
	mu   sync.Mutex
	seq  uint64
	kept []engine.Denial // oldest first
	more chan struct{}   // closed by the next add; nil while nothing waits
}

// add records a denial. It never blocks.
func (d *denials) add(n gateway.Denial) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seq++
	d.kept = append(d.kept, engine.Denial{Seq: d.seq, Time: n.Time.UTC(), Protocol: n.Protocol, Domain: n.Domain,
		Address: n.Address, Port: n.Port,
		Reason: n.Reason, Count: n.Count})
	if len(d.kept) > keptDenials {
		d.kept = slices.Clone(d.kept[len(d.kept)-keptDenials:])
	}
	if d.more != nil {
		close(d.more)
		d.more = nil
	}
}

// After returns the denials after seq. Without any, it returns a channel that the next add closes.
func (d *denials) After(seq uint64) ([]engine.Denial, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if seq > d.seq {
		seq = 0 // seq is of another sandbox
	}
	i := slices.IndexFunc(d.kept, func(n engine.Denial) bool { return n.Seq > seq })
	if i >= 0 {
		return slices.Clone(d.kept[i:]), nil
	}
	if d.more == nil {
		d.more = make(chan struct{})
	}
	return nil, d.more
}
