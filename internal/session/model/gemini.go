package model

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

const missingGemini = `Store one with "harvest secret set gemini GEMINI_API_KEY=…"`

// geminiRoute serves Gemini's API: https://ai.google.dev/api/generate-content.
func geminiRoute(method, path string) (route, bool) {
	version, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if !slices.Contains([]string{"v1", "v1beta", "v1alpha"}, version) {
		return route{}, false
	}
	model, below := strings.CutPrefix(rest, "models/")
	if strings.Contains(model, "/") {
		return route{}, false
	}
	if method == http.MethodGet {
		return route{}, rest == "models" || below && !strings.Contains(model, ":")
	}
	model, action, _ := strings.Cut(model, ":")
	if !below || model == "" || method != http.MethodPost {
		return route{}, false
	}
	switch action {
	case "generateContent", "streamGenerateContent":
		return route{asks: true, model: model, decode: decodeGemini, told: true}, true
	case "countTokens":
		return route{}, true
	}
	return route{}, false
}

// authorizeGemini also removes the credentials of a request from its query.
func authorizeGemini(r *http.Request, c Credential) {
	query := r.URL.Query()
	for _, name := range []string{"key", "access_token", "oauth_token"} {
		query.Del(name)
	}
	r.URL.RawQuery = query.Encode()
	r.Header.Set("X-Goog-Api-Key", c.Value.Reveal())
}

// refuseGemini responds with an error in the format of https://google.aip.dev/193.
func refuseGemini(w http.ResponseWriter, status int, _, message string) {
	word := map[int]string{http.StatusForbidden: "PERMISSION_DENIED", http.StatusNotFound: "NOT_FOUND",
		http.StatusBadGateway: "UNAVAILABLE"}[status]
	if word == "" {
		word = "INVALID_ARGUMENT"
	}
	writeJSON(w, status, map[string]any{"error": map[string]any{"code": status, "message": message, "status": word}})
}

// geminiResponse is an event of a stream, or a whole answer.
type geminiResponse struct {
	Candidates []struct {
		Finish string `json:"finishReason"`
	} `json:"candidates"`
	Feedback struct {
		Blocked string `json:"blockReason"`
	} `json:"promptFeedback"`
	Usage *struct {
		Prompt   int64 `json:"promptTokenCount"` // with Cached
		Cached   int64 `json:"cachedContentTokenCount"`
		ToolUse  int64 `json:"toolUsePromptTokenCount"`
		Answer   int64 `json:"candidatesTokenCount"`
		Thoughts int64 `json:"thoughtsTokenCount"` // not in Answer
	} `json:"usageMetadata"`
	Error *apiError `json:"error"`
}

// decodeGemini reads an event, a whole answer, or a stream that is an array. The last usage counts: it is that of the
// answer so far.
func decodeGemini(data []byte, a *answer) {
	var events []geminiResponse
	if data = bytes.TrimSpace(data); bytes.HasPrefix(data, []byte("[")) {
		if json.Unmarshal(data, &events) != nil {
			return
		}
	} else {
		var e geminiResponse
		if json.Unmarshal(data, &e) != nil {
			return
		}
		events = append(events, e)
	}
	for _, e := range events {
		if u := e.Usage; u != nil {
			a.counted = true
			a.usage.CacheReadTokens = max(0, u.Cached)
			a.usage.InputTokens = max(0, u.Prompt-a.usage.CacheReadTokens+u.ToolUse)
			a.usage.OutputTokens = max(0, u.Answer+u.Thoughts)
		}
		switch {
		case e.Error != nil:
			a.fail(*e.Error)
		case e.Feedback.Blocked != "":
			a.fail(apiError{Type: e.Feedback.Blocked, Message: "the prompt was blocked"})
		}
		for _, c := range e.Candidates {
			a.done = a.done || c.Finish != ""
		}
	}
}
