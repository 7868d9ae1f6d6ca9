package editor

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

// event handles an event of a session.
func (t *thread) event(session string, event api.Event) {
	var e api.SessionEvent
	if json.Unmarshal(event.Data, &e) != nil {
		return // of a newer server
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.view.past && session != t.record.current() {
		return
	}
	t.view.at = max(0, slices.Index(t.record.Sessions, session))
	updates := t.view.event(event.Type, e, t.own(e.Message))
	if !t.muted {
		t.send(updates...)
	}
	if event.Type == "tool.output" && !t.view.past && t.flush == nil {
		t.flush = time.AfterFunc(flushTime, t.flushOutput)
	}
	if session == t.record.current() {
		t.state(event.Type, e)
	}
}

// own reports whether a prompt is one of the editor's, which the editor shows already. t.mu is held.
func (t *thread) own(m *api.Message) bool {
	return m != nil && (slices.Contains(t.sending, m.Prompt) ||
		slices.ContainsFunc(t.prompts, func(p *prompt) bool { return p.id == m.ID }))
}

// flushOutput sends the output of running tools.
func (t *thread) flushOutput() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flush = nil
	if !t.muted {
		t.send(t.view.flush()...)
	}
}

// state follows the state of the session: turns, and questions. t.mu is held.
func (t *thread) state(kind string, e api.SessionEvent) {
	switch kind {
	case "message.sent", "agent.continued":
		t.busy = true
	case "session.changed":
		if c := e.Changed; c != nil && !t.view.past {
			t.record.Model, t.record.Effort, t.record.Approval = c.Model, c.Effort, c.Approval
			t.save()
			t.send(t.current().updates()...)
		}
	case "agent.commands":
		if t.offered = e.Commands; t.live {
			t.send(offers(t))
		}
	case "done":
		t.busy = false
		t.withdrawAll()
		t.ends(e.MessageID, outcome{end: e})
	case "message.cancelled":
		t.ends(e.MessageID, outcome{end: e, unsent: true})
	case "agent.asked":
		if t.view.past {
			t.open[e.ID] = e
		} else {
			t.ask(e)
		}
	case "agent.withdrawn":
		delete(t.open, e.ID)
		if withdraw := t.asked[e.ID]; withdraw != nil {
			withdraw()
		}
	case "agent.crashed":
		t.withdrawAll()
	case "session.ended":
		t.ended, t.busy = true, false
		t.withdrawAll()
		if t.view.past {
			return
		}
		err := errors.Newf(errors.Gone, "the session has ended")
		if e.Status == "failed" {
			err = errors.Newf(errors.Unavailable, "the session failed: %s", chat.Plain(e.Reason))
		}
		for _, p := range t.prompts {
			p.end(outcome{err: err})
		}
	}
}

// withdrawAll closes all questions. t.mu is held.
func (t *thread) withdrawAll() {
	clear(t.open)
	for _, withdraw := range t.asked {
		withdraw()
	}
}

// ends ends a prompt of the editor. t.mu is held.
func (t *thread) ends(id string, o outcome) {
	if at := slices.IndexFunc(t.prompts, func(p *prompt) bool { return p.id == id }); at >= 0 {
		t.prompts[at].end(o)
	} else if len(t.sending) > 0 {
		t.early[id] = o
	}
}

// sprint formats a note.
func sprint(format string, args []any) string { return chat.Plain(fmt.Sprintf(format, args...)) }
