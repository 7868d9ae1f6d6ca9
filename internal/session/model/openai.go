package model

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

const (
	missingOpenAI = `Log in with "harvest login codex", or store one with ` +
		`"harvest secret set openai OPENAI_API_KEY=…"`
	missingOpenRouter = `Store one with "harvest secret set openrouter OPENROUTER_API_KEY=…"`
)

// openAIRoute serves OpenAI's Responses and Chat Completions, below the base path of its API.
func openAIRoute(method, path string) (route, bool) {
	switch {
	case method == http.MethodPost && (path == "/responses" || path == "/responses/compact"):
		return route{asks: true, decode: decodeResponse, told: true, named: true}, true
	case method == http.MethodPost && path == "/chat/completions":
		return route{asks: true, decode: decodeChat, told: true, named: true, chat: true}, true
	case method == http.MethodGet:
		return route{}, path == "/models" || strings.HasPrefix(path, "/models/")
	}
	return route{}, false
}

func authorizeBearer(r *http.Request, c Credential) {
	r.Header.Set("Authorization", "Bearer "+c.Value.Reveal())
}

func authorizeChatGPT(r *http.Request, c Credential) {
	authorizeBearer(r, c)
	if c.Owner != "" {
		r.Header.Set("Chatgpt-Account-Id", c.Owner)
	}
}

// refuseOpenAI responds with an error in the format of
// https://platform.openai.com/docs/guides/error-codes.
func refuseOpenAI(w http.ResponseWriter, status int, kind, message string) {
	writeJSON(w, status, map[string]any{"error": map[string]any{"message": message, "type": kind, "param": nil,
		"code": kind}})
}

// refuseOpenRouter responds with an error in the format of
// https://openrouter.ai/docs/api-reference/errors.
func refuseOpenRouter(w http.ResponseWriter, status int, kind, message string) {
	writeJSON(w, status, map[string]any{"error": map[string]any{"message": message, "code": status,
		"metadata": map[string]any{"error_type": kind}}})
}

// openAIUsage is the usage in an answer of either API.
type openAIUsage struct {
	Input        int64       `json:"input_tokens"`
	Output       int64       `json:"output_tokens"` // with the tokens of reasoning
	InputDetails openAICache `json:"input_tokens_details"`

	Prompt        int64       `json:"prompt_tokens"` // of Chat Completions
	Completion    int64       `json:"completion_tokens"`
	PromptDetails openAICache `json:"prompt_tokens_details"`

	Cost        *float64 `json:"cost"`    // in USD, of OpenRouter
	OwnKey      bool     `json:"is_byok"` // the model's provider bills the model itself
	CostDetails struct {
		Upstream float64 `json:"upstream_inference_cost"`
	} `json:"cost_details"`
}

// openAICache are the cached parts of the input tokens.
type openAICache struct {
	Read  int64 `json:"cached_tokens"`
	Write int64 `json:"cache_write_tokens"`
}

// apply sets the usage of an answer.
func (u openAIUsage) apply(a *answer) {
	read, write := max(0, u.InputDetails.Read+u.PromptDetails.Read), max(0, u.InputDetails.Write+u.PromptDetails.Write)
	a.counted = true
	a.usage.InputTokens = max(0, u.Input+u.Prompt-read-write)
	a.usage.OutputTokens = max(0, u.Output+u.Completion)
	a.usage.CacheReadTokens, a.usage.CacheWriteTokens = read, write
	if u.Cost != nil && *u.Cost >= 0 {
		a.cost = u.Cost
		if u.OwnKey {
			total := *u.Cost + max(0, u.CostDetails.Upstream)
			a.cost = &total
		}
	}
}

// openAIResponse is an answer of the Responses API.
type openAIResponse struct {
	Object string       `json:"object"`
	Status string       `json:"status"`
	Error  *apiError    `json:"error"`
	Usage  *openAIUsage `json:"usage"`
	Tier   string       `json:"service_tier"`
}

// decodeResponse reads an event of the Responses API, or a whole response:
// https://platform.openai.com/docs/api-reference/responses-streaming.
func decodeResponse(data []byte, a *answer) {
	var e struct {
		Type     string          `json:"type"`
		Response *openAIResponse `json:"response"`
		openAIResponse
		Code    any    `json:"code"` // of an error event
		Message string `json:"message"`
	}
	if json.Unmarshal(data, &e) != nil {
		return
	}
	r := e.Response
	switch {
	case e.Type == "error":
		a.fail(cmpError(e.Error, apiError{Code: e.Code, Message: e.Message}))
		return
	case e.Type == "" && strings.HasPrefix(e.Object, "response"):
		r = &e.openAIResponse
	case !slices.Contains([]string{"response.completed", "response.incomplete", "response.failed"}, e.Type) || r == nil:
		return
	}
	if r.Usage != nil {
		r.Usage.apply(a)
	}
	a.tier = r.Tier
	if r.Status == "failed" || e.Type == "response.failed" {
		a.fail(cmpError(r.Error, apiError{Message: "the response failed"}))
	} else {
		a.done = true
	}
	a.ended = true
}

// decodeChat reads a chunk of Chat Completions, or a whole answer:
// https://platform.openai.com/docs/api-reference/chat-streaming.
func decodeChat(data []byte, a *answer) {
	a.extra = false
	if string(bytes.TrimSpace(data)) == "[DONE]" {
		a.done, a.ended = true, true
		return
	}
	var e struct {
		Choices *[]struct {
			Finish string `json:"finish_reason"`
		} `json:"choices"`
		Usage *openAIUsage `json:"usage"`
		Error *apiError    `json:"error"`
		Tier  string       `json:"service_tier"`
	}
	if json.Unmarshal(data, &e) != nil {
		return
	}
	if e.Tier != "" {
		a.tier = e.Tier
	}
	if e.Usage != nil {
		e.Usage.apply(a)
	}
	if e.Error != nil {
		a.fail(*e.Error)
		return
	}
	if e.Choices == nil {
		return
	}
	a.extra = e.Usage != nil && len(*e.Choices) == 0
	for _, c := range *e.Choices {
		a.done = a.done || c.Finish != ""
	}
}

// withUsage adds the wish for usage to a streamed request of Chat Completions. added is false if
// the request has it already.
func withUsage(body map[string]json.RawMessage) (added bool) {
	var stream bool
	if json.Unmarshal(body["stream"], &stream) != nil || !stream {
		return false
	}
	options := map[string]json.RawMessage{}
	if given := body["stream_options"]; given != nil && json.Unmarshal(given, &options) != nil {
		return false
	}
	if string(options["include_usage"]) == "true" {
		return false
	}
	if options == nil { // the request says null
		options = map[string]json.RawMessage{}
	}
	options["include_usage"] = json.RawMessage("true")
	text, err := json.Marshal(options)
	body["stream_options"] = text
	return err == nil
}
