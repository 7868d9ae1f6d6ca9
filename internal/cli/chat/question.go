package chat

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
)

// question is an open question of the agent: whether a tool may run, or questions to answer one by one.
type question struct {
	id        string
	tool      string
	input     json.RawMessage
	text      string // what the decision is about, such as a plan
	questions []api.Question
	answers   map[string]string
	deadline  time.Time // when the agent decides itself; zero if it waits without a limit
}

// waits says for the status line that the question is open, and the time that is left for its answer.
func (q *question) waits(now time.Time) string {
	if q.deadline.IsZero() {
		return "the agent waits for your answer"
	}
	return "answer within " + seconds(max(0, q.deadline.Sub(now))) + ", or the agent decides"
}

// ask shows a question of the agent.
func (m *Model) ask(e api.SessionEvent) {
	q := &question{id: e.ID, tool: e.Tool, input: e.Input, text: e.Text, questions: e.Questions,
		answers: map[string]string{}, deadline: e.Deadline}
	m.questions = append(m.questions, q)
	if len(m.questions) == 1 {
		m.showQuestion(q)
	}
}

// current returns the question that the next answer belongs to, nil without one.
func (m *Model) current() *question {
	if len(m.questions) == 0 {
		return nil
	}
	return m.questions[0]
}

func (m *Model) showQuestion(q *question) {
	if n := len(q.answers); n < len(q.questions) {
		asked := q.questions[n]
		m.block(wrap(m.in(yellow, "? ")+m.in(bold, expand(Plain(asked.Text))), m.room(), "  ")...)
		for i, o := range asked.Options {
			line := fmt.Sprintf("  %d. %s", i+1, expand(Plain(o.Label)))
			if o.Description != "" {
				line += m.in(dim, "  "+expand(Plain(o.Description)))
			}
			m.print(wrap(line, m.room(), "     ")...)
		}
		if d := q.deadline.Sub(m.now); n == 0 && d > 0 {
			m.notef("Without an answer within %s, the agent decides itself.", seconds(d))
		}
		return
	}
	if q.text != "" {
		m.block(m.markdown(q.text, m.room())...)
		m.block(m.in(yellow, "? ") + m.in(bold, "Is the plan right?"))
	} else {
		text := m.in(yellow, "? ") + m.in(bold, "May "+Plain(q.tool)+" run?") + "  " + expand(ToolInput(q.input))
		m.block(wrap(text, m.room(), "  ")...)
		m.print(m.change(changes(q.input))...)
	}
	m.print("  1. yes", "  2. yes, always: "+Plain(q.tool)+" no longer asks", "  3. no")
}

// hint explains how to answer the current question.
func (q *question) hint() string {
	switch n := len(q.answers); {
	case n >= len(q.questions):
		return "1-3; 3 REASON tells the agent the reason"
	case len(q.questions[n].Options) == 0:
		return "your answer"
	case q.questions[n].Multiple:
		return fmt.Sprintf("numbers such as 1,2 of 1-%d, or your own words", len(q.questions[n].Options))
	default:
		return fmt.Sprintf("1-%d, or your own words", len(q.questions[n].Options))
	}
}

// answer takes a text as the answer to the current question.
func (m *Model) answer(text string) {
	q := m.current()
	if n := len(q.answers); n < len(q.questions) {
		asked := q.questions[n]
		chosen := Choose(asked, text)
		q.answers[asked.Text] = chosen
		m.print("  " + m.in(bold, m.mark()+FirstLine(chosen)))
		if len(q.answers) == n { // the same question was asked twice
			q.questions = append(q.questions[:n:n], q.questions[n+1:]...)
		}
		if len(q.answers) < len(q.questions) {
			m.showQuestion(q)
			return
		}
		m.reply(q, api.AnswerRequest{Allow: true, Answers: q.answers})
		return
	}
	a, ok := decision(text)
	if !ok {
		m.block("Nothing is decided: answer 1, 2 or 3, or 3 REASON to tell the agent the reason.")
		m.editor.set(text)
		return
	}
	m.print("  " + m.in(bold, m.mark()+FirstLine(text)))
	m.reply(q, a)
}

// decision returns the answer to whether a tool may run. It reports false for other words: only a number, or one of
// the exact words, decides.
func decision(text string) (a api.AnswerRequest, ok bool) {
	switch strings.ToLower(text) {
	case "1", "y", "yes":
		a.Allow = true
	case "2", "always":
		a.Allow, a.Always = true, true
	case "3", "n", "no":
	default:
		reason, no := strings.CutPrefix(text, "3 ")
		return api.AnswerRequest{Message: strings.TrimSpace(reason)}, no
	}
	return a, true
}

func (m *Model) reply(q *question, a api.AnswerRequest) {
	m.questions = m.questions[1:]
	m.answered[q.id] = true
	m.act(Action{Act: Answer, ID: q.id, Answer: a})
	if next := m.current(); next != nil {
		m.showQuestion(next)
	}
}

// settled closes a question. It shows the answer if another client or Harvest itself has given it.
func (m *Model) settled(e api.SessionEvent) {
	if m.answered[e.ID] {
		delete(m.answered, e.ID)
		return
	}
	shown := m.current()
	m.questions = slices.DeleteFunc(m.questions, func(q *question) bool { return q.id == e.ID })
	if shown == nil || shown.id != e.ID {
		return
	}
	if e.Text != "" {
		m.print("  " + m.in(bold, m.mark()+FirstLine(e.Text)))
	}
	if next := m.current(); next != nil {
		m.showQuestion(next)
	}
}

// Choose returns the labels of the options with the given numbers, or else the text itself.
func Choose(q api.Question, text string) string {
	var labels []string
	for number := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > len(q.Options) {
			return text
		}
		labels = append(labels, q.Options[n-1].Label)
	}
	if len(labels) == 0 || len(labels) > 1 && !q.Multiple {
		return text
	}
	return strings.Join(labels, ", ")
}
