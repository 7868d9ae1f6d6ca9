package server_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"html"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/server"
)

// oauthUser is a client of OAuth and the browser of its user.
type oauthUser struct {
	*world        // without a key
	config        oauth2.Config
	verifier      string
	cookie        string // of the browser's sign-in; "" if it has none
	key           string // which the user enters
	state, origin string
}

const callback = "http://127.0.0.1:3000/callback"

// newOAuth registers a client at w.
func newOAuth(t *testing.T, w *world) *oauthUser {
	t.Helper()
	u := &oauthUser{world: w.stranger(), verifier: oauth2.GenerateVerifier(), state: "st&te", origin: w.strict}
	resp, body := u.do("POST", api.OAuthRegister, `{"client_name":"Test <b>","redirect_uris":["`+callback+
		`","https://app.example/cb?x=1"],"token_endpoint_auth_method":"client_secret_basic","unknown":1}`,
		"Content-Type", api.TypeJSON)
	if resp.StatusCode != http.StatusCreated || resp.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("register: %s %s", resp.Status, body)
	}
	made := parse[api.OAuthClient](t, body)
	if made.ClientAuth != "none" || made.Issued == 0 {
		t.Errorf("registered %+v", made)
	}
	u.config = oauth2.Config{ClientID: made.ID, RedirectURL: callback, Endpoint: oauth2.Endpoint{
		AuthURL: w.strict + api.OAuthAuthorize, TokenURL: w.strict + api.OAuthToken,
		AuthStyle: oauth2.AuthStyleInParams}}
	return u
}

// address returns the address that the client opens in the browser.
func (u *oauthUser) address(change ...string) string {
	u.t.Helper()
	text := u.config.AuthCodeURL(u.state, oauth2.S256ChallengeOption(u.verifier),
		oauth2.SetAuthURLParam("resource", u.url+api.MCP))
	parsed, err := url.Parse(text)
	if err != nil {
		u.t.Fatal(err)
	}
	query := parsed.Query()
	for i := 0; i < len(change); i += 2 {
		query.Del(change[i])
		if change[i+1] != "" {
			query.Set(change[i], change[i+1])
		}
	}
	return api.OAuthAuthorize + "?" + query.Encode()
}

var hiddenField = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// open shows the page, and returns its text and its form.
func (u *oauthUser) open(path string) (*http.Response, string, url.Values) {
	u.t.Helper()
	header := []string{"Sec-Fetch-Site", "none"}
	if u.cookie != "" {
		header = append(header, "Cookie", u.cookie)
	}
	resp, page := u.do("GET", path, "", header...)
	form := url.Values{}
	for _, m := range hiddenField.FindAllStringSubmatch(page, -1) {
		form.Set(m[1], html.UnescapeString(m[2]))
	}
	return resp, page, form
}

// submit sends the form of the page.
func (u *oauthUser) submit(form url.Values, decision string, header ...string) (*http.Response, string) {
	u.t.Helper()
	form.Set("decision", decision)
	if u.key != "" {
		form.Set("key", u.key)
	}
	if u.cookie != "" {
		header = append(header, "Cookie", u.cookie)
	}
	return u.do("POST", api.OAuthAuthorize, form.Encode(), append([]string{"Content-Type", api.TypeURLForm, "Origin",
		u.origin, "Sec-Fetch-Site", "same-origin"}, header...)...)
}

// code returns the code that the client gets, after the user has allowed it.
func (u *oauthUser) code(change ...string) string {
	u.t.Helper()
	resp, page, form := u.open(u.address(change...))
	if resp.StatusCode != 200 || len(form) == 0 {
		u.t.Fatalf("the page: %s %s", resp.Status, page)
	}
	resp, page = u.submit(form, "allow")
	to, err := resp.Location()
	if resp.StatusCode != http.StatusSeeOther || err != nil {
		u.t.Fatalf("allow: %s %s", resp.Status, page)
	}
	got := to.Query()
	if got.Get("state") != u.state || got.Get("iss") != u.url || got.Get("code") == "" {
		u.t.Fatalf("redirected to %s", to)
	}
	return got.Get("code")
}

// exchange returns the tokens for a code.
func (u *oauthUser) exchange(code string) (*oauth2.Token, error) {
	return u.config.Exchange(u.t.Context(), code, oauth2.VerifierOption(u.verifier),
		oauth2.SetAuthURLParam("resource", u.url+api.MCP))
}

func (u *oauthUser) tokens() *oauth2.Token {
	u.t.Helper()
	token, err := u.exchange(u.code())
	if err != nil {
		u.t.Fatal(err)
	}
	return token
}

// refresh returns new tokens.
func (u *oauthUser) refresh(token string) (*oauth2.Token, error) {
	return u.config.TokenSource(u.t.Context(), &oauth2.Token{RefreshToken: token}).Token()
}

// with is a client with an access token.
func (u *oauthUser) with(token *oauth2.Token) *world {
	return &world{t: u.t, url: u.url, headers: []string{"Authorization", "Bearer " + token.AccessToken}}
}

// oauthKey is the secret of a new key.
func oauthKey(w *world, req account.Request) (account.Key, string) {
	w.t.Helper()
	k, secret, err := w.ring.Create(w.t.Context(), account.Local(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	return k, secret.Reveal()
}

// oauthSignIn is the cookie of a browser that is signed in as the operator.
func oauthSignIn(w *world) string {
	w.t.Helper()
	secret, _, err := w.ring.SignInAs(w.t.Context(), account.Local())
	if err != nil {
		w.t.Fatal(err)
	}
	return "harvest=" + secret.Reveal()
}

// TestClientsSignIn lets a client sign in with a key and with a browser's sign-in, use the tools, and renew its token.
func TestClientsSignIn(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.want(201, "POST", "/v1/sandboxes", `{"name":"mine","tags":{"mcp":"environment","mcp.directory":"/tmp"}}`)
	_, key := oauthKey(w, account.Request{Name: "laptop"})
	for name, set := range map[string]func(*oauthUser){
		"key": func(u *oauthUser) { u.key = key }, "sign-in": func(u *oauthUser) { u.cookie = oauthSignIn(w) },
	} {
		u := newOAuth(t, w)
		set(u)
		resp, page, _ := u.open(u.address())
		policy := resp.Header.Get("Content-Security-Policy")
		if !strings.Contains(page, "Test &lt;b&gt;") || !strings.Contains(page, "127.0.0.1:3000") ||
			strings.Contains(page, "<b>personal</b>") != (name == "sign-in") ||
			!strings.Contains(policy, "frame-ancestors 'none'") ||
			!strings.HasSuffix(policy, "form-action 'self' http://127.0.0.1:3000") {
			t.Errorf("%s: %s: %s", name, policy, page)
		}
		token := u.tokens()
		if token.TokenType != "Bearer" || token.ExpiresIn != 3600 || token.Extra("scope") != "read write exec" &&
			token.Extra("scope") != "exec read write" {
			t.Errorf("%s: %+v %v", name, token, token.Extra("scope"))
		}
		if resp, body := u.with(token).tool("environment_list", "{}"); !strings.Contains(body, "mine: running") {
			t.Errorf("%s: %s %s", name, resp.Status, body)
		}
		again, err := u.refresh(token.RefreshToken)
		if err != nil || again.RefreshToken == token.RefreshToken {
			t.Fatalf("%s: refresh: %v", name, err)
		}
		if resp, _ := u.with(again).tool("environment_list", "{}"); resp.StatusCode != 200 {
			t.Errorf("%s: %s", name, resp.Status)
		}
		// The token is for /mcp alone.
		for _, path := range []string{api.Sandboxes, api.Account, api.Keys, "/mcp/", "//mcp"} {
			if got, _ := u.with(token).do("GET", path, ""); got.StatusCode == 200 {
				t.Errorf("%s: %s with a token of OAuth: %s", name, path, got.Status)
			}
		}
		u.with(token).want(401, "GET", api.Sandboxes, "")
	}
	var listed []api.Key
	_, body := w.do("GET", api.Keys, "")
	for _, k := range parse[api.List[api.Key]](t, body).Data {
		if k.Kind == "oauth" {
			listed = append(listed, k)
		}
	}
	if len(listed) != 2 || listed[0].Role != "member" || !strings.HasPrefix(listed[0].Name, "Test-b-") {
		t.Fatalf("keys: %+v", listed)
	}
	u := newOAuth(t, w)
	u.key = key
	token := u.tokens()
	_, body = w.do("GET", api.Keys, "")
	w.want(204, "DELETE", api.Path(api.Keyed, parse[api.List[api.Key]](t, body).Data[0].ID), "")
	if resp, _ := u.with(token).tool("environment_list", "{}"); resp.StatusCode != 401 {
		t.Errorf("a client that was withdrawn: %s", resp.Status)
	}
	if _, err := u.refresh(token.RefreshToken); !isOAuth(err, "invalid_grant") {
		t.Errorf("a client that was withdrawn: %v", err)
	}
}

// TestClientsCanRead checks that a client has the scope read, which /mcp needs, whatever it asks for.
func TestClientsCanRead(t *testing.T) {
	t.Parallel()
	w := start(t)
	u := newOAuth(t, w)
	u.cookie = oauthSignIn(w)
	token, err := u.exchange(u.code("scope", "exec"))
	if err != nil || token.Extra("scope") != "read exec" && token.Extra("scope") != "exec read" {
		t.Fatalf("%v, %v", token.Extra("scope"), err)
	}
	if resp, body := u.with(token).tool("environment_list", "{}"); resp.StatusCode != 200 {
		t.Errorf("%s %s", resp.Status, body)
	}
	_, u.key = oauthKey(w, account.Request{Name: "writer", Scopes: []account.Scope{account.Write}})
	u.cookie = ""
	_, _, form := u.open(u.address())
	if resp, page := u.submit(form, "allow"); resp.StatusCode != 400 || !strings.Contains(page, "scope read") {
		t.Errorf("a user who cannot read: %s %s", resp.Status, page)
	}
	resp, _ := u.do("POST", api.MCP, "{}", "Authorization", "Bearer "+u.key)
	if got := resp.Header.Get("WWW-Authenticate"); resp.StatusCode != 403 ||
		!strings.HasSuffix(got, `error="insufficient_scope"`) {
		t.Errorf("a key that cannot read: %s %s", resp.Status, got)
	}
	if resp, _ := u.do("GET", api.Sandboxes, "", "Authorization", "Bearer "+u.key); resp.StatusCode != 403 ||
		resp.Header.Get("WWW-Authenticate") != "" {
		t.Errorf("another route: %s %v", resp.Status, resp.Header)
	}
}

// TestTheAccountIsTheOneShown checks that a page which shows an account, or none, does not give access to another one.
func TestTheAccountIsTheOneShown(t *testing.T) {
	t.Parallel()
	w := start(t)
	u := newOAuth(t, w)
	other := account.Local()
	other.Account = "acme"
	secret, _, err := w.ring.SignInAs(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	for _, before := range []string{"", oauthSignIn(w)} {
		u.cookie = before
		_, _, form := u.open(u.address())
		u.cookie = "harvest=" + secret.Reveal()
		resp, page := u.submit(form, "allow")
		if resp.StatusCode != 403 || !strings.Contains(page, "<b>acme</b>") || !strings.Contains(page, "has changed") {
			t.Errorf("%s %s", resp.Status, page)
		}
	}
	u.tokens()
}

// TestExpiryIsThatOfTheGrant checks that expires_in is less if the user's key ends sooner.
func TestExpiryIsThatOfTheGrant(t *testing.T) {
	t.Parallel()
	w := start(t)
	u := newOAuth(t, w)
	_, u.key = oauthKey(w, account.Request{Name: "short", Life: 10 * time.Minute})
	if token := u.tokens(); token.ExpiresIn > 600 || token.ExpiresIn < 500 {
		t.Errorf("%d s", token.ExpiresIn)
	}
}

// TestKeysNameTheUser checks that the list of keys names the user of a provider who allowed a client.
func TestKeysNameTheUser(t *testing.T) {
	t.Parallel()
	w := start(t)
	ann := account.Local()
	ann.Subject = "ann@example.org"
	secret, _, err := w.ring.SignInAs(t.Context(), ann)
	if err != nil {
		t.Fatal(err)
	}
	u := newOAuth(t, w)
	u.cookie = "harvest=" + secret.Reveal()
	u.tokens()
	_, body := w.do("GET", api.Keys, "")
	if keys := parse[api.List[api.Key]](t, body).Data; keys[0].User != ann.Subject ||
		!strings.HasPrefix(keys[0].MadeBy, "sig_") {
		t.Errorf("%+v", keys[0])
	}
}

// isOAuth reports whether err is an error of OAuth with this code.
func isOAuth(err error, code string) bool {
	var e *oauth2.RetrieveError
	return errors.As(err, &e) && e.ErrorCode == code && e.Response.StatusCode == http.StatusBadRequest
}

// TestOAuthWithTheOfficialSDK has the client of the Go SDK find the server, register and sign in by itself.
func TestOAuthWithTheOfficialSDK(t *testing.T) {
	t.Parallel()
	w := start(t)
	_, key := oauthKey(w, account.Request{Name: "laptop"})
	handler, err := auth.NewAuthorizationCodeHandler(&auth.AuthorizationCodeHandlerConfig{
		RedirectURL: callback,
		DynamicClientRegistrationConfig: &auth.DynamicClientRegistrationConfig{
			Metadata: &oauthex.ClientRegistrationMetadata{ClientName: "SDK", RedirectURIs: []string{callback},
				GrantTypes: []string{"authorization_code", "refresh_token"}}},
		AuthorizationCodeFetcher: func(_ context.Context, args *auth.AuthorizationArgs) (*auth.AuthorizationResult,
			error) {
			u := &oauthUser{world: w.stranger(), key: key, origin: w.strict}
			_, _, form := u.open(strings.TrimPrefix(args.URL, w.strict))
			resp, page := u.submit(form, "allow")
			to, err := resp.Location()
			if err != nil {
				return nil, errors.Wrapf(err, "%s %s", resp.Status, page)
			}
			got := to.Query()
			return &auth.AuthorizationResult{Code: got.Get("code"), State: got.Get("state"), Iss: got.Get("iss")}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: w.strict + api.MCP,
		OAuthHandler: handler}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if list, err := session.ListTools(t.Context(), nil); err != nil || len(list.Tools) < 15 {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestOAuthDiscovery checks the descriptions, and the response that leads to them.
func TestOAuthDiscovery(t *testing.T) {
	t.Parallel()
	w := start(t, func(o *server.Options) { o.Names = []string{"harvest.example"} })
	s := w.stranger()
	for _, c := range []struct{ method, token, suffix string }{
		{"POST", "", `scope="read write exec"`}, {"GET", "", `scope="read write exec"`},
		{"POST", "Bearer hva_" + strings.Repeat("a", 52), `error="invalid_token"`},
		{"POST", "Bearer hv_" + strings.Repeat("a", 52), `error="invalid_token"`},
	} {
		var header []string
		if c.token != "" {
			header = []string{"Authorization", c.token}
		}
		resp, _ := s.do(c.method, api.MCP, "{}", header...)
		want := `Bearer resource_metadata="` + s.url + `/.well-known/oauth-protected-resource/mcp", `
		if got := resp.Header.Get("WWW-Authenticate"); resp.StatusCode != 401 || !strings.HasPrefix(got, want) ||
			!strings.HasSuffix(got, c.suffix) {
			t.Errorf("%+v: %s %s", c, resp.Status, got)
		}
	}
	if resp, _ := s.do("GET", api.Sandboxes, ""); resp.Header.Get("WWW-Authenticate") != `Bearer realm="harvest"` {
		t.Error("another route names OAuth")
	}
	for _, path := range []string{api.OAuthResource, api.OAuthResourceMCP} {
		_, body := s.do("GET", path, "")
		got := parse[api.OAuthResourceInfo](t, body)
		if got.Resource != s.url+"/mcp" || !slices.Equal(got.Servers, []string{s.url}) {
			t.Errorf("%s: %+v", path, got)
		}
	}
	meta, err := auth.GetAuthServerMetadata(t.Context(), s.url, nil)
	if err != nil || meta == nil || meta.Issuer != s.url || !slices.Equal(meta.CodeChallengeMethodsSupported,
		[]string{"S256"}) || !meta.AuthorizationResponseIssParameterSupported ||
		!slices.Equal(meta.TokenEndpointAuthMethodsSupported, []string{"none"}) {
		t.Errorf("%+v, %v", meta, err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.url+api.OAuthServer, nil)
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{"harvest.example": 200, "evil.example": 421} {
		req.Host = host
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		var got api.OAuthServerInfo
		_ = json.NewDecoder(resp.Body).Decode(&got)
		resp.Body.Close()
		if resp.StatusCode != want || want == 200 && got.Issuer != "http://harvest.example" {
			t.Errorf("%s: %s %+v", host, resp.Status, got)
		}
	}
	behind := start(t, func(o *server.Options) {
		o.Names, o.Proxies = []string{"harvest.example"}, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	}).stranger()
	resp, body := behind.do("GET", api.OAuthResourceMCP, "", "X-Forwarded-For", "192.0.2.1", "X-Forwarded-Proto",
		"https", "X-Forwarded-Host", "harvest.example")
	if got := parse[api.OAuthResourceInfo](t, body); got.Resource != "https://harvest.example/mcp" {
		t.Errorf("behind a proxy: %s %+v", resp.Status, got)
	}
	start(t, func(o *server.Options) { o.Keys = nil }).want(501, "GET", api.OAuthServer, "")
}

// TestAuthorizePageRefuses checks requests to the page that must not lead to a form or a redirect.
func TestAuthorizePageRefuses(t *testing.T) {
	t.Parallel()
	w := start(t)
	u := newOAuth(t, w)
	u.cookie = oauthSignIn(w)
	for name, c := range map[string]struct {
		change []string
		back   string // error for the client; "" if the page must not link to it
	}{
		"no client":            {[]string{"client_id", ""}, ""},
		"unknown client":       {[]string{"client_id", "hvc_AAAA"}, ""},
		"changed client":       {[]string{"client_id", u.config.ClientID + "A"}, ""},
		"no redirect":          {[]string{"redirect_uri", ""}, ""},
		"another redirect":     {[]string{"redirect_uri", "https://evil.example/cb"}, ""},
		"another path":         {[]string{"redirect_uri", callback + "/x"}, ""},
		"another loopback":     {[]string{"redirect_uri", "http://localhost:3000/callback"}, ""},
		"a port of https":      {[]string{"redirect_uri", "https://app.example:444/cb?x=1"}, ""},
		"user in the redirect": {[]string{"redirect_uri", "http://127.0.0.1@evil.example/callback"}, ""},
		"a large parameter":    {[]string{"state", strings.Repeat("a", 9000)}, ""},
		"no response type":     {[]string{"response_type", ""}, "unsupported_response_type"},
		"implicit":             {[]string{"response_type", "token"}, "unsupported_response_type"},
		"no challenge":         {[]string{"code_challenge", ""}, "invalid_request"},
		"plain":                {[]string{"code_challenge_method", "plain"}, "invalid_request"},
		"no method":            {[]string{"code_challenge_method", ""}, "invalid_request"},
		"a short challenge":    {[]string{"code_challenge", "abc"}, "invalid_request"},
		"another resource":     {[]string{"resource", "https://other.example/mcp"}, "invalid_target"},
		"the whole server":     {[]string{"resource", w.strict}, "invalid_target"},
		"unknown scopes":       {[]string{"scope", "admin root"}, "invalid_scope"},
	} {
		resp, page, form := u.open(u.address(c.change...))
		if resp.StatusCode != 400 || len(form) > 0 || strings.Contains(page, `href="http`) != (c.back != "") ||
			!strings.Contains(page, c.back) {
			t.Errorf("%s: %s %s", name, resp.Status, page)
		}
		_, _, form = u.open(u.address())
		for i := 0; i < len(c.change); i += 2 {
			form.Set(c.change[i], c.change[i+1])
		}
		if resp, page := u.submit(form, "allow"); resp.StatusCode != 400 || resp.Header.Get("Location") != "" {
			t.Errorf("%s, submitted: %s %s", name, resp.Status, page)
		}
	}
	if resp, _, _ := u.open(u.address() + "&state=again"); resp.StatusCode != 400 {
		t.Errorf("a repeated parameter: %s", resp.Status)
	}
	for name, change := range map[string][]string{
		"another port": {"redirect_uri", "http://127.0.0.1:4999/callback"}, "no resource": {"resource", ""},
		"slash":       {"resource", w.strict + "/mcp/"},
		"some scopes": {"scope", "read offline_access"}, "https": {"redirect_uri", "https://app.example/cb?x=1"},
	} {
		if code := u.code(change...); code == "" {
			t.Error(name)
		}
	}
}

// TestOnlyTheUserAllows checks that neither another page nor a wrong key gives a client access, and that the user can
// refuse.
func TestOnlyTheUserAllows(t *testing.T) {
	t.Parallel()
	w := start(t)
	u := newOAuth(t, w)
	_, _, form := u.open(u.address())
	_, reader := oauthKey(w, account.Request{Name: "reader", Scopes: []account.Scope{account.Read}})
	for name, c := range map[string]struct {
		cookie, key string
		header      []string
		want        int
	}{
		"nobody":             {"", "", nil, 403},
		"a wrong key":        {"", "hv_" + strings.Repeat("a", 52), nil, 403},
		"a key that is none": {oauthSignIn(w), "hv_canary", nil, 403},
		"a wrong cookie":     {"harvest=hvs_" + strings.Repeat("a", 52), "", nil, 403},
		"another page":       {oauthSignIn(w), "", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		"another port":       {oauthSignIn(w), "", []string{"Sec-Fetch-Site", "same-site"}, 403},
		"another origin":     {oauthSignIn(w), "", []string{"Origin", "https://evil.example"}, 403},
		"a key, another page": {"", reader, []string{"Origin", "https://evil.example", "Sec-Fetch-Site",
			"cross-site"}, 403},
		"no origin": {oauthSignIn(w), "", []string{"Origin", "", "Sec-Fetch-Site", ""}, 403},
		"JSON":      {oauthSignIn(w), "", []string{"Content-Type", api.TypeJSON}, 400},
	} {
		u.cookie, u.key = c.cookie, c.key
		form.Del("key")
		if resp, body := u.submit(form, "allow", c.header...); resp.StatusCode != c.want ||
			resp.Header.Get("Location") != "" || c.key != "" && strings.Contains(body, c.key) {
			t.Errorf("%s: %s %s", name, resp.Status, body)
		}
	}
	form.Del("key")
	u.cookie, u.key = oauthSignIn(w), ""
	resp, _ := u.submit(form, "deny")
	if to, err := resp.Location(); err != nil || !strings.HasPrefix(to.String(), callback+"?") ||
		to.Query().Get("error") != "access_denied" || to.Query().Get("code") != "" ||
		to.Query().Get("state") != u.state {
		t.Errorf("denied: %s %v", resp.Status, to)
	}
	// A client gets no more than its user has.
	u.cookie, u.key = "", reader
	token := u.tokens()
	if token.Extra("scope") != "read" {
		t.Errorf("scope: %v", token.Extra("scope"))
	}
	_, body := u.with(token).tool("environment_create", `{"name":"x"}`)
	if !strings.Contains(body, `"isError":true`) {
		t.Errorf("a reader creates: %s", body)
	}
	if resp, _, _ := u.open(u.address("scope", "exec")); resp.StatusCode != 200 { // before the key is known
		t.Errorf("exec: %s", resp.Status)
	}
	_, _, form = u.open(u.address("scope", "exec"))
	if resp, _ := u.submit(form, "allow"); resp.StatusCode != 400 {
		t.Errorf("a reader gives exec: %s", resp.Status)
	}
}

// TestTokenEndpointRefuses checks bad requests for tokens.
func TestTokenEndpointRefuses(t *testing.T) {
	t.Parallel()
	w := start(t)
	u, other := newOAuth(t, w), newOAuth(t, w)
	u.cookie = oauthSignIn(w)
	good := func() url.Values {
		return url.Values{"grant_type": {"authorization_code"}, "code": {u.code()}, "redirect_uri": {callback},
			"client_id": {u.config.ClientID}, "code_verifier": {u.verifier}}
	}
	ask := func(form string) (int, string) {
		t.Helper()
		resp, body := u.do("POST", api.OAuthToken, form, "Content-Type", api.TypeURLForm)
		return resp.StatusCode, body
	}
	short := sha256.Sum256([]byte("short"))
	for name, c := range map[string]struct {
		change []string
		want   string
	}{
		"no grant type":     {[]string{"grant_type", ""}, "invalid_request"},
		"password":          {[]string{"grant_type", "password"}, "unsupported_grant_type"},
		"no client":         {[]string{"client_id", ""}, "invalid_client"},
		"another client":    {[]string{"client_id", other.config.ClientID}, "invalid_grant"},
		"no code":           {[]string{"code", ""}, "invalid_grant"},
		"a wrong code":      {[]string{"code", "x"}, "invalid_grant"},
		"no redirect":       {[]string{"redirect_uri", ""}, "invalid_grant"},
		"another redirect":  {[]string{"redirect_uri", callback + "x"}, "invalid_grant"},
		"no verifier":       {[]string{"code_verifier", ""}, "invalid_grant"},
		"a wrong verifier":  {[]string{"code_verifier", oauth2.GenerateVerifier()}, "invalid_grant"},
		"the challenge":     {[]string{"code_verifier", oauth2.S256ChallengeFromVerifier(u.verifier)}, "invalid_grant"},
		"another resource":  {[]string{"resource", "https://other.example/mcp"}, "invalid_target"},
		"no refresh token":  {[]string{"grant_type", "refresh_token"}, "invalid_grant"},
		"a large parameter": {[]string{"code", strings.Repeat("a", 9000)}, "invalid_request"},
	} {
		form := good()
		right := maps.Clone(form)
		for i := 0; i < len(c.change); i += 2 {
			form.Set(c.change[i], c.change[i+1])
		}
		status, body := ask(form.Encode())
		if got := parse[api.OAuthError](t, body); status != 400 || got.Code != c.want || got.Description == "" {
			t.Errorf("%s: %d %s", name, status, body)
		}
		// An attempt with the code and a known client uses the code up.
		used := c.want == "invalid_grant" && form.Get("code") == right.Get("code") &&
			form.Get("grant_type") == "authorization_code"
		status, body = ask(right.Encode())
		if used && (status != 400 || parse[api.OAuthError](t, body).Code != "invalid_grant") ||
			!used && status != 200 {
			t.Errorf("%s: the right parameters after that: %d %s", name, status, body)
		}
	}
	u.verifier = "short"
	code := u.code("code_challenge", base64.RawURLEncoding.EncodeToString(short[:]))
	if _, err := u.exchange(code); !isOAuth(err, "invalid_grant") {
		t.Errorf("a short verifier: %v", err)
	}
	for _, form := range []string{"", "%", "grant_type=authorization_code&grant_type=refresh_token",
		"a=" + strings.Repeat("a", 40<<10)} {
		if status, body := ask(form); status != 400 && status != 413 {
			t.Errorf("%.50q: %d %s", form, status, body)
		}
	}
	if resp, _ := u.do("POST", api.OAuthToken, "{}", "Content-Type", api.TypeJSON); resp.StatusCode != 400 {
		t.Errorf("JSON: %s", resp.Status)
	}
}

// TestCodesAreValidOnce checks that a code that is used twice ends the grant.
func TestCodesAreValidOnce(t *testing.T) {
	t.Parallel()
	w := start(t)
	u := newOAuth(t, w)
	u.cookie = oauthSignIn(w)
	code := u.code()
	token, err := u.exchange(code)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.exchange(code); !isOAuth(err, "invalid_grant") {
		t.Errorf("again: %v", err)
	}
	if resp, _ := u.with(token).tool("environment_list", "{}"); resp.StatusCode != 401 {
		t.Errorf("after that: %s", resp.Status)
	}
	// An attempt with a wrong verifier uses the code up.
	code, right := u.code(), u.verifier
	u.verifier = oauth2.GenerateVerifier()
	if _, err := u.exchange(code); !isOAuth(err, "invalid_grant") {
		t.Errorf("a wrong verifier: %v", err)
	}
	u.verifier = right
	if _, err := u.exchange(code); !isOAuth(err, "invalid_grant") {
		t.Errorf("then the right one: %v", err)
	}
}

func TestRevocationOfTokens(t *testing.T) {
	t.Parallel()
	w := start(t)
	u, other := newOAuth(t, w), newOAuth(t, w)
	u.cookie = oauthSignIn(w)
	token := u.tokens()
	revoke := func(form url.Values) int {
		t.Helper()
		resp, _ := u.do("POST", api.OAuthRevoke, form.Encode(), "Content-Type", api.TypeURLForm)
		return resp.StatusCode
	}
	for name, c := range map[string]struct {
		client, token string
		want          int
	}{
		"no client":      {"", token.RefreshToken, 400},
		"no token":       {u.config.ClientID, "", 400},
		"another client": {other.config.ClientID, token.RefreshToken, 200},
		"unknown":        {u.config.ClientID, "x", 200},
	} {
		if got := revoke(url.Values{"client_id": {c.client}, "token": {c.token}}); got != c.want {
			t.Errorf("%s: %d", name, got)
		}
	}
	if resp, _ := u.with(token).tool("environment_list", "{}"); resp.StatusCode != 200 {
		t.Fatalf("before: %s", resp.Status)
	}
	if got := revoke(url.Values{"client_id": {u.config.ClientID}, "token": {token.RefreshToken},
		"token_type_hint": {"refresh_token"}}); got != 200 {
		t.Errorf("revoke: %d", got)
	}
	if resp, _ := u.with(token).tool("environment_list", "{}"); resp.StatusCode != 401 {
		t.Errorf("after: %s", resp.Status)
	}
}

// TestOAuthIsAudited checks that the audit log names the grant, and that neither it nor the records have secrets.
func TestOAuthIsAudited(t *testing.T) {
	t.Parallel()
	w := start(t)
	_, key := oauthKey(w, account.Request{Name: "laptop"})
	u := newOAuth(t, w)
	u.key = key
	code := u.code()
	token, err := u.exchange(code)
	if err != nil {
		t.Fatal(err)
	}
	u.with(token).tool("environment_list", "{}")
	again, err := u.refresh(token.RefreshToken)
	if err != nil {
		t.Fatal(err)
	}
	u.do("POST", api.OAuthRevoke, url.Values{"client_id": {u.config.ClientID},
		"token": {again.RefreshToken}}.Encode(), "Content-Type", api.TypeURLForm)
	keys, err := w.ring.List(t.Context(), account.Local(), false)
	if err != nil || len(keys) != 1 {
		t.Fatalf("%+v, %v", keys, err)
	}
	log := w.audit.String()
	for _, text := range []string{`"path":"/oauth/register"`, `"account":"personal","key_id":"` + keys[0].ID +
		`","address":"127.0.0.1","method":"POST","path":"/oauth/authorize","status":303`, `"path":"/oauth/token"`,
		`"path":"/oauth/revoke"`, `"key_id":"oau_`} {
		if !strings.Contains(log, text) {
			t.Errorf("no %s in %s", text, log)
		}
	}
	for _, secret := range []string{key, code, token.AccessToken, token.RefreshToken, again.AccessToken,
		again.RefreshToken, u.verifier} {
		if strings.Contains(log, secret) {
			t.Error("a secret is in the audit log")
		}
	}
}

// TestTokensOfConcurrentRequests checks that processes of one client that refresh at the same time get the same refresh
// token, and that of many requests with one code none keeps its access.
func TestTokensOfConcurrentRequests(t *testing.T) {
	t.Parallel()
	w := start(t)
	u := newOAuth(t, w)
	u.cookie = oauthSignIn(w)
	token, code := u.tokens(), u.code()
	const many = 8
	refreshed, exchanged := make([]*oauth2.Token, many), make([]*oauth2.Token, many)
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			var err error
			if refreshed[i], err = u.refresh(token.RefreshToken); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			var err error
			if exchanged[i], err = u.exchange(code); err != nil && !isOAuth(err, "invalid_grant") {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for i := range many {
		if refreshed[i] == nil || refreshed[i].RefreshToken != refreshed[0].RefreshToken {
			t.Fatalf("%d has another refresh token", i)
		}
		if resp, _ := u.with(refreshed[i]).tool("environment_list", "{}"); resp.StatusCode != 200 {
			t.Errorf("%d: refreshed: %s", i, resp.Status)
		}
		if exchanged[i] == nil {
			continue
		}
		if resp, _ := u.with(exchanged[i]).tool("environment_list", "{}"); resp.StatusCode != 401 {
			t.Errorf("%d: a code that was used twice: %s", i, resp.Status)
		}
	}
}
