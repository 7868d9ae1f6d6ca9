package modalapi

import (
	"context"
	"slices"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox"
)

// settle does for sandboxes that ended while no server saw it what is done at the end of every sandbox, one after the other as they ended, since of
// those who have written to a volume the last one wins. What cannot be done is left to the next server.
func (s *Server) settle(ctx context.Context, ended []sandbox.Sandbox) {
	defer close(s.volumes.settled)
	slices.SortStableFunc(ended, func(a, b sandbox.Sandbox) int { return a.Ended.Compare(b.Ended) })
	for _, sb := range ended {
		if ctx.Err() != nil {
			return
		}
		notes, err := s.boxes.notes(sb.ID)
		if err == nil && slices.ContainsFunc(notes, func(n note) bool { return n.Settled }) {
			continue
		}
		var b *box
		if err == nil {
			b, err = s.boxes.get(ctx, sb.Account, sb.ID)
		}
		if err != nil {
			logf.Errorf(ctx, "settle what %s has left: %v", sb.ID, err)
			continue
		}
		select {
		case <-b.ended:
		case <-ctx.Done():
		}
	}
}

// await waits until all is committed that was left by sandboxes that ended while no server saw it.
func (vs *views) await(ctx context.Context) error {
	select {
	case <-vs.settled:
		return nil
	case <-ctx.Done():
		return errors.Wrapf(ctx.Err(), "wait for what earlier sandboxes have written")
	}
}
