package modal

import (
	"context"
	"slices"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// settle does the cleanup of sandboxes that ended while no server ran. It handles them one by one in the order
// of their ends, because the last writer of a volume wins. Failed cleanups are left to the next server.
func (s *Server) settle(ctx context.Context, ended []record.Sandbox) {
	defer close(s.volumes.settled)
	slices.SortStableFunc(ended, func(a, b record.Sandbox) int { return a.Ended.Compare(b.Ended) })
	for _, sb := range ended {
		if ctx.Err() != nil {
			return
		}
		notes, err := s.boxes.notes(ctx, sb.ID)
		if err == nil && slices.ContainsFunc(notes, func(n note) bool { return n.Settled }) {
			continue
		}
		var b *box
		if err == nil {
			b, err = s.boxes.get(ctx, sb.Account, sb.ID)
		}
		if err != nil {
			logf.Errorf(ctx, "settle the leftovers of %s: %v", sb.ID, err)
			continue
		}
		select {
		case <-b.ended:
		case <-ctx.Done():
		}
	}
}

// await waits until the volumes of sandboxes that ended while no server ran are committed.
func (vs *views) await(ctx context.Context) error {
	select {
	case <-vs.settled:
		return nil
	case <-ctx.Done():
		return errors.Wrapf(ctx.Err(), "wait for the files of earlier sandboxes")
	}
}
