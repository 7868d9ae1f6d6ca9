package modeltest

import (
	"encoding/json"
	"fmt"
	"io"
)

// chatRequest decodes a request of OpenAI's Chat Completions API to one of Anthropic's.
type chatRequest struct {
	to    *asked
	usage bool // the stream ends with the usage
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *chatRequest) UnmarshalJSON(data []byte) error {
	var r struct {
		Model         string `json:"model"`
		Stream        bool   `json:"stream"`
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
		Messages []message `json:"messages"`
		Tools    []struct {
			Function struct {
				Name       string `json:"name"`
				Parameters schema `json:"parameters"`
			} `json:"function"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return err
	}
	c.to.Model, c.to.Stream, c.usage = r.Model, r.Stream, r.StreamOptions.IncludeUsage
	for _, m := range r.Messages {
		if m.Role == "tool" {
			c.to.say("user", block{Type: "tool_result"})
		} else {
			c.to.say(m.Role, parts(m.Content)...)
		}
	}
	for _, t := range r.Tools {
		c.to.Tools = append(c.to.Tools, declared(t.Function.Name, "", t.Function.Parameters))
	}
	return nil
}

// chatCall returns a call of a tool in the format of Chat Completions.
func chatCall(b map[string]any, index int) map[string]any {
	input, _ := json.Marshal(b["input"])
	return map[string]any{"index": index, "id": b["id"], "type": "function",
		"function": map[string]any{"name": b["name"], "arguments": string(input)}}
}

// chatUsage returns the usage in the fields of Chat Completions.
func chatUsage(in, out int) map[string]any {
	return map[string]any{"prompt_tokens": in, "completion_tokens": out, "total_tokens": in + out,
		"prompt_tokens_details":     map[string]any{"cached_tokens": 0},
		"completion_tokens_details": map[string]any{"reasoning_tokens": 0}}
}

// finish returns the reason for the end of an answer.
func finish(reason any) string {
	if reason == "tool_use" {
		return "tool_calls"
	}
	return "stop"
}

// chat returns the form of Chat Completions (https://platform.openai.com/docs/api-reference/chat-streaming). The usage
// is in the stream only if the request has asked for it.
func chat(usage bool) form {
	var m map[string]any
	calls := 0
	chunk := func(w io.Writer, choices []any, used any) {
		fields := map[string]any{"id": m["id"], "object": "chat.completion.chunk", "created": 1, "model": m["model"],
			"choices": choices}
		if usage {
			fields["usage"] = used
		}
		text, _ := json.Marshal(fields)
		fmt.Fprintf(w, "data: %s\n\n", text)
	}
	delta := func(w io.Writer, d map[string]any, reason any) {
		chunk(w, []any{map[string]any{"index": 0, "delta": d, "logprobs": nil, "finish_reason": reason}}, nil)
	}
	event := func(w io.Writer, kind string, f map[string]any) {
		switch kind {
		case "message_start":
			m = f["message"].(map[string]any)
			delta(w, map[string]any{"role": "assistant", "content": ""}, nil)
		case "content_block_start":
			if b := f["whole"].(map[string]any); b["type"] == "tool_use" {
				begun := chatCall(b, calls)
				begun["function"].(map[string]any)["arguments"] = ""
				delta(w, map[string]any{"tool_calls": []any{begun}}, nil)
			}
		case "content_block_delta":
			d := f["delta"].(map[string]any)
			if d["type"] == "input_json_delta" {
				delta(w, map[string]any{"tool_calls": []any{map[string]any{"index": calls,
					"function": map[string]any{"arguments": d["partial_json"]}}}}, nil)
			} else {
				delta(w, map[string]any{"content": d["text"]}, nil)
			}
		case "message_delta":
			delta(w, map[string]any{}, finish(f["delta"].(map[string]any)["stop_reason"]))
			if usage {
				in := m["usage"].(map[string]any)["input_tokens"].(int)
				chunk(w, []any{}, chatUsage(in, f["usage"].(map[string]any)["output_tokens"].(int)))
			}
			fmt.Fprint(w, "data: [DONE]\n\n")
		}
	}
	whole := func(m map[string]any) map[string]any {
		said := map[string]any{"role": "assistant", "content": nil}
		var called []any
		for _, b := range m["content"].([]map[string]any) {
			if b["type"] == "text" {
				said["content"] = b["text"]
			} else {
				called = append(called, chatCall(b, len(called)))
			}
		}
		if called != nil {
			said["tool_calls"] = called
		}
		u := m["usage"].(map[string]any)
		return map[string]any{"id": m["id"], "object": "chat.completion", "created": 1, "model": m["model"],
			"choices": []any{map[string]any{"index": 0, "message": said, "finish_reason": finish(m["stop_reason"])}},
			"usage":   chatUsage(u["input_tokens"].(int), u["output_tokens"].(int))}
	}
	return form{stream: "text/event-stream", event: event, whole: whole, refuse: refuseOpenAI, wrongKey: wrongOpenAI}
}
