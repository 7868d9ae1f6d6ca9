package grant

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Provider is a service with subscriptions or accounts, and the public client of its own program there.
type Provider struct {
	Name  string
	Title string // for texts
	// Client is the ID of the client. Its secret, if it has one, is as public as the ID.
	Client, clientSecret string

	authorizeURL, redirectURL string // of the flow with a code that the user pastes
	deviceURL                 string // of the flow with a code that the user types there; "" for the other flow
	tokenURL                  string
	revokeURL                 string // "" for none
	scopes                    []string
	params                    map[string]string // further parameters of authorizeURL
	json                      encoding          // of requests for tokens
	revocation                func(p *Provider, g Grant) (*http.Request, error)
	access                    []string // beginnings of access tokens
	refresh                   []string // beginnings of refresh tokens; nil: any other token may be one
	imported                  func(text []byte) (credentials, error)

	// Key is the variable that carries the access token, and Plain are further ones, without secrets.
	Key   string
	Plain map[string]string
	// Preset is the binding of the secret.
	Preset string
	// File is the file of credentials, below the home directory, that the provider's program reads. "" for none.
	File string
	text func(placeholder string) (string, error) // of File
}

// encoding is the encoding of requests for tokens.
type encoding int

const (
	forms       encoding = iota // as RFC 6749 has it
	jsonRefresh                 // JSON for renewals only
	jsonAll                     // JSON
)

// builtIn are the providers, with the facts of their own programs.
func builtIn() []*Provider {
	return []*Provider{claude(), codex(), gemini(), gitHub()}
}

// claude has the facts of Claude Code (npm: @anthropic-ai/claude-code 2.1.332): the constants beside TOKEN_URL, the
// code "CODE#STATE" that the page of MANUAL_REDIRECT_URL shows, and bodies in JSON, with the state. Its program does
// not revoke tokens. It takes CLAUDE_CODE_OAUTH_TOKEN as a token that never expires.
func claude() *Provider {
	return &Provider{Name: "claude", Title: "Claude (a subscription, for Claude Code)",
		Client:       "9d1c250a-e61b-44d9-88ed-5944d1962f5e",
		authorizeURL: "https://claude.com/cai/oauth/authorize",
		redirectURL:  "https://platform.claude.com/oauth/code/callback",
		tokenURL:     "https://platform.claude.com/v1/oauth/token",
		scopes: []string{"user:profile", "user:inference", "user:sessions:claude_code", "user:mcp_servers",
			"user:file_upload"},
		params: map[string]string{"code": "true"}, json: jsonAll,
		access: []string{"sk-ant-oat"}, imported: claudeFile,
		Key: "CLAUDE_CODE_OAUTH_TOKEN", Preset: "claude"}
}

// codex has the facts of Codex (npm: @openai/codex 0.171.0; github.com/openai/codex, codex-rs/login/src: server.rs,
// auth/manager.rs, auth/revoke.rs, auth/storage.rs). Its redirect leads to a port of the user's machine. It renews a
// token only once the expiry in the token has passed.
func codex() *Provider {
	return &Provider{Name: "codex", Title: "ChatGPT (a subscription, for Codex)",
		Client:       "app_EMoamEEZ73f0CkXaXp7hrann",
		authorizeURL: "https://auth.openai.com/oauth/authorize",
		redirectURL:  "http://localhost:1455/auth/callback",
		tokenURL:     "https://auth.openai.com/oauth/token",
		revokeURL:    "https://auth.openai.com/oauth/revoke",
		scopes:       []string{"openid", "profile", "email", "offline_access"},
		params: map[string]string{"id_token_add_organizations": "true", "codex_cli_simplified_flow": "true",
			"originator": "codex_cli_rs"},
		json: jsonRefresh, revocation: revokeJSON, access: []string{"eyJ"}, imported: codexFile,
		Key: "CHATGPT_ACCESS_TOKEN", Preset: "codex", File: ".codex/auth.json", text: codexText}
}

// gemini has the facts of Gemini CLI (npm: @google/gemini-cli-core 0.61.0, code_assist/oauth2.js), whose source says
// that the secret of its client is public: https://developers.google.com/identity/protocols/oauth2#installed. The
// program uses GOOGLE_CLOUD_ACCESS_TOKEN as it is if GOOGLE_GENAI_USE_GCA is set.
func gemini() *Provider {
	return &Provider{Name: "gemini", Title: "Google (an account, for Gemini CLI)",
		Client: "681255809395-oo8ft2oprdrnp9e3aqf6av3hmdib135j.apps.googleusercontent.com",
		// In two parts: scanners of repositories report it otherwise.
		clientSecret: "GOCSPX-" + "4uHgMPm-1o7Sk-geV6Cu5clXFsxl",
		authorizeURL: "https://accounts.google.com/o/oauth2/v2/auth",
		redirectURL:  "https://codeassist.google.com/authcode",
		tokenURL:     "https://oauth2.googleapis.com/token",
		revokeURL:    "https://oauth2.googleapis.com/revoke",
		scopes: []string{"https://www.googleapis.com/auth/cloud-platform",
			"https://www.googleapis.com/auth/userinfo.email", "https://www.googleapis.com/auth/userinfo.profile"},
		params:     map[string]string{"access_type": "offline", "prompt": "consent"},
		revocation: revokeForm, access: []string{"ya29."}, imported: geminiFile,
		Key: "GOOGLE_CLOUD_ACCESS_TOKEN", Plain: map[string]string{"GOOGLE_GENAI_USE_GCA": "true"},
		Preset: "gemini-login"}
}

// gitHub has the client of GitHub's own command line (github.com/cli/cli, internal/authflow/flow.go), and its scopes.
// Revocation: https://docs.github.com/en/rest/credentials/revoke.
func gitHub() *Provider {
	return &Provider{Name: "github", Title: "GitHub (an account)",
		Client:     "178c6fc778ccc68e1d6a",
		deviceURL:  "https://github.com/login/device/code",
		tokenURL:   "https://github.com/login/oauth/access_token",
		revokeURL:  "https://api.github.com/credentials/revoke",
		scopes:     []string{"repo", "read:org", "gist", "workflow"},
		revocation: revokeGitHub, access: []string{"gho_", "ghu_", "ghp_", "github_pat_"}, refresh: []string{"ghr_"},
		Key: "GITHUB_TOKEN", Preset: "github"}
}

// Providers are the providers that a server knows. They never change.
type Providers struct {
	// Now returns the time at which tokens arrive.
	Now  func() time.Time
	all  []*Provider
	http *http.Client
}

// answerTime is how long a provider may take for an answer.
const answerTime = 20 * time.Second

// NewProviders returns the known providers with settings in place of their own, "PROVIDER.FIELD=VALUE". FIELD is
// client_id, authorize_url, redirect_url, device_url, token_url or revoke_url. transport reaches them.
func NewProviders(settings []string, transport http.RoundTripper) (*Providers, error) {
	p := &Providers{Now: time.Now, all: builtIn(), http: &http.Client{Transport: transport, Timeout: answerTime,
		// A redirect would send tokens on.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	for _, text := range settings {
		if err := p.set(text); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// set applies a setting.
func (p *Providers) set(text string) error {
	where, value, given := strings.Cut(text, "=")
	name, field, _ := strings.Cut(where, ".")
	one, err := p.Get(name)
	if err != nil {
		return err
	}
	places := map[string]*string{"client_id": &one.Client, "authorize_url": &one.authorizeURL,
		"redirect_url": &one.redirectURL, "device_url": &one.deviceURL, "token_url": &one.tokenURL,
		"revoke_url": &one.revokeURL}
	place := places[field]
	isURL := strings.HasSuffix(field, "_url")
	u, err := url.Parse(value)
	bad := isURL && value != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" ||
		u.User != nil)
	if place == nil || !given || bad {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid setting of a login: %.120q", text),
			"write PROVIDER.FIELD=VALUE with a FIELD of %s, such as github.client_id=Iv1.0123456789abcdef",
			strings.Join(slices.Sorted(maps.Keys(places)), ", "))
	}
	if field == "client_id" {
		one.clientSecret = "" // it belongs to the other client
	}
	*place = value
	return nil
}

// Names returns the names of all providers.
func (p *Providers) Names() []string {
	var all []string
	for _, one := range p.all {
		all = append(all, one.Name)
	}
	return all
}

// Get returns a provider. NotFound: it is not known.
func (p *Providers) Get(name string) (*Provider, error) {
	for _, one := range p.all {
		if one.Name == name {
			return one, nil
		}
	}
	return nil, errors.Remedy(errors.Newf(errors.NotFound, "there is no provider %.80q to log in to", name),
		"use one of %s", strings.Join(p.Names(), ", "))
}

// Text returns the content of the file of credentials, with a placeholder in place of the access token.
func (p *Provider) Text(placeholder string) (string, error) {
	if p.text == nil {
		return "", nil
	}
	return p.text(placeholder)
}

// config returns the client for package oauth2. client is another client's ID; "" is the provider's own.
func (p *Provider) config(client string) *oauth2.Config {
	c := &oauth2.Config{ClientID: p.Client, ClientSecret: p.clientSecret, RedirectURL: p.redirectURL, Scopes: p.scopes,
		Endpoint: oauth2.Endpoint{AuthURL: p.authorizeURL, DeviceAuthURL: p.deviceURL, TokenURL: p.tokenURL,
			AuthStyle: oauth2.AuthStyleInParams}}
	if client != "" && client != p.Client {
		c.ClientID, c.ClientSecret = client, ""
	}
	return c
}
