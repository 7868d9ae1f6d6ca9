package model_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/session/model"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

const secretKey = "sk-ant-REAL-0123456789"

// providers are those with one namespace of paths.
var providers = []model.Provider{model.Anthropic, model.Bedrock}

// upstreams are the addresses of all providers at one server.
func upstreams(url string) map[model.Provider]string {
	return map[model.Provider]string{model.Anthropic: url, model.Bedrock: url, model.OpenAI: url + "/v1",
		model.OpenRouter: url + "/api/v1", model.Gemini: url,
		model.ChatGPT: url + "/backend-api/codex"}
}

// world is a gateway in front of a stub.
type world struct {
	*model.Gateway
	stub  *modeltest.Stub
	grant model.Grant
	front *httptest.Server

	mu    sync.Mutex
	c     model.Credential // guarded by mu
	err   error            // guarded by mu
	spent []model.Usage    // guarded by mu; without the cost
	cost  float64          // guarded by mu; of all
	left  float64          // guarded by mu
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{stub: modeltest.New(t, secretKey), c: model.Credential{Kind: model.APIKey, Value: secretKey}, left: 1}
	var err error
	w.Gateway, err = model.New(model.Options{Upstreams: upstreams(w.stub.URL), Key: []byte("k"),
		Credential: func(_ context.Context, account string, secrets []string,
			_ []model.Provider) (model.Credential, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if account != "acme" || fmt.Sprint(secrets) != "[mine]" {
				return model.Credential{}, errors.Errorf("asked for %s %v", account, secrets)
			}
			return w.c, w.err
		}})
	if err != nil {
		t.Fatal(err)
	}
	w.grant = model.Grant{ID: "ses_1", Account: "acme", Secrets: []string{"mine"},
		Spend: func(u model.Usage) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.cost, u.Cost = w.cost+u.Cost, 0
			w.spent = append(w.spent, u)
		},
		Left: func() float64 {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.left
		}}
	w.serve(t, w.Handler(w.grant))
	return w
}

// serve replaces the server that requests go to.
func (w *world) serve(t *testing.T, h http.Handler) {
	t.Helper()
	w.front = httptest.NewServer(h)
	t.Cleanup(w.front.Close)
}

// through returns a gateway with the world's credentials to another upstream.
func (w *world) through(t *testing.T, upstream string) *model.Gateway {
	t.Helper()
	g, err := model.New(model.Options{Upstreams: upstreams(upstream), Key: []byte("k"),
		Credential: func(_ context.Context, _ string, _ []string, p []model.Provider) (model.Credential, error) {
			return model.Credential{Kind: model.Default(p[0]), Value: secretKey}, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// set changes the credential, the error and the budget that the gateway finds.
func (w *world) set(c model.Credential, err error, left float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.c, w.err, w.left = c, err, left
}

func (w *world) do(t *testing.T, method, path, token, body string) (int, string) {
	t.Helper()
	status, text, _ := w.answer(t, method, path, token, body)
	return status, text
}

// answer is do, with the header of the answer.
func (w *world) answer(t *testing.T, method, path, token, body string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.front.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Cookie", "a=b")
	req.Header.Set("OpenAI-Organization", "org-other")
	if strings.HasPrefix(path, "/v1/") || strings.HasPrefix(path, "/model/") {
		req.Header.Set("X-Api-Key", token)
	} else {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return w.receive(t, req)
}

// send is do for any request.
func (w *world) send(t *testing.T, r *http.Request) (int, string) {
	t.Helper()
	status, text, _ := w.receive(t, r)
	return status, text
}

func (w *world) receive(t *testing.T, req *http.Request) (int, string, http.Header) {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		text = append(text, []byte(" [broke off]")...)
	}
	return resp.StatusCode, string(text), resp.Header
}

const (
	streamed = `{"model":"claude-opus-5-5","stream":true,"messages":[{"role":"user","content":"[hello] you"}]}`
	whole    = `{"model":"claude-haiku-4-5","messages":[{"role":"user","content":"[hello] you"}]}`
)

// TestGateway checks that the gateway adds the credential, removes the token, and reports the usage.
//
// mission: E1, F6
func TestGateway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stub.Script("hello", modeltest.Step{Say: "Hello."})
	token := w.Token("ses_1")
	if status, text := w.do(t, "POST", "/v1/messages?beta=true", token, streamed); status != 200 ||
		!strings.Contains(text, "Hello.") || !strings.Contains(text, "message_stop") {
		t.Errorf("%d %s", status, text)
	}
	if status, text := w.do(t, "POST", "/v1/messages", token, whole); status != 200 ||
		!strings.Contains(text, `"text":"Hello."`) {
		t.Errorf("%d %s", status, text)
	}
	if status, text := w.do(t, "POST", "/v1/messages/count_tokens", token, whole); status != 200 ||
		!strings.Contains(text, "input_tokens") {
		t.Errorf("%d %s", status, text)
	}
	for _, r := range w.stub.Requests() {
		if r.Header.Get("X-Api-Key") != secretKey || r.Header.Get("Cookie") != "" ||
			r.Header.Get("Authorization") != "" || r.Header.Get("X-Forwarded-For") != "" {
			t.Errorf("sent: %v", r.Header)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	want := []model.Usage{{Model: "claude-opus-5-5", InputTokens: int64(len(streamed) / 4), OutputTokens: 50},
		{Model: "claude-haiku-4-5", InputTokens: int64(len(whole) / 4), OutputTokens: 50}}
	if fmt.Sprint(w.spent) != fmt.Sprint(want) {
		t.Errorf("used: %+v, want %+v", w.spent, want)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	good, token := model.Credential{Kind: model.APIKey, Value: secretKey}, w.Token("ses_1")
	for _, c := range []struct {
		about        string
		c            model.Credential
		err          error
		left         float64
		method, path string
		token        string
		status       int
		text         string
	}{
		{"another session's token", good, nil, 1, "POST", "/v1/messages", w.Token("ses_2"), 403, "not the session's"},
		{"no token", good, nil, 1, "POST", "/v1/messages", "", 403, "not the session's"},
		{"another route", good, nil, 1, "GET", "/v1/organizations/me", token, 404, "messages of models only"},
		{"a route that looks like another", good, nil, 1, "POST", "/v1/messages/../files", token, 404,
			"messages of models only"},
		{"another method", good, nil, 1, "DELETE", "/v1/messages", token, 404, "messages of models only"},
		{"the limit of cost", good, nil, 0, "POST", "/v1/messages", token, 403, "limit of cost"},
		{"no credential", model.Credential{}, nil, 1, "POST", "/v1/messages", token, 403, "harvest secret set"},
		{"a credential of another provider", model.Credential{Kind: model.BedrockKey, Value: "x"}, nil, 1, "POST",
			"/v1/messages", token, 403, "harvest secret set"},
		{"a vault that is closed", good, errors.Newf(errors.Unavailable, "the key file is missing"), 1, "POST",
			"/v1/messages", token, 502, "the key file is missing"},
		{"a login that has failed", good, errors.Newf(errors.Denied, "claude no longer accepts the login"), 1, "POST",
			"/v1/messages", token, 403, "no longer accepts"},
		{"a wrong key, which is no reason to try for minutes", model.Credential{Kind: model.APIKey, Value: "wrong"},
			nil, 1, "POST", "/v1/messages", token, 403, "invalid x-api-key"},
	} {
		w.set(c.c, c.err, c.left)
		status, text := w.do(t, c.method, c.path, c.token, streamed)
		var body struct {
			Error struct{ Type, Message string }
		}
		if err := json.Unmarshal([]byte(text), &body); err != nil || status != c.status || body.Error.Type == "" ||
			!strings.Contains(body.Error.Message, c.text) {
			t.Errorf("%s: %d %s, %v", c.about, status, text, err)
		}
	}
	for _, bad := range []model.Options{{}, {Key: []byte("k"), Upstreams: upstreams("nonsense"),
		Credential: func(context.Context, string, []string, []model.Provider) (model.Credential, error) {
			return model.Credential{}, nil
		}}} {
		if _, err := model.New(bad); err == nil {
			t.Errorf("%+v", bad)
		}
	}
}

// An API that cannot be reached, or breaks off, looks so from the sandbox too.
func TestBrokenUpstream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	token := w.Token("ses_1")
	w.stub.Script("hello", modeltest.Step{Say: "Hel", Cut: true})
	if status, text := w.do(t, "POST", "/v1/messages", token, streamed); status != 200 ||
		!strings.Contains(text, "Hel") || !strings.HasSuffix(text, "[broke off]") {
		t.Errorf("%d %s", status, text)
	}
	w.stub.Script("hello", modeltest.Step{Status: 529, Kind: "overloaded_error"})
	if status, text := w.do(t, "POST", "/v1/messages", token, streamed); status != 529 ||
		!strings.Contains(text, "overloaded_error") {
		t.Errorf("%d %s", status, text)
	}
	w.stub.Close()
	if status, text := w.do(t, "POST", "/v1/messages", token, streamed); status != 502 ||
		!strings.Contains(text, "cannot be reached") {
		t.Errorf("%d %s", status, text)
	}
}

// TestRetryAfterReachesAgent checks that an agent receives the time that the model's API asks it to wait: it decides
// whether the agent tries again.
//
// mission: E1
func TestRetryAfterReachesAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	token := w.Token("ses_1")
	for status, kind := range map[int]string{429: "rate_limit_error", 529: "overloaded_error"} {
		w.stub.Script("hello", modeltest.Step{Status: status, Kind: kind, After: "3600"})
		got, text, header := w.answer(t, "POST", "/v1/messages", token, streamed)
		if got != status || header.Get("Retry-After") != "3600" || !strings.Contains(text, kind) {
			t.Errorf("%d, Retry-After %q: %s", got, header.Get("Retry-After"), text)
		}
	}
}

// TestNothingIsHeldBack checks that the model's output arrives without buffering.
func TestNothingIsHeldBack(t *testing.T) {
	t.Parallel()
	more := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: first\n\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-more:
		case <-r.Context().Done():
		}
		fmt.Fprint(w, "data: second\n\n")
	}))
	defer upstream.Close()
	g, err := model.New(model.Options{Upstreams: upstreams(upstream.URL + "/prefix"), Key: []byte("k"),
		Credential: func(context.Context, string, []string, []model.Provider) (model.Credential, error) {
			return model.Credential{Kind: model.OAuth, Value: "x"}, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(g.Handler(model.Grant{ID: "a"}))
	defer front.Close()
	req, _ := http.NewRequestWithContext(t.Context(), "POST", front.URL+"/v1/messages", strings.NewReader("{}"))
	req.Header.Set("Authorization", "Bearer "+g.Token("a"))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	if !lines.Scan() || lines.Text() != "data: first" {
		t.Errorf("%q, %v", lines.Text(), lines.Err())
	}
	close(more)
	rest, err := io.ReadAll(resp.Body)
	if err != nil || len(rest) > 0 && !bytes.Contains(rest, []byte("second")) {
		t.Errorf("%q, %v", rest, err)
	}
}

// TestEarlyAnswer sends the end of a request after the beginning of its answer.
func TestEarlyAnswer(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(testenv.AnswerEarly))
	defer upstream.Close()
	g, err := model.New(model.Options{Upstreams: upstreams(upstream.URL), Key: []byte("k"),
		Credential: func(context.Context, string, []string, []model.Provider) (model.Credential, error) {
			return model.Credential{Kind: model.OAuth, Value: "x"}, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(g.Handler(model.Grant{ID: "a"}))
	defer front.Close()
	testenv.EarlyAnswer(t, front.URL+"/v1/messages", "Authorization", "Bearer "+g.Token("a"))
}

// Each kind of credential is shown as its API wants it, at its address.
func TestCredentials(t *testing.T) {
	t.Parallel()
	type sent struct{ path, key, bearer string }
	got := make(chan sent, 1)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- sent{r.URL.Path, r.Header.Get("X-Api-Key"), r.Header.Get("Authorization")}
	}))
	defer upstream.Close()
	for _, c := range []struct {
		env  map[string]string
		path string
		want sent
		at   string
	}{
		{map[string]string{"ANTHROPIC_API_KEY": "a", "CLAUDE_CODE_OAUTH_TOKEN": "b"}, "/v1/messages",
			sent{"/v1/messages", "a", ""}, "https://api.anthropic.com"},
		{map[string]string{"ANTHROPIC_AUTH_TOKEN": "c"}, "/v1/messages", sent{"/v1/messages", "", "Bearer c"},
			"https://api.anthropic.com"},
		{map[string]string{"CLAUDE_CODE_OAUTH_TOKEN": "b"}, "/v1/messages", sent{"/v1/messages", "", "Bearer b"},
			"https://api.anthropic.com"},
		{map[string]string{"AWS_BEARER_TOKEN_BEDROCK": "d", "AWS_REGION": "eu-west-1"},
			"/model/us.anthropic.x/invoke-with-response-stream",
			sent{"/model/us.anthropic.x/invoke-with-response-stream", "", "Bearer d"},
			"https://bedrock-runtime.eu-west-1.amazonaws.com"},
		{map[string]string{"AWS_BEDROCK_API_KEY": "e"}, "/model/x/converse", sent{"/model/x/converse", "", "Bearer e"},
			"https://bedrock-runtime.us-east-1.amazonaws.com"},
	} {
		found, ok := model.Find(c.env, providers...)
		credential := func(context.Context, string, []string, []model.Provider) (model.Credential, error) {
			return found, nil
		}
		g, err := model.New(model.Options{Upstreams: upstreams(upstream.URL), Key: []byte("k"),
			Credential: credential})
		plain, err2 := model.New(model.Options{Key: []byte("k"), Credential: credential})
		if err != nil || err2 != nil || !ok {
			t.Fatal(err, err2, ok)
		}
		if at, err := plain.Upstream(found); at != c.at || err != nil {
			t.Errorf("%v is for %s: %v", found, at, err)
		}
		if again, err := g.Credential(t.Context(), "", nil); err != nil || again != found {
			t.Errorf("%v, %v", again, err)
		}
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), "POST", c.path, strings.NewReader("{}"))
		r.Header.Set("Authorization", "Bearer "+g.Token("a"))
		g.Handler(model.Grant{ID: "a"}).ServeHTTP(w, r)
		select {
		case s := <-got:
			if s != c.want {
				t.Errorf("%+v, want %+v", s, c.want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: %d %s", c.path, w.Code, w.Body)
		}
	}
	if _, ok := model.Find(map[string]string{"ANTHROPIC_BASE_URL": "x", "ANTHROPIC_API_KEY": ""}, providers...); ok {
		t.Error("a credential out of nothing")
	}
	if fmt.Sprint(model.Keys(providers...)) != "[ANTHROPIC_API_KEY ANTHROPIC_AUTH_TOKEN CLAUDE_CODE_OAUTH_TOKEN "+
		"AWS_BEARER_TOKEN_BEDROCK AWS_BEDROCK_API_KEY]" {
		t.Errorf("keys: %v", model.Keys(providers...))
	}
}

// TestRegionsLeadToTheInternet checks that a region, which is part of the address, cannot lead to another address, and
// that the address is on the internet.
func TestRegionsLeadToTheInternet(t *testing.T) {
	t.Parallel()
	var arrived atomic.Int32
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	go func() {
		for {
			c, err := inner.Accept()
			if err != nil {
				return
			}
			arrived.Add(1)
			c.Close()
		}
	}()
	var asked []string
	for _, region := range []string{"@" + inner.Addr().String() + "/#", "x.y", "", "a/b", "-a", "EU",
		strings.Repeat("a", 64), "eu\n"} {
		c, _ := model.Find(map[string]string{"AWS_BEARER_TOKEN_BEDROCK": "d", "AWS_REGION": region}, model.Bedrock)
		if region == "" {
			c.Region = ""
		}
		g, err := model.New(model.Options{Key: []byte("k"), Credential: func(context.Context, string, []string,
			[]model.Provider) (model.Credential, error) {
			return c, nil
		},
			Regional: func(account string) http.RoundTripper {
				asked = append(asked,
					account)
				return http.DefaultTransport
			}})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/model/x/converse", strings.NewReader("{}"))
		r.Header.Set("Authorization", "Bearer "+g.Token("a"))
		g.Handler(model.Grant{ID: "a", Account: "acme"}).ServeHTTP(w, r)
		if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "not a region") {
			t.Errorf("%q: %d %s", region, w.Code, w.Body)
		}
		if at, err := g.Upstream(c); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%q leads to %q: %v", region, at, err)
		}
	}
	if len(asked) > 0 || arrived.Load() > 0 {
		t.Errorf("asked for %v, %d connections arrived", asked, arrived.Load())
	}
	refused := model.NewTransport(netguard.Rules{})
	c := model.Credential{Kind: model.BedrockKey, Value: "d", Region: "eu-west-1"}
	g, err := model.New(model.Options{Key: []byte("k"), Credential: func(context.Context, string, []string,
		[]model.Provider) (model.Credential, error) {
		return c, nil
	},
		Regional: func(account string) http.RoundTripper {
			asked = append(asked, account)
			return to{inner.Addr().String(), refused}
		}})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/model/x/converse", strings.NewReader("{}"))
	r.Header.Set("Authorization", "Bearer "+g.Token("a"))
	g.Handler(model.Grant{ID: "a", Account: "acme"}).ServeHTTP(w, r)
	if w.Code != http.StatusBadGateway || fmt.Sprint(asked) != "[acme]" || arrived.Load() > 0 {
		t.Errorf("%d %s; asked for %v, %d connections arrived", w.Code, w.Body, asked, arrived.Load())
	}
}

// to sends every request to one server.
type to struct {
	host string
	next http.RoundTripper
}

func (t to) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Scheme, r.URL.Host = "http", t.host
	return t.next.RoundTrip(r)
}
