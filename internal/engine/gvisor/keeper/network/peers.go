package network

import (
	"context"
	"net"
	"os"

	"github.com/RelevanceAI/harvest/client/transport/socket"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
	"github.com/RelevanceAI/harvest/internal/engine/gateway/netstack"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// SetPrivate replaces the private network. If it is the first that needs an interface, it calls link as Set does.
func (n *Network) SetPrivate(p netstack.Private, link func() (*os.File, error)) error {
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

// Gateway returns the gateway, or nil without an interface.
func (n *Network) Gateway() *netstack.Gateway {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.gateway
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
