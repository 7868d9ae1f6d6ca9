package server_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account/oidc"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/server"
)

// A browser signs in with a provider.
// mission: A7, 6.10
func TestSignInWithAProvider(t *testing.T) {
	t.Parallel()
	issuer := testenv.OIDCProvider(t)
	provider, err := oidc.New(oidc.Options{Issuer: issuer, ClientID: "harvest", Secret: "the secret of the client",
		Scopes: []string{"openid", "email"}, Groups: "groups", Allow: []string{"@example.org=acme"}})
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, func(o *server.Options) { o.OIDC = provider })
	s := w.stranger()
	person := func(mail string) {
		t.Helper()
		text, err := json.Marshal(map[string]any{"redirect": s.url + api.SignInBack,
			"claims": map[string]any{"sub": "1", "email": mail, "email_verified": true}})
		if err != nil {
			t.Fatal(err)
		}
		at := &world{t: t, url: issuer}
		if resp, body := at.do("PUT", "/person", string(text)); resp.StatusCode != http.StatusOK {
			t.Fatalf("%s %s", resp.Status, body)
		}
	}
	// begin returns the cookie and the query with which the browser returns.
	begin := func() (cookie, query string) {
		t.Helper()
		resp, body := s.do("GET", api.SignInOIDC, "")
		cookies := resp.Cookies()
		if resp.StatusCode != http.StatusSeeOther || len(cookies) != 1 {
			t.Fatalf("%s %s", resp.Status, body)
		}
		c := cookies[0]
		if !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Domain != "" || c.Name != "harvest-oidc" ||
			resp.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("the cookie is %+v", c)
		}
		to, err := url.Parse(resp.Header.Get("Location"))
		if err != nil || to.Query().Get("code_challenge_method") != "S256" || to.Query().Get("nonce") == "" ||
			to.Query().Get("state") == "" {
			t.Fatalf("it leads to %s, %v", to, err)
		}
		resp, body = (&world{t: t, url: issuer}).do("GET", to.RequestURI(), "")
		back, err := url.Parse(resp.Header.Get("Location"))
		if err != nil || !strings.HasPrefix(back.String(), s.url+api.SignInBack+"?") {
			t.Fatalf("the provider: %s %s %v", resp.Status, body, err)
		}
		return c.Name + "=" + c.Value, "?" + back.RawQuery
	}
	person("ann@example.org")
	cookie, query := begin()
	resp, page := s.do("GET", api.SignInBack+query, "", "Cookie", cookie)
	signedIn := ""
	for _, c := range resp.Cookies() {
		if c.Name == "harvest" && c.HttpOnly && c.SameSite == http.SameSiteStrictMode {
			signedIn = c.Name + "=" + c.Value
		}
	}
	if resp.StatusCode != http.StatusOK || !strings.Contains(page, `url=../../"`) || signedIn == "" {
		t.Fatalf("%s %v %s", resp.Status, resp.Header, page)
	}
	_, body := s.do("GET", "/v1/account", "", "Cookie", signedIn)
	if self := parse[api.Self](t, body); self.Account != "acme" || self.Role != "member" ||
		self.User != "ann@example.org" {
		t.Errorf("signed in as %s", body)
	}
	s.want(401, "GET", api.SignInBack+query, "", "Cookie", cookie) // the code is used up
	s.want(204, "POST", "/v1/sign-out", "", "Cookie", signedIn, "Origin", s.url)
	s.want(401, "GET", "/v1/account", "", "Cookie", signedIn)

	cookie, query = begin()
	s.want(401, "GET", api.SignInBack+query, "") // in another browser
	s.want(401, "GET", api.SignInBack+query, "", "Cookie", cookie[:len(cookie)-1])
	s.want(401, "GET", api.SignInBack+query, "", "Cookie", "harvest-oidc=AAAA")
	person("eve@example.com")
	cookie, query = begin()
	s.want(403, "GET", api.SignInBack+query, "", "Cookie", cookie)
	s.want(403, "GET", api.SignInBack+"?error=access_denied&state="+stateOf(t, query), "", "Cookie", cookie)
	if _, doc := s.do("GET", api.OpenAPI, ""); !strings.Contains(doc, `"`+api.SignInOIDC+`"`) {
		t.Error("the page has no link to sign in")
	}
	if resp, body := s.do("GET", "/v1/account", ""); resp.StatusCode != 401 || !strings.Contains(body, api.SignInOIDC) {
		t.Errorf("who is not signed in is told %s", body)
	}
	if _, body := w.do("GET", api.OpenAPI, ""); !strings.Contains(body, api.SignInBack) {
		t.Error("the routes are not described")
	}
	start(t).want(404, "GET", api.SignInOIDC, "")
}

func stateOf(t *testing.T, query string) string {
	t.Helper()
	v, err := url.ParseQuery(strings.TrimPrefix(query, "?"))
	if err != nil {
		t.Fatal(err)
	}
	return v.Get("state")
}
