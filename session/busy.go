package session

import (
	"context"

	"github.com/RelevanceAI/harvest/logf"
)

// busy is a hold that keeps a sandbox from becoming idle. The zero value holds no sandbox.
type busy struct {
	sandbox string
	release func()
}

func (b *busy) end() {
	if b.release != nil {
		b.release()
	}
	*b = busy{}
}

// keepBusy keeps the sandbox from becoming idle while a turn is under way or a prompt is queued. Between turns the
// agent's process keeps running, and the sandbox counts as idle.
func (r *runner) keepBusy(ctx context.Context) {
	box := ""
	if r.current != nil || len(r.queue) > 0 {
		box = r.session().SandboxID
	}
	if box == r.busy.sandbox {
		return
	}
	r.busy.end()
	if box == "" || !r.ready {
		return
	}
	release, err := r.m.opts.Fleet.Hold(ctx, r.account, box)
	if err != nil { // the sandbox has ended; the runner detects that elsewhere
		logf.Infof(ctx, "keep the sandbox of session %s from being idle: %v", r.id, err)
		return
	}
	r.busy = busy{box, release}
}
