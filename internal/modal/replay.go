package modal

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/proto"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/store/records"
)

// notes returns the records of a journal; none without a journal.
func (bs *boxes) notes(ctx context.Context, id string) ([]note, error) {
	rows, err := bs.s.opts.Records.Get(ctx, records.Journal, journalOf(id))
	if err != nil {
		return nil, errors.Wrapf(err, "read the journal of %s", id)
	}
	all := make([]note, len(rows))
	for i, r := range rows {
		if err := json.Unmarshal(r.Data, &all[i]); err != nil {
			return nil, errors.Wrapf(err, "read the journal of %s", id)
		}
	}
	return all, nil
}

// replay restores the state that an earlier server recorded of a sandbox. A sandbox without a journal was not
// created with this protocol and has no command of its own.
func (b *box) replay(ctx context.Context, sb record.Sandbox) error {
	notes, err := b.s.boxes.notes(ctx, b.id)
	if err != nil {
		return err
	}
	b.noted = int64(len(notes))
	main, execs, input := "", []note{}, map[string]int64{}
	for _, n := range notes {
		b.take(n)
		maps.Copy(input, n.Input)
		if n.Main != "" {
			main = n.Main
		}
		if n.Exec != "" {
			execs = append(execs, n)
		}
	}
	if sb.Status.Ended() {
		return nil
	}
	if main != "" {
		if b.main, err = b.attach(ctx, b.id, main, input[""], order{terminal: sizeOf(b.def.GetPtyInfo())}); err != nil {
			b.main = b.lostCommand(ctx, main, err)
		}
	}
	for _, n := range execs {
		ref := b.id
		if n.Box != "" {
			ref = n.Box
		}
		c, err := b.attach(ctx, ref, n.Process, input[n.Exec], order{joined: n.Joined, flush: n.Flush})
		if err != nil {
			logf.Debugf(ctx, "take up command %s: %v", n.Process, err) // it ended, and the engine has dropped it
			continue
		}
		b.execs[n.Exec] = c
	}
	b.s.reopenTunnels(ctx, b)
	return nil
}

// take applies one record.
func (b *box) take(n note) {
	if n.Def != nil {
		def := &pb.Sandbox{}
		if proto.Unmarshal(n.Def, def) == nil {
			b.def, b.blocked = def, blockedBy(def)
		}
	}
	if n.Ended != nil {
		b.code = n.Ended
	}
	b.stopped = b.stopped || n.Stopped
	if n.Blocked != nil {
		b.blocked = *n.Blocked
	}
	if n.Ready != 0 {
		b.ready = time.UnixMilli(n.Ready)
	}
	if n.View != nil {
		b.views = append(b.views, n.View)
	}
	if n.Settled {
		b.views = nil
	}
	if m := n.Mount; m != nil {
		if b.mounts[m.Path] = m.Hidden; m.Gone {
			delete(b.mounts, m.Path)
		}
	}
	if n.Ports != nil {
		b.ports = n.Ports
	}
}

// lostCommand stands in for a command that cannot be found again.
func (b *box) lostCommand(ctx context.Context, process string, cause error) *command {
	logf.Warnf(ctx, "the command %s of %s cannot be found: %v", process, b.id, cause)
	c := b.newCommand(order{stdout: true, stderr: true})
	c.fault = cause
	c.finish()
	return c
}
