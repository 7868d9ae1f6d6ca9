package modeltest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// wrongOpenAI is the error for a wrong key.
var wrongOpenAI = rejection{http.StatusUnauthorized, "invalid_api_key", "Incorrect API key provided: hvm_…. " +
	"You can find your API key at https://platform.openai.com/account/api-keys."}

// refuseOpenAI responds with an error in the format of OpenAI's API.
func refuseOpenAI(w http.ResponseWriter, status int, kind, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": message,
		"type": "invalid_request_error", "param": nil, "code": kind}})
}

// part is a part of a message.
type part struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// parts decodes content that is a text or a list.
func parts(content json.RawMessage) []block {
	var text string
	if json.Unmarshal(content, &text) == nil {
		return []block{{"text", text}}
	}
	var all []part
	_ = json.Unmarshal(content, &all)
	blocks := []block{}
	for _, p := range all {
		blocks = append(blocks, block{"text", p.Text})
	}
	return blocks
}

// say appends a message to the conversation.
func (a *asked) say(role string, blocks ...block) {
	content, _ := json.Marshal(blocks)
	a.Messages = append(a.Messages, message{role, content})
}

// openAITool is a tool of the Responses API, which may be a namespace of tools.
type openAITool struct {
	Type       string       `json:"type"`
	Name       string       `json:"name"`
	Parameters schema       `json:"parameters"`
	Tools      []openAITool `json:"tools"`
}

// flat returns the tools in t.
func (t openAITool) flat(namespace string) []tool {
	if t.Type != "namespace" {
		found := declared(t.Name, namespace, t.Parameters)
		found.custom = t.Type == "custom"
		return []tool{found}
	}
	if t.Name != "functions" { // the default
		namespace = t.Name
	}
	var all []tool
	for _, inner := range t.Tools {
		all = append(all, inner.flat(namespace)...)
	}
	return all
}

// responsesRequest decodes a request of the Responses API to one of Anthropic's.
type responsesRequest struct{ to *asked }

// UnmarshalJSON implements json.Unmarshaler.
func (c *responsesRequest) UnmarshalJSON(data []byte) error {
	var r struct {
		Model  string          `json:"model"`
		Stream bool            `json:"stream"`
		Input  json.RawMessage `json:"input"`
		Tools  []openAITool    `json:"tools"`
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return err
	}
	c.to.Model, c.to.Stream = r.Model, r.Stream
	var items []struct {
		Type    string          `json:"type"`
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
		Tools   []openAITool    `json:"tools"`
	}
	var text string
	if json.Unmarshal(r.Input, &text) == nil {
		c.to.say("user", block{"text", text})
	} else if err := json.Unmarshal(r.Input, &items); err != nil {
		return err
	}
	for _, item := range items {
		r.Tools = append(r.Tools, item.Tools...)
		switch {
		case strings.HasSuffix(item.Type, "_call_output"):
			c.to.say("user", block{Type: "tool_result"})
		case item.Type == "message" || item.Type == "" && item.Role != "":
			c.to.say(item.Role, parts(item.Content)...)
		}
	}
	for _, t := range r.Tools {
		c.to.Tools = append(c.to.Tools, t.flat("")...)
	}
	return nil
}

// item returns an item of the Responses API for a block of Anthropic's.
func item(b map[string]any) map[string]any {
	if b["type"] == "text" {
		return map[string]any{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
			"content": []any{map[string]any{"type": "output_text", "text": b["text"], "annotations": []any{}}}}
	}
	called := map[string]any{"id": fmt.Sprint("fc_", b["id"]), "call_id": b["id"], "name": b["name"],
		"status": "completed"}
	if b["namespace"] != "" {
		called["namespace"] = b["namespace"]
	}
	if b["custom"] == true {
		called["type"], called["input"] = "custom_tool_call", b["text"]
		return called
	}
	input, _ := json.Marshal(b["input"])
	called["type"], called["arguments"] = "function_call", string(input)
	return called
}

// openAIUsage returns the usage in the fields of the Responses API.
func openAIUsage(in, out int) map[string]any {
	return map[string]any{"input_tokens": in, "input_tokens_details": map[string]any{"cached_tokens": 0},
		"output_tokens": out, "output_tokens_details": map[string]any{"reasoning_tokens": 0}, "total_tokens": in + out}
}

// responses returns the form of the Responses API
// (https://platform.openai.com/docs/api-reference/responses-streaming).
func responses() form {
	var response map[string]any
	var output []any
	var blocks []map[string]any
	in, sequence := 0, 0
	send := func(w io.Writer, kind string, fields map[string]any) {
		fields["type"], fields["sequence_number"] = kind, sequence
		sequence++
		serverSent(w, kind, fields)
	}
	event := func(w io.Writer, kind string, f map[string]any) {
		switch kind {
		case "message_start":
			m := f["message"].(map[string]any)
			in = m["usage"].(map[string]any)["input_tokens"].(int)
			response = map[string]any{"id": m["id"], "object": "response", "model": m["model"], "status": "in_progress",
				"output": []any{}, "usage": nil, "error": nil}
			send(w, "response.created", map[string]any{"response": response})
		case "content_block_start":
			b := f["whole"].(map[string]any)
			blocks = append(blocks, b)
			begun := item(b)
			begun["status"] = "in_progress"
			for _, late := range []string{"arguments", "input"} {
				if begun[late] != nil {
					begun[late] = ""
				}
			}
			if begun["content"] != nil {
				begun["content"] = []any{}
			}
			send(w, "response.output_item.added", map[string]any{"output_index": f["index"], "item": begun})
		case "content_block_delta":
			d := f["delta"].(map[string]any)
			b := blocks[len(blocks)-1]
			whole := item(b)
			fields := map[string]any{"output_index": f["index"], "item_id": whole["id"], "delta": d["text"]}
			switch whole["type"] {
			case "message":
				fields["content_index"] = 0
				send(w, "response.output_text.delta", fields)
			case "function_call":
				fields["delta"] = d["partial_json"]
				send(w, "response.function_call_arguments.delta", fields)
			default:
				fields["delta"] = b["text"]
				send(w, "response.custom_tool_call_input.delta", fields)
			}
		case "content_block_stop":
			done := item(blocks[len(blocks)-1])
			output = append(output, done)
			send(w, "response.output_item.done", map[string]any{"output_index": f["index"], "item": done})
		case "message_delta":
			response["status"], response["output"] = "completed", output
			response["usage"] = openAIUsage(in, f["usage"].(map[string]any)["output_tokens"].(int))
			send(w, "response.completed", map[string]any{"response": response})
		}
	}
	whole := func(m map[string]any) map[string]any {
		for _, b := range m["content"].([]map[string]any) {
			output = append(output, item(b))
		}
		u := m["usage"].(map[string]any)
		return map[string]any{"id": m["id"], "object": "response", "model": m["model"], "status": "completed",
			"error": nil, "output": output, "usage": openAIUsage(u["input_tokens"].(int), u["output_tokens"].(int))}
	}
	return form{stream: "text/event-stream", event: event, whole: whole, refuse: refuseOpenAI, wrongKey: wrongOpenAI}
}
