package keeper

import (
	"context"
	"net"
	"os"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/gateway"
	"github.com/RelevanceAI/harvest/gateway/netstack"
	"github.com/RelevanceAI/harvest/internal/socket"
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
	return k.network.setPrivate(p, k.guest.addLink)
}

func (n *network) setPrivate(p netstack.Private, link func(*os.File) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gateway == nil {
		if len(p.Peers) == 0 {
			return nil
		}
		policy, err := gateway.Compile(string(engine.NetworkNone), nil, nil)
		if err != nil {
			return err
		}
		if n.gateway, err = n.connect(policy, link); err != nil {
			return err
		}
	}
	n.gateway.SetPrivate(p)
	return nil
}

// dialPeer connects to the gateway in the keeper of dir.
func dialPeer(ctx context.Context, dir string) (net.Conn, error) {
	c, err := socket.Dial(ctx, dir, wire.Socket)
	if err != nil {
		return nil, err
	}
	conn := wire.NewConn(c)
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	err = conn.SendJSON(wire.KindRequest, wire.Request{Op: wire.Packets})
	if err == nil {
		_, err = conn.ReceiveReply(nil)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn.Stream(), nil
}

// servePackets delivers a peer's packets until the connection or the sandbox ends.
func (k *Keeper) servePackets(conn *wire.Conn) error {
	k.network.mu.Lock()
	gw := k.network.gateway
	k.network.mu.Unlock()
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
