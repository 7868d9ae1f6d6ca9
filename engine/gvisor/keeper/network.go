package keeper

import (
	"context"
	"os"
	"slices"
	"sync"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/gateway"
	"github.com/RelevanceAI/harvest/gateway/netstack"
)

// network is what a sandbox reaches. Until it may reach anything, it has no interface but its loopback, and costs nothing.
type network struct {
	denied denials

	mu      sync.Mutex
	current engine.Network    // guarded by mu
	gateway *netstack.Gateway // guarded by mu; nil without an interface
}

// set puts a policy in force, and gives link the sandbox's end of the link if that is the first that needs one. When it returns, connections that the policy forbids are cut.
func (n *network) set(want engine.Network, link func(*os.File) error) error {
	if want.Mode == "" {
		want.Mode = engine.NetworkNone
	}
	policy, err := gateway.Compile(string(want.Mode), want.Allow, want.Deny)
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

// connect gives the sandbox an interface, with a gateway at its other end.
func (n *network) connect(policy *gateway.Policy, link func(*os.File) error) (*netstack.Gateway, error) {
	ours, theirs, err := netstack.Pair()
	if err != nil {
		return nil, err
	}
	defer ours.Close() // the gateway has a duplicate
	defer theirs.Close()
	gw, err := netstack.New(context.Background(), netstack.Options{Link: ours, Policy: policy, Denied: n.denied.add})
	if err != nil {
		return nil, errors.Wrapf(err, "start the gateway")
	}
	if err := link(theirs); err != nil {
		return nil, errors.Join(err, gw.Close())
	}
	return gw, nil
}

// state is the policy in force.
func (n *network) state() engine.Network {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.current
}

// close ends the gateway, after the sandbox. It is repeatable.
func (n *network) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gateway == nil {
		return nil
	}
	err := n.gateway.Close()
	n.gateway = nil
	return errors.Wrapf(err, "end the gateway")
}

// setNetwork replaces the policy of a sandbox that runs.
func (k *Keeper) setNetwork(want engine.Network) error {
	if err := k.awaitReady(); err != nil {
		return err
	}
	if err := k.network.set(want, k.guest.addLink); err != nil {
		return err
	}
	k.saveState()
	return nil
}

// keptDenials is how many of the newest denials are kept for who asks later.
const keptDenials = 256

// denials are what the policy refused. The zero value is ready.
type denials struct {
	mu   sync.Mutex
	seq  uint64
	kept []engine.Denial // oldest first
	more chan struct{}   // closed by the next add; nil while nobody waits
}

// add notes one. It never waits.
func (d *denials) add(n gateway.Denial) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seq++
	d.kept = append(d.kept, engine.Denial{Seq: d.seq, Time: n.Time.UTC(), Protocol: n.Protocol, Domain: n.Domain, Address: n.Address, Port: n.Port,
		Reason: n.Reason, Count: n.Count})
	if len(d.kept) > keptDenials {
		d.kept = slices.Clone(d.kept[len(d.kept)-keptDenials:])
	}
	if d.more != nil {
		close(d.more)
		d.more = nil
	}
}

// after returns those after seq, or, if there are none, what is closed when there is one.
func (d *denials) after(seq uint64) ([]engine.Denial, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if seq > d.seq {
		seq = 0 // of another sandbox's count
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

// serveDenials answers as soon as something after seq was denied. Conflict when the sandbox ends before.
func (k *Keeper) serveDenials(conn *wire.Conn, seq uint64) error {
	gone := make(chan struct{})
	go func() {
		_, _, _ = conn.Receive()
		close(gone)
	}()
	for {
		found, more := k.network.denied.after(seq)
		if len(found) > 0 {
			return conn.SendJSON(wire.KindReply, wire.Reply{Denials: found})
		}
		select {
		case <-more:
		case <-gone:
			return nil
		case <-k.ended:
			return k.errEnded()
		}
	}
}
