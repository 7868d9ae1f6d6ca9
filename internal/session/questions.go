package session

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/questions"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// open records a question.
func (r *runner) open(e agent.Event) {
	opened := r.session().Asked[e.ID] // after a restart, the agent's output is read again
	if opened.IsZero() {
		opened = time.Now().UTC()
		r.change(func(s *records.Session) { s.RecordQuestion(e.ID, opened) })
	}
	q := questions.Question{Tool: e.Tool, Asks: e.Questions, Opened: opened, Seen: r.attended(), Event: e}
	if len(q.Asks) > 0 {
		q.Tool = ""
	}
	r.asked[e.ID] = q
}

// asksNothing reports whether the session asks no person for approval.
func (r *runner) asksNothing() bool { return r.session().Approval == agent.ApproveAll }

// attendGrace is how long a session whose events a person followed before a restart counts as attended after it: the
// person's client reconnects.
const attendGrace = 15 * time.Second

// attended reports whether a person follows the session and can answer.
func (r *runner) attended() bool {
	return r.people.Load() > 0 || r.session().Attended && r.recovered && time.Since(r.opened) < attendGrace
}

// Attend records that a person follows a session's events and can answer its questions, until release is called. For a
// session that has ended it does nothing.
func (m *Manager) Attend(ctx context.Context, account, ref string) (release func()) {
	_, r, err := m.find(ctx, account, ref)
	if err != nil || r == nil {
		return func() {}
	}
	r.people.Add(1)
	if !r.session().Attended {
		m.work.Go(func() { // in the background: the loop may be busy
			_ = r.call(m.ctx, func() error { // fails only if the session has ended
				r.change(func(s *records.Session) { s.Attended = true })
				return nil
			})
		})
	}
	return func() { r.people.Add(-1) }
}

// answerItself answers a question for which no person is needed or present: about a tool that was allowed for always,
// about any tool in a session that asks nothing, since some tools of Claude Code, such as ExitPlanMode, ask in every
// mode, and every question that a person who is not there would have to answer.
func (r *runner) answerItself(id string, q questions.Question) {
	always := len(q.Asks) == 0 && slices.Contains(r.session().Allowed, q.Tool)
	a := agent.Answer{Allow: true, Always: always}
	switch {
	case r.current != nil && r.current.Purpose != "" && !always:
		a = agent.Answer{Message: "No person reads this turn. Answer without it."}
	case len(q.Asks) > 0 && (!r.asksNothing() || q.Seen || r.attended()), !always && !r.asksNothing():
		return
	case len(q.Asks) > 0:
		a = agent.Answer{Message: "No person is there to answer. " + decideYourself}
	}
	if err := r.answer(id, a); err != nil {
		logf.Errorf(r.m.ctx, "answer for the user: %v", err)
	}
}

const decideYourself = "Decide yourself, and say what you decided."

// answerDue returns when the first question times out; zero if questions do not time out.
func (r *runner) answerDue() (due time.Time) {
	if !r.asksNothing() {
		return due
	}
	for _, q := range r.asked {
		if at := q.Opened.Add(r.m.opts.QuestionWait); due.IsZero() || at.Before(due) {
			due = at
		}
	}
	return due
}

// deadlineOf returns when answerLate answers the question of e; zero if e is no question, or if it does not time out.
func (r *runner) deadlineOf(e agent.Event) time.Time {
	if e.Type != agent.Asked || len(e.Questions) == 0 || r.asked[e.ID].Opened.IsZero() || !r.asksNothing() {
		return time.Time{}
	}
	return r.asked[e.ID].Opened.Add(r.m.opts.QuestionWait).UTC()
}

// answerLate answers the model's questions that have timed out.
func (r *runner) answerLate(now time.Time) {
	for id, q := range maps.Clone(r.asked) {
		if !r.asksNothing() || now.Before(q.Opened.Add(r.m.opts.QuestionWait)) {
			continue
		}
		text := fmt.Sprintf("No person answered within %s. %s", r.m.opts.QuestionWait, decideYourself)
		if err := r.answer(id, agent.Answer{Message: text}); err != nil {
			logf.Errorf(r.m.ctx, "answer a question by default: %v", err)
			delete(r.asked, id)
		}
	}
}

// allow records that a tool no longer needs approval.
func (r *runner) allow(tool string) {
	if tool != "" && !slices.Contains(r.session().Allowed, tool) {
		r.change(func(s *records.Session) { s.Allowed = append(slices.Clone(s.Allowed), tool) })
	}
}
