package model

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
)

const missingAnthropic = `Log in with "harvest login claude", store one with ` +
	`"harvest secret set anthropic ANTHROPIC_API_KEY=…" (or CLAUDE_CODE_OAUTH_TOKEN, or AWS_BEARER_TOKEN_BEDROCK)`

// anthropicRoute serves Anthropic's Messages API.
func anthropicRoute(method, path string) (route, bool) {
	switch {
	case method == http.MethodPost && path == "/v1/messages":
		return route{asks: true, decode: decodeMessages}, true
	case method == http.MethodPost && path == "/v1/messages/count_tokens":
		return route{}, true
	case method == http.MethodGet:
		return route{}, path == "/v1/models" || strings.HasPrefix(path, "/v1/models/")
	}
	return route{}, false
}

// bedrockRoute serves Amazon Bedrock, which answers with Anthropic's usage or its own.
func bedrockRoute(method, path string) (route, bool) {
	if method == http.MethodGet {
		return route{}, path == "/inference-profiles"
	}
	model, ok := strings.CutPrefix(path, "/model/")
	switch _, action, _ := strings.Cut(model, "/"); action {
	case "invoke", "invoke-with-response-stream", "converse", "converse-stream":
		return route{asks: true, decode: decodeMessages}, ok && method == http.MethodPost
	}
	return route{}, false
}

func authorizeAnthropic(r *http.Request, c Credential) {
	if c.Kind == APIKey {
		r.Header.Set("X-Api-Key", c.Value.Reveal())
	} else {
		r.Header.Set("Authorization", "Bearer "+c.Value.Reveal())
	}
}

// refuseAnthropic responds with an error in the format of https://docs.claude.com/en/api/errors.
func refuseAnthropic(w http.ResponseWriter, status int, kind, message string) {
	writeJSON(w, status, map[string]any{"type": "error", "error": map[string]string{"type": kind, "message": message}})
}

// writeJSON responds with a JSON object.
func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client has disconnected
}

// messageUsage is the usage in a message. The last value of each field counts; a message_delta has
// only changed fields.
type messageUsage struct {
	Input      *int64 `json:"input_tokens"`
	Output     *int64 `json:"output_tokens"`
	CacheRead  *int64 `json:"cache_read_input_tokens"`
	CacheWrite *int64 `json:"cache_creation_input_tokens"`
}

// decodeMessages reads message_start, message_delta, or a whole message.
func decodeMessages(data []byte, a *answer) {
	if !bytes.Contains(data, []byte(`"usage"`)) {
		return
	}
	var e struct {
		Message *struct {
			Model string       `json:"model"`
			Usage messageUsage `json:"usage"`
		} `json:"message"`
		Model string       `json:"model"`
		Usage messageUsage `json:"usage"`
	}
	if json.Unmarshal(data, &e) != nil {
		return
	}
	u, model := e.Usage, e.Model
	if e.Message != nil {
		u, model = e.Message.Usage, e.Message.Model
	}
	if model != "" {
		a.usage.Model = model
	}
	for _, f := range []struct {
		to   *int64
		from *int64
	}{{&a.usage.InputTokens, u.Input}, {&a.usage.OutputTokens, u.Output}, {&a.usage.CacheReadTokens, u.CacheRead},
		{&a.usage.CacheWriteTokens, u.CacheWrite}} {
		if f.from != nil && *f.from >= 0 {
			*f.to = *f.from
		}
	}
}
