package session

import (
	"context"
	"slices"

	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/pipe"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// crash describes how the agent's process crashed; "" if it ended in another way.
func (r *runner) crash(end pipe.Exit) string {
	if r.stopped != "" {
		return ""
	}
	return end.Crash()
}

// again puts the prompt of a turn whose agent crashed back at the head of the queue: advance restarts the agent,
// which resumes the conversation. It does so once for each prompt, and reports whether it did.
func (r *runner) again(ctx context.Context, why string) bool {
	m := *r.current
	if r.crashed == m.ID || m.Own {
		return false
	}
	logf.Warnf(ctx, "session %s: %s; it is started again", r.id, why)
	r.publish(draft{records.EventCrashed, records.Event{Event: agent.Event{Reason: why}}})
	for id := range r.asked {
		r.publish(draft{string(agent.Withdrawn), records.Event{Event: agent.Event{ID: id}}})
	}
	clear(r.tools)
	clear(r.asked)
	r.change(func(s *records.Session) { s.Answered = nil })
	m.State = records.Queued
	r.putMessage(m)
	r.queue = slices.Insert(r.queue, 0, m)
	r.crashed, r.current = m.ID, nil
	return true
}

// forgotten makes advance start an agent again that cannot continue its conversation. The prompt of its turn, or the
// next one, has the last messages. It reports false if the agent has ended in another way.
func forgotten(r *runner, end pipe.Exit) bool {
	if end.Result.ReturnCode != agent.ExitForgotten || r.session().Conversation == "" {
		return false
	}
	r.change(func(s *records.Session) { s.Conversation = "" })
	if m := r.current; m != nil {
		m.State = records.Queued
		r.putMessage(*m)
		r.queue = slices.Insert(r.queue, 0, *m)
		r.current = nil
	}
	return true
}

// startAgain makes advance restart an agent whose process crashed before it received a prompt, once for each prompt.
func (r *runner) startAgain(ctx context.Context, why string) bool {
	if r.early == r.queue[0].ID {
		return false
	}
	r.early = r.queue[0].ID
	logf.Warnf(ctx, "session %s: %s; it is started again", r.id, why)
	r.publish(draft{records.EventCrashed, records.Event{Event: agent.Event{Reason: why}}})
	return true
}

// afterCrash is the text before a prompt that the agent receives again after a crash.
const afterCrash = "Your process crashed during this turn and was started again. Your changes to files are there. " +
	"See what you had already done, and continue. This is the user's message:\n\n"

// promptID returns the ID of a prompt for the agent's current process. It is a different one for each process, since
// an agent that continues a conversation ignores a prompt whose ID is in its record.
func (r *runner) promptID(m records.Message) string {
	s := r.session()
	return m.ID + "." + s.SandboxID + "." + s.Process
}

// prompt returns the text of a message in the form that the agent receives.
func (r *runner) prompt(ctx context.Context, m records.Message) string {
	text := r.recalled(ctx, m.Prompt)
	if m.Note != "" {
		text = m.Note + "\n\n" + text
	}
	if r.crashed == m.ID {
		return afterCrash + text
	}
	return text
}
