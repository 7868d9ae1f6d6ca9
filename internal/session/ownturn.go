package session

import (
	"cmp"
	"context"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/ids"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// beginOwn publishes drafts and then makes a turn that the agent began by itself the current one. A prompt that was
// sent at the same moment is deferred: the agent answers it after this turn, or within it. end is as in turnEnded.
func (r *runner) beginOwn(why string, end int64, drafts ...draft) {
	m := records.Message{
		ID: "msg_" + ids.New(), Session: r.id, Prompt: cmp.Or(why, "The agent continued by itself."),
		State: records.Running, Own: true,
		Created: time.Now().UTC(), Started: time.Now().UTC(),
	}
	r.putMessage(m)
	r.deferred = r.current
	r.makeCurrent(&m)
	r.publish(append(drafts, draft{records.EventOwnTurn, records.Event{Event: agent.Event{Reason: why}, Message: &m,
		Offset: end}})...)
	r.published = max(r.published, end)
	r.setStatus(records.Thinking, "")
	r.followGit()
	if err := r.session().Exhausted(0); err != nil {
		r.interrupt(err.Error())
	}
}

// done ends the turn or turns that e completes.
func (r *runner) done(e agent.Event, end int64, drafts ...draft) {
	if e.Own && r.stopped == "" && (r.current == nil || !r.current.Own) {
		r.beginOwn("", end, drafts...)
		drafts = nil
	}
	if r.current == nil { // no turn is under way
		r.publishLines(append(drafts, draft{string(agent.Done), records.Event{Event: e, Offset: end}}), end)
		return
	}
	if joined := r.deferred; joined != nil && !e.Own { // the agent took the prompt up within its own turn
		r.turnEnded(agent.Event{Type: agent.Done, Own: true, Reason: "joined"}, end, drafts...)
		drafts, r.deferred = nil, nil
		r.makeCurrent(joined)
		r.setStatus(records.Thinking, "")
	}
	r.turnEnded(e, end, drafts...)
	if next := r.deferred; next != nil {
		r.deferred = nil
		r.makeCurrent(next)
		r.setStatus(records.Thinking, "")
	}
}

// requeue puts a prompt that the agent has not started back to the head of the queue.
func (r *runner) requeue(m *records.Message) {
	if m == nil {
		return
	}
	m.State = records.Queued
	r.putMessage(*m)
	r.queue = append([]records.Message{*m}, r.queue...)
}

// recoverTurns restores the turns that an earlier server recorded as running.
func (r *runner) recoverTurns(ctx context.Context, running []records.Message) {
	for _, m := range running {
		if m.Own {
			r.deferred = r.current
		}
		r.current = &m
	}
	if r.current == nil || r.session().Status.Working() {
		return
	}
	if r.current.Own { // its end was recorded, except in the message
		m := *r.current
		m.State, m.Ended = records.Stopped, time.Now().UTC()
		if err := r.m.opts.Store.PutMessage(ctx, m); err == nil {
			r.current, r.deferred = r.deferred, nil
		}
	}
	if r.current != nil { // not sent yet: see advance
		r.queue = append([]records.Message{*r.current}, r.queue...)
		r.current = nil
	}
}
