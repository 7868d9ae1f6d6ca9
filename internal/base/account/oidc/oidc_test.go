package oidc_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/account/oidc"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

const redirect = "http://127.0.0.1:7777/sign-in/oidc/callback"

// person makes the next visitor of the provider a person with these claims. nil means that the provider refuses the
// visitor.
func person(t *testing.T, issuer string, claims map[string]any) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"redirect": redirect, "claims": claims})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, issuer+"/person",
		strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
}

// visit goes to the provider as a browser does, and returns the parameters of the redirect back.
func visit(t *testing.T, to string) url.Values {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, to, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	back, err := url.Parse(resp.Header.Get("Location"))
	if err != nil || !strings.HasPrefix(back.String(), redirect) {
		t.Fatalf("the provider answers %s %q %v", resp.Status, back, err)
	}
	return back.Query()
}

func open(t *testing.T, issuer string, change func(*oidc.Options)) *oidc.Provider {
	t.Helper()
	opts := oidc.Options{
		Issuer: issuer, ClientID: "harvest", Secret: "the secret of the client",
		Scopes: []string{"openid", "email", "groups"}, Groups: "groups",
		Allow: []string{"Boss@example.org=personal:admin", "group:ops=acme:admin", "@example.org=acme",
			"@other.example=other:member"},
	}
	if change != nil {
		change(&opts)
	}
	p, err := oidc.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// mission: A7, 6.10
func TestPeopleSignIn(t *testing.T) {
	t.Parallel()
	issuer := testenv.OIDCProvider(t)
	p := open(t, issuer, nil)
	type m = map[string]any
	for name, c := range map[string]struct {
		claims m
		want   string // account:role of whom
		kind   errors.Kind
	}{
		"by domain": {m{"sub": "1", "email": "ann@example.org", "email_verified": true},
			"acme:member ann@example.org", ""},
		"by address": {m{"sub": "2", "email": "boss@EXAMPLE.org", "email_verified": "true"},
			"personal:admin boss@example.org", ""},
		"by group": {m{"sub": "3", "email": "eve@example.com", "groups": []string{"dev", "ops"}},
			"acme:admin 3", ""},
		"by the only group": {m{"sub": "4", "groups": "ops"}, "acme:admin 4", ""},
		"another domain": {m{"sub": "5", "email": "x@other.example", "email_verified": true},
			"other:member x@other.example", ""},
		"an address of others": {m{"sub": "6", "email": "ann@example.org", "email_verified": false}, "",
			errors.Denied},
		"an address unproved": {m{"sub": "7", "email": "boss@example.org"}, "", errors.Denied},
		"a domain below": {m{"sub": "8", "email": "ann@x.example.org", "email_verified": true}, "",
			errors.Denied},
		"two at signs": {m{"sub": "9", "email": "ann@evil.example@example.org", "email_verified": true}, "",
			errors.Denied},
		"a group of no list":    {m{"sub": "10", "groups": m{"ops": true}}, "", errors.Denied},
		"nothing but a subject": {m{"sub": "11"}, "", errors.Denied},
		"refused":               {nil, "", errors.Denied},
	} {
		person(t, issuer, c.claims)
		to, attempt, err := p.Begin(t.Context(), redirect)
		if err != nil {
			t.Fatal(err)
		}
		who, err := p.Finish(t.Context(), attempt, visit(t, to))
		if errors.KindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
		}
		if got := who.Account + ":" + string(who.Role) + " " + who.Subject; err == nil &&
			(got != c.want || !slices.Equal(who.Scopes, account.Scopes)) {
			t.Errorf("%s: signed in as %s, want %s", name, got, c.want)
		}
	}
}

// mission: 6.10
func TestSignInsThatAreNone(t *testing.T) {
	t.Parallel()
	issuer := testenv.OIDCProvider(t)
	p := open(t, issuer, nil)
	person(t, issuer, map[string]any{"sub": "1", "email": "ann@example.org", "email_verified": true})
	for name, change := range map[string]func(a *oidc.Attempt, q url.Values){
		"no attempt": func(a *oidc.Attempt, _ url.Values) { *a = oidc.Attempt{} },
		"nothing at all": func(a *oidc.Attempt,
			q url.Values) {
			*a = oidc.Attempt{Expires: a.Expires}
			q.Del("state")
		},
		"another state":    func(_ *oidc.Attempt, q url.Values) { q.Set("state", "x") },
		"no state":         func(_ *oidc.Attempt, q url.Values) { q.Del("state") },
		"another nonce":    func(a *oidc.Attempt, _ url.Values) { a.Nonce = "x" },
		"another verifier": func(a *oidc.Attempt, _ url.Values) { a.Verifier = strings.Repeat("x", 43) },
		"another code":     func(_ *oidc.Attempt, q url.Values) { q.Set("code", "x") },
		"no code":          func(_ *oidc.Attempt, q url.Values) { q.Del("code") },
		"too late":         func(a *oidc.Attempt, _ url.Values) { a.Expires = time.Now() },
		"another redirect": func(a *oidc.Attempt, _ url.Values) { a.Redirect += "x" },
	} {
		to, attempt, err := p.Begin(t.Context(), redirect)
		if err != nil {
			t.Fatal(err)
		}
		query := visit(t, to)
		change(&attempt, query)
		if who, err := p.Finish(t.Context(), attempt, query); errors.KindOf(err) != errors.Unauthenticated ||
			who.Account != "" {
			t.Errorf("%s: %+v, %v", name, who, err)
		}
	}
	to, attempt, err := p.Begin(t.Context(), redirect)
	if err != nil {
		t.Fatal(err)
	}
	query := visit(t, to)
	for i, want := range []errors.Kind{"", errors.Unauthenticated} { // a code is good once
		if _, err := p.Finish(t.Context(), attempt, query); errors.KindOf(err) != want {
			t.Errorf("use %d of a code: %v", i+1, err)
		}
	}
	// The client's secret is wrong.
	to, attempt, err = p.Begin(t.Context(), redirect)
	if err != nil {
		t.Fatal(err)
	}
	wrong := open(t, issuer, func(o *oidc.Options) { o.Secret = "CANARY" })
	if _, err := wrong.Finish(t.Context(), attempt, visit(t, to)); errors.KindOf(err) != errors.Unauthenticated ||
		strings.Contains(err.Error(), "CANARY") {
		t.Errorf("the secret is wrong: %v", err)
	}
}

// TestProviderIsAway checks that the server starts although a provider does not answer, or is another one.
func TestProviderIsAway(t *testing.T) {
	t.Parallel()
	down := httptest.NewServer(http.NotFoundHandler())
	defer down.Close()
	p := open(t, down.URL, nil)
	if _, _, err := p.Begin(t.Context(), redirect); errors.KindOf(err) != errors.Unavailable {
		t.Errorf("begin: %v", err)
	}
	a := oidc.Attempt{State: "s", Expires: time.Now().Add(time.Hour)}
	if _, err := p.Finish(t.Context(), a, url.Values{"state": {"s"}}); errors.KindOf(err) != errors.Unavailable {
		t.Errorf("finish: %v", err)
	}
	// It speaks no tokens.
	var broken *httptest.Server
	broken = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			text, _ := json.Marshal(map[string]any{"issuer": broken.URL, "token_endpoint": broken.URL + "/token",
				"authorization_endpoint": broken.URL + "/auth", "jwks_uri": broken.URL + "/keys"})
			_, _ = w.Write(text)
		case "/token":
			if r.FormValue("code") == "500" {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			_, _ = w.Write([]byte(`{"access_token":"x","token_type":"bearer","id_token":"a.b.c"}`))
		}
	}))
	defer broken.Close()
	for code, want := range map[string]errors.Kind{"500": errors.Unavailable, "1": errors.Unauthenticated} {
		if _, err := open(t, broken.URL, nil).Finish(t.Context(), a,
			url.Values{"state": {"s"}, "code": {code}}); errors.KindOf(err) != want {
			t.Errorf("code %s: %v", code, err)
		}
	}
}

func TestRules(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "ann", "ann@example.org", "@=acme", "ann@=acme", "group:=acme", "@example.org=",
		"@example.org=A", "@example.org=acme:root", "@example.org=acme:"} {
		if _, err := oidc.New(oidc.Options{Allow: []string{bad}}); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
