package editor

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

// toolCall is what updates and questions say about a tool call.
type toolCall struct {
	ID        string          `json:"toolCallId,omitempty"`
	Title     string          `json:"title,omitempty"`
	Name      string          `json:"name,omitempty"`
	ToolKind  string          `json:"kind,omitempty"`
	Status    string          `json:"status,omitempty"`
	Locations []location      `json:"locations,omitempty"`
	RawInput  json.RawMessage `json:"rawInput,omitempty"`
}

type location struct {
	Path string `json:"path"`
}

// maxOutput is the size of a tool's output that the editor gets, in bytes. Of longer output it gets the end.
const maxOutput = 64 << 10

// call is a tool call that has not ended.
type call struct {
	id, name, kind string
	input          json.RawMessage
	output         string // so far
	changed        bool   // the editor does not have all of the output
}

// kinds are the kinds of tools, by name in lower case. The kinds of the protocol are names of tools, too.
var kinds = map[string]string{
	"read": "read", "view": "read", "notebookread": "read", "ls": "read", "list": "read",
	"edit": "edit", "write": "edit", "multiedit": "edit", "notebookedit": "edit", "patch": "edit",
	"apply_patch": "edit", "delete": "delete", "move": "move",
	"bash": "execute", "shell": "execute", "execute": "execute", "run_shell_command": "execute",
	"search": "search", "grep": "search", "glob": "search", "websearch": "search",
	"fetch": "fetch", "webfetch": "fetch", "think": "think", "task": "think", "agent": "think",
	"exitplanmode": "switch_mode", "switch_mode": "switch_mode",
}

// kindOf returns the kind of a tool.
func kindOf(name string) string {
	if kind := kinds[strings.ToLower(name)]; kind != "" {
		return kind
	}
	return "other"
}

// title returns the line that names a call.
func title(name, kind string, input json.RawMessage) string {
	about := chat.ToolInput(input)
	switch {
	case about == "":
		return cmp.Or(chat.Plain(name), "Tool")
	case kind == "execute":
		return about
	}
	return chat.Plain(name) + " " + about
}

// files returns the files of a tool's input that this machine has.
func (v *view) files(input json.RawMessage) (all []location) {
	var in map[string]any
	if json.Unmarshal(input, &in) != nil {
		return nil
	}
	for _, key := range []string{"file_path", "filePath", "path", "notebook_path", "absolute_path"} {
		if name, _ := in[key].(string); name != "" {
			if local, ok := v.paths.out(name); ok {
				return []location{{local}}
			}
		}
	}
	return nil
}

// contents returns the content of a tool call; nil for an empty text.
func contents(text string) []any {
	if text == "" {
		return nil
	}
	return []any{map[string]any{"type": "content", "content": textBlock(text)}}
}

// diffs returns the changes that a tool's input describes.
func (v *view) diffs(input json.RawMessage) (all []any) {
	name, edits := chat.Edits(input)
	local, _ := v.paths.out(name)
	for _, e := range edits {
		all = append(all, map[string]any{"type": "diff", "path": local, "oldText": e.Old, "newText": e.New})
	}
	return all
}

// fenced returns output as a block of Markdown, since editors show the content of tool calls as Markdown.
func fenced(language, text string) string {
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	return fence + language + "\n" + strings.TrimSuffix(text, "\n") + "\n" + fence
}

func (v *view) tool(kind string, e api.SessionEvent) []update {
	switch kind {
	case "tool.started":
		return v.started(e)
	case "tool.output":
		if c := v.tools[e.ID]; c != nil {
			c.output += e.Text
			if over := len(c.output) - maxOutput; over > 0 {
				c.output = c.output[over:]
			}
			c.changed = true
		}
	case "tool.completed":
		c := v.tools[e.ID]
		if c == nil {
			c = &call{id: e.ID, name: e.Tool, kind: kindOf(e.Tool)}
		}
		return v.ended(c, e)
	case "file.changed":
		if local, ok := v.paths.out(e.Path); ok && e.ID != "" {
			return []update{{Kind: "tool_call_update", toolCall: toolCall{ID: v.id(e.ID),
				Locations: []location{{local}}}}}
		}
	}
	return nil
}

func (v *view) started(e api.SessionEvent) []update {
	c := &call{id: e.ID, name: e.Tool, kind: kindOf(e.Tool), input: e.Input}
	if v.tools[e.ID] == nil {
		v.running = append(v.running, e.ID)
	}
	v.tools[e.ID] = c
	return []update{{Kind: "tool_call", toolCall: v.described(c, "in_progress"), Content: list(v.diffs(e.Input))}}
}

// list returns a list as the content of an update, which an empty one must not replace.
func list(all []any) any {
	if len(all) == 0 {
		return nil
	}
	return all
}

// described returns all that is known about a call.
func (v *view) described(c *call, status string) toolCall {
	return toolCall{ID: v.id(c.id), Title: title(c.name, c.kind, c.input), Name: c.name, ToolKind: c.kind,
		Status: status, Locations: v.files(c.input), RawInput: c.input}
}

// flush returns the output that the editor does not have.
func (v *view) flush() (all []update) {
	for _, id := range v.running {
		c := v.tools[id]
		if c.changed && !v.past {
			c.changed = false
			all = append(all, update{Kind: "tool_call_update", toolCall: toolCall{ID: v.id(id), Status: "in_progress"},
				Content: list(contents(fenced("", chat.Plain(c.output))))})
		}
	}
	return all
}

// ended returns the end of a call.
func (v *view) ended(c *call, e api.SessionEvent) []update {
	text := e.Text
	if text == "" {
		text = c.output
	}
	if over := len(text) - maxOutput; over > 0 {
		text = "…" + strings.ToValidUTF8(text[over:], "")
	}
	text = strings.TrimSpace(chat.Plain(text))
	content := v.diffs(c.input)
	switch {
	case text == "" || len(content) > 0 && !e.Failed:
	case c.kind == "think" || c.kind == "switch_mode":
		content = append(content, contents(text)...)
	default:
		content = append(content, contents(fenced("", text))...)
	}
	status := "completed"
	if e.Failed || e.Denied {
		status = "failed"
	}
	delete(v.tools, c.id)
	v.running = slices.DeleteFunc(v.running, func(id string) bool { return id == c.id })
	u := update{Kind: "tool_call_update", toolCall: toolCall{ID: v.id(c.id), Status: status}, Content: list(content)}
	if c.input == nil { // its start is not known
		u.Kind, u.toolCall = "tool_call", v.described(c, status)
	}
	return []update{u}
}
