package modeltest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"
)

// messages is the form of Anthropic's API.
var messages = form{stream: "text/event-stream", event: serverSent,
	whole: plain, refuse: refuse, wrongKey: rejection{
		http.StatusUnauthorized, "authentication_error", "invalid x-api-key"}}

// framed is the form of Amazon Bedrock.
func framed(event func(w io.Writer, kind string, fields map[string]any)) form {
	f := messages
	f.stream, f.event = "application/vnd.amazon.eventstream", event
	return f
}

// plain removes the fields that other forms need from a message.
func plain(m map[string]any) map[string]any {
	for _, b := range m["content"].([]map[string]any) {
		if delete(b, "namespace"); b["type"] == "tool_use" {
			delete(b, "text")
		}
		delete(b, "custom")
	}
	return m
}

// serverSent writes an event in the format of Anthropic's API.
func serverSent(w io.Writer, kind string, fields map[string]any) {
	delete(fields, "whole")
	data, _ := json.Marshal(fields)
	fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, data)
}

// frame writes a message of a Bedrock stream (format:
// https://docs.aws.amazon.com/AmazonS3/latest/API/RESTSelectObjectAppendix.html).
func frame(w io.Writer, kind string, payload map[string]any) {
	data, _ := json.Marshal(payload)
	m := eventstream.Message{Payload: data}
	m.Headers.Set(":event-type", eventstream.StringValue(kind))
	m.Headers.Set(":content-type", eventstream.StringValue("application/json"))
	m.Headers.Set(":message-type", eventstream.StringValue("event"))
	_ = eventstream.NewEncoder().Encode(w, m)
}

// invoked writes an event in the format of InvokeModelWithResponseStream: an event of Anthropic's
// API within a chunk.
func invoked(w io.Writer, _ string, fields map[string]any) {
	delete(fields, "whole")
	data, _ := json.Marshal(fields)
	frame(w, "chunk", map[string]any{"bytes": data})
}

// conversed returns a function that writes events in the format of ConverseStream.
func conversed() func(io.Writer, string, map[string]any) {
	reason, in, out := "", 0, 0
	return func(w io.Writer, kind string, f map[string]any) {
		switch kind {
		case "message_start":
			in = f["message"].(map[string]any)["usage"].(map[string]any)["input_tokens"].(int)
			frame(w, "messageStart", map[string]any{"role": "assistant"})
		case "content_block_start":
			if b := f["content_block"].(map[string]any); b["type"] == "tool_use" {
				frame(w, "contentBlockStart", map[string]any{"contentBlockIndex": f["index"],
					"start": map[string]any{"toolUse": map[string]any{"toolUseId": b["id"], "name": b["name"]}}})
			}
		case "content_block_delta":
			d := f["delta"].(map[string]any)
			delta := map[string]any{"text": d["text"]}
			if d["type"] == "input_json_delta" {
				delta = map[string]any{"toolUse": map[string]any{"input": d["partial_json"]}}
			}
			frame(w, "contentBlockDelta", map[string]any{"contentBlockIndex": f["index"], "delta": delta})
		case "content_block_stop":
			frame(w, "contentBlockStop", map[string]any{"contentBlockIndex": f["index"]})
		case "message_delta":
			reason, out = f["delta"].(map[string]any)["stop_reason"].(string),
				f["usage"].(map[string]any)["output_tokens"].(int)
		case "message_stop":
			frame(w, "messageStop", map[string]any{"stopReason": reason})
			frame(w, "metadata", map[string]any{"usage": map[string]any{"inputTokens": in, "outputTokens": out,
				"totalTokens": in + out}, "metrics": map[string]any{"latencyMs": 1}})
		}
	}
}

// converse decodes a request of Bedrock's Converse API to one of Anthropic's, with the fields that
// the stub needs.
type converse struct{ to *asked }

// UnmarshalJSON implements json.Unmarshaler.
func (c *converse) UnmarshalJSON(data []byte) error {
	var r struct {
		Messages []struct {
			Role    string `json:"role"`
			Content []struct {
				Text       *string         `json:"text"`
				ToolResult json.RawMessage `json:"toolResult"`
			} `json:"content"`
		} `json:"messages"`
		ToolConfig struct {
			Tools []struct {
				ToolSpec struct {
					Name string `json:"name"`
				} `json:"toolSpec"`
			} `json:"tools"`
		} `json:"toolConfig"`
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return err
	}
	for _, m := range r.Messages {
		blocks := []block{}
		for _, b := range m.Content {
			switch {
			case b.Text != nil:
				blocks = append(blocks, block{"text", *b.Text})
			case b.ToolResult != nil:
				blocks = append(blocks, block{Type: "tool_result"})
			}
		}
		content, err := json.Marshal(blocks)
		if err != nil {
			return err
		}
		c.to.Messages = append(c.to.Messages, message{m.Role, content})
	}
	c.to.Tools = nil
	for _, t := range r.ToolConfig.Tools {
		c.to.Tools = append(c.to.Tools, tool{Name: t.ToolSpec.Name})
	}
	return nil
}
