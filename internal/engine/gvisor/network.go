package gvisor

import (
	"context"

	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// SetPeers implements engine.Peered.
func (s *Container) SetPeers(ctx context.Context, p engine.Private) error {
	args := &wire.PeersArgs{Addr: p.Addr, Names: p.Names}
	for _, peer := range p.Peers {
		args.Peers = append(args.Peers, wire.Peer{Addr: peer.Addr, Names: peer.Names, Dir: s.e.dir(peer.Handle.Ref)})
	}
	_, err := s.Call(ctx, wire.Request{Op: wire.SetPeers, Peers: args})
	return err
}
