package grant_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/grant"
	"github.com/RelevanceAI/harvest/test/stubs/oauthtest"
)

func providers(t *testing.T, s *oauthtest.Server, names ...string) *grant.Providers {
	t.Helper()
	var settings []string
	for _, name := range names {
		settings = append(settings, s.Settings(name)...)
	}
	p, err := grant.NewProviders(settings, http.DefaultTransport)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func begin(t *testing.T, p *grant.Providers, name string) *grant.Attempt {
	t.Helper()
	a, err := p.Begin(t.Context(), name, "")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func wantError(t *testing.T, err error, kind errors.Kind, words string) {
	t.Helper()
	if errors.KindOf(err) != kind || !strings.Contains(errors.Message(err), words) || errors.RemedyOf(err) == "" {
		t.Errorf("got %v (%s; remedy %q), want %s with %q", err, errors.KindOf(err), errors.RemedyOf(err), kind, words)
	}
	for _, text := range []string{"refresh-", "access-", "words of the server", "code-"} {
		if err != nil && strings.Contains(err.Error()+errors.Message(err)+errors.RemedyOf(err), text) {
			t.Errorf("the error repeats the answer: %v", err)
		}
	}
}

// TestPastedCode checks the login with a code: all forms in which users paste it, and that each provider gets its
// encoding.
//
// mission: 9.1
func TestPastedCode(t *testing.T) {
	t.Parallel()
	for name, encoding := range map[string]string{"claude": "application/json",
		"codex": "application/x-www-form-urlencoded", "gemini": "application/x-www-form-urlencoded"} {
		s := oauthtest.New(t)
		p := providers(t, s, name)
		for _, form := range []string{"address", "code", "both"} {
			a := begin(t, p, name)
			address := s.Approve(t, a.URL)
			u, err := url.Parse(address)
			if err != nil {
				t.Fatal(err)
			}
			text := map[string]string{"address": " " + address + "\n", "code": u.Query().Get("code"),
				"both": u.Query().Get("code") + "#" + u.Query().Get("state")}[form]
			g, err := p.Finish(t.Context(), a, text)
			if err != nil || !s.Valid(g.Access.Reveal()) || g.Refresh == "" || g.Provider != name ||
				time.Until(g.Expires) < 50*time.Minute || g.Client != s.Client {
				t.Errorf("%s, %s: %+v, %v", name, form, g, err)
			}
			if _, err := p.Finish(t.Context(), a, text); err == nil {
				t.Errorf("%s: a code was used twice", name)
			}
		}
		for _, got := range s.Bodies() {
			if got != encoding {
				t.Errorf("%s got %s, want %s", name, got, encoding)
			}
		}
	}
}

func TestBadCodes(t *testing.T) {
	t.Parallel()
	s := oauthtest.New(t)
	p := providers(t, s, "claude")
	other := s.Approve(t, begin(t, p, "claude").URL)
	a := begin(t, p, "claude")
	for text, want := range map[string]struct {
		kind  errors.Kind
		words string
	}{
		"":                 {errors.Invalid, "not the code"},
		"two words":        {errors.Invalid, "not the code"},
		"http://localhost": {errors.Invalid, "not the code"},
		other:              {errors.Invalid, "another login"},
		"code-wrong":       {errors.Invalid, "does not accept the code (invalid_grant)"},
		"http://localhost/?error=access_denied&error_description=code-x": {errors.Denied, "(access_denied)"},
	} {
		_, err := p.Finish(t.Context(), a, text)
		wantError(t, err, want.kind, want.words)
	}
	s.Fail(http.StatusServiceUnavailable)
	address := s.Approve(t, a.URL)
	_, err := p.Finish(t.Context(), a, address)
	wantError(t, err, errors.Unavailable, "cannot be reached")
	s.Fail(0)
	if _, err := p.Finish(t.Context(), a, address); err != nil {
		t.Errorf("after a failure that passed: %v", err)
	}
	a.Expires = time.Now()
	_, err = p.Finish(t.Context(), a, address)
	wantError(t, err, errors.Gone, "expired")
}

// TestDeviceFlow checks the login with a code at another device, with slow_down, which costs five seconds.
//
// mission: 9.1
func TestDeviceFlow(t *testing.T) {
	t.Parallel()
	s := oauthtest.New(t)
	p := providers(t, s, "github")
	a := begin(t, p, "github")
	if a.UserCode != "WDJB-MJHT" || a.URL != s.URL+"/login/device" || time.Until(a.Expires) > 15*time.Minute {
		t.Errorf("%+v", a)
	}
	s.Device("approve", "authorization_pending", "slow_down")
	g, err := p.Finish(t.Context(), a, "")
	if err != nil || !s.Valid(g.Access.Reveal()) {
		t.Errorf("%+v, %v", g, err)
	}
}

func TestDeviceFlowFails(t *testing.T) {
	t.Parallel()
	s := oauthtest.New(t)
	p := providers(t, s, "github")
	s.Device("deny")
	_, err := p.Finish(t.Context(), begin(t, p, "github"), "")
	wantError(t, err, errors.Denied, "was refused at the provider")
	s.Device("approve", "expired_token")
	_, err = p.Finish(t.Context(), begin(t, p, "github"), "")
	wantError(t, err, errors.Gone, "has expired")
	s.Device("")
	a := begin(t, p, "github")
	a.Expires = time.Now().Add(-time.Second)
	_, err = p.Finish(t.Context(), a, "")
	wantError(t, err, errors.Gone, "has expired")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = p.Finish(ctx, begin(t, p, "github"), "")
	if errors.KindOf(err) != errors.Canceled {
		t.Errorf("canceled: %v", err)
	}
	_, err = p.Begin(t.Context(), "github", "unknown")
	wantError(t, err, errors.Denied, "(unauthorized_client)")
}

// TestRenew checks that a renewal has the new refresh token, or the old one if the provider keeps it, and which
// failures are final.
func TestRenew(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{false, true} {
		s := oauthtest.New(t)
		s.Keep = keep
		p := providers(t, s, "codex")
		_, refresh := s.Grant()
		g, err := provider(t, p, "codex").Given(refresh)
		if err != nil || g.Access != "" {
			t.Fatalf("%+v, %v", g, err)
		}
		next, err := p.Renew(t.Context(), g)
		if err != nil || !s.Valid(next.Access.Reveal()) || (next.Refresh == g.Refresh) != keep {
			t.Errorf("%+v, %v", next, err)
		}
		if got := s.Bodies(); !slices.Equal(got, []string{"application/json"}) {
			t.Errorf("sent %q", got)
		}
		for status, kind := range map[int]errors.Kind{500: errors.Unavailable, 429: errors.Unavailable,
			403: errors.Unavailable, 302: errors.Unavailable, 401: errors.Denied} {
			s.Fail(status)
			_, err := p.Renew(t.Context(), next)
			wantError(t, err, kind, "codex")
		}
		s.Fail(0)
		s.RevokeAll()
		_, err = p.Renew(t.Context(), next)
		wantError(t, err, errors.Denied, "no longer accepts the login (invalid_grant)")
	}
	p, err := grant.NewProviders([]string{"codex.token_url=http://127.0.0.1:1/"}, http.DefaultTransport)
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Renew(t.Context(), grant.Grant{Provider: "codex", Refresh: "refresh-x"})
	wantError(t, err, errors.Unavailable, "cannot be reached")
}

func provider(t *testing.T, p *grant.Providers, name string) *grant.Provider {
	t.Helper()
	one, err := p.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return one
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	s := oauthtest.New(t)
	for name, want := range map[string]string{"codex": "refresh-x", "gemini": "refresh-x",
		"github": "access-x refresh-x"} {
		g := grant.Grant{Provider: name, Access: "access-x", Refresh: "refresh-x"}
		if err := providers(t, s, name).Revoke(t.Context(), g); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := s.Revoked(); got[len(got)-1] != want {
			t.Errorf("%s: revoked %q", name, got)
		}
	}
	err := providers(t, s, "claude").Revoke(t.Context(), grant.Grant{Provider: "claude", Access: "access-x"})
	wantError(t, err, errors.Unsupported, "no way to revoke")
}

// TestGiven checks which tokens and files of programs are taken.
func TestGiven(t *testing.T) {
	t.Parallel()
	p := providers(t, oauthtest.New(t))
	for _, c := range []struct{ provider, text, access, refresh string }{
		{"claude", "sk-ant-oat01-a\n", "sk-ant-oat01-a", ""},
		{"claude", "sk-ant-ort01-r", "", "sk-ant-ort01-r"},
		{"claude", `{"claudeAiOauth":{"accessToken":"a","refreshToken":"r","expiresAt":4102444800000}}`, "a", "r"},
		{"codex", `{"OPENAI_API_KEY":null,"tokens":{"id_token":"i","access_token":"a","refresh_token":"r"}}`, "a", "r"},
		{"codex", "rt_x", "", "rt_x"},
		{"gemini", `{"access_token":"a","refresh_token":"r","expiry_date":4102444800000}`, "a", "r"},
		{"github", "gho_x", "gho_x", ""},
		{"github", "ghr_x", "", "ghr_x"},
	} {
		g, err := provider(t, p, c.provider).Given(c.text)
		if err != nil || g.Access.Reveal() != c.access || g.Refresh.Reveal() != c.refresh || g.Provider != c.provider {
			t.Errorf("%s: %q, %q, %v", c.text, g.Access.Reveal(), g.Refresh.Reveal(), err)
		}
		if dated := strings.Contains(c.text, "4102444800"); dated != (g.Expires.Year() == 2100) {
			t.Errorf("%s: expires %s", c.text, g.Expires)
		}
	}
	for _, c := range [][2]string{{"claude", ""}, {"claude", "a b"}, {"github", "x"}, {"github", `{"a":1}`},
		{"codex", `{"OPENAI_API_KEY":"sk-x"}`}, {"codex", `{`}, {"claude", strings.Repeat("a", 1<<20)}} {
		_, err := provider(t, p, c[0]).Given(c[1])
		if errors.KindOf(err) != errors.Invalid || errors.RemedyOf(err) == "" {
			t.Errorf("%.20s: %v", c[1], err)
		}
	}
}

func TestGrantSurvivesItsText(t *testing.T) {
	t.Parallel()
	want := grant.Grant{Provider: "claude", Client: "c", Access: "a", Refresh: "r",
		Expires: time.Unix(4102444800, 0).UTC()}
	text, err := want.Text()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := grant.Parse(text); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := grant.Parse("{"); err == nil {
		t.Error("a damaged grant was read")
	}
}

// TestCodexFile checks the file of credentials for Codex: it has the account, and nothing that a request needs but the
// placeholder.
func TestCodexFile(t *testing.T) {
	t.Parallel()
	s := oauthtest.New(t)
	s.Prefix = "jwt"
	token, _ := s.Grant()
	text, err := provider(t, providers(t, s), "codex").Text(token)
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Key    *string `json:"OPENAI_API_KEY"`
		Tokens map[string]string
	}
	if err := json.Unmarshal([]byte(text), &f); err != nil || f.Key != nil || f.Tokens["account_id"] != "acc-1" ||
		f.Tokens["access_token"] != token || f.Tokens["id_token"] != token {
		t.Errorf("%s, %v", text, err)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "github", "github.client_id", "github.x=1", "none.client_id=1",
		"github.token_url=ftp://x", "github.token_url=https://u:p@x"} {
		if _, err := grant.NewProviders([]string{text}, nil); err == nil || errors.RemedyOf(err) == "" {
			t.Errorf("%q: %v", text, err)
		}
	}
}
