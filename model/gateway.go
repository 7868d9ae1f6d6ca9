// Package model is the way from sandboxes to the API of a model: the program in the sandbox shows a token that is good for its session
// only, and the real credential is added here, on the way out. So no credential of a model is in a sandbox.
//
// Gateway is the entry. Package tunnel carries the requests out of the sandbox, whatever its network policy.
package model

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/netguard"
	"github.com/RelevanceAI/harvest/internal/pattern"
	"github.com/RelevanceAI/harvest/logf"
)

// Anthropic is the address of the provider's own API.
const Anthropic = "https://api.anthropic.com"

// Options of a Gateway. Credential and Key are required.
type Options struct {
	// Upstream is the base URL of Anthropic's API or of what speaks like it; "" means Anthropic.
	Upstream string
	// BedrockUpstream is that of Amazon Bedrock; "" means the one of the credential's region.
	BedrockUpstream string
	// Credential returns what lets an account in, of its named secrets or, if there is none in them, of all it has; the zero Credential if
	// there is none. It is asked for each request, so that a credential can be replaced while agents work.
	Credential func(ctx context.Context, account string, secrets []string) (Credential, error)
	// Key makes the tokens; they stay good as long as it stays the same.
	Key []byte
	// Transport sends the requests that lead to one of the addresses above; nil means one of the gateway's own.
	Transport http.RoundTripper
	// Regional returns the transport for requests of an account whose address comes of the account's credential; nil means one that reaches
	// the internet only.
	Regional func(account string) http.RoundTripper
}

// Gateway forwards requests. All methods may be called concurrently.
type Gateway struct {
	opts Options
}

// New returns a Gateway. Invalid if an upstream is no URL.
func New(opts Options) (*Gateway, error) {
	if opts.Credential == nil || len(opts.Key) == 0 {
		return nil, errors.Errorf("a gateway to models needs credentials and a key")
	}
	if opts.Upstream == "" {
		opts.Upstream = Anthropic
	}
	for _, text := range []string{opts.Upstream, opts.BedrockUpstream} {
		if u, err := url.Parse(text); text != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil) {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "the address of the model's API cannot be used"), "write a URL such as %s, without a password", Anthropic)
		}
	}
	if opts.Transport == nil {
		opts.Transport = NewTransport(netguard.Rules{Any: true})
	}
	if opts.Regional == nil {
		t := NewTransport(netguard.Rules{})
		opts.Regional = func(string) http.RoundTripper { return t }
	}
	return &Gateway{opts}, nil
}

// NewTransport returns a transport for a Gateway under the rules.
func NewTransport(rules netguard.Rules) http.RoundTripper {
	return rules.NewTransport(&http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConns: 100, IdleConnTimeout: 90 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second, ExpectContinueTimeout: time.Second,
		DisableCompression: true, // answers are read on the way, and sent on as they come
	})
}

// Credential returns what lets an account in; see Options.
func (g *Gateway) Credential(ctx context.Context, account string, secrets []string) (Credential, error) {
	return g.opts.Credential(ctx, account, secrets)
}

// Token returns what the programs of a session, or whatever id names, show.
func (g *Gateway) Token(id string) string {
	mac := hmac.New(sha256.New, g.opts.Key)
	mac.Write([]byte("model\x00" + id))
	return "hvm_" + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Grant lets the programs of one session ask a model.
type Grant struct {
	ID      string // whose Token is good
	Account string
	Secrets []string // named ones that are looked at first
	// Spend, if set, is told what a request has used, when it has ended; Left, if set, returns how many USD may still be spent, and is asked
	// before each request. Both are called from several goroutines.
	Spend func(Usage)
	Left  func() float64
}

// Handler answers what comes out of the sandbox of a grant. It serves what asks models, and nothing else of their APIs.
func (g *Gateway) Handler(grant Grant) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.serve(w, r, grant) })
}

func (g *Gateway) serve(w http.ResponseWriter, r *http.Request, grant Grant) {
	begun := time.Now()
	ctx := r.Context()
	if !hmac.Equal([]byte(shown(r.Header)), []byte(g.Token(grant.ID))) {
		refuse(w, http.StatusForbidden, "permission_error", "Harvest: this token is not the session's")
		return
	}
	if !served(r) {
		refuse(w, http.StatusNotFound, "not_found_error", "Harvest: the gateway serves the messages of models only")
		return
	}
	if grant.Left != nil && grant.Left() <= 0 {
		refuse(w, http.StatusForbidden, "billing_error", "Harvest: the session's limit of cost is reached")
		return
	}
	c, err := g.opts.Credential(ctx, grant.Account, grant.Secrets)
	if err != nil {
		logf.Errorf(ctx, "find the credential of a model: %v", err)
		refuse(w, http.StatusBadGateway, "api_error", "Harvest: "+errors.Message(err))
		return
	}
	// 403 and not 401: agents try the latter again for minutes.
	bedrock := strings.HasPrefix(r.URL.Path, "/model/") || r.URL.Path == "/inference-profiles"
	if c.Value == "" || bedrock != (c.Kind == Bedrock) {
		refuse(w, http.StatusForbidden, "permission_error", NoCredential)
		return
	}
	upstream, err := g.Upstream(c)
	if err != nil {
		refuse(w, http.StatusForbidden, "permission_error", "Harvest: "+errors.Message(err)+"; "+errors.RemedyOf(err))
		return
	}
	base, err := url.Parse(upstream)
	if err != nil {
		refuse(w, http.StatusBadGateway, "api_error", "Harvest: the address of the model's API cannot be used")
		return
	}
	transport := g.opts.Transport
	if c.Kind == Bedrock && g.opts.BedrockUpstream == "" {
		transport = g.opts.Regional(grant.Account)
	}
	status := 0
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(p *httputil.ProxyRequest) { rewrite(p, base, c) },
		Transport:     transport,
		FlushInterval: -1,
		ModifyResponse: func(resp *http.Response) error {
			status = resp.StatusCode
			if status == http.StatusUnauthorized {
				resp.StatusCode, resp.Status = http.StatusForbidden, ""
			}
			if m := newMeter(resp, grant.Spend); m != nil {
				resp.Body = m
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if ctx.Err() == nil {
				logf.Warnf(ctx, "the model's API cannot be reached: %v", err)
			}
			refuse(w, http.StatusBadGateway, "api_error", "Harvest: the model's API cannot be reached")
		},
		ErrorLog: nil,
	}
	defer func() {
		logf.Infof(ctx, "model request of %s: %s %s, status %d, %s", grant.ID, r.Method, r.URL.Path, status, time.Since(begun).Round(time.Millisecond))
	}()
	proxy.ServeHTTP(w, r) // which panics with http.ErrAbortHandler where the upstream breaks off: so the sandbox sees it break off, too
}

// NoCredential is what agents are told, and tell, where there is none.
const NoCredential = `Harvest: there is no credential for the model. Store one with "harvest secret set anthropic ANTHROPIC_API_KEY=…" (or CLAUDE_CODE_OAUTH_TOKEN, or AWS_BEARER_TOKEN_BEDROCK), or start the server with it in its environment`

// region is a part of a host name, so that a secret cannot name another host.
var region = pattern.New(`^[a-z0-9][a-z0-9-]{0,61}[a-z0-9]$`)

// Upstream returns the base URL of the API that a credential is for. Invalid if the credential's region is not one.
func (g *Gateway) Upstream(c Credential) (string, error) {
	switch {
	case c.Kind != Bedrock:
		return g.opts.Upstream, nil
	case g.opts.BedrockUpstream != "":
		return g.opts.BedrockUpstream, nil
	case !region().MatchString(c.Region):
		return "", errors.Remedy(errors.Newf(errors.Invalid, "%.80q is not a region of Amazon Bedrock", c.Region), "set AWS_REGION to one such as eu-central-1")
	}
	return fmt.Sprintf("https://bedrock-runtime.%s.amazonaws.com", c.Region), nil
}

// served reports whether a request asks a model, or about models. Everything else that the credential might be good for is not the
// sandbox's business.
func served(r *http.Request) bool {
	if r.URL.Path != path.Clean(r.URL.Path) {
		return false
	}
	switch r.Method {
	case http.MethodPost:
		switch r.URL.Path {
		case "/v1/messages", "/v1/messages/count_tokens":
			return true
		}
		model, ok := strings.CutPrefix(r.URL.Path, "/model/")
		_, action, _ := strings.Cut(model, "/")
		return ok && (action == "invoke" || action == "invoke-with-response-stream" || action == "converse" || action == "converse-stream")
	case http.MethodGet:
		return r.URL.Path == "/v1/models" || strings.HasPrefix(r.URL.Path, "/v1/models/") || r.URL.Path == "/inference-profiles"
	}
	return false
}

// shown returns the token of a request.
func shown(h http.Header) string {
	if token := h.Get("X-Api-Key"); token != "" {
		return token
	}
	token, _ := strings.CutPrefix(h.Get("Authorization"), "Bearer ")
	return token
}

// rewrite makes a request one of ours.
func rewrite(p *httputil.ProxyRequest, base *url.URL, c Credential) {
	p.SetURL(base)
	for _, name := range []string{"X-Api-Key", "Authorization", "Cookie", "Accept-Encoding", "Proxy-Authorization", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		p.Out.Header.Del(name)
	}
	if c.Kind == APIKey {
		p.Out.Header.Set("X-Api-Key", c.Value.Reveal())
	} else {
		p.Out.Header.Set("Authorization", "Bearer "+c.Value.Reveal())
	}
}

// refuse answers with an error as Anthropic's API words it: https://docs.claude.com/en/api/errors.
func refuse(w http.ResponseWriter, status int, kind, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	body := map[string]any{"type": "error", "error": map[string]string{"type": kind, "message": message}}
	_ = json.NewEncoder(w).Encode(body) // who asked is gone
}
