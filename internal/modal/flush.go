package modal

import (
	"context"
	"fmt"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/modal/syncs"
)

// flushing returns a function that commits the volumes which a command in the Fleet's sandbox ref flushes with
// sync(1), nil if it flushes nothing. The function must be called when the command has ended.
func (b *box) flushing(ref string, f *syncs.Flush) func(context.Context, *command) {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, c *command) {
		if !f.Script && c.result.ReturnCode != 0 {
			return
		}
		err := b.flush(ctx, ref, f)
		if err == nil {
			return
		}
		logf.Errorf(ctx, "commit the volumes of %s at a sync: %v", ref, err)
		to := c.err
		if c.joined {
			to = c.out
		}
		if to != nil {
			fmt.Fprintf(to, "sync: the volume is not committed: %s\n", errors.Message(err))
		}
		if c.result.ReturnCode == 0 {
			c.result.ReturnCode = 1
		}
	}
}

// flush commits volumes of b's sandbox or of its sidecar ref.
func (b *box) flush(ctx context.Context, ref string, f *syncs.Flush) error {
	of := b
	var err error
	if ref != b.id {
		if of, err = b.s.boxes.get(ctx, b.account, ref); err != nil {
			return err
		}
	}
	of.mu.Lock()
	views := of.views
	of.mu.Unlock()
	for _, v := range views {
		if !f.Covers(v.Path) {
			continue
		}
		if err := b.s.volumes.await(ctx); err != nil {
			return err
		}
		err := b.s.commit(context.WithoutCancel(ctx), b.account, v, false)
		if err != nil && of.outcome(ctx, 0) == nil { // the end of the sandbox commits them, too
			return err
		}
	}
	return nil
}
