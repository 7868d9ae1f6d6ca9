package session

import (
	"context"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/preparation"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// makeReady starts the preparation of sandbox and repository in the background.
func (r *runner) makeReady(ctx context.Context) {
	ctx, r.undo = context.WithCancel(ctx)
	r.prepared, r.stages = make(chan preparation.Result, 1), make(chan records.Stage, 32)
	s, stages, result := r.session(), r.stages, r.prepared
	s.Sandbox.Env, r.env = r.env, nil
	session := r.m.preparation(s)
	session.Given = r.given
	r.m.work.Go(func() {
		result <- r.m.preparer().Prepare(ctx, session, func(stage records.Stage) {
			select {
			case stages <- stage:
			default: // no reader: the session is about to end
			}
		})
	})
}

// preparer returns the Preparer of sandboxes.
func (m *Manager) preparer() preparation.Preparer {
	return preparation.Preparer{Fleet: m.opts.Fleet, Images: m.opts.Repos, Volumes: m.opts.Volumes,
		Credentials: m.credentials(), Models: m.models()}
}

// preparation describes a session for its preparation.
func (m *Manager) preparation(s records.Session) preparation.Session {
	return preparation.Session{ID: s.ID, Account: s.Account, Spare: s.Spare, Continues: s.Continues != "",
		Old: s.SandboxID, Image: m.imageFor(s.Agent), Title: s.Title, Author: s.Author, Request: s.Sandbox,
		Repos: s.Repositories(), Logins: loginsOf(s), PerTurn: s.PerTurn,
		Agent: m.opts.Agents[s.Agent]}
}

// prepare applies the result of the preparation.
func (r *runner) prepare(ctx context.Context, p preparation.Result) {
	r.undo()
	r.undo, r.prepared = nil, nil
	if p.Fresh {
		r.letGitGo()
		r.gitSeen, r.denials = 0, 0
	}
	for len(r.stages) > 0 {
		r.staged(<-r.stages)
	}
	for _, n := range p.Notices {
		r.publish(draft{records.EventNotice, records.Event{Event: agent.Event{Reason: n.Reason, Text: n.Text}}})
	}
	if p.Sandbox != "" {
		r.change(func(s *records.Session) {
			s.SandboxID, s.Repos, s.Base = p.Sandbox, p.Repos, p.Repos[0].Base
		})
	}
	r.creds.Take(p.Logins)
	if p.Err == nil {
		r.ready, r.given = true, workspace.Given{}
		r.m.inputs.Release(ctx, r.id)
		r.catchUp(p)
		runLater(r, p)
		if r.session().Status == records.Creating {
			r.setStatus(records.Ready, "")
		}
		r.preparing.end(nil)
		return
	}
	if ctx.Err() != nil {
		return // the next server starts over
	}
	logf.Errorf(ctx, "make the session ready: %v", p.Err)
	r.preparing.end(p.Err)
	if stayAsleep(r) {
		return
	}
	reason := errors.Message(p.Err)
	if stage := errors.StageOf(p.Err); stage != "" {
		reason = stage + ": " + reason
	}
	r.dropAll(reason)
	r.setStatus(records.Failed, reason)
	r.failed = true
	r.end(reason)
}

// staged publishes a step of session preparation.
func (r *runner) staged(stage records.Stage) {
	if stage.Queued {
		r.publish(draft{records.EventWaits, records.Event{}})
		return
	}
	r.publish(draft{records.EventStage, records.Event{Stage: &stage}})
}
