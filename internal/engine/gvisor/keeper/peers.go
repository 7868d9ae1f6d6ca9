package keeper

import (
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gateway/netstack"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// setPeers replaces the sandbox's place in a private network. A sandbox without an interface gets one, under a
// policy that allows nothing else.
func (k *Keeper) setPeers(args *wire.PeersArgs) error {
	if err := k.awaitReady(); err != nil {
		return err
	}
	p := netstack.Private{Addr: args.Addr, Names: args.Names}
	for _, peer := range args.Peers {
		p.Peers = append(p.Peers, netstack.Peer{Addr: peer.Addr, Names: peer.Names, Target: peer.Dir})
	}
	for _, a := range append([]netstack.Peer{{Addr: p.Addr}}, p.Peers...) {
		if len(p.Peers) > 0 && !a.Addr.Is4() {
			return errors.Newf(errors.Invalid, "the address %s of a private network is not one of IPv4", a.Addr)
		}
	}
	return k.network.SetPrivate(p, k.sandbox.Link)
}

// servePackets delivers a peer's packets until the connection or the sandbox ends.
func (k *Keeper) servePackets(conn *wire.Conn) error {
	gw := k.network.Gateway()
	if gw == nil {
		return errors.Newf(errors.Conflict, "the sandbox has no private network")
	}
	if err := conn.SendJSON(wire.KindReply, wire.Reply{}); err != nil {
		return nil // the peer has ended
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-k.ended:
			_ = conn.Close()
		case <-done:
		}
	}()
	_ = gw.Admit(conn.Stream()) // it ends with the peer
	return nil
}
