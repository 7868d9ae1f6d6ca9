package modeltest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
)

// refuseGemini responds with an error in the format of Google's APIs.
func refuseGemini(w http.ResponseWriter, status int, kind, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	body := map[string]any{"code": status, "message": message, "status": kind}
	if kind == "INVALID_ARGUMENT" {
		body["details"] = []any{map[string]any{"@type": "type.googleapis.com/google.rpc.ErrorInfo",
			"reason": "API_KEY_INVALID", "domain": "googleapis.com"}}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"error": body})
}

// geminiRequest decodes a request of Gemini's API to one of Anthropic's.
type geminiRequest struct {
	to   *asked
	path string
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *geminiRequest) UnmarshalJSON(data []byte) error {
	var r struct {
		Contents []struct {
			Role  string `json:"role"`
			Parts []struct {
				Text             string          `json:"text"`
				FunctionResponse json.RawMessage `json:"functionResponse"`
			} `json:"parts"`
		} `json:"contents"`
		Tools []struct {
			Declarations []struct {
				Name       string `json:"name"`
				Parameters schema `json:"parametersJsonSchema"`
			} `json:"functionDeclarations"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return err
	}
	var action string
	c.to.Model, action, _ = strings.Cut(path.Base(c.path), ":")
	c.to.Stream = action == "streamGenerateContent"
	for _, m := range r.Contents {
		blocks := []block{}
		for _, p := range m.Parts {
			if p.FunctionResponse != nil {
				blocks = append(blocks, block{Type: "tool_result"})
			} else {
				blocks = append(blocks, block{"text", p.Text})
			}
		}
		c.to.say(m.Role, blocks...)
	}
	for _, t := range r.Tools {
		for _, d := range t.Declarations {
			c.to.Tools = append(c.to.Tools, declared(d.Name, "", d.Parameters))
		}
	}
	return nil
}

// gemini returns the form of Gemini's API (https://ai.google.dev/api/generate-content). A stream repeats the usage.
func gemini() form {
	var model any
	in := 0
	piece := func(parts []any, out int, reason string) map[string]any {
		candidate := map[string]any{"index": 0, "content": map[string]any{"role": "model", "parts": parts}}
		if reason != "" {
			candidate["finishReason"] = reason
		}
		return map[string]any{"candidates": []any{candidate}, "modelVersion": model, "responseId": "r",
			"usageMetadata": map[string]any{"promptTokenCount": in, "candidatesTokenCount": out,
				"totalTokenCount": in + out}}
	}
	part := func(b map[string]any) map[string]any {
		if b["type"] == "text" {
			return map[string]any{"text": b["text"]}
		}
		return map[string]any{"functionCall": map[string]any{"id": b["id"], "name": b["name"], "args": b["input"]}}
	}
	event := func(w io.Writer, kind string, f map[string]any) {
		var p map[string]any
		switch kind {
		case "message_start":
			m := f["message"].(map[string]any)
			model, in = m["model"], m["usage"].(map[string]any)["input_tokens"].(int)
			return
		case "content_block_start":
			if f["whole"].(map[string]any)["type"] == "text" {
				return
			}
			p = piece([]any{part(f["whole"].(map[string]any))}, 1, "")
		case "content_block_delta":
			d := f["delta"].(map[string]any)
			if d["type"] != "text_delta" {
				return
			}
			p = piece([]any{map[string]any{"text": d["text"]}}, 1, "")
		case "message_delta":
			p = piece([]any{map[string]any{"text": ""}}, f["usage"].(map[string]any)["output_tokens"].(int), "STOP")
		default:
			return
		}
		text, _ := json.Marshal(p)
		fmt.Fprintf(w, "data: %s\r\n\r\n", text)
	}
	whole := func(m map[string]any) map[string]any {
		u := m["usage"].(map[string]any)
		model, in = m["model"], u["input_tokens"].(int)
		var parts []any
		for _, b := range m["content"].([]map[string]any) {
			parts = append(parts, part(b))
		}
		return piece(parts, u["output_tokens"].(int), "STOP")
	}
	return form{stream: "text/event-stream", event: event, whole: whole, refuse: refuseGemini,
		wrongKey: rejection{http.StatusBadRequest, "INVALID_ARGUMENT",
			"API key not valid. Please pass a valid API key."}}
}
