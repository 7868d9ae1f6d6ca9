// Package model forwards requests from sandboxes to the API of a model. The program in the sandbox
// sends a token that is valid only for its session. The gateway replaces it with the real
// credential. Thus no model credential is ever in a sandbox.
//
// Gateway handles the requests. Package tunnel carries them out of the sandbox, independently of
// its network policy.
package model

import (
	"cmp"
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

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/session/cause"
)

// Anthropic is the URL of the provider's own API.
const Anthropic = "https://api.anthropic.com"

// Options configures a Gateway. Credential and Key are required.
type Options struct {
	// Upstream is the base URL of Anthropic's API or a compatible one; "" means Anthropic.
	Upstream string
	// BedrockUpstream is the base URL of Amazon Bedrock; "" selects that of the credential's
	// region.
	BedrockUpstream string
	// Credential returns the credential of an account, from the named secrets or else from all
	// secrets of the account. It returns the zero Credential if neither has one. It is called for
	// each request, so that a credential can be replaced while agents work.
	Credential func(ctx context.Context, account string, secrets []string) (Credential, error)
	// Key signs the tokens, which are valid while it stays the same.
	Key []byte
	// Transport sends the requests to the addresses above; nil selects a transport of the gateway.
	Transport http.RoundTripper
	// Regional returns the transport for requests of an account to an address that depends on its
	// credential; nil selects one that reaches only the internet.
	Regional func(account string) http.RoundTripper
}

// Gateway forwards requests. It is safe for concurrent use.
type Gateway struct {
	opts Options
}

// New returns a Gateway. It returns Invalid if an upstream is not a URL.
func New(opts Options) (*Gateway, error) {
	if opts.Credential == nil || len(opts.Key) == 0 {
		return nil, errors.Errorf("a gateway to models needs credentials and a key")
	}
	if opts.Upstream == "" {
		opts.Upstream = Anthropic
	}
	for _, text := range []string{opts.Upstream, opts.BedrockUpstream} {
		if u, err := url.Parse(text); text != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" ||
			u.Host == "" || u.User != nil) {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "the address of the model's API cannot be used"),
				"write a URL such as %s, without a password", Anthropic)
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
		DisableCompression: true, // answers are parsed in transit and passed on unbuffered
	})
}

// Credential returns the credential of an account; see Options.
func (g *Gateway) Credential(ctx context.Context, account string, secrets []string) (Credential, error) {
	return g.opts.Credential(ctx, account, secrets)
}

// Token returns the token of a session or another id.
func (g *Gateway) Token(id string) string {
	mac := hmac.New(sha256.New, g.opts.Key)
	mac.Write([]byte("model\x00" + id))
	return "hvm_" + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Grant allows the programs of one session to use a model.
type Grant struct {
	ID      string // whose Token is valid
	Account string
	Secrets []string // named secrets to try first
	// Spend, if set, receives the usage of each request at its end. Left, if set, returns the
	// remaining budget in USD before each request. Both must be safe for concurrent use.
	Spend func(Usage)
	Left  func() float64
	// Answers, if set, keeps the result of the last request to a model.
	Answers *Answers
}

// note records the result of a request.
func (g Grant) note(r *http.Request, f *Failure) {
	if g.Answers != nil && asksModel(r) {
		g.Answers.Note(f)
	}
}

// Handler serves the requests from the sandbox of a grant: only those to models, and no other part
// of their APIs.
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
	fail := func(f Failure) {
		grant.note(r, &f)
		refuse(w, cmp.Or(f.Status, http.StatusBadGateway), cmp.Or(f.Type, "api_error"), "Harvest: "+f.Message)
	}
	if grant.Left != nil && grant.Left() <= 0 {
		fail(Failure{Status: http.StatusForbidden, Type: "billing_error", Own: cause.Cost,
			Message: "the session's limit of cost is reached"})
		return
	}
	c, err := g.opts.Credential(ctx, grant.Account, grant.Secrets)
	if err != nil {
		logf.Errorf(ctx, "find the credential of a model: %v", err)
		fail(notFound(err))
		return
	}
	// Use 403 instead of 401, which agents retry for minutes.
	bedrock := strings.HasPrefix(r.URL.Path, "/model/") || r.URL.Path == "/inference-profiles"
	if c.Value == "" || bedrock != (c.Kind == Bedrock) {
		fail(refusedKey(NoCredential))
		return
	}
	upstream, err := g.Upstream(c)
	if err != nil {
		fail(refusedKey(errors.Message(err) + "; " + errors.RemedyOf(err)))
		return
	}
	base, err := url.Parse(upstream)
	if err != nil {
		fail(Failure{Message: "the address of the model's API cannot be used"})
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
			grant.note(r, failureOf(resp))
			if status == http.StatusUnauthorized {
				resp.StatusCode, resp.Status = http.StatusForbidden, ""
			}
			if m := newMeter(resp, grant.Spend); m != nil {
				resp.Body = m
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if ctx.Err() != nil { // the program has disconnected
				refuse(w, http.StatusBadGateway, "api_error", "Harvest: the request was canceled")
				return
			}
			logf.Warnf(ctx, "the model's API cannot be reached: %v", err)
			fail(Failure{Message: "the model's API cannot be reached"})
		},
	}
	defer func() {
		logf.Infof(ctx, "model request of %s: %s %s, status %d, %s", grant.ID, r.Method, r.URL.Path, status,
			time.Since(begun).Round(time.Millisecond))
	}()
	// Otherwise, net/http closes the body of an HTTP/1 request once the answer begins, and an early answer is cut.
	_ = http.NewResponseController(w).EnableFullDuplex()
	// If the upstream aborts, ServeHTTP panics with http.ErrAbortHandler, which aborts this answer too.
	proxy.ServeHTTP(w, r)
}

// NoCredential is the message for agents, and in turn for users, if there is no credential.
const NoCredential = `there is no credential for the model. Log in with "harvest login claude", store one with ` +
	`"harvest secret set anthropic ANTHROPIC_API_KEY=…" (or CLAUDE_CODE_OAUTH_TOKEN, or AWS_BEARER_TOKEN_BEDROCK), ` +
	`or start the server with it in its environment`

// region restricts a region to part of a host name, so that a secret cannot name another host.
var region = pattern.New(`^[a-z0-9][a-z0-9-]{0,61}[a-z0-9]$`)

// Upstream returns the base URL of the API of a credential. It returns Invalid if the credential's
// region is invalid.
func (g *Gateway) Upstream(c Credential) (string, error) {
	switch {
	case c.Kind != Bedrock:
		return g.opts.Upstream, nil
	case g.opts.BedrockUpstream != "":
		return g.opts.BedrockUpstream, nil
	case !region().MatchString(c.Region):
		return "", errors.Remedy(errors.Newf(errors.Invalid, "%.80q is not a region of Amazon Bedrock", c.Region),
			"set AWS_REGION to one such as eu-central-1")
	}
	return fmt.Sprintf("https://bedrock-runtime.%s.amazonaws.com", c.Region), nil
}

// served reports whether a request is to a model or about models. The sandbox gets no access to
// other uses of the credential.
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
		return ok && (action == "invoke" || action == "invoke-with-response-stream" || action == "converse" ||
			action == "converse-stream")
	case http.MethodGet:
		return r.URL.Path == "/v1/models" || strings.HasPrefix(r.URL.Path, "/v1/models/") ||
			r.URL.Path == "/inference-profiles"
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

// rewrite replaces the credential and target of a request.
func rewrite(p *httputil.ProxyRequest, base *url.URL, c Credential) {
	p.SetURL(base)
	for _, name := range []string{"X-Api-Key", "Authorization", "Cookie", "Accept-Encoding", "Proxy-Authorization",
		"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		p.Out.Header.Del(name)
	}
	if c.Kind == APIKey {
		p.Out.Header.Set("X-Api-Key", c.Value.Reveal())
	} else {
		p.Out.Header.Set("Authorization", "Bearer "+c.Value.Reveal())
	}
}

// notFound is the failure to find a credential: a refusal for a login that its provider no longer accepts.
func notFound(err error) Failure {
	if errors.Is(err, errors.Denied) {
		return refusedKey(errors.Message(err) + "; " + errors.RemedyOf(err))
	}
	return Failure{Message: errors.Message(err)}
}

// refusedKey is a refusal for the lack of a usable credential.
func refusedKey(message string) Failure {
	return Failure{Status: http.StatusForbidden, Type: "permission_error", Message: message, Own: cause.Key}
}

// refuse responds with an error in the format of Anthropic's API:
// https://docs.claude.com/en/api/errors.
func refuse(w http.ResponseWriter, status int, kind, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	body := map[string]any{"type": "error", "error": map[string]string{"type": kind, "message": message}}
	_ = json.NewEncoder(w).Encode(body) // the client has disconnected
}
