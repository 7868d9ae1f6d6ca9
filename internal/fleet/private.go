package fleet

import (
	"context"
	"net/netip"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// Member is a sandbox in a private network.
type Member struct {
	ID    string
	Addr  netip.Addr // IPv4; unique in the private network
	Names []string   // by which the others find it, and it finds itself
}

// Join puts sandboxes of an account in a private network in which they reach each other's ports, and nothing else. It
// replaces their earlier private networks; one member alone has none. Members that do not run are left out. A
// private network lasts as long as its members, and is in no record. Unsupported: the engine has none.
func (f *Fleet) Join(ctx context.Context, account string, members []Member) error {
	if err := f.begin(); err != nil {
		return err
	}
	defer f.tasks.Done()
	type joined struct {
		Member
		box    engine.Peered
		handle engine.Handle
	}
	var all []joined
	for _, m := range members {
		if sb, err := f.Get(ctx, account, m.ID); err == nil && sb.Status == record.Suspended {
			continue // this is no reason to wake it
		}
		_, box, leave, err := f.enter(ctx, account, m.ID)
		switch errors.KindOf(err) {
		case errors.NotFound, errors.Conflict, errors.Gone:
			continue
		}
		if err != nil {
			return err
		}
		defer leave()
		peered, ok := box.(engine.Peered)
		if !ok {
			return errors.Newf(errors.Unsupported, "the engine %s has no private networks", f.opts.Engine.Name())
		}
		all = append(all, joined{m, peered, box.Handle()})
	}
	var errs []error
	for i, m := range all {
		p := engine.Private{Addr: m.Addr, Names: m.Names}
		for j, other := range all {
			if i != j {
				p.Peers = append(p.Peers, engine.Peer{Addr: other.Addr, Names: other.Names, Handle: other.handle})
			}
		}
		if err := m.box.SetPeers(ctx, p); err != nil && !errors.Is(err, errors.Conflict) { // it has ended
			errs = append(errs, errors.Stage(err, "network"))
		}
	}
	return errors.Join(errs...)
}
