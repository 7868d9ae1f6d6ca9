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
	"fmt"
	"math"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/session/cause"
)

// Options configures a Gateway. Credential and Key are required.
type Options struct {
	// Upstreams are base URLs of APIs that replace those of the providers; "" has no effect.
	Upstreams map[Provider]string
	// Credential returns the credential of an account for one of the providers, from the named
	// secrets or else from all secrets of the account. It returns the zero Credential if neither has
	// one. It is called for each request, so that a credential can be replaced while agents work.
	Credential func(ctx context.Context, account string, secrets []string, providers []Provider) (Credential, error)
	// Prices are prices of models that precede the list prices, as MODEL=INPUT/OUTPUT or
	// MODEL=INPUT/OUTPUT/CACHED, in USD per million tokens. A MODEL that ends in "*" is a prefix.
	Prices []string
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
	opts   Options
	prices []price // of the operator
}

// New returns a Gateway. It returns Invalid if an upstream is not a URL.
func New(opts Options) (*Gateway, error) {
	if opts.Credential == nil || len(opts.Key) == 0 {
		return nil, errors.Errorf("a gateway to models needs credentials and a key")
	}
	for _, text := range opts.Upstreams {
		if err := checkURL(text); text != "" && err != nil {
			return nil, err
		}
	}
	prices, err := parsePrices(opts.Prices)
	if err != nil {
		return nil, err
	}
	if opts.Transport == nil {
		opts.Transport = NewTransport(netguard.Rules{Any: true})
	}
	if opts.Regional == nil {
		t := NewTransport(netguard.Rules{})
		opts.Regional = func(string) http.RoundTripper { return t }
	}
	return &Gateway{opts, prices}, nil
}

// checkURL returns Invalid if text is not the URL of an API.
func checkURL(text string) error {
	u, err := url.Parse(text)
	if err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Invalid, "the address of the model's API cannot be used"),
		"write a URL such as %s, without a password", apis[0].url)
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
func (g *Gateway) Credential(ctx context.Context, account string, secrets []string,
	providers ...Provider) (Credential, error) {
	return g.opts.Credential(ctx, account, secrets, providers)
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
	// remaining budget in USD before each request; +Inf means no limit. Both must be safe for
	// concurrent use.
	Spend func(Usage)
	Left  func() float64
	// Answers, if set, keeps the result of the last request to a model.
	Answers *Answers
}

// Handler serves the requests from the sandbox of a grant: only those to models, and no other part
// of their APIs.
func (g *Gateway) Handler(grant Grant) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.serve(w, r, grant) })
}

func (g *Gateway) serve(w http.ResponseWriter, r *http.Request, grant Grant) {
	api, to, ok := routed(r)
	switch {
	case r.Header.Get("Upgrade") != "": // with this status, Codex continues without a WebSocket at once
		api.refuse(w, http.StatusUpgradeRequired, "invalid_request_error", "Harvest: WebSockets are not supported")
		return
	case !hmac.Equal([]byte(shown(r)), []byte(g.Token(grant.ID))):
		api.reject(w, http.StatusForbidden, "permission_error", "Harvest: this token is not the session's")
		return
	case !ok:
		api.reject(w, http.StatusNotFound, "not_found_error", "Harvest: the gateway serves the messages of models only")
		return
	}
	x := &exchange{g: g, grant: grant, api: api, to: to, w: w, r: r, model: to.model}
	if f := x.prepare(); f != nil {
		x.fail(*f)
		return
	}
	x.forward()
}

// exchange is a request to a model, and its answer.
type exchange struct {
	g     *Gateway
	grant Grant
	api   api
	to    route
	w     http.ResponseWriter
	r     *http.Request

	model      string // that the request names; "" if it is not known
	drop       bool   // the usage in the stream is not for the program
	sent       *counter
	credential Credential
	base       *url.URL
	status     int // of the API; 0: it has not answered
}

// note records the result of the request. Requests that ask no model say nothing about the turn.
func (x *exchange) note(f *Failure) {
	if x.grant.Answers != nil && x.to.asks {
		x.grant.Answers.Note(f)
	}
}

// fail refuses the request.
func (x *exchange) fail(f Failure) {
	x.note(&f)
	x.api.reject(x.w, cmp.Or(f.Status, http.StatusBadGateway), cmp.Or(f.Type, "api_error"), "Harvest: "+f.Message)
}

// prepare finds the credential and the address for the request. It returns the reason to refuse it,
// or nil.
func (x *exchange) prepare() *Failure {
	left := math.Inf(1)
	if x.grant.Left != nil {
		left = x.grant.Left()
	}
	if left <= 0 {
		return &Failure{Status: http.StatusForbidden, Type: "billing_error", Own: cause.Cost,
			Message: "the session's limit of cost is reached"}
	}
	ctx := x.r.Context()
	c, err := x.g.Credential(ctx, x.grant.Account, x.grant.Secrets, x.api.provider.With()...)
	if err != nil {
		logf.Errorf(ctx, "find the credential of a model: %v", err)
		return notFound(err)
	}
	// Use 403 instead of 401, which agents retry for minutes.
	if c.Value == "" || !slices.Contains(x.api.provider.With(), c.Provider()) {
		return refusedKey(noCredential + x.api.missing + ", or start the server with it in its environment")
	}
	x.credential, x.api = c, apiOf(c.Provider())
	if x.api.provider == ChatGPT && x.to.chat {
		return refusedKey("the login to codex serves the Responses API only. " +
			`Store a key with "harvest secret set openai OPENAI_API_KEY=…"`)
	}
	upstream, err := x.g.Upstream(c)
	if err != nil {
		return refusedKey(errors.Message(err) + "; " + errors.RemedyOf(err))
	}
	if x.base, err = url.Parse(upstream); err != nil {
		return &Failure{Message: "the address of the model's API cannot be used"}
	}
	if x.to.named {
		if f := x.read(); f != nil {
			return f
		}
	}
	if x.to.asks && !math.IsInf(left, 1) && !x.g.priced(x.api.provider, x.model) {
		return &Failure{Status: http.StatusForbidden, Type: "billing_error", Own: cause.Price,
			Message: fmt.Sprintf("the price of the model %.80q is not known, so that the session's limit of cost "+
				"cannot be kept. Add it to model.prices in the server's configuration, or remove the limit", x.model)}
	}
	return nil
}

// forward sends the request to the API, and the answer back.
func (x *exchange) forward() {
	begun, ctx := time.Now(), x.r.Context()
	transport := x.g.opts.Transport
	if x.g.foreign(x.credential) {
		transport = x.g.opts.Regional(x.grant.Account)
	}
	x.sent = &counter{ReadCloser: x.r.Body}
	x.r.Body = x.sent
	proxy := &httputil.ReverseProxy{
		Rewrite:        x.rewrite,
		Transport:      transport,
		FlushInterval:  -1,
		ModifyResponse: x.answered,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if ctx.Err() != nil { // the program has disconnected
				x.api.refuse(w, http.StatusBadGateway, "api_error", "Harvest: the request was canceled")
				return
			}
			logf.Warnf(ctx, "the model's API cannot be reached: %v", err)
			x.fail(Failure{Message: "the model's API cannot be reached"})
		},
	}
	defer func() {
		logf.Infof(ctx, "model request of %s: %s %s, status %d, %s", x.grant.ID, x.r.Method, x.r.URL.Path, x.status,
			time.Since(begun).Round(time.Millisecond))
	}()
	// Otherwise, net/http closes the body of an HTTP/1 request once the answer begins, and an early answer is cut.
	_ = http.NewResponseController(x.w).EnableFullDuplex()
	// If the upstream aborts, ServeHTTP panics with http.ErrAbortHandler, which aborts this answer too.
	proxy.ServeHTTP(x.w, x.r)
}

// answered reads the usage and the result of the answer in transit.
func (x *exchange) answered(resp *http.Response) error {
	x.status = resp.StatusCode
	failure := failureOf(resp)
	if failure != nil || !x.to.told {
		x.note(failure)
	}
	if x.status == http.StatusUnauthorized {
		resp.StatusCode, resp.Status = cmp.Or(x.api.final, http.StatusForbidden), ""
	}
	if m := newMeter(resp, x); m != nil {
		resp.Body = m
	} else if failure == nil && x.to.told {
		x.note(&Failure{Message: "the address of the model's API answers, but not as such an API"})
	}
	return nil
}

// noCredential is the message for agents, and in turn for users, if there is no credential.
const noCredential = "there is no credential for the model. "

// region restricts a region to part of a host name, so that a secret cannot name another host.
var region = pattern.New(`^[a-z0-9][a-z0-9-]{0,61}[a-z0-9]$`)

// Upstream returns the base URL of the API of a credential. It returns Invalid if the credential's
// region is invalid.
func (g *Gateway) Upstream(c Credential) (string, error) {
	p := c.Provider()
	if c.Base != "" {
		return c.Base, checkURL(c.Base)
	}
	if upstream := cmp.Or(g.opts.Upstreams[p], apiOf(p).url); upstream != "" {
		return upstream, nil
	}
	if !region().MatchString(c.Region) {
		return "", errors.Remedy(errors.Newf(errors.Invalid, "%.80q is not a region of Amazon Bedrock", c.Region),
			"set AWS_REGION to one such as eu-central-1")
	}
	return fmt.Sprintf("https://bedrock-runtime.%s.amazonaws.com", c.Region), nil
}

// Custom returns Upstream, or "" if it is the provider's own address, which programs know.
func (g *Gateway) Custom(c Credential) (string, error) {
	upstream, err := g.Upstream(c)
	if p := c.Provider(); p == Bedrock || upstream == apiOf(p).url {
		return "", err
	}
	return upstream, err
}

// foreign reports whether the credential determines the address of its API.
func (g *Gateway) foreign(c Credential) bool {
	p := c.Provider()
	return c.Base != "" || g.opts.Upstreams[p] == "" && apiOf(p).url == ""
}

// shown returns the token of a request.
func shown(r *http.Request) string {
	for _, name := range []string{"X-Api-Key", "X-Goog-Api-Key"} {
		if token := r.Header.Get(name); token != "" {
			return token
		}
	}
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return token
	}
	return r.URL.Query().Get("key")
}

// removed are the headers that the gateway keeps from the API: credentials of the sandbox, and the choice of an
// organization or project, which belongs to the account.
var removed = []string{"X-Api-Key", "Api-Key", "Authorization", "Cookie", "Accept-Encoding", "Proxy-Authorization",
	"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Openai-Organization", "Openai-Project",
	"Chatgpt-Account-Id",
	"X-Goog-Api-Key", "X-Goog-User-Project", "X-Http-Method-Override"}

// rewrite replaces the credential and target of the request.
func (x *exchange) rewrite(p *httputil.ProxyRequest) {
	u := p.Out.URL
	u.Path, u.RawPath = strings.TrimPrefix(u.Path, x.api.prefix), strings.TrimPrefix(u.RawPath, x.api.prefix)
	p.SetURL(x.base)
	for _, name := range removed {
		p.Out.Header.Del(name)
	}
	x.api.authorize(p.Out, x.credential)
}

// notFound is the failure to find a credential: a refusal for a login that its provider no longer accepts.
func notFound(err error) *Failure {
	if errors.Is(err, errors.Denied) {
		return refusedKey(errors.Message(err) + "; " + errors.RemedyOf(err))
	}
	return &Failure{Message: errors.Message(err)}
}

// refusedKey is a refusal for the lack of a usable credential.
func refusedKey(message string) *Failure {
	return &Failure{Status: http.StatusForbidden, Type: "permission_error", Message: message, Own: cause.Key}
}
