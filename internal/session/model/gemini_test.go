package model_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/session/cause"
	"github.com/RelevanceAI/harvest/internal/session/model"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

const (
	generate   = `{"contents":[{"role":"user","parts":[{"text":"[hello] you"}]}]}`
	streamed38 = "/gemini/v1beta/models/gemini-3.8-flash:streamGenerateContent"
)

var gemini = model.Credential{Kind: model.GeminiKey, Value: secretKey}

// ask sends a request as Gemini's SDK does, and returns the answer.
func (w *world) ask(t *testing.T, method, path, token string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.front.URL+path, strings.NewReader(generate))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("X-Goog-Api-Key", token)
	}
	return w.send(t, r)
}

// TestGemini checks that the gateway speaks Gemini's API, with streams and without: the key is added, the token is
// removed from headers and query, and usage and result are known.
//
// mission: F6
func TestGemini(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, path, token, want string }{
		{"stream", streamed38 + "?alt=sse", "header", `"finishReason":"STOP"`},
		{"stream, token in the query", streamed38 + "?alt=sse&key=TOKEN", "", `"finishReason":"STOP"`},
		{"whole", "/gemini/v1/models/gemini-3.8-flash:generateContent", "header", `"text":"Hello."`},
		{"encoded", "/gemini/v1beta/models/gemini-3.8-flash%3AgenerateContent", "header", `"text":"Hello."`},
	} {
		w := newWorld(t)
		w.stub.Script("hello", modeltest.Step{Say: "Hello."})
		w.grant.Answers = &model.Answers{}
		w.grant.Answers.Note(&model.Failure{Message: "earlier"})
		w.serve(t, w.Handler(w.grant))
		w.set(gemini, nil, 1)
		token := w.Token("ses_1")
		path := strings.ReplaceAll(c.path, "TOKEN", token)
		if c.token == "" {
			token = ""
		}
		if status, text := w.ask(t, "POST", path, token); status != 200 || !strings.Contains(text, c.want) {
			t.Errorf("%s: %d %s", c.name, status, text)
		}
		r := w.stub.Requests()[0]
		if r.Header.Get("X-Goog-Api-Key") != secretKey || strings.Contains(r.Query, "hvm_") ||
			strings.Contains(c.path, "alt=sse") != strings.Contains(r.Query, "alt=sse") {
			t.Errorf("%s: sent %s?%s %v", c.name, r.Path, r.Query, r.Header)
		}
		if f := w.grant.Answers.Take(); f != nil {
			t.Errorf("%s: the result is %v", c.name, f)
		}
		w.mu.Lock()
		want := model.Usage{Model: "gemini-3.8-flash", InputTokens: int64(len(generate) / 4), OutputTokens: 50}
		if len(w.spent) != 1 || w.spent[0] != want {
			t.Errorf("%s: used %+v, want %+v", c.name, w.spent, want)
		}
		w.mu.Unlock()
	}
}

// TestGeminiServesModelsOnly checks that no other part of Gemini's API is reachable, and that errors have its format.
func TestGeminiServesModelsOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set(gemini, nil, 1)
	token := w.Token("ses_1")
	for _, path := range []string{"/gemini/v1beta/models", "/gemini/v1beta/models/gemini-3.8-flash"} {
		if status, _ := w.ask(t, "GET", path, token); status == 404 && path == "/gemini/v1beta/models" {
			t.Errorf("%s: %d", path, status)
		}
	}
	if status, text := w.ask(t, "POST", "/gemini/v1beta/models/m:countTokens", token); status != 200 {
		t.Errorf("count: %d %s", status, text)
	}
	for _, c := range []struct {
		about, method, path, token string
		c                          model.Credential
		left                       float64
		status                     int
		word, text                 string
	}{
		{"another token", "POST", streamed38, "x", gemini, 1, 403, "PERMISSION_DENIED", "not the session's"},
		{"no token", "POST", streamed38, "", gemini, 1, 403, "PERMISSION_DENIED", "not the session's"},
		{"files", "GET", "/gemini/v1beta/files", token, gemini, 1, 404, "NOT_FOUND", "models only"},
		{"batches", "POST", "/gemini/v1beta/models/m:batchGenerateContent", token, gemini, 1, 404, "NOT_FOUND",
			"models only"},
		{"tuning", "POST", "/gemini/v1beta/tunedModels", token, gemini, 1, 404, "NOT_FOUND", "models only"},
		{"another version", "POST", "/gemini/v9/models/m:generateContent", token, gemini, 1, 404, "NOT_FOUND",
			"models only"},
		{"no model", "POST", "/gemini/v1beta/models/:generateContent", token, gemini, 1, 404, "NOT_FOUND",
			"models only"},
		{"a longer path", "POST", "/gemini/v1beta/models/a/b:generateContent", token, gemini, 1, 404, "NOT_FOUND",
			"models only"},
		{"no key", "POST", streamed38, token, model.Credential{}, 1, 403, "PERMISSION_DENIED", "GEMINI_API_KEY"},
		{"the limit of cost", "POST", streamed38, token, gemini, 0, 403, "PERMISSION_DENIED", "limit of cost"},
		{"a wrong key", "POST", streamed38, token, model.Credential{Kind: model.GeminiKey, Value: "x"}, 1, 400,
			"INVALID_ARGUMENT", "API key not valid"},
	} {
		w.set(c.c, nil, c.left)
		status, text := w.ask(t, c.method, c.path, c.token)
		var body struct {
			Error struct {
				Code            int
				Message, Status string
			}
		}
		if err := json.Unmarshal([]byte(text), &body); err != nil || status != c.status || body.Error.Code != status ||
			body.Error.Status != c.word || !strings.Contains(body.Error.Message, c.text) {
			t.Errorf("%s: %d %s, %v", c.about, status, text, err)
		}
	}
}

// TestGeminiResults is TestOpenAIResults for Gemini.
//
// mission: E1
func TestGeminiResults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		step modeltest.Step
		want cause.Cause
		text string
	}{
		{modeltest.Step{Say: "Hel", Cut: true}, "", "broke off"},
		{modeltest.Step{Status: 400, Kind: "INVALID_ARGUMENT"}, cause.Key, "refused the credential"},
		{modeltest.Step{Status: 403, Kind: "PERMISSION_DENIED"}, cause.Key, "refused the credential"},
		{modeltest.Step{Status: 404, Kind: "NOT_FOUND"}, cause.Model, "does not know the model"},
		{modeltest.Step{Status: 429, Kind: "RESOURCE_EXHAUSTED"}, "", "RESOURCE_EXHAUSTED, status 429"},
		{modeltest.Step{Status: 500, Kind: "INTERNAL"}, "", "status 500"},
	} {
		w := newWorld(t)
		w.grant.Answers = &model.Answers{}
		w.serve(t, w.Handler(w.grant))
		w.set(gemini, nil, 1)
		w.stub.Script("hello", c.step)
		w.ask(t, "POST", streamed38+"?alt=sse", w.Token("ses_1"))
		if f := w.grant.Answers.Take(); f == nil || f.Cause() != c.want || !strings.Contains(f.String(), c.text) {
			t.Errorf("%v, want %s", f, c.text)
		}
	}
}
