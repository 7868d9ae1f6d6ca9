package session

import (
	"context"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/logf"
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

// keepBusy keeps the sandbox from becoming idle while a turn is under way, a prompt is queued, or background tasks of
// the agent run. Otherwise the sandbox counts as idle between turns, although the agent's process keeps running.
func (r *runner) keepBusy(ctx context.Context) {
	box := ""
	if r.current != nil || len(r.queue) > 0 || time.Now().Before(r.occupied) {
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
