package authorize

import (
	"bytes"
	"html/template"
	"net/http"
	"net/url"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// authorizeQuery describes the parameters of the page.
const authorizeQuery = "response_type: code; client_id: id of the client; redirect_uri: one of the client's; " +
	"code_challenge: challenge of PKCE; code_challenge_method: S256; scope: some of read, write and exec (default: " +
	"all of the user's); resource: address of /mcp; state: returned to the client"

// parameters are those that the page passes on to its form.
var parameters = []string{"response_type", "client_id", "redirect_uri", "code_challenge", "code_challenge_method",
	"scope", "resource", "state"}

// signInField is the field of the form with the id of the sign-in whose account the page shows.
const signInField = "sign_in"

// question is a valid request of a client for an answer of the user.
type question struct {
	in       values
	client   client
	redirect *url.URL
}

// challengePattern matches challenges of PKCE with the method S256.
var challengePattern = pattern.New(`^[A-Za-z0-9_-]{43}$`)

// read checks the parameters of a request. If the client and its redirect URI are valid, it returns a question even
// with an error, so that the page can link to the client.
func (s *Service) read(r *http.Request, in values) (*question, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	c, err := s.open(in.get("client_id"))
	if err != nil {
		return nil, err
	}
	to := in.get("redirect_uri")
	redirect, err := url.Parse(to)
	if err != nil || !c.mayRedirect(to) {
		return nil, errorf("invalid_request", "the client has not registered this redirect_uri")
	}
	q := &question{in, c, redirect}
	switch {
	case in.get("response_type") != "code":
		return q, errorf("unsupported_response_type", "response_type is not code")
	case in.get("code_challenge_method") != "S256" || !challengePattern().MatchString(in.get("code_challenge")):
		return q, errorf("invalid_request", "a code_challenge with the method S256 is required")
	}
	if _, err := narrowed(in.get("scope"), account.Local()); err != nil {
		return q, err
	}
	return q, s.checkResource(r, in.get("resource"))
}

// back returns the address at which the client gets an answer.
func (q *question) back(issuer string, answer url.Values) string {
	to := *q.redirect
	query := to.Query()
	for name, all := range answer {
		query[name] = all
	}
	query.Set("iss", issuer) // RFC 9207
	if state := q.in.get("state"); state != "" {
		query.Set("state", state)
	}
	to.RawQuery = query.Encode()
	return to.String()
}

// target is the source of Content-Security-Policy to which the form redirects.
func (q *question) target() string {
	if q.redirect.Scheme == "https" || q.redirect.Scheme == "http" && !strings.HasPrefix(q.redirect.Host, "[") {
		return q.redirect.Scheme + "://" + q.redirect.Host
	}
	return q.redirect.Scheme + ":" // a policy cannot name addresses of IPv6
}

// host names the receiver of the answer.
func (q *question) host() string {
	if isLoopback(q.redirect) {
		return "a program on this computer (" + q.redirect.Host + ")"
	}
	if q.redirect.Scheme == "https" {
		return q.redirect.Host
	}
	return "the program for " + q.redirect.Scheme + ": addresses"
}

// page is the data of the template.
type page struct {
	Client, Host, Account, Error, OIDC, Here string

	Back   template.URL // a checked redirect URI, whose scheme the template may not know
	Scopes []string
	Hidden []pair
}

type pair struct{ Name, Value string }

var pageTemplate = template.Must(template.New("").Parse(`<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>Sign in · Harvest</title>
<style>input{font:inherit;min-height:2.4rem;width:100%;box-sizing:border-box;margin:.3rem 0 1rem}
button.other{background:none;color:var(--accent)}.error{font-weight:600}</style>
` + edge.Look + `<main>{{if not .Hidden}}<h1>The client cannot sign in</h1>
<p>{{.Error}}</p>{{if .Back}}<p><a href="{{.Back}}">Return to {{.Client}}</a></p>{{end}}
{{else}}<h1>Let “{{.Client}}” use Harvest for you?</h1>
<p>It may use the tools of this server{{if .Account}} in the account <b>{{.Account}}</b>{{end}}, with the scopes:
{{range $i, $s := .Scopes}}{{if $i}}, {{end}}{{$s}}{{end}}. The answer goes to <b>{{.Host}}</b>.</p>
<p class="soft">The client has chosen this name itself, and it is not verified. Allow it only if you have just asked a
program to sign in.</p>
{{if .Error}}<p class="error" role="alert">{{.Error}}</p>{{end}}
<form method="post" action="?">{{range .Hidden}}<input type="hidden" name="{{.Name}}" value="{{.Value}}">{{end}}
{{if not .Account}}<label for="key">Your API key</label>
<input id="key" name="key" type="password" autocomplete="off" spellcheck="false" placeholder="hv_…">
<p class="soft">If this browser is signed in to Harvest, <a id="again" href="{{.Here}}">use that</a> instead.
{{if .OIDC}}To sign in with your provider, <a href="{{.OIDC}}" target="_blank" rel="noopener">open this page</a>
first.{{end}}</p>{{end}}
<button id="allow" name="decision" value="allow">Allow</button>
<button class="other" name="decision" value="deny" formnovalidate>Deny</button></form>{{end}}</main></body></html>`))

// show sends the page. Without a question, it shows why the client cannot sign in.
func (s *Service) show(w http.ResponseWriter, status int, q *question, p page) error {
	action := "'none'"
	if q != nil {
		p.Client, p.Host = q.client.shown(), q.host()
		if p.Back == "" {
			action = "'self' " + q.target()
			for _, name := range parameters {
				if value := q.in.get(name); value != "" {
					p.Hidden = append(p.Hidden, pair{name, value})
				}
			}
		}
	}
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, p); err != nil {
		return errors.Wrapf(err, "make a page")
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	return edge.SendForm(statusWriter{w, status}, b.Bytes(), action, "same-origin")
}

// statusWriter sends a status with the first byte.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w statusWriter) Write(data []byte) (int, error) {
	w.WriteHeader(w.status)
	return w.ResponseWriter.Write(data)
}

// refuse shows why a client cannot sign in. It does not redirect by itself: anybody may register a client, and its
// address must not be reached by a link to this server (RFC 9700, section 4.11.2).
func (s *Service) refuse(w http.ResponseWriter, r *http.Request, q *question, err error) error {
	var f *failure
	if !errors.As(err, &f) {
		return err
	}
	p := page{Error: f.Description}
	if q != nil {
		base, err := s.Base(r)
		if err != nil {
			return err
		}
		p.Back = template.URL(q.back(base, url.Values{"error": {f.Code}, "error_description": {f.Description}}))
	}
	return s.show(w, http.StatusBadRequest, q, p)
}

// ask shows the page on which the user decides.
func (s *Service) ask(w http.ResponseWriter, r *http.Request) error {
	q, err := s.read(r, values(r.URL.Query()))
	if err != nil {
		return s.refuse(w, r, q, err)
	}
	return s.offer(w, r, q, http.StatusOK, "")
}

// offer shows the page with the form.
func (s *Service) offer(w http.ResponseWriter, r *http.Request, q *question, status int, problem string) error {
	p := page{Error: problem, OIDC: s.OIDC}
	who, err := s.Caller(r)
	if err == nil {
		p.Account = who.Account
		p.Hidden = append(p.Hidden, pair{signInField, who.KeyID})
	} else {
		who = account.Principal{Scopes: account.Scopes}
	}
	allowed, err := narrowed(q.in.get("scope"), who)
	if err != nil {
		return s.refuse(w, r, q, err)
	}
	p.Scopes = edge.Each(allowed, func(s account.Scope) string { return string(s) })
	here := url.Values{}
	for _, name := range parameters {
		if value := q.in.get(name); value != "" {
			here.Set(name, value)
		}
	}
	p.Here = api.OAuthAuthorize + "?" + here.Encode()
	return s.show(w, status, q, p)
}

// decide handles the user's answer.
func (s *Service) decide(w http.ResponseWriter, r *http.Request) error {
	in, err := form(w, r)
	if err != nil {
		return s.refuse(w, r, nil, err)
	}
	q, err := s.read(r, in)
	if err != nil {
		return s.refuse(w, r, q, err)
	}
	if err := s.OwnPage(r); err != nil {
		return err
	}
	base, err := s.Base(r)
	if err != nil {
		return err
	}
	if in.get("decision") != "allow" {
		return redirected(w, q.back(base, url.Values{"error": {"access_denied"},
			"error_description": {"the user refused"}}))
	}
	who, err := s.user(r, in.get("key"))
	if err != nil {
		if errors.KindOf(err) != errors.Unauthenticated {
			return err
		}
		problem := "The key is not valid."
		if in.get("key") == "" {
			problem = "Enter a key, or sign in first."
		}
		return s.offer(w, r, q, http.StatusForbidden, problem)
	}
	if in.get("key") == "" && in.get(signInField) != who.KeyID {
		return s.offer(w, r, q, http.StatusForbidden, "The browser's sign-in has changed. Check the account.")
	}
	s.Audit(r, who)
	scopes, err := narrowed(in.get("scope"), who)
	if err != nil {
		return s.refuse(w, r, q, err)
	}
	text, err := s.keep(allowed{by: who, clientID: in.get("client_id"), client: q.client,
		redirect: in.get("redirect_uri"), challenge: in.get("code_challenge"), scopes: scopes})
	if errors.KindOf(err) == errors.Exhausted {
		return s.offer(w, r, q, http.StatusTooManyRequests, errors.Message(err))
	}
	if err != nil {
		return err
	}
	return redirected(w, q.back(base, url.Values{"code": {text}}))
}

// user returns the user of a key, or without one the user who is signed in.
func (s *Service) user(r *http.Request, key string) (account.Principal, error) {
	if key == "" {
		return s.Caller(r)
	}
	return s.Ring.Authenticate(r.Context(), account.APIKey, strings.TrimSpace(key))
}

func redirected(w http.ResponseWriter, to string) error {
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusSeeOther)
	return nil
}
