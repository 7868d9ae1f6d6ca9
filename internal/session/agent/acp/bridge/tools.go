package bridge

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/RelevanceAI/harvest/internal/base/jsonrpc"
	"github.com/RelevanceAI/harvest/internal/session/agent"
)

// toolUpdate is what updates and questions say about a tool call.
type toolUpdate struct {
	ToolCall  string          `json:"toolCallId"`
	Title     string          `json:"title"`
	Name      string          `json:"name"`
	ToolKind  string          `json:"kind"`
	Status    string          `json:"status"`
	RawInput  json.RawMessage `json:"rawInput"`
	RawOutput json.RawMessage `json:"rawOutput"`
	Locations []struct {
		Path string `json:"path"`
	} `json:"locations"`
}

// tool is a tool call that has not ended.
type tool struct {
	id, name, kind, title string
	input                 json.RawMessage
	shown                 string // name in the event of its start; "" before it
	output                string // so far
	streamed              string // output of its terminal so far
	changes               []change
	denied                bool
}

type change struct {
	path    string
	created bool
}

// tool handles an update of a tool call, which may be the first word of it.
func (s *session) tool(u *update) {
	t := s.callOf(u.toolUpdate, u.Meta.Claude.Tool)
	if t == nil {
		return
	}
	content := s.contentOf(t, u.Content)
	more := u.Meta.OutputDelta.Data
	if more == "" {
		more = strings.TrimPrefix(u.Meta.Output.Data, t.streamed)
	}
	ends := u.Status == "completed" || u.Status == "failed"
	if ends || u.Status == "in_progress" || more != "" || content != "" {
		s.startTool(t)
	}
	if t.streamed += more; more == "" && u.reportsOutput() {
		more = strings.TrimPrefix(content, t.output)
		t.output = cmp.Or(content, t.output)
	}
	if more != "" {
		s.event(agent.Event{Type: agent.ToolOutput, ID: t.id, Text: more})
	}
	if ends {
		s.endTool(t, agent.Event{Text: cmp.Or(outputOf(u.RawOutput), content, t.streamed, t.output),
			Failed: u.Status == "failed"})
	}
}

// reportsOutput reports whether the content is output of a tool that runs. Before, it may be a description.
func (u *update) reportsOutput() bool {
	return u.Kind == "tool_call_update" && (u.Status == "in_progress" ||
		u.Status == "" && u.Title == "" && len(u.RawInput) == 0)
}

// callOf returns the tool call of an update, with what is new; nil for a call that has ended.
func (s *session) callOf(u toolUpdate, name string) *tool {
	if u.ToolCall == "" || s.ended[u.ToolCall] {
		return nil
	}
	var t *tool
	for _, open := range s.turn.tools {
		if open.id == u.ToolCall {
			t = open
		}
	}
	if t == nil {
		s.endMessage()
		t = &tool{id: u.ToolCall}
		s.turn.tools = append(s.turn.tools, t)
		s.turn.worked, s.turn.trouble = true, ""
	}
	t.name, t.kind, t.title = cmp.Or(u.Name, name, t.name), cmp.Or(u.ToolKind, t.kind), cmp.Or(u.Title, t.title)
	var fields map[string]json.RawMessage
	if jsonrpc.Decode(u.RawInput, &fields) && len(fields) > 0 {
		t.input = u.RawInput
	}
	if t.kind == "edit" {
		for _, l := range u.Locations {
			t.change(l.Path, false)
		}
	}
	if t.complete() {
		s.startTool(t)
	}
	return t
}

func (t *tool) change(path string, created bool) {
	for i := range t.changes {
		if t.changes[i].path == path {
			t.changes[i].created = t.changes[i].created || created
			return
		}
	}
	if path != "" {
		t.changes = append(t.changes, change{path, created})
	}
}

// called returns the name of the tool for people and rules.
func (t *tool) called() string { return cmp.Or(t.shown, t.name, t.kind, t.title, "tool") }

// complete reports whether the input is known: the first report of a command may lack it.
func (t *tool) complete() bool {
	var fields map[string]json.RawMessage
	jsonrpc.Decode(t.input, &fields)
	return len(fields) > 0 && (t.kind != "execute" || fields["command"] != nil)
}

// arguments returns the input. Some agents tell the command in the title only.
func (t *tool) arguments() json.RawMessage {
	if len(t.input) > 0 {
		return t.input
	}
	key := "title"
	if t.kind == "execute" {
		key = "command"
	}
	return json.RawMessage(strings.TrimSpace(string(jsonrpc.Encode(map[string]string{key: t.title}))))
}

func (s *session) startTool(t *tool) {
	if t.shown != "" {
		return
	}
	t.shown = t.called()
	s.event(agent.Event{Type: agent.ToolStarted, ID: t.id, Tool: t.shown, Input: t.arguments()})
}

// endTool reports the end of a tool call.
func (s *session) endTool(t *tool, e agent.Event) {
	s.startTool(t)
	e.Type, e.ID, e.Tool, e.Denied = agent.ToolCompleted, t.id, t.called(), t.denied && e.Failed
	s.event(e)
	if !e.Failed {
		for _, c := range t.changes {
			s.event(agent.Event{Type: agent.FileChanged, ID: t.id, Path: c.path, Created: c.created})
		}
	}
	s.ended[t.id] = true
	for i, open := range s.turn.tools {
		if open == t {
			s.turn.tools = append(s.turn.tools[:i:i], s.turn.tools[i+1:]...)
			break
		}
	}
}

// closeTools ends the tool calls whose end the agent has not reported.
func (s *session) closeTools(interrupted bool) {
	for len(s.turn.tools) > 0 {
		t := s.turn.tools[0]
		s.endTool(t, agent.Event{Failed: true, Interrupted: interrupted,
			Text: cmp.Or(t.streamed, t.output, "the agent did not report the end of this call")})
	}
}

// contentOf returns the text of a tool call's content, and notes the files in it.
func (s *session) contentOf(t *tool, content json.RawMessage) string {
	var all []struct {
		Type    string          `json:"type"`
		Content json.RawMessage `json:"content"`
		Path    string          `json:"path"`
		Old     *string         `json:"oldText"`
	}
	jsonrpc.Decode(content, &all)
	var texts []string
	for _, c := range all {
		var block struct{ Text string }
		switch c.Type {
		case "content":
			jsonrpc.Decode(c.Content, &block)
			texts = append(texts, block.Text)
		case "diff":
			t.change(c.Path, c.Old == nil)
		}
	}
	return strings.Join(texts, "\n")
}

// outputOf returns the text of a rawOutput, whose form is the agent's own.
func outputOf(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var fields struct {
		Output  string
		Content json.RawMessage
		Message string
		Error   string
		Result  json.RawMessage
	}
	if !jsonrpc.Decode(raw, &fields) {
		return ""
	}
	if json.Unmarshal(fields.Content, &text) == nil && text != "" {
		return text
	}
	var blocks []struct{ Text string }
	jsonrpc.Decode(fields.Content, &blocks)
	var texts []string
	for _, b := range blocks {
		texts = append(texts, b.Text)
	}
	return cmp.Or(fields.Output, strings.Join(texts, "\n"), fields.Message, fields.Error, inner(fields.Result))
}

// inner returns the text of a result within an output.
func inner(raw json.RawMessage) string {
	if len(raw) == 0 {
		return ""
	}
	return outputOf(raw)
}
