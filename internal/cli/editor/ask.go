package editor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/jsonrpc"
)

// askTime is how long a question waits before the editor gets it: Harvest answers some itself, at once.
const askTime = 100 * time.Millisecond

// questionID is the beginning of the IDs of tool calls that only show a question.
const questionID = "harvest_question_"

// permission is an option of a question.
type permission struct {
	ID   string `json:"optionId"`
	Name string `json:"name"`
	Kind string `json:"kind"`
}

// decisions are the answers to whether a tool may run.
var decisions = []permission{{"allow", "Allow", "allow_once"}, {"always", "Always allow", "allow_always"},
	{"reject", "Reject", "reject_once"}}

// undecided is the option of a question that leaves the decision to the agent.
var undecided = permission{"undecided", "Let the agent decide", "reject_once"}

// ask passes a question of the agent on to the editor. t.mu is held.
func (t *thread) ask(e api.SessionEvent) {
	ctx, withdraw := context.WithCancel(t.ctx)
	session, tool := t.record.current(), t.view.questioned(e)
	t.face.mu.Lock()
	form := t.face.able.Elicitation.Form != nil
	t.face.mu.Unlock()
	t.asked[e.ID] = withdraw
	go func() {
		defer withdraw()
		select {
		case <-time.After(askTime):
		case <-ctx.Done():
			return
		}
		answer, known, err := t.answerOf(ctx, e, tool, form)
		if known && err == nil {
			err = t.server.Answer(ctx, session, e.ID, answer)
		}
		if strings.HasPrefix(tool.ID, questionID) { // the agent reports no end of it
			status := "failed"
			if answer.Allow {
				status = "completed"
			}
			t.send(update{Kind: "tool_call_update", toolCall: toolCall{ID: tool.ID, Status: status}})
		}
		if err != nil && ctx.Err() == nil && errors.KindOf(err) != errors.NotFound {
			t.note("error", "The agent's question has no answer: "+errors.Message(err),
				"Answer it with: harvest answer "+session+" "+e.ID)
		}
	}()
}

// answerOf asks the editor. known is false if its user has decided nothing, because the turn is being cancelled.
func (t *thread) answerOf(ctx context.Context, e api.SessionEvent, tool toolCall, form bool) (a api.AnswerRequest,
	known bool, err error) {
	switch {
	case len(e.Questions) == 0:
		choice, err := t.permit(ctx, tool, e.Text, decisions)
		return api.AnswerRequest{Allow: choice == "allow" || choice == "always", Always: choice == "always"},
			choice != "", err
	case form:
		return t.fill(ctx, e)
	}
	a = api.AnswerRequest{Allow: true, Answers: map[string]string{}}
	for _, q := range e.Questions {
		options := []permission{}
		for i, o := range q.Options {
			options = append(options, permission{fmt.Sprint("answer_", i), o.Label, "allow_once"})
		}
		tool.Title = q.Text
		choice, err := t.permit(ctx, tool, described(q), append(options, undecided))
		if err != nil || choice == "" {
			return a, false, err
		}
		var at int
		if n, _ := fmt.Sscanf(choice, "answer_%d", &at); n != 1 || at < 0 || at >= len(q.Options) {
			return api.AnswerRequest{Message: "The user leaves the decision to you."}, true, nil
		}
		a.Answers[q.Text] = q.Options[at].Label
	}
	return a, true, nil
}

// described returns the descriptions of a question's options.
func described(q api.Question) string {
	var lines []string
	for _, o := range q.Options {
		if o.Description != "" {
			lines = append(lines, "- "+o.Label+": "+o.Description)
		}
	}
	return strings.Join(lines, "\n")
}

// permit asks the editor's user to choose an option, and returns its ID; "" if the turn is being cancelled.
func (t *thread) permit(ctx context.Context, tool toolCall, text string, options []permission) (string, error) {
	type described struct {
		toolCall
		Content any `json:"content,omitempty"`
	}
	result, err := t.face.call(ctx, "session/request_permission", map[string]any{"sessionId": t.id,
		"toolCall": described{tool, list(contents(text))}, "options": options})
	var p struct {
		Outcome struct {
			Option string `json:"optionId"`
		} `json:"outcome"`
	}
	jsonrpc.Decode(result, &p)
	return p.Outcome.Option, err
}

// questioned returns the tool call of a question: the one that the editor knows, or a new one.
func (v *view) questioned(e api.SessionEvent) toolCall {
	for _, id := range v.running {
		if c := v.tools[id]; c.name == e.Tool && same(c.input, e.Input) {
			return v.described(c, "pending")
		}
	}
	kind := kindOf(e.Tool)
	return toolCall{ID: questionID + v.id(e.ID), Title: title(e.Tool, kind, e.Input), Name: e.Tool,
		ToolKind: kind, Status: "pending", Locations: v.files(e.Input), RawInput: e.Input}
}

// same reports whether two values are the same JSON.
func same(a, b json.RawMessage) bool {
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}

// fill asks the editor's user to fill in a form with the model's questions.
func (t *thread) fill(ctx context.Context, e api.SessionEvent) (a api.AnswerRequest, known bool, err error) {
	fields, required := map[string]any{}, []string{}
	var texts []string
	for i, q := range e.Questions {
		name := fmt.Sprint("answer_", i+1)
		fields[name] = field(q)
		required, texts = append(required, name), append(texts, q.Text)
	}
	result, err := t.face.call(ctx, "elicitation/create", map[string]any{"sessionId": t.id, "mode": "form",
		"message":         strings.Join(texts, "\n"),
		"requestedSchema": map[string]any{"type": "object", "properties": fields, "required": required}})
	if err != nil {
		return a, false, err
	}
	var p struct {
		Action  string                     `json:"action"`
		Content map[string]json.RawMessage `json:"content"`
	}
	jsonrpc.Decode(result, &p)
	if p.Action != "accept" {
		return api.AnswerRequest{Message: "The user leaves the decision to you."}, p.Action == "decline", nil
	}
	a = api.AnswerRequest{Allow: true, Answers: map[string]string{}}
	for i, q := range e.Questions {
		a.Answers[q.Text] = chosen(p.Content[fmt.Sprint("answer_", i+1)])
	}
	return a, true, nil
}

// field returns the schema of the answer to a question.
func field(q api.Question) map[string]any {
	schema := map[string]any{"type": "string", "title": cmp.Or(q.Header, q.Text), "description": q.Text}
	if len(q.Options) == 0 {
		return schema
	}
	values := []any{}
	for _, o := range q.Options {
		value := map[string]any{"const": o.Label, "title": o.Label}
		if o.Description != "" {
			value["description"] = o.Description
		}
		values = append(values, value)
	}
	if q.Multiple {
		schema["type"], schema["items"], schema["minItems"] = "array", map[string]any{"anyOf": values}, 1
		return schema
	}
	schema["oneOf"] = values
	return schema
}

// chosen returns the value of a field as text.
func chosen(value json.RawMessage) string {
	var text string
	var all []string
	if json.Unmarshal(value, &text) == nil {
		return text
	}
	if json.Unmarshal(value, &all) == nil {
		return strings.Join(all, ", ")
	}
	return string(value)
}
