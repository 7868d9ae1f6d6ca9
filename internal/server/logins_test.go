package server_test

import (
	"context"
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/grant"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/server"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
	"github.com/RelevanceAI/harvest/test/stubs/oauthtest"
)

// withLogins gives the server secrets, with logins at an authorization server.
func withLogins(t *testing.T, s *oauthtest.Server) func(*server.Options) {
	t.Helper()
	var settings []string
	for _, name := range []string{"claude", "codex", "gemini", "github"} {
		settings = append(settings, s.Settings(name)...)
	}
	p, err := grant.NewProviders(settings, http.DefaultTransport)
	if err != nil {
		t.Fatal(err)
	}
	vault, err := secret.Open(t.Context(), secret.Options{Store: testdb.Open(t).Secrets(),
		KeyFile: filepath.Join(t.TempDir(), "secret.key"), Providers: p})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := vault.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return func(o *server.Options) { o.Secrets = vault }
}

// jsonOf decodes a body.
func jsonOf[T any](t *testing.T, body string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return v
}

// states returns the states of all logins, such as "claude=none codex=ready".
func states(t *testing.T, w *world) string {
	t.Helper()
	_, body := w.do("GET", api.Logins, "")
	var all []string
	for _, l := range jsonOf[api.List[api.Login]](t, body).Data {
		all = append(all, l.Provider+"="+l.State)
	}
	return strings.Join(all, " ")
}

// TestLogins checks each way to log in, and the logout, over the HTTP API. No answer has a token.
//
// mission: 9.1
func TestLogins(t *testing.T) {
	t.Parallel()
	s := oauthtest.New(t)
	w := start(t, withLogins(t, s))
	tokens := []string{"access-", "refresh-"}
	ask := func(method, path, body string, want int) string {
		t.Helper()
		resp, got := w.do(method, path, body)
		if resp.StatusCode != want {
			t.Fatalf("%s %s: %s %s", method, path, resp.Status, got)
		}
		for _, token := range tokens {
			if strings.Contains(got, token) {
				t.Errorf("%s %s has a token: %s", method, path, got)
			}
		}
		return got
	}
	if got := states(t, w); got != "claude=none codex=none gemini=none github=none" {
		t.Errorf("at first: %s", got)
	}
	ask("POST", "/v1/logins/none", `{}`, 404)
	ask("POST", "/v1/logins/claude/finish", `{"code":"x"}`, 404)

	a := jsonOf[api.LoginAttempt](t, ask("POST", "/v1/logins/claude", `{}`, 201))
	ask("POST", "/v1/logins/claude/finish", `{"code":"wrong"}`, 400)
	code, err := json.Marshal(api.LoginFinish{Code: s.Approve(t, a.URL)})
	if err != nil {
		t.Fatal(err)
	}
	ask("POST", "/v1/logins/claude/finish", string(code), 200)
	ask("POST", "/v1/logins/claude/finish", string(code), 404)

	s.Device("approve")
	if a := jsonOf[api.LoginAttempt](t, ask("POST", "/v1/logins/github", `{}`, 201)); a.UserCode == "" {
		t.Errorf("%+v", a)
	}
	ask("POST", "/v1/logins/github/finish", `{}`, 200)

	_, refresh := s.Grant()
	if a := jsonOf[api.LoginAttempt](t, ask("POST", "/v1/logins/codex", `{"token":"`+refresh+`"}`, 201)); a.URL != "" ||
		a.Login.State != "ready" || !a.Login.Renews {
		t.Errorf("%+v", a)
	}
	ask("POST", "/v1/logins/gemini", `{"token":"unknown"}`, 403)
	ask("POST", "/v1/secrets", `{"name":"gemini","pairs":{"GEMINI_API_KEY":"of somebody"}}`, 201)
	ask("POST", "/v1/logins/gemini", `{}`, 409)
	if got := states(t, w); got != "claude=ready codex=ready gemini=none github=ready" {
		t.Errorf("logged in: %s", got)
	}
	out := jsonOf[api.LoggedOut](t, ask("DELETE", "/v1/logins/codex", "", 200))
	if !out.Revoked || len(s.Revoked()) != 1 {
		t.Errorf("%+v", out)
	}
	out = jsonOf[api.LoggedOut](t, ask("DELETE", "/v1/logins/claude", "", 200))
	if out.Revoked || out.Remedy == "" {
		t.Errorf("%+v", out)
	}
	ask("DELETE", "/v1/logins/claude", "", 404)
	if got := states(t, w); got != "claude=none codex=none gemini=none github=ready" {
		t.Errorf("logged out: %s", got)
	}
}

// TestLoginIsFinishedOnce checks that a second request cannot finish the same attempt, and that a client that goes away
// leaves the attempt.
func TestLoginIsFinishedOnce(t *testing.T) {
	t.Parallel()
	s := oauthtest.New(t)
	w := start(t, withLogins(t, s))
	if resp, body := w.do("POST", "/v1/logins/github", `{}`); resp.StatusCode != 201 {
		t.Fatal(body)
	}
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(ctx, "POST", w.url+"/v1/logins/github/finish", strings.NewReader(`{}`))
		if err == nil {
			_, err = http.DefaultClient.Do(req)
		}
		left <- err
	}()
	testenv.Eventually(t, "the server asks the provider", func() bool { return len(s.Bodies()) > 0 })
	if resp, body := w.do("POST", "/v1/logins/github/finish", `{}`); resp.StatusCode != 409 {
		t.Errorf("a second request: %s %s", resp.Status, body)
	}
	cancel()
	if err := <-left; err == nil {
		t.Error("the first request has ended before it was canceled")
	}
	s.Device("approve")
	testenv.Eventually(t, "the login is finished", func() bool {
		resp, body := w.do("POST", "/v1/logins/github/finish", `{}`)
		if resp.StatusCode != 200 && resp.StatusCode != 409 { // 409: the end of the first one is not known yet
			t.Fatalf("afterwards: %s %s", resp.Status, body)
		}
		return resp.StatusCode == 200
	})
}
