package session

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/agent"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
)

// question is an open question of the agent.
type question struct {
	tool   string           // tool that requests approval; "" if the model asks
	asks   []agent.Question // questions of the model
	opened time.Time
	seen   bool // a person followed the session when the agent asked
}

// open records a question.
func (r *runner) open(e agent.Event) {
	q := question{tool: e.Tool, asks: e.Questions, opened: time.Now(), seen: r.attended()}
	if len(q.asks) > 0 {
		q.tool = ""
	}
	r.asked[e.ID] = q
}

// answerable returns Invalid if a does not answer q.
func (q question) answerable(a agent.Answer) error {
	var names []string
	for _, one := range q.asks {
		names = append(names, fmt.Sprintf("%q", one.Text))
	}
	for _, text := range slices.Sorted(maps.Keys(a.Answers)) {
		if !slices.ContainsFunc(q.asks, func(one agent.Question) bool { return one.Text == text }) {
			if len(q.asks) == 0 {
				return errors.Remedy(errors.Newf(errors.Invalid,
					"the agent asks for permission to run %.80q, and has no question %.80q", q.tool, text),
					"allow or deny it")
			}
			return errors.Remedy(errors.Newf(errors.Invalid, "unknown question %.200q", text), "answer %s",
				strings.Join(names, " and "))
		}
	}
	if !a.Allow {
		return nil
	}
	for i, one := range q.asks {
		if strings.TrimSpace(a.Answers[one.Text]) == "" {
			return errors.Remedy(errors.Newf(errors.Invalid, "question %.200q: no answer given", one.Text),
				"answer %s, or deny with a message", strings.Join(names[i:], " and "))
		}
	}
	return nil
}

// answered formats an answer for people.
func (q question) answered(a agent.Answer) string {
	switch {
	case !a.Allow && a.Message != "":
		return "denied: " + a.Message
	case !a.Allow:
		return "denied"
	case len(q.asks) > 0:
		var lines []string
		for _, one := range q.asks {
			lines = append(lines, one.Text+" "+a.Answers[one.Text])
		}
		return strings.Join(lines, "\n")
	case a.Always:
		return "allowed, and from now on"
	}
	return "allowed"
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
			_ = r.call(m.ctx,
				func() error { r.change(func(s *Session) { s.Attended = true }); return nil }) // fails only if the session has ended
		})
	}
	return func() { r.people.Add(-1) }
}

// answerItself answers a question for which no person is needed or present: about a tool that was allowed for always,
// about any tool in a session that asks nothing, since some tools of Claude Code, such as ExitPlanMode, ask in every
// mode, and every question that a person who is not there would have to answer.
func (r *runner) answerItself(id string, q question) {
	always := len(q.asks) == 0 && slices.Contains(r.session().Allowed, q.tool)
	a := agent.Answer{Allow: true, Always: always}
	switch {
	case r.current != nil && r.current.Purpose != "" && !always:
		a = agent.Answer{Message: "No person reads this turn. Answer without it."}
	case len(q.asks) > 0 && (!r.asksNothing() || q.seen || r.attended()), !always && !r.asksNothing():
		return
	case len(q.asks) > 0:
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
		if at := q.opened.Add(r.m.opts.QuestionWait); due.IsZero() || at.Before(due) {
			due = at
		}
	}
	return due
}

// answerLate answers the model's questions that have timed out.
func (r *runner) answerLate(now time.Time) {
	for id, q := range maps.Clone(r.asked) {
		if !r.asksNothing() || now.Before(q.opened.Add(r.m.opts.QuestionWait)) {
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
		r.change(func(s *Session) { s.Allowed = append(slices.Clone(s.Allowed), tool) })
	}
}
