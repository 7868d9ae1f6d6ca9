package grant

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// Renew returns a grant with a new access token. Providers may change the refresh token, too, and no longer accept the
// old one. Denied: the provider no longer accepts the grant. Unavailable: it gave no answer, or one that another
// attempt may change.
func (p *Providers) Renew(ctx context.Context, g Grant) (Grant, error) {
	one, err := p.Get(g.Provider)
	if err != nil {
		return Grant{}, err
	}
	c := one.config(g.Client)
	// A token without an access token makes the source renew at once.
	token, err := c.TokenSource(p.context(ctx, one), &oauth2.Token{RefreshToken: g.Refresh.Reveal(),
		Expiry: time.Unix(1, 0)}).Token()
	if err != nil {
		f := failureOf(one, err)
		if f.permanent {
			return Grant{}, errors.Remedy(errors.Newf(errors.Denied, "%s no longer accepts the login%s", one.Name,
				f.because()), `run "harvest login %s"`, one.Name)
		}
		return Grant{}, f.err()
	}
	return p.grantOf(one, g.Client, token), nil
}

// failure is a failed request to a provider.
type failure struct {
	provider  *Provider
	code      string // the provider's, such as invalid_grant; "" without one
	permanent bool   // another attempt has the same result
	cause     error
}

// passing are codes of errors that another attempt may not have: RFC 6749, section 4.1.2.1, and RFC 8628, section 3.5.
var passing = []string{"temporarily_unavailable", "server_error", "slow_down", "authorization_pending", "rate_limited",
	"rate_limit_error", "overloaded_error", "api_error"}

// failureOf classifies an error of package oauth2. The provider's own texts are dropped: they may repeat tokens.
func failureOf(p *Provider, err error) failure {
	f := failure{provider: p, cause: errors.Errorf("the request to %s failed", p.Name)}
	var answer *oauth2.RetrieveError
	if !errors.As(err, &answer) {
		return f
	}
	f.code = word(answer.ErrorCode)
	if f.code == "" {
		f.code = codeOf(answer.Body)
	}
	status := 0
	if answer.Response != nil {
		status = answer.Response.StatusCode
	}
	f.cause = errors.Errorf("%s answered with the status %d %s", p.Name, status, f.code)
	// GitHub answers with the status 200 and a code.
	f.permanent = !slices.Contains(passing, f.code) &&
		(status == http.StatusBadRequest || status == http.StatusUnauthorized ||
			status == http.StatusOK && f.code != "" || f.code == "invalid_grant" || f.code == "access_denied")
	return f
}

// codeOf returns the code of an answer of OpenAI, whose field error is an object.
func codeOf(body []byte) string {
	var b struct {
		Error struct{ Code, Type string } `json:"error"`
	}
	if json.Unmarshal(body, &b) != nil {
		return ""
	}
	if code := word(b.Error.Code); code != "" {
		return code
	}
	return word(b.Error.Type)
}

var wordPattern = pattern.New(`^[a-z_]{1,64}$`)

// word returns a code that a provider sent, or "" if it is not one.
func word(code string) string {
	if wordPattern().MatchString(code) {
		return code
	}
	return ""
}

// because returns the code in brackets for the end of a sentence.
func (f failure) because() string {
	if f.code == "" {
		return ""
	}
	return " (" + f.code + ")"
}

// err returns the error of a failure that may pass.
func (f failure) err() error {
	return errors.Remedy(errors.Explainf(f.cause, errors.Unavailable, "%s cannot be reached for the login%s",
		f.provider.Name, f.because()), "try again in a minute, and check the network of the server")
}

// context makes package oauth2 use the client, with the provider's encoding.
func (p *Providers) context(ctx context.Context, one *Provider) context.Context {
	c := *p.http
	c.Transport = encoder{one, p.http.Transport}
	return context.WithValue(ctx, oauth2.HTTPClient, &c)
}

// encoder sends the forms of package oauth2 as JSON to providers that want it.
type encoder struct {
	provider *Provider
	next     http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (e encoder) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Accept", "application/json")
	if e.provider.json == forms || r.Body == nil {
		return e.next.RoundTrip(r)
	}
	text, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil {
		return nil, err
	}
	form, err := url.ParseQuery(string(text))
	if err != nil {
		return nil, errors.Errorf("a request for a token is not a form") // err could quote it
	}
	if e.provider.json == jsonAll || form.Get("grant_type") == "refresh_token" {
		fields := map[string]string{}
		for name := range form {
			fields[name] = form.Get(name)
		}
		if text, err = json.Marshal(fields); err != nil {
			return nil, errors.Errorf("encode a request for a token")
		}
		r.Header.Set("Content-Type", "application/json")
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	return e.next.RoundTrip(r)
}

// Revoke asks the provider to accept the tokens of a grant no longer. Unsupported: the provider has no endpoint for it.
func (p *Providers) Revoke(ctx context.Context, g Grant) error {
	one, err := p.Get(g.Provider)
	if err != nil {
		return err
	}
	manual := errors.Remedy(errors.Newf(errors.Unsupported, "%s has no way to revoke a login", one.Name),
		"end the session in the settings of your account there")
	if one.revocation == nil || one.revokeURL == "" {
		return manual
	}
	r, err := one.revocation(one, g)
	if err != nil {
		return err
	}
	resp, err := p.http.Do(r.WithContext(ctx))
	if err != nil {
		return failureOf(one, err).err()
	}
	resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return errors.Remedy(errors.Newf(errors.Unavailable, "%s did not revoke the login: status %d", one.Name,
			resp.StatusCode), "end the session in the settings of your account there")
	}
	return nil
}

// token returns the token to revoke, which ends the others of the grant, and its kind: RFC 7009, section 2.1.
func (g Grant) token() (token, kind string) {
	if g.Refresh != "" {
		return g.Refresh.Reveal(), "refresh_token"
	}
	return g.Access.Reveal(), "access_token"
}

// revokeForm is RFC 7009.
func revokeForm(p *Provider, g Grant) (*http.Request, error) {
	token, kind := g.token()
	return post(p.revokeURL, "application/x-www-form-urlencoded",
		url.Values{"token": {token}, "token_type_hint": {kind}}.Encode())
}

// revokeJSON is RFC 7009 with a body in JSON: codex-rs/login/src/auth/revoke.rs.
func revokeJSON(p *Provider, g Grant) (*http.Request, error) {
	token, kind := g.token()
	fields := map[string]any{"token": token, "token_type_hint": kind}
	if kind == "refresh_token" {
		fields["client_id"] = p.config(g.Client).ClientID
	}
	return postJSON(p.revokeURL, fields)
}

// revokeGitHub revokes tokens at GitHub, which wants no authentication for it.
func revokeGitHub(p *Provider, g Grant) (*http.Request, error) {
	all := []string{g.Access.Reveal()}
	if g.Refresh != "" {
		all = append(all, g.Refresh.Reveal())
	}
	return postJSON(p.revokeURL, map[string]any{"credentials": all})
}

func postJSON(url string, fields map[string]any) (*http.Request, error) {
	text, err := json.Marshal(fields)
	if err != nil {
		return nil, errors.Errorf("encode a request to revoke a token")
	}
	return post(url, "application/json", string(text))
}

func post(url, kind, body string) (*http.Request, error) {
	r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, errors.Errorf("make a request to revoke a token")
	}
	r.Header.Set("Content-Type", kind)
	r.Header.Set("Accept", "application/json")
	return r, nil
}
