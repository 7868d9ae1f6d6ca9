// Package modeltest has a stub of the APIs of models, for tests: Anthropic's Messages and Amazon
// Bedrock's form of it, OpenAI's Responses and Chat Completions, and Gemini's. Real agents cannot
// tell it from a model: it streams, calls tools, counts tokens, and fails like the API. Its answers
// are scripted. It keeps no state between requests, but determines the next step from the
// conversation.
package modeltest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// Step is an answer of the model.
type Step struct {
	Say   string // text
	Call  string // tool, by its name in Claude Code
	Input map[string]any

	// Failures to simulate, for the first Times requests (0: for each).
	Status int    // status of an error
	Kind   string // type of the error, such as "overloaded_error"
	After  string // Retry-After header of the error; "" is "0", "none" omits it
	Cut    bool   // truncate the stream
	Hang   bool   // send nothing
	Times  int
}

// Request is a request of an agent.
type Request struct {
	Path   string
	Query  string
	Header http.Header
	Body   []byte
	Status int
}

// Stub is a stubbed model.
type Stub struct {
	*httptest.Server
	key string

	mu       sync.Mutex
	scripts  map[string][]Step // guarded by mu
	requests []Request         // guarded by mu
	failed   map[string]int    // guarded by mu; by script and step
	done     chan struct{}
}

// New starts a stub that accepts key.
func New(t testing.TB, key string) *Stub {
	s := &Stub{key: key, scripts: map[string][]Step{}, failed: map[string]int{}, done: make(chan struct{})}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() {
		close(s.done)
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// Script sets the answers to prompts that begin with [name]. Each result of a tool leads to the
// next step.
func (s *Stub) Script(name string, steps ...Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripts[name] = steps
}

// Requests returns the requests so far.
func (s *Stub) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

type block struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// form is the wire format of an API.
type form struct {
	stream string // Content-Type of streams
	// event writes an event of Anthropic's format.
	event func(w io.Writer, kind string, fields map[string]any)
	// whole converts a message of Anthropic's format.
	whole func(m map[string]any) map[string]any
	// refuse responds with an error.
	refuse   func(w http.ResponseWriter, status int, kind, message string)
	wrongKey rejection
}

// rejection is an error.
type rejection struct {
	status        int
	kind, message string
}

type asked struct {
	Model    string    `json:"model"`
	Stream   bool      `json:"stream"`
	Messages []message `json:"messages"`
	Tools    []tool    `json:"tools"`
}

type tool struct {
	Name      string   `json:"name"`
	namespace string   // of OpenAI
	custom    bool     // its input is text
	fields    []string // of its input
	list      bool     // its command is a list of arguments
}

// ServeHTTP implements http.Handler.
func (s *Stub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	status := http.StatusOK
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.requests = append(s.requests, Request{r.URL.Path, r.URL.RawQuery, r.Header.Clone(), body, status})
	}()
	var a asked
	f, understood := understand(r.URL.Path, body, &a)
	if shown(r) != s.key {
		status = f.wrongKey.status
		f.refuse(w, status, f.wrongKey.kind, f.wrongKey.message)
		return
	}
	if counted := counted(r, len(body)); counted != nil {
		answer(w, counted)
		return
	}
	if !understood {
		status = http.StatusNotFound
		f.refuse(w, status, "not_found_error", "Not Found")
		return
	}
	name, at := place(a.Messages)
	step, fault := s.step(name, at)
	switch {
	case fault && step.Status != 0:
		status = step.Status
		if step.After != "none" {
			w.Header().Set("Retry-After", cmp.Or(step.After, "0"))
		}
		f.refuse(w, status, step.Kind, "the stub was set to fail")
	case fault && step.Hang:
		if a.Stream {
			w.Header().Set("Content-Type", f.stream)
			_ = http.NewResponseController(w).Flush()
		}
		select {
		case <-r.Context().Done():
		case <-s.done:
		}
	default:
		speak(w, f, a, len(body), name, at, step, fault && step.Cut)
	}
}

// shown returns the key of a request.
func shown(r *http.Request) string {
	return cmp.Or(r.Header.Get("X-Api-Key"), r.Header.Get("X-Goog-Api-Key"), r.URL.Query().Get("key"),
		strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
}

// counted returns the answer to a request that counts tokens or lists models; nil for other requests.
func counted(r *http.Request, size int) map[string]any {
	switch {
	case r.URL.Path == "/v1/messages/count_tokens":
		return map[string]any{"input_tokens": size / 4}
	case strings.HasSuffix(r.URL.Path, ":countTokens"):
		return map[string]any{"totalTokens": size / 4}
	case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/models"):
		return map[string]any{"object": "list", "data": []any{map[string]any{"id": "stub", "object": "model"}},
			"models": []any{map[string]any{"name": "models/stub"}}}
	}
	return nil
}

// understand decodes a request, and returns the form of its answer.
func understand(path string, body []byte, a *asked) (f form, ok bool) {
	rest, bedrock := strings.CutPrefix(path, "/model/")
	model, call, _ := strings.Cut(rest, "/")
	switch {
	case strings.HasSuffix(path, "/responses"):
		return responses(), json.Unmarshal(body, &responsesRequest{to: a}) == nil
	case strings.HasSuffix(path, "/chat/completions"):
		r := chatRequest{to: a}
		ok = json.Unmarshal(body, &r) == nil
		return chat(r.usage), ok
	case strings.Contains(path, "/models/") && strings.Contains(path, ":"):
		return gemini(), json.Unmarshal(body, &geminiRequest{to: a, path: path}) == nil
	case bedrock && call == "converse-stream":
		ok = json.Unmarshal(body, &converse{to: a}) == nil
		f = framed(conversed())
	case bedrock && (call == "invoke-with-response-stream" || call == "invoke"):
		ok = json.Unmarshal(body, a) == nil
		f = framed(invoked)
	default:
		return messages, path == "/v1/messages" && json.Unmarshal(body, a) == nil
	}
	a.Model, a.Stream = model, call != "invoke"
	return f, ok
}

// step returns the next step, and whether it must fail.
func (s *Stub) step(name string, at int) (Step, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	steps := s.scripts[name]
	if at >= len(steps) {
		return Step{Say: "That is all."}, false
	}
	step, key := steps[at], fmt.Sprint(name, at)
	if step.Status == 0 && !step.Cut && !step.Hang {
		return step, false
	}
	s.failed[key]++
	return step, step.Times == 0 || s.failed[key] <= step.Times
}

// Notified is the script for Claude Code's own report that a background task has ended.
const Notified = "notified"

// scriptName matches at the beginning of a prompt, or after Harvest's words about a continued
// conversation or a crash, or after the time that Copilot CLI puts before it.
var scriptName = pattern.New(`(?:^|</current_datetime>\n\n|user's (?:next )?message:\n\n)\s*"?\[([a-z0-9_-]+)\]`)

// place returns the script of the newest prompt, and the number of tool results since.
func place(messages []message) (name string, at int) {
	for i := len(messages) - 1; i >= 0; i-- {
		m := messages[i]
		if m.Role != "user" {
			continue
		}
		var blocks []block
		if m.Content[0] == '"' {
			var text string
			_ = json.Unmarshal(m.Content, &text)
			blocks = []block{{"text", text}}
		} else {
			_ = json.Unmarshal(m.Content, &blocks)
		}
		results := 0
		for _, b := range slices.Backward(blocks) { // unanswered prompts may share a message with the newest
			if found := scriptName().FindStringSubmatch(b.Text); b.Type == "text" && found != nil {
				return found[1], at
			}
			if b.Type == "text" && strings.Contains(b.Text, "<task-notification>") {
				return Notified, at
			}
			if b.Type == "tool_result" {
				results = 1
			}
		}
		at += results
	}
	return "", at
}

// speak sends a step, as a stream of events
// (https://docs.claude.com/en/docs/build-with-claude/streaming) or as a whole.
func speak(w http.ResponseWriter, f form, a asked, size int, name string, at int, step Step, cut bool) {
	var blocks []map[string]any
	if step.Say != "" || step.Call == "" {
		blocks = append(blocks, map[string]any{"type": "text", "text": step.Say})
	}
	reason := "end_turn"
	if step.Call != "" {
		reason = "tool_use"
		c := fit(a, step)
		blocks = append(blocks, map[string]any{"type": "tool_use", "id": fmt.Sprintf("toolu_%s_%d_%d", name, at, size),
			"name": c.Name, "input": c.input, "namespace": c.namespace, "custom": c.custom, "text": c.text})
	}
	in, out := size/4, 50
	m := map[string]any{"id": fmt.Sprintf("msg_%s_%d_%d", name, at, size), "type": "message", "role": "assistant",
		"model": a.Model, "content": []any{}, "stop_reason": nil,
		"stop_sequence": nil, "usage": map[string]any{"input_tokens": in, "output_tokens": 1,
			"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}}
	if !a.Stream {
		m["content"], m["stop_reason"] = blocks, reason
		m["usage"].(map[string]any)["output_tokens"] = out
		answer(w, f.whole(m))
		return
	}
	w.Header().Set("Content-Type", f.stream)
	send := func(kind string, fields map[string]any) {
		fields["type"] = kind
		f.event(w, kind, fields)
		_ = http.NewResponseController(w).Flush()
	}
	send("message_start", map[string]any{"message": m})
	send("ping", map[string]any{})
	for i, b := range blocks {
		begun, delta, whole := map[string]any{"type": b["type"]}, "text_delta", b["text"]
		field := "text"
		if b["type"] == "tool_use" {
			input, _ := json.Marshal(b["input"])
			begun["id"], begun["name"], begun["input"] = b["id"], b["name"], map[string]any{}
			delta, field, whole = "input_json_delta", "partial_json", string(input)
		} else {
			begun["text"] = ""
		}
		send("content_block_start", map[string]any{"index": i, "content_block": begun, "whole": b})
		for piece := range slices.Chunk([]byte(whole.(string)), 4096) {
			send("content_block_delta", map[string]any{"index": i,
				"delta": map[string]any{"type": delta, field: string(piece)}})
		}
		if cut {
			panic(http.ErrAbortHandler)
		}
		send("content_block_stop", map[string]any{"index": i})
	}
	send("message_delta", map[string]any{"delta": map[string]any{"stop_reason": reason, "stop_sequence": nil},
		"usage": map[string]any{"output_tokens": out}})
	send("message_stop", map[string]any{})
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, status int, kind, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"type": "error", "error": map[string]string{"type": kind,
		"message": message}})
}
