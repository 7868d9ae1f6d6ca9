package editor

import (
	"context"
	"slices"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

// prompt is a prompt of the editor that waits for its end. Its fields are guarded by the mutex of the thread.
type prompt struct {
	id        string // "" until it is queued
	cancelled bool   // by the editor
	ended     chan outcome
}

// outcome is the end of a prompt.
type outcome struct {
	end    api.SessionEvent // of its turn
	unsent bool             // the agent did not get it
	err    error
}

// end ends the prompt. Later ends are ignored.
func (p *prompt) end(o outcome) {
	select {
	case p.ended <- o:
	default:
	}
}

// prompt returns the work of a prompt. Prompts are queued in the order of the requests, and the session runs one at a
// time.
func (t *thread) prompt(text string) work {
	before, sent := t.turns, make(chan struct{})
	t.turns = sent
	p := &prompt{ended: make(chan outcome, 1)}
	t.mu.Lock()
	t.prompts = append(t.prompts, p)
	t.mu.Unlock()
	return func(ctx context.Context) (any, func(), error) {
		defer t.forget(p)
		select {
		case <-before:
		case <-ctx.Done():
			go func() { <-before; close(sent) }() // the prompts after this one wait for those before it
			return nil, nil, ctx.Err()
		}
		session, err := t.deliver(ctx, p, text)
		if err == nil {
			t.begun(ctx, session)
		}
		close(sent)
		if err != nil {
			return t.result(session, p, outcome{err: err})
		}
		select {
		case o := <-p.ended:
			return t.result(session, p, o)
		case <-ctx.Done():
			if t.face.ctx.Err() == nil { // the editor has cancelled the request
				t.cancelOne(p)
			}
			return nil, nil, ctx.Err()
		}
	}
}

// forget removes a prompt that has ended.
func (t *thread) forget(p *prompt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.prompts = slices.DeleteFunc(t.prompts, func(other *prompt) bool { return other == p })
	t.view.waiting = len(t.prompts) > 0
}

// deliver queues a prompt, in a session that can take it.
func (t *thread) deliver(ctx context.Context, p *prompt, text string) (session string, err error) {
	if session, err = t.ready(ctx); err != nil {
		return session, err
	}
	t.mu.Lock()
	if p.cancelled {
		t.mu.Unlock()
		return session, errors.Newf(errors.Canceled, "the prompt was cancelled")
	}
	t.sending = append(t.sending, text)
	t.send(t.view.expect(true)...)
	for _, text := range t.notes {
		t.send(t.view.notice("info", text, "")...)
	}
	t.notes = nil
	t.mu.Unlock()
	queued, err := t.server.Send(t.face.ctx, session, text) // to the end: a cancelled request then stops the turn
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sending = t.sending[1:]
	early, ended := t.early[queued.MessageID]
	clear(t.early)
	if err != nil {
		return session, err
	}
	if p.id = queued.MessageID; ended {
		p.end(early)
	}
	if p.cancelled {
		go t.withdraw(session, p.id)
	}
	return session, nil
}

// ready returns the session for the next prompt. A session without a prompt is replaced if the settings or the files
// on this machine have changed since, and one that has ended is continued.
func (t *thread) ready(ctx context.Context) (string, error) {
	t.mu.Lock()
	r, ended, changed := t.record, t.ended, t.record.Changed
	t.mu.Unlock()
	if !r.Prompted {
		if !ended && !changed && r.Work != "" {
			now, err := t.face.Work(ctx, r.Dir)
			changed = err != nil || now != r.Work // an error comes again, with its reason
		}
		if ended || changed {
			if err := t.create(ctx); err != nil {
				return r.current(), err
			}
		}
	} else if ended {
		if err := t.goOn(ctx, r, changed); err != nil {
			return r.current(), err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.record.current(), nil
}

// goOn continues a session that has ended in a new one. changed means that its settings have changed since.
func (t *thread) goOn(ctx context.Context, r record, changed bool) error {
	s, err := t.server.CreateSession(ctx, api.SessionRequest{Continues: r.current()})
	if errors.KindOf(err) == errors.Gone {
		t.note("warning", "A new session begins", errors.Message(err))
		return t.create(ctx)
	}
	if err == nil && changed {
		s, err = t.server.ChangeSession(ctx, s.ID, api.SessionChange{Model: &r.Model, Effort: &r.Effort,
			Approval: &r.Approval})
	}
	if err == nil {
		t.enter(s, true)
	}
	return err
}

// begun notes that the session has a prompt.
func (t *thread) begun(ctx context.Context, session string) {
	t.mu.Lock()
	first, dir := !t.record.Prompted, t.record.Dir
	if t.record.Prompted = true; first {
		t.save()
	}
	t.mu.Unlock()
	if first {
		t.face.Begins(ctx, dir, session)
		t.send(update{Kind: "config_option_update", Options: t.options()})
	}
}

// result returns the answer to a prompt.
func (t *thread) result(session string, p *prompt, o outcome) (any, func(), error) {
	t.mu.Lock()
	cancelled := p.cancelled
	t.mu.Unlock()
	reason := ""
	switch {
	case cancelled || o.err == nil && o.end.Interrupted:
		reason = "cancelled"
	case o.err != nil:
		return nil, nil, o.err
	case o.unsent:
		why := chat.Plain(o.end.Reason)
		if why == "" {
			why = "it was withdrawn"
		}
		return nil, nil, turnFailed{errors.Newf(errors.Canceled, "the prompt was not sent to the agent: %s", why)}
	case stops[o.end.Reason] != "":
		reason = stops[o.end.Reason]
	case o.end.Failed:
		return nil, nil, turnFailed{t.face.Explain(session, o.end)}
	default:
		reason = "end_turn"
	}
	return map[string]string{"stopReason": reason}, nil, nil
}

// stops are the reasons of agents that the protocol has, too.
var stops = map[string]string{"max_tokens": "max_tokens", "max_turn_requests": "max_turn_requests",
	"max_turns": "max_turn_requests", "error_max_turns": "max_turn_requests", "refusal": "refusal"}

// cancel cancels the prompts of the editor, and stops the turn.
func (t *thread) cancel() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.prompts {
		t.drop(p)
	}
	if len(t.prompts) == 0 && t.busy {
		go t.stop(t.record.current())
	}
}

// cancelOne cancels a prompt of the editor.
func (t *thread) cancelOne(p *prompt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(p)
}

// drop cancels a prompt. t.mu is held.
func (t *thread) drop(p *prompt) {
	if p.cancelled = true; p.id != "" {
		go t.withdraw(t.record.current(), p.id)
	}
}

// withdraw cancels a prompt that is queued, or stops its turn.
func (t *thread) withdraw(session, id string) {
	if t.server.CancelMessage(t.ctx, session, id) != nil {
		t.stop(session)
	}
}

// stop stops the turn.
func (t *thread) stop(session string) {
	if err := t.server.StopSession(t.ctx, session); err != nil && errors.KindOf(err) != errors.Conflict {
		t.note("error", "The turn cannot be stopped", errors.Message(err))
	} // Conflict: it has ended
}
