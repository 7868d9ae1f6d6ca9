package session

import (
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/git"
	"github.com/RelevanceAI/harvest/internal/session/pipe"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// followGit starts a follower of harvest-git's event lines unless one runs. Each line becomes an event exactly once:
// events contain the number of lines that have become events.
func (r *runner) followGit() {
	if r.follower.Runs() {
		return
	}
	r.letGitGo()
	s := r.session()
	r.follower = r.m.tree(s, s.SandboxID).Follow(logf.With(r.m.ctx, "session_id", r.id), &r.m.work, r.gitSeen+1)
}

// letGitGo stops the follower.
func (r *runner) letGitGo() {
	r.follower.Close()
	r.follower = nil
}

// gitLine converts a line to an event.
func (r *runner) gitLine(l pipe.Line) {
	r.gitSeen++
	if kind, e, ok := git.ParseEvent(string(l.Text)); ok && !l.Cut {
		r.gitEvent(kind, e)
	}
}

// gitEvent publishes an event of git. Panic ends the turn and drops the queued prompts.
func (r *runner) gitEvent(kind string, e git.Event) {
	r.publish(draft{kind, records.Event{Git: &e}})
	if kind != git.Panic {
		return
	}
	for _, m := range r.queue {
		r.drop(m, "the agent has pressed the panic button")
	}
	r.queue = nil
	if r.current != nil {
		r.panicked = &e
		r.interrupt("the agent has pressed the panic button")
		return
	}
	if s := r.session().Status; s == records.Done || s == records.Ready {
		r.setStatus(records.Failed, e.Report())
	}
}

// panicEnds marks the end of a turn as caused by Panic, if a panic happened.
func (r *runner) panicEnds(e agent.Event) agent.Event {
	if r.panicked == nil {
		return e
	}
	e.Failed, e.Interrupted, e.Reason, e.Text = true, false, "panic", r.panicked.Report()
	r.panicked, r.stopped = nil, ""
	return e
}

// reportGit reports the commits and pushes of a turn, in the background.
func (r *runner) reportGit() {
	s := r.session()
	if r.over != "" || !r.ready || s.SandboxID == "" {
		return
	}
	r.m.work.Go(func() {
		err := r.m.tree(s, s.SandboxID).Report(r.m.ctx, workspace.Dirs(s.Repositories()))
		if err != nil && r.m.ctx.Err() == nil {
			logf.Infof(r.m.ctx, "the git events of session %s are unknown: %v", r.id, err)
		}
	})
}
