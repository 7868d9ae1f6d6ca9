package bridge

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/RelevanceAI/harvest/internal/base/jsonrpc"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/acp"
)

// question is a request for permission that waits for an answer.
type question struct {
	request json.RawMessage // its ID
	options []permission
	tool    *tool
}

type permission struct {
	ID   string `json:"optionId"`
	Kind string `json:"kind"`
}

// cancelled is the answer to a question that nobody answers.
var cancelled = map[string]any{"outcome": map[string]string{"outcome": "cancelled"}}

// ask handles a request for permission. Its tool call may not have been reported before.
func (s *session) ask(m jsonrpc.Message) {
	var p struct {
		Tool    toolUpdate   `json:"toolCall"`
		Options []permission `json:"options"`
	}
	jsonrpc.Decode(m.Params, &p)
	if s.turn == nil || s.turn.interrupted {
		s.write(jsonrpc.NewAnswer(m.ID, cancelled))
		return
	}
	if p.Tool.ToolCall == "" {
		p.Tool.ToolCall = s.newID()
	}
	t := s.callOf(p.Tool, "")
	if t == nil { // the tool call has ended
		s.write(jsonrpc.NewAnswer(m.ID, cancelled))
		return
	}
	s.startTool(t)
	q := &question{request: m.ID, options: p.Options, tool: t}
	if s.approval == agent.ApproveEdits && t.kind == "edit" { // some agents have no mode for it
		s.write(jsonrpc.NewAnswer(q.request, q.outcome(agent.Answer{Allow: true})))
		return
	}
	id := s.newID()
	s.questions[id] = q
	s.event(agent.Event{Type: agent.Asked, ID: id, Tool: t.called(), Input: t.arguments()})
}

// reply answers a question. A question that is closed already needs no answer.
func (s *session) reply(r acp.Request) {
	q := s.questions[r.ID]
	if q == nil || r.Answer == nil {
		return
	}
	delete(s.questions, r.ID)
	if !r.Answer.Allow {
		q.tool.denied, s.turn.rejected, s.turn.said = true, true, ""
	}
	s.write(jsonrpc.NewAnswer(q.request, q.outcome(*r.Answer)))
	s.hear()
}

// outcome returns the option that a person has chosen: the first of the kind, since further options of the same kind
// have side effects.
func (q *question) outcome(a agent.Answer) map[string]any {
	kinds := []string{"reject_once", "reject_always"}
	switch {
	case a.Allow && a.Always:
		kinds = []string{"allow_always", "allow_once"}
	case a.Allow:
		kinds = []string{"allow_once", "allow_always"}
	}
	for _, kind := range kinds {
		if at := slices.IndexFunc(q.options, func(p permission) bool { return p.Kind == kind }); at >= 0 {
			return map[string]any{"outcome": map[string]string{"outcome": "selected", "optionId": q.options[at].ID}}
		}
	}
	return cancelled
}

// withdraw closes a question that the agent no longer asks.
func (s *session) withdraw(params json.RawMessage) {
	var p struct {
		Request json.RawMessage `json:"requestId"`
	}
	jsonrpc.Decode(params, &p)
	for id, q := range s.questions {
		if string(q.request) == string(p.Request) {
			s.close(id)
		}
	}
}

// closeQuestions answers all open questions with "cancelled".
func (s *session) closeQuestions() {
	for _, id := range s.openQuestions() {
		s.close(id)
	}
}

func (s *session) close(id string) {
	s.write(jsonrpc.NewAnswer(s.questions[id].request, cancelled))
	delete(s.questions, id)
	s.event(agent.Event{Type: agent.Withdrawn, ID: id})
}

// openQuestions returns the IDs of the open questions, in the order of their creation.
func (s *session) openQuestions() (ids []string) {
	for n := range s.turn.count {
		if id := fmt.Sprint(s.turn.prefix, n+1); s.questions[id] != nil {
			ids = append(ids, id)
		}
	}
	return ids
}
