package grant

import (
	"context"
	"crypto/rand"
	"net/url"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
)

// attemptTime is how long an attempt to log in may take.
const attemptTime = 15 * time.Minute

// Attempt is a login that the user has not finished. URL and UserCode are for the user: they open URL, and either type
// UserCode there, or paste the code that they get there. It must not be used concurrently.
type Attempt struct {
	URL      string
	UserCode string // "" if the user pastes a code
	Expires  time.Time

	provider        *Provider
	config          *oauth2.Config
	device          *oauth2.DeviceAuthResponse
	verifier, state string
}

// Begin begins a login with the client of this ID; "" is the provider's own.
func (p *Providers) Begin(ctx context.Context, name, client string) (*Attempt, error) {
	one, err := p.Get(name)
	if err != nil {
		return nil, err
	}
	a := &Attempt{provider: one, config: one.config(client), Expires: time.Now().Add(attemptTime)}
	if one.deviceURL == "" {
		a.verifier, a.state = oauth2.GenerateVerifier(), rand.Text()
		opts := []oauth2.AuthCodeOption{oauth2.S256ChallengeOption(a.verifier)}
		for key, value := range one.params {
			opts = append(opts, oauth2.SetAuthURLParam(key, value))
		}
		a.URL = a.config.AuthCodeURL(a.state, opts...)
		return a, nil
	}
	if a.device, err = a.config.DeviceAuth(p.context(ctx, one)); err != nil {
		f := failureOf(one, err)
		if f.permanent {
			return nil, errors.Remedy(errors.Newf(errors.Denied, "%s does not allow this login%s", name, f.because()),
				"check the client ID; the client must have the device flow enabled")
		}
		return nil, f.err()
	}
	a.URL, a.UserCode = a.device.VerificationURI, a.device.UserCode
	if !a.device.Expiry.IsZero() {
		a.Expires = a.device.Expiry
	}
	return a, nil
}

// Finish returns the grant of an attempt. code is the code that the user pasted, or the address to which the provider
// led their browser; without one, Finish waits until the user has typed theirs at the provider. If it fails with
// Invalid or Unavailable, the attempt can be finished again.
func (p *Providers) Finish(ctx context.Context, a *Attempt, code string) (Grant, error) {
	if !time.Now().Before(a.Expires) {
		return Grant{}, expired(a.provider.Name)
	}
	var token *oauth2.Token
	var err error
	if a.device != nil {
		token, err = a.config.DeviceAccessToken(p.context(ctx, a.provider), a.device)
	} else {
		token, err = p.exchange(ctx, a, code)
	}
	if err != nil {
		return Grant{}, a.failed(ctx, err)
	}
	return p.grantOf(a.provider, a.config.ClientID, token), nil
}

// exchange exchanges a pasted code for tokens.
func (p *Providers) exchange(ctx context.Context, a *Attempt, text string) (*oauth2.Token, error) {
	code, state, refused := parseCode(text)
	switch {
	case refused != "":
		return nil, errors.Remedy(errors.Newf(errors.Denied, "%s refused the login (%s)", a.provider.Name, refused),
			`run "harvest login %s" again, and allow the access`, a.provider.Name)
	case code == "":
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "this is not the code of a login"),
			"paste the code, or the whole address that the browser shows after you have allowed the access")
	case state != "" && state != a.state:
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "the code belongs to another login"),
			"open the address that was printed last, and paste its code")
	}
	opts := []oauth2.AuthCodeOption{oauth2.VerifierOption(a.verifier)}
	if a.provider.json == jsonAll { // Claude's own program sends it
		opts = append(opts, oauth2.SetAuthURLParam("state", a.state))
	}
	return a.config.Exchange(p.context(ctx, a.provider), code, opts...)
}

// parseCode reads what users paste: a code, "CODE#STATE", or an address with both. refused is the provider's own code
// of an error.
func parseCode(text string) (code, state, refused string) {
	text = strings.TrimSpace(text)
	if u, err := url.Parse(text); err == nil && (u.Scheme == "http" || u.Scheme == "https") {
		q := u.Query()
		return q.Get("code"), q.Get("state"), word(q.Get("error"))
	}
	code, state, _ = strings.Cut(text, "#")
	if strings.ContainsFunc(code, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return "", "", ""
	}
	return code, state, ""
}

// failed returns the error of a login for users.
func (a *Attempt) failed(ctx context.Context, err error) error {
	name := a.provider.Name
	if errors.KindOf(err) == errors.Invalid || errors.KindOf(err) == errors.Denied {
		return err
	}
	if cause := context.Cause(ctx); cause != nil {
		return errors.Explainf(cause, errors.Canceled, "the login to %s was canceled", name)
	}
	if !time.Now().Before(a.Expires) {
		return expired(name)
	}
	f := failureOf(a.provider, err)
	switch {
	case f.code == "access_denied":
		return errors.Remedy(errors.Newf(errors.Denied, "the login to %s was refused at the provider", name),
			`run "harvest login %s" again, and allow the access`, name)
	case f.code == "expired_token":
		return expired(name)
	case f.permanent && a.device == nil:
		return errors.Remedy(errors.Newf(errors.Invalid, "%s does not accept the code%s", name, f.because()),
			"paste the code at once, and completely; a code can be used once: open the address again for another one")
	case f.permanent:
		return errors.Remedy(errors.Newf(errors.Denied, "%s refused the login%s", name, f.because()),
			`run "harvest login %s" again`, name)
	}
	return f.err()
}

func expired(name string) error {
	return errors.Remedy(errors.Newf(errors.Gone, "the login to %s has expired before it was finished", name),
		`run "harvest login %s" again`, name)
}

// grantOf returns the grant of a provider's answer.
func (p *Providers) grantOf(one *Provider, client string, t *oauth2.Token) Grant {
	at := t.Expiry
	if t.ExpiresIn > 0 {
		at = p.Now().Add(time.Duration(t.ExpiresIn) * time.Second)
	}
	return Grant{Provider: one.Name, Client: client, Access: config.Secret(t.AccessToken),
		Refresh: config.Secret(t.RefreshToken), Expires: expiry(t.AccessToken, at)}
}
