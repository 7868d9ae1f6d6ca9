package modalapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/proto"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox"
)

// replay takes up what an earlier server has noted of a sandbox. One without a journal was not made by a client of this protocol: it has no
// command of its own.
func (b *box) replay(ctx context.Context, sb sandbox.Sandbox) error {
	data, err := os.ReadFile(b.s.boxes.path(b.id))
	if err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "read what is noted of %s", b.id)
	}
	main, execs, input := "", []note{}, map[string]int64{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, len(data)+1)
	for lines.Scan() {
		var n note
		if json.Unmarshal(lines.Bytes(), &n) != nil {
			continue // of a server that was killed while it wrote
		}
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
		if b.main, err = b.attach(ctx, b.id, main, input[""]); err != nil {
			b.main = b.lostCommand(ctx, main, err)
		}
	}
	for _, n := range execs {
		ref := b.id
		if n.Box != "" {
			ref = n.Box
		}
		c, err := b.attach(ctx, ref, n.Process, input[n.Exec])
		if err != nil {
			logf.Debugf(ctx, "take up command %s: %v", n.Process, err) // it has ended and is forgotten
			continue
		}
		b.execs[n.Exec] = c
	}
	b.s.tunnels.reopen(ctx, b)
	return nil
}

// take applies one line.
func (b *box) take(n note) {
	if n.Def != nil {
		def := &pb.Sandbox{}
		if proto.Unmarshal(n.Def, def) == nil {
			b.def = def
		}
	}
	if n.Ended != nil {
		b.code = n.Ended
	}
	b.stopped = b.stopped || n.Stopped
	if n.Ready != 0 {
		b.ready = time.UnixMilli(n.Ready)
	}
	if n.View != nil {
		b.views = append(b.views, n.View)
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

// lostCommand stands for a command that cannot be found again.
func (b *box) lostCommand(ctx context.Context, process string, cause error) *command {
	logf.Warnf(ctx, "the command %s of %s cannot be found: %v", process, b.id, cause)
	c := b.newCommand(order{stdout: true, stderr: true})
	c.fault = cause
	c.finish()
	return c
}
