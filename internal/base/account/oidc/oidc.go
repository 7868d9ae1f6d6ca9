// Package oidc signs people in with an OpenID Connect provider. It uses the code flow with PKCE
// (https://openid.net/specs/openid-connect-core-1_0.html, RFC 7636), and rules that map people to accounts and
// roles.
package oidc

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
)

const (
	attemptLife = 10 * time.Minute // time to type a password and to use a second factor
	patience    = 15 * time.Second // timeout of one request to the provider
)

// Options of a Provider; Issuer, ClientID and Allow are required.
type Options struct {
	Issuer   string // its URL
	ClientID string
	Secret   config.Secret // "" for a public client
	Scopes   []string      // scopes to request
	Groups   string        // claim that lists a person's groups
	Allow    []string      // rules, as of config.OIDC
}

// Provider identifies people through an OpenID Connect provider. All methods may be called concurrently.
type Provider struct {
	opts  Options
	rules []rule
	http  *http.Client

	mu    sync.Mutex
	found *oidc.Provider // guarded by mu; nil until the first sign-in: the server starts without the provider
}

// New returns a Provider without contacting the provider. It returns Invalid if a rule is malformed.
func New(opts Options) (*Provider, error) {
	p := &Provider{opts: opts, http: netguard.Rules{Any: true}.Client(patience)}
	for _, text := range opts.Allow {
		r, err := parseRule(text)
		if err != nil {
			return nil, err
		}
		p.rules = append(p.rules, r)
	}
	return p, nil
}

// Attempt is a sign-in in progress. The browser stores it, unreadable and unwritable to others, until it
// returns from the provider.
type Attempt struct {
	State    string    `json:"s"`
	Nonce    string    `json:"n"`
	Verifier string    `json:"v"` // of PKCE
	Redirect string    `json:"r"` // where the browser comes back
	Expires  time.Time `json:"e"`
}

// provider discovers the provider's endpoints, once.
func (p *Provider) provider(ctx context.Context) (*oidc.Provider, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found != nil {
		return p.found, nil
	}
	found, err := oidc.NewProvider(oidc.ClientContext(context.WithoutCancel(ctx), p.http), p.opts.Issuer)
	if err != nil {
		return nil, unreachable(err)
	}
	p.found = found
	return found, nil
}

func unreachable(err error) error {
	return errors.Remedy(errors.Explainf(err, errors.Unavailable, "invalid answer of the sign-in provider"),
		"try again in a moment; the server's log says more")
}

func (p *Provider) oauth(found *oidc.Provider, redirect string) *oauth2.Config {
	return &oauth2.Config{ClientID: p.opts.ClientID, ClientSecret: p.opts.Secret.Reveal(), Endpoint: found.Endpoint(),
		RedirectURL: redirect, Scopes: p.opts.Scopes}
}

// Begin returns the URL to send a browser to, and the Attempt that it must present when it returns to redirect.
// It returns Unavailable if the provider does not answer.
func (p *Provider) Begin(ctx context.Context, redirect string) (string, Attempt, error) {
	found, err := p.provider(ctx)
	if err != nil {
		return "", Attempt{}, err
	}
	a := Attempt{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(), Redirect: redirect,
		Expires: time.Now().Add(attemptLife)}
	return p.oauth(found, redirect).AuthCodeURL(a.State, oidc.Nonce(a.Nonce), oauth2.S256ChallengeOption(a.Verifier)),
		a, nil
}

// Finish returns the person who signed in with attempt a, given the query that the provider added to the
// redirect. Kinds: Unauthenticated if the query does not belong to a or the provider does not confirm it;
// Denied if the provider refuses the person or no rule matches; Unavailable.
func (p *Provider) Finish(ctx context.Context, a Attempt, query url.Values) (account.Principal, error) {
	if !time.Now().Before(a.Expires) || a.State == "" || subtle.ConstantTimeCompare([]byte(a.State),
		[]byte(query.Get("state"))) != 1 {
		return account.Principal{}, again(errors.Errorf("the state is another one, or old"))
	}
	if refused := query.Get("error"); refused != "" {
		return account.Principal{}, errors.Remedy(errors.Newf(errors.Denied,
			"the provider has refused the sign-in: %.60q", refused), "sign in again, or ask the provider's operator")
	}
	found, err := p.provider(ctx)
	if err != nil {
		return account.Principal{}, err
	}
	ctx = oidc.ClientContext(ctx, p.http)
	token, err := p.oauth(found, a.Redirect).Exchange(ctx, query.Get("code"), oauth2.VerifierOption(a.Verifier))
	var answered *oauth2.RetrieveError
	switch {
	case errors.As(err, &answered) && answered.Response.StatusCode < 500:
		return account.Principal{}, again(err)
	case err != nil:
		return account.Principal{}, unreachable(err)
	}
	text, _ := token.Extra("id_token").(string)
	id, err := found.Verifier(&oidc.Config{ClientID: p.opts.ClientID}).Verify(ctx, text)
	if err != nil {
		return account.Principal{}, again(err)
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(a.Nonce)) != 1 {
		return account.Principal{}, again(errors.Errorf("the nonce is another one"))
	}
	said := claims{}
	if err := id.Claims(&said); err != nil {
		return account.Principal{}, again(err)
	}
	return p.judge(id.Subject, said)
}

func again(err error) error {
	return errors.Remedy(errors.Explainf(err, errors.Unauthenticated, "the sign-in did not come to its end"),
		"begin again; it must end in the browser in which it began, within %d minutes", int(attemptLife.Minutes()))
}

// claims are the provider's claims about a person.
type claims map[string]any

// email is the person's address, if the provider has verified it.
func (c claims) email() string {
	mail, _ := c["email"].(string)
	if verified := c["email_verified"]; verified != true && verified != "true" { // some providers send a string
		return ""
	}
	return strings.ToLower(mail)
}

func (c claims) groups(claim string) []string {
	switch v := c[claim].(type) {
	case string:
		return []string{v}
	case []any:
		var all []string
		for _, one := range v {
			if group, ok := one.(string); ok {
				all = append(all, group)
			}
		}
		return all
	}
	return nil
}

// judge maps a person to a principal with the first rule that matches.
func (p *Provider) judge(subject string, said claims) (account.Principal, error) {
	mail, groups := said.email(), said.groups(p.opts.Groups)
	who := mail
	if who == "" {
		who = subject
	}
	for _, r := range p.rules {
		if r.fits(mail, groups) {
			return account.Principal{Account: r.account, Role: r.role,
				Scopes: append([]account.Scope{}, account.Scopes...), Subject: who}, nil
		}
	}
	return account.Principal{}, errors.Remedy(errors.Newf(errors.Denied, "%.100q may not sign in here", who),
		"ask the server's operator: the option oidc.allow lists the people who may")
}
