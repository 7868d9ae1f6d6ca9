// Package questions decides which answers fit a question of an agent, and how people see them.
package questions

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/session/agent"
)

// Question is an open question of the agent.
type Question struct {
	Tool   string           // tool that requests approval; "" if the model asks
	Asks   []agent.Question // questions of the model
	Opened time.Time
	Seen   bool        // a person followed the session when the agent asked
	Event  agent.Event // with which the agent asked
}

// Answerable returns Invalid if a does not answer q.
func (q Question) Answerable(a agent.Answer) error {
	var names []string
	for _, one := range q.Asks {
		names = append(names, fmt.Sprintf("%q", one.Text))
	}
	for _, text := range slices.Sorted(maps.Keys(a.Answers)) {
		if !slices.ContainsFunc(q.Asks, func(one agent.Question) bool { return one.Text == text }) {
			if len(q.Asks) == 0 {
				return errors.Remedy(errors.Newf(errors.Invalid,
					"the agent asks for permission to run %.80q, and has no question %.80q", q.Tool, text),
					"allow or deny it")
			}
			return errors.Remedy(errors.Newf(errors.Invalid, "unknown question %.200q", text), "answer %s",
				strings.Join(names, " and "))
		}
	}
	if !a.Allow {
		return nil
	}
	for i, one := range q.Asks {
		if strings.TrimSpace(a.Answers[one.Text]) == "" {
			return errors.Remedy(errors.Newf(errors.Invalid, "question %.200q: no answer given", one.Text),
				"answer %s, or deny with a message", strings.Join(names[i:], " and "))
		}
	}
	return nil
}

// Answered formats an answer for people.
func (q Question) Answered(a agent.Answer) string {
	switch {
	case !a.Allow && a.Message != "":
		return "denied: " + a.Message
	case !a.Allow:
		return "denied"
	case len(q.Asks) > 0:
		var lines []string
		for _, one := range q.Asks {
			lines = append(lines, one.Text+" "+a.Answers[one.Text])
		}
		return strings.Join(lines, "\n")
	case a.Always:
		return "allowed, and from now on"
	}
	return "allowed"
}

// Public returns an answer in the form for events: with secrets redacted.
func Public(a agent.Answer) *agent.Answer {
	a.Message = logf.Redacted(a.Message)
	answers := a.Answers
	a.Answers = nil
	for question, answer := range answers {
		if a.Answers == nil {
			a.Answers = map[string]string{}
		}
		a.Answers[question] = logf.Redacted(answer)
	}
	return &a
}
