package session

import (
	"context"

	"github.com/RelevanceAI/harvest/logf"
)

// busy is a sandbox that is kept from being idle. The zero value is none.
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

// keepBusy keeps the sandbox from being idle while a turn is under way or a prompt waits. Between turns the agent's process runs on, and
// the sandbox is idle.
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
	if err != nil { // it has ended, which the runner sees elsewhere
		logf.Infof(ctx, "keep the sandbox of session %s from being idle: %v", r.id, err)
		return
	}
	r.busy = busy{box, release}
}
