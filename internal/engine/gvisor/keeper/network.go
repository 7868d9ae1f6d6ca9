package keeper

import (
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// setNetwork replaces the policy of a running sandbox.
func (k *Keeper) setNetwork(want engine.Network) error {
	if err := k.awaitReady(); err != nil {
		return err
	}
	if err := k.network.Set(want, k.sandbox.Link); err != nil {
		return err
	}
	k.saveState()
	return nil
}

// serveDenials sends the denials after seq as soon as there are any. Conflict when the sandbox ends before.
func (k *Keeper) serveDenials(conn *wire.Conn, seq uint64) error {
	gone := make(chan struct{})
	go func() {
		_, _, _ = conn.Receive()
		close(gone)
	}()
	for {
		found, more := k.network.Denied.After(seq)
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
