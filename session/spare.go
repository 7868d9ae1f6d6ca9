package session

import (
	"context"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/fault"
	"github.com/RelevanceAI/harvest/internal/ids"
	"github.com/RelevanceAI/harvest/sandbox"
	"github.com/RelevanceAI/harvest/session/preparation"
	"github.com/RelevanceAI/harvest/session/workspace"
)

// waitAhead starts the agent of a session made ahead, and reports when the session can take a prompt.
func (r *runner) waitAhead(ctx context.Context) {
	if r.over != "" || !r.ready || r.catching || r.agent == nil && !r.start(ctx) {
		return
	}
	if !r.gate.Closed() && !r.warmed {
		r.warmed = true
		close(r.warm)
	}
}

// startAhead starts the agent of a new session before its first prompt, on a server that makes sessions ahead. If that
// fails, the prompt starts the agent and reports why.
func (r *runner) startAhead(ctx context.Context) {
	if r.m.spares == nil || r.ahead || r.over != "" || !r.ready || r.catching {
		return
	}
	r.ahead = true
	if s := r.session(); r.agent == nil && s.Turns == 0 && len(r.queue) == 0 && r.current == nil && !r.recovered {
		r.start(ctx)
	}
}

// Warm implements spares.Session.
func (r *runner) Warm() <-chan struct{} { return r.warm }

// Gone implements spares.Session.
func (r *runner) Gone() <-chan struct{} { return r.gone }

// GiveUp implements spares.Session.
func (r *runner) GiveUp(why string) {
	ctx := context.WithoutCancel(r.m.ctx)
	err := r.call(ctx, func() error {
		if !r.session().Spare {
			return errors.Newf(errors.Conflict, "session %s: already taken", r.id)
		}
		r.end(why)
		return nil
	})
	if err == nil {
		<-r.gone
	}
}

// become makes a session made ahead the planned session s: its repository is updated first, then the store moves
// session, sandbox and prompt to the account in one transaction. On an error the session is of no use.
func (r *runner) become(ctx context.Context, s Session, req Request, begin time.Time) error {
	repos, err := r.refresh(ctx, s, req)
	if err != nil {
		return err
	}
	fault.Point("spare.fresh")
	return r.call(ctx, func() error {
		now := time.Now().UTC()
		taken := r.session()
		if r.over != "" || r.agent == nil || !taken.Spare {
			return errors.Newf(errors.Conflict, "session %s: has ended", r.id)
		}
		taken.Spare, taken.Place, taken.Title, taken.Limits, taken.Created, taken.Active = false, placeNow(), s.Title,
			s.Limits, now, now
		taken.Repos, taken.Base = repos, repos[0].Base
		var first []Message
		if req.Prompt != "" {
			first = []Message{{ID: "msg_" + ids.New(), Session: r.id, Prompt: req.Prompt, State: Queued, Created: now}}
		}
		_, err := r.m.opts.Fleet.Adopt(ctx, r.account, taken.SandboxID,
			func(ctx context.Context, box sandbox.Sandbox) error {
				return r.m.opts.Store.TakeSession(ctx, taken, first, box)
			})
		if err != nil {
			return err
		}
		fault.Point("spare.taken")
		r.mu.Lock()
		r.s = taken
		r.mu.Unlock()
		r.publish(draft{EventStage, Event{Stage: &preparation.Stage{Name: "made ahead",
			MS: float64(time.Since(begin).Microseconds()) / 1000}}})
		for _, m := range first {
			r.queue = append(r.queue, m)
			r.publish(draft{EventQueued, Event{MessageID: m.ID, Message: &m, Position: len(r.queue)}})
		}
		return nil
	})
}

// refreshLimit is how long a request waits for the newest commit. After that it gets a new session, which reports why
// the repository cannot be reached.
const refreshLimit = 10 * time.Second

// refresh brings the repository of a session made ahead to the state from which s begins.
func (r *runner) refresh(ctx context.Context, s Session, req Request) ([]workspace.Repository, error) {
	own := r.session()
	repos := append([]workspace.Repository{}, own.Repositories()...)
	ctx, cancel := context.WithTimeout(ctx, refreshLimit)
	defer cancel()
	tree := r.m.tree(own, own.SandboxID)
	tree.Title = s.Title
	given := req.given()
	given.Shallow = nil
	base, start, err := tree.Refresh(ctx, workspace.Repository{Dir: own.Dir, Branch: own.Branch}, req.Repo, given)
	if err != nil {
		return nil, err
	}
	repos[0].Base, repos[0].Start = base, start
	return repos, nil
}
