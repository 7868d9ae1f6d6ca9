package model_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/cause"
	"github.com/RelevanceAI/harvest/internal/session/model"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

const (
	respond = `{"model":"gpt-6.2-sol","stream":true,"input":[{"type":"message","role":"user","content":[{"type":` +
		`"input_text","text":"[hello] you"}]}],"store":false}`
	respondWhole = `{"model":"gpt-6.2-sol","input":"[hello] you"}`
	chat         = `{"model":"gpt-6.2-sol","stream":true,"messages":[{"role":"user","content":"[hello] you"}]}`
	chatUsage    = `{"model":"gpt-6.2-sol","stream":true,"stream_options":{"include_usage":true},"messages":` +
		`[{"role":"user","content":"[hello] you"}]}`
	chatWhole = `{"model":"gpt-6.2-sol","messages":[{"role":"user","content":"[hello] you"}]}`
)

var openAI = model.Credential{Kind: model.OpenAIKey, Value: secretKey}

// TestOpenAI checks that the gateway speaks both of OpenAI's APIs, with streams and without: the key is added, the
// token and the choice of an organization are removed, and usage and result are known.
//
// mission: F6
func TestOpenAI(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, path, body string
		c                model.Credential
		upstream         string
		want             []string
		chunk            bool // the program gets a chunk with usage only
	}{
		{"responses", "/openai/v1/responses", respond, openAI, "/v1/responses",
			[]string{`"delta":"Hello."`, "response.completed"}, false},
		{"whole response", "/openai/v1/responses", respondWhole, openAI, "/v1/responses",
			[]string{`"text":"Hello."`}, false},
		{"chat", "/openai/v1/chat/completions", chat, openAI, "/v1/chat/completions",
			[]string{`"content":"Hello."`, "[DONE]"}, false},
		{"chat with usage", "/openai/v1/chat/completions", chatUsage, openAI, "/v1/chat/completions",
			[]string{`"content":"Hello."`, "[DONE]"}, true},
		{"whole chat", "/openai/v1/chat/completions", chatWhole, openAI, "/v1/chat/completions",
			[]string{`"content":"Hello."`}, false},
		{"openrouter", "/openrouter/v1/chat/completions", chatUsage,
			model.Credential{Kind: model.OpenRouterKey, Value: secretKey}, "/api/v1/chat/completions",
			[]string{`"content":"Hello."`}, true},
	} {
		w := newWorld(t)
		w.stub.Script("hello", modeltest.Step{Say: "Hello."})
		answers := &model.Answers{}
		answers.Note(&model.Failure{Message: "earlier"})
		w.grant.Answers = answers
		w.serve(t, w.Handler(w.grant))
		w.set(c.c, nil, 1)
		status, text := w.do(t, "POST", c.path, w.Token("ses_1"), c.body)
		for _, want := range c.want {
			if status != 200 || !strings.Contains(text, want) {
				t.Errorf("%s: %d %s, want %s", c.name, status, text, want)
			}
		}
		if strings.Contains(text, `"choices":[]`) != c.chunk {
			t.Errorf("%s: %s", c.name, text)
		}
		r := w.stub.Requests()[0]
		if r.Path != c.upstream || r.Header.Get("Authorization") != "Bearer "+secretKey ||
			r.Header.Get("OpenAI-Organization") != "" || r.Header.Get("Cookie") != "" {
			t.Errorf("%s: sent %s %v", c.name, r.Path, r.Header)
		}
		if f := answers.Take(); f != nil {
			t.Errorf("%s: the result is %v", c.name, f)
		}
		w.mu.Lock()
		want := model.Usage{Model: "gpt-6.2-sol", InputTokens: int64(len(r.Body) / 4), OutputTokens: 50}
		if len(w.spent) != 1 || w.spent[0] != want {
			t.Errorf("%s: used %+v, want %+v", c.name, w.spent, want)
		}
		w.mu.Unlock()
	}
}

// TestOpenAIServesModelsOnly checks that no other part of OpenAI's API is reachable, and that errors have its format.
func TestOpenAIServesModelsOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set(openAI, nil, 1)
	token := w.Token("ses_1")
	status, text := w.do(t, "GET", "/openai/v1/models", token, "")
	if status != 200 || !strings.Contains(text, "stub") {
		t.Errorf("models: %d %s", status, text)
	}
	for _, c := range []struct {
		about, method, path, token, body string
		c                                model.Credential
		left                             float64
		status                           int
		text                             string
	}{
		{"another token", "POST", "/openai/v1/responses", "sk", respond, openAI, 1, 400, "not the session's"},
		{"files", "GET", "/openai/v1/files", token, "", openAI, 1, 400, "messages of models only"},
		{"stored responses", "GET", "/openai/v1/responses/resp_1", token, "", openAI, 1, 400,
			"messages of models only"},
		{"a path that looks like another", "GET", "/openai/v1/models/../files", token, "", openAI, 1, 400,
			"messages of models only"},
		{"an encoded path", "GET", "/openai/v1/models/..%2ffiles", token, "", openAI, 1, 400,
			"messages of models only"},
		{"images", "POST", "/openai/v1/images/generations", token, "{}", openAI, 1, 400, "messages of models only"},
		{"no key", "POST", "/openai/v1/responses", token, respond, model.Credential{}, 1, 400, "OPENAI_API_KEY"},
		{"a key of another provider", "POST", "/openai/v1/responses", token, respond,
			model.Credential{Kind: model.APIKey, Value: secretKey}, 1, 400, "OPENAI_API_KEY"},
		{"the limit of cost", "POST", "/openai/v1/responses", token, respond, openAI, 0, 400, "limit of cost"},
		{"a wrong key", "POST", "/openai/v1/responses", token, respond,
			model.Credential{Kind: model.OpenAIKey, Value: "wrong"}, 1, 400, "Incorrect API key"},
		{"background", "POST", "/openai/v1/responses", token, `{"model":"m","background":true}`, openAI, 1, 400,
			"background"},
		{"no JSON", "POST", "/openai/v1/chat/completions", token, "[]", openAI, 1, 400, "not a JSON object"},
		{"no key of OpenRouter", "POST", "/openrouter/v1/chat/completions", token, chat, openAI, 1, 403,
			"OPENROUTER_API_KEY"},
	} {
		w.set(c.c, nil, c.left)
		status, text := w.do(t, c.method, c.path, c.token, c.body)
		var body struct {
			Error struct {
				Message string
				Code    any
			}
		}
		if err := json.Unmarshal([]byte(text), &body); err != nil || status != c.status || body.Error.Code == nil ||
			!strings.Contains(body.Error.Message, c.text) {
			t.Errorf("%s: %d %s, %v", c.about, status, text, err)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", w.front.URL+"/openai/v1/responses", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Upgrade": {"websocket"}, "Connection": {"Upgrade"}, "Authorization": {"Bearer " + token}}
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode != http.StatusUpgradeRequired {
		t.Errorf("a WebSocket: %v, %v", resp, err)
	}
}

// TestOpenAIResults checks that the result of a turn is that of the model, also if it fails after its first words.
//
// mission: E1
func TestOpenAIResults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		step modeltest.Step
		want cause.Cause
		text string
	}{
		{modeltest.Step{Say: "Hel", Cut: true}, "", "broke off"},
		{modeltest.Step{Status: 401, Kind: "invalid_api_key"}, cause.Key, "refused the credential"},
		{modeltest.Step{Status: 429, Kind: "insufficient_quota"}, cause.Credit, "has no credit"},
		{modeltest.Step{Status: 429, Kind: "rate_limit_exceeded"}, "", "rate_limit_exceeded, status 429"},
		{modeltest.Step{Status: 404, Kind: "model_not_found"}, cause.Model, "does not know the model"},
		{modeltest.Step{Status: 400, Kind: "context_length_exceeded"}, cause.Length, "too long"},
		{modeltest.Step{Status: 500, Kind: "server_error"}, "", "status 500"},
	} {
		for path, body := range map[string]string{"/openai/v1/responses": respond,
			"/openai/v1/chat/completions": chat} {
			w := newWorld(t)
			answers := &model.Answers{}
			w.grant.Answers = answers
			w.serve(t, w.Handler(w.grant))
			w.set(openAI, nil, 1)
			w.stub.Script("hello", c.step)
			w.do(t, "POST", path, w.Token("ses_1"), body)
			if f := answers.Take(); f == nil || f.Cause() != c.want || !strings.Contains(f.String(), c.text) {
				t.Errorf("%s: %v, want %s", path, f, c.text)
			}
		}
	}
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<p>hello</p>")
	}))
	defer page.Close()
	w := newWorld(t)
	w.grant.Answers = &model.Answers{}
	g := w.through(t, page.URL)
	w.serve(t, g.Handler(w.grant))
	w.do(t, "POST", "/openai/v1/responses", g.Token("ses_1"), respond)
	if f := w.grant.Answers.Take(); f == nil || !strings.Contains(f.String(), "not as such an API") {
		t.Errorf("a page: %v", f)
	}
}

// TestBaseOfSecret checks that a secret's own address of a compatible API is used, and only on the internet.
func TestBaseOfSecret(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stub.Script("hello", modeltest.Step{Say: "Hello."})
	for _, c := range []struct {
		base   string
		status int
		text   string
	}{
		{w.stub.URL + "/v1/", http.StatusBadGateway, "cannot be reached"}, // it is on this machine
		{"ftp://x", http.StatusBadRequest, "cannot be used"},
		{"http://user:password@example.org", http.StatusBadRequest, "cannot be used"},
	} {
		found, ok := model.Find(map[string]string{"OPENAI_API_KEY": secretKey, "OPENAI_BASE_URL": c.base}, model.OpenAI)
		if !ok || found.Base != strings.TrimSuffix(c.base, "/") {
			t.Errorf("%+v", found)
		}
		w.set(found, nil, 1)
		status, text := w.do(t, "POST", "/openai/v1/responses", w.Token("ses_1"), respond)
		if status != c.status || !strings.Contains(text, c.text) {
			t.Errorf("%s: %d %s", c.base, status, text)
		}
		if _, err := w.Custom(found); (errors.KindOf(err) == errors.Invalid) != (c.status == http.StatusBadRequest) {
			t.Errorf("%s: %v", c.base, err)
		}
	}
	var asked string
	g, err := model.New(model.Options{Key: []byte("k"), Upstreams: upstreams("http://127.0.0.1:9"),
		Regional: func(account string) http.RoundTripper { asked = account; return http.DefaultTransport },
		Credential: func(_ context.Context, _ string, _ []string, p []model.Provider) (model.Credential, error) {
			if fmt.Sprint(p) != "[openai chatgpt]" {
				t.Errorf("asked for %v", p)
			}
			return model.Credential{Kind: model.OpenAIKey, Value: secretKey, Base: w.stub.URL + "/v1"}, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	w.serve(t, g.Handler(w.grant))
	if status, text := w.do(t, "POST", "/openai/v1/responses", g.Token("ses_1"), respond); status != 200 ||
		asked != "acme" {
		t.Errorf("%d %s, asked for %q", status, text, asked)
	}
}

// TestChatGPT checks that the login of a subscription serves Codex: at its own address, with its account, and with the
// Responses API only.
func TestChatGPT(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stub.Script("hello", modeltest.Step{Say: "Hello."})
	c, ok := model.Find(map[string]string{"CHATGPT_ACCESS_TOKEN": secretKey}, model.OpenAI.With()...)
	c.Owner = "acc-1"
	w.set(c, nil, 1)
	if at, err := (&model.Gateway{}).Upstream(c); !ok || at != "https://chatgpt.com/backend-api/codex" || err != nil {
		t.Errorf("%s, %v", at, err)
	}
	r, err := http.NewRequestWithContext(t.Context(), "POST", w.front.URL+"/openai/v1/responses",
		strings.NewReader(respond))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"Authorization": {"Bearer " + w.Token("ses_1")}, "Chatgpt-Account-Id": {"acc-2"}}
	if status, text := w.send(t, r); status != 200 || !strings.Contains(text, "Hello.") {
		t.Errorf("%d %s", status, text)
	}
	if r := w.stub.Requests()[0]; r.Path != "/backend-api/codex/responses" ||
		r.Header.Get("Authorization") != "Bearer "+secretKey ||
		fmt.Sprint(r.Header["Chatgpt-Account-Id"]) != "[acc-1]" {
		t.Errorf("sent %s %v", r.Path, r.Header)
	}
	status, text := w.do(t, "POST", "/openai/v1/chat/completions", w.Token("ses_1"), chat)
	if status != 400 || !strings.Contains(text, "Responses API only") {
		t.Errorf("chat: %d %s", status, text)
	}
}
