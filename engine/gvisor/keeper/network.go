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

// network is the network of a sandbox. It has only loopback, and costs nothing, until the first policy that
// allows anything.
type network struct {
	denied denials

	mu      sync.Mutex
	current engine.Network    // guarded by mu
	gateway *netstack.Gateway // guarded by mu; nil without an interface
}

// set activates a policy. If it is the first that needs an interface, it passes the sandbox's end of a new link
// to link. Before it returns, it closes the connections that the policy forbids.
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

// connect adds an interface to the sandbox, with a gateway at its other end.
func (n *network) connect(policy *gateway.Policy, link func(*os.File) error) (*netstack.Gateway, error) {
	ours, theirs, err := netstack.Pair()
	if err != nil {
		return nil, err
	}
	defer ours.Close() // the gateway has a duplicate
	defer theirs.Close()
	gw, err := netstack.New(context.Background(), netstack.Options{Link: ours, Policy: policy, Denied: n.denied.add,
		Peer: dialPeer})
	if err != nil {
		return nil, errors.Wrapf(err, "start the gateway")
	}
	if err := link(theirs); err != nil {
		return nil, errors.Join(err, gw.Close())
	}
	return gw, nil
}

// state returns the active policy.
func (n *network) state() engine.Network {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.current
}

// close closes the gateway, after the end of the sandbox. It is idempotent.
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

// setNetwork replaces the policy of a running sandbox.
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

// after returns the denials after seq. If there are none yet, it returns a channel that the next add closes.
func (d *denials) after(seq uint64) ([]engine.Denial, <-chan struct{}) {
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

// serveDenials sends the denials after seq as soon as there are any. Conflict when the sandbox ends before.
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
