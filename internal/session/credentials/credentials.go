// Package credentials gives git in the sandbox of a session the credentials for its repositories: it finds them in the
// account's secrets, writes them into the sandbox, renews them before they expire, and revokes the tokens that it
// created.
package credentials

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/session/git"
	"github.com/RelevanceAI/harvest/internal/session/github"
	"github.com/RelevanceAI/harvest/internal/session/shell"
)

// login is the user and password that git receives when it asks for credentials.
type login struct {
	secret   string // its name
	where    string // address or address prefix for which the login is valid
	api      string // address of GitHub's API for the same server
	user     string
	password config.Secret
	expires  time.Time    // zero if no expiry is known; Harvest revokes tokens that have one
	client   *http.Client // for api
	release  func()       // stops redacting the password in the log
}

// hub returns the client of GitHub's API for the login.
func (one login) hub() *github.Client {
	return &github.Client{API: one.api, Token: one.password, HTTP: one.client}
}

// Logins are the logins of a session, sorted by address length, the longest first.
type Logins []login

// Release calls release of each login.
func (l Logins) Release() {
	for _, one := range l {
		one.release()
	}
}

// expires returns the earliest expiry; zero if no login expires.
func (l Logins) expires() (at time.Time) {
	for _, one := range l {
		if !one.expires.IsZero() && (at.IsZero() || one.expires.Before(at)) {
			at = one.expires
		}
	}
	return at
}

// of returns the login for a repository.
func (l Logins) of(address string) (login, bool) {
	a, err := git.ParseAddress(address)
	if err != nil {
		return login{}, false
	}
	i := slices.IndexFunc(l, func(one login) bool {
		return one.where == origin(a) || one.where == origin(a)+"/"+a.Path
	})
	if i < 0 {
		return login{}, false
	}
	return l[i], true
}

// GitHub returns the client of GitHub's API for a repository, and false without credentials for it.
func (l Logins) GitHub(address string) (*github.Client, bool) {
	one, ok := l.of(address)
	return one.hub(), ok
}

// HTTPS returns the HTTPS address for address, if address is an SSH address and a login for its server exists;
// otherwise "".
func (l Logins) HTTPS(address string) string {
	a, err := git.ParseAddress(address)
	if _, ok := l.of(address); err != nil || !ok || a.Scheme != "ssh" {
		return ""
	}
	return origin(a) + "/" + a.Path
}

// origin returns the prefix of a's address for which a credential is valid; "" if no credential may be sent there.
func origin(a git.Address) string {
	switch a.Scheme {
	case "ssh":
		host, _, _ := strings.Cut(a.Host, ":") // the SSH port does not apply to https
		return "https://" + host
	case "http":
		if a.Host == "github.com" { // plain HTTP would expose the token on the network
			return ""
		}
	}
	return a.Origin()
}

// None is the name of the secret of a session without credentials.
const None = "none"

// Source is where credentials come from.
type Source struct {
	Secrets *secret.Vault // nil for none
	// GitHub returns the client for GitHub's API at the address in an account's secrets; nil: a client that reaches
	// the internet only.
	GitHub func(account string) *http.Client
}

// Request describes the credentials of a session.
type Request struct {
	Account string
	// Secret is the name of a secret; "" means the first that has credentials for a host. None means no credentials.
	Secret string
	URLs   []string // of the repositories; "" for one without an address
}

// Serves reports whether req may have credentials.
func (src Source) Serves(req Request) bool { return src.Secrets != nil && req.Secret != None }

// Find returns the credentials in the account's secrets for the repositories. Tokens of GitHub Apps are created on each
// call.
func (src Source) Find(ctx context.Context, req Request) (found Logins, err error) {
	if !src.Serves(req) {
		return nil, nil
	}
	defer func() {
		if err != nil {
			found.Release()
			found = nil
		}
	}()
	for _, url := range req.URLs {
		a, err := git.ParseAddress(url)
		if url == "" || err != nil || origin(a) == "" {
			continue
		}
		_, host, _ := strings.Cut(origin(a), "://")
		g, ok, err := src.Secrets.Git(ctx, req.Account, req.Secret, host)
		if err != nil {
			return found, err
		}
		if !ok && req.Secret != "" {
			return found, errors.Remedy(errors.Newf(errors.Invalid, "secret %q: no credentials for %s", req.Secret,
				host),
				"add GITHUB_TOKEN, and GITHUB_HOST if that is not github.com; or GIT_HOST, GIT_USERNAME and "+
					"GIT_PASSWORD")
		}
		if _, known := found.of(url); !ok || known {
			continue
		}
		one, err := src.loginFrom(ctx, req.Account, g, a)
		if errors.KindOf(err) == errors.NotFound && req.Secret == "" {
			logf.Infof(ctx, "no credentials for %s: %v", host, err)
			continue // the App is not installed there; the repository may be public
		}
		if err != nil {
			return found, err
		}
		one.release = logf.Redact(one.password.Reveal())
		found = append(found, one)
	}
	slices.SortStableFunc(found, func(a, b login) int { return cmp.Compare(len(b.where), len(a.where)) })
	return found, nil
}

// Refresh finds the current credentials and puts them into the sandbox of a running session.
func (src Source) Refresh(ctx context.Context, req Request, box shell.Sandbox) (Logins, error) {
	l, err := src.Find(ctx, req)
	if err != nil || len(l) == 0 {
		return nil, err
	}
	if err := l.Put(ctx, box); err != nil {
		l.Revoke(context.WithoutCancel(ctx))
		l.Release()
		return nil, err
	}
	return l, nil
}

// loginFrom converts a secret to a login. For a GitHub App it creates a token for this one repository.
func (src Source) loginFrom(ctx context.Context, account string, g secret.Git, a git.Address) (login, error) {
	one := login{secret: g.Secret, where: origin(a), api: cmp.Or(g.API, github.API(g.Host)), user: g.User,
		password: g.Password}
	if src.GitHub != nil {
		one.client = src.GitHub(account)
	}
	if g.App == "" {
		return one, nil
	}
	token, err := github.Installation{API: one.api, App: g.App, Key: g.Key, ID: g.Installation,
		HTTP: one.client}.Token(ctx, a.Path)
	one.where, one.password, one.expires = one.where+"/"+a.Path, token.Value, token.Expires
	return one, err
}

// Revoke revokes the tokens that Harvest created.
func (l Logins) Revoke(ctx context.Context) {
	for _, one := range l {
		if one.expires.IsZero() {
			continue
		}
		if err := one.hub().Revoke(ctx); err != nil {
			logf.Infof(ctx, "revoke a token for %s: %v", one.where, err)
		}
	}
}
