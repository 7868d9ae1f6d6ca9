// Package logins serves the logins of accounts to providers, without their tokens.
package logins

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/grant"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// Service serves the routes for logins.
type Service struct {
	edge.Settings
	Secrets *secret.Vault // nil: not supported

	mu       sync.Mutex
	attempts map[[2]string]*attempt // guarded by mu; by account and provider
}

// attempt is a login that is not finished. Only the server that began it knows it.
type attempt struct {
	*grant.Attempt
	busy bool // guarded by Service.mu; a request finishes it
}

// Routes returns one row per route.
func (s *Service) Routes() []edge.Route {
	const read, write = account.Read, account.Write
	on := s.Secrets != nil && s.Secrets.Providers() != nil
	return edge.Only(on, "logins", []edge.Route{
		{Method: "GET", Path: api.Logins, Handle: s.list, Scope: read,
			Summary: "List the providers, with the state of the login to each",
			Query:   edge.QueryPage, Out: api.List[api.Login]{}, Status: 200},
		{Method: "POST", Path: api.LoginTo, Handle: s.begin, Scope: write,
			Summary: "Begin a login to a provider, or finish it with a token",
			In:      api.LoginRequest{}, Out: api.LoginAttempt{}, Status: 201},
		{Method: "POST", Path: api.LoginFinished, Handle: s.finish, Scope: write,
			Summary: "Finish a login with the provider's code, or wait for the user",
			In:      api.LoginFinish{}, Out: api.Login{}, Status: 200},
		{Method: "DELETE", Path: api.LoginTo, Handle: s.logout, Scope: write,
			Summary: "Delete a login, and revoke it at the provider", Out: api.LoggedOut{}, Status: 200},
	})
}

func (s *Service) list(w http.ResponseWriter, r *http.Request) error {
	all, err := s.all(r.Context(), edge.Account(r))
	if err != nil {
		return err
	}
	return edge.Paged(s.Settings, w, r, all, false, func(l api.Login) string { return l.Provider },
		func(l api.Login) api.Login { return l })
}

// all returns the logins of an account, by provider.
func (s *Service) all(ctx context.Context, of string) ([]api.Login, error) {
	found, err := s.Secrets.List(ctx, of)
	if err != nil {
		return nil, err
	}
	kept := map[string]secret.Secret{}
	for _, one := range found {
		kept[one.Name] = one
	}
	var all []api.Login
	for _, name := range s.Secrets.Providers().Names() {
		p, err := s.Secrets.Providers().Get(name)
		if err != nil {
			return nil, err
		}
		all = append(all, loginOut(p, kept[name]))
	}
	return all, nil
}

func loginOut(p *grant.Provider, s secret.Secret) api.Login {
	out := api.Login{Provider: p.Name, Title: p.Title, State: "none"}
	if s.Login == nil {
		return out
	}
	out.State, out.Renews, out.Expires, out.Renewed, out.LastUsed = "ready", s.Login.Renews, s.Login.Expires,
		s.Login.Renewed, s.Used.UTC()
	switch {
	case s.Login.Failed != "":
		out.State, out.Reason = "failed", s.Login.Failed
	case !s.Login.Renews && s.Login.Expired(time.Now()):
		out.State = "expired"
	}
	return out
}

func (s *Service) begin(w http.ResponseWriter, r *http.Request) error {
	var req api.LoginRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	ctx, of, name := r.Context(), edge.Account(r), r.PathValue("name")
	providers := s.Secrets.Providers()
	p, err := providers.Get(name)
	if err == nil {
		err = s.Secrets.CheckLogin(ctx, of, name)
	}
	if err != nil {
		return err
	}
	out := api.LoginAttempt{Login: loginOut(p, secret.Secret{})}
	if req.Token != "" {
		if out.Login, err = s.given(ctx, of, p, req.Token); err != nil {
			return err
		}
		return edge.Respond(w, http.StatusCreated, out)
	}
	a, err := providers.Begin(ctx, name, req.Client)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.attempts == nil {
		s.attempts = map[[2]string]*attempt{}
	}
	s.attempts[[2]string{of, name}] = &attempt{Attempt: a}
	s.mu.Unlock()
	out.URL, out.UserCode, out.Expires = a.URL, a.UserCode, a.Expires.UTC()
	return edge.Respond(w, http.StatusCreated, out)
}

// given stores the login of a token. A refresh token is renewed first, which shows whether it is valid.
func (s *Service) given(ctx context.Context, of string, p *grant.Provider, token string) (api.Login, error) {
	g, err := p.Given(token)
	if err == nil && g.Access == "" {
		// The answer has the only valid refresh token: the client's end must not lose it.
		ctx = context.WithoutCancel(ctx)
		g, err = s.Secrets.Providers().Renew(ctx, g)
	}
	if err != nil {
		return api.Login{}, err
	}
	kept, err := s.Secrets.SetLogin(ctx, of, g)
	return loginOut(p, kept), err
}

func (s *Service) finish(w http.ResponseWriter, r *http.Request) error {
	var req api.LoginFinish
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	of, name := edge.Account(r), r.PathValue("name")
	p, err := s.Secrets.Providers().Get(name)
	if err != nil {
		return err
	}
	a, err := s.take(of, name)
	if err != nil {
		return err
	}
	g, err := s.Secrets.Providers().Finish(r.Context(), a.Attempt, req.Code)
	again := errors.Is(err, errors.Invalid) || errors.Is(err, errors.Unavailable) || errors.Is(err, errors.Canceled)
	s.leave(of, name, a, again)
	if err != nil {
		return err
	}
	kept, err := s.Secrets.SetLogin(context.WithoutCancel(r.Context()), of, g)
	if err != nil {
		return err
	}
	return edge.Respond(w, http.StatusOK, loginOut(p, kept))
}

// take returns the attempt of an account for a request that finishes it.
func (s *Service) take(of, name string) (*attempt, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.attempts[[2]string{of, name}]
	switch {
	case a == nil:
		return nil, errors.Remedy(errors.Newf(errors.NotFound, "no login to %s has begun", name),
			`begin one with "harvest login %s"; a restart of the server ends those that are not finished`, name)
	case a.busy:
		return nil, errors.Remedy(errors.Newf(errors.Conflict, "another request finishes the login to %s", name),
			`end the other "harvest login %s" first`, name)
	}
	a.busy = true
	return a, nil
}

// leave ends the work on an attempt. If again is set, it can be finished again.
func (s *Service) leave(of, name string, a *attempt, again bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.busy = false
	if at := [2]string{of, name}; !again && s.attempts[at] == a {
		delete(s.attempts, at)
	}
}

func (s *Service) logout(w http.ResponseWriter, r *http.Request) error {
	ctx, of, name := context.WithoutCancel(r.Context()), edge.Account(r), r.PathValue("name")
	g, err := s.Secrets.Logout(ctx, of, name)
	if err != nil {
		return err
	}
	out := api.LoggedOut{Revoked: true}
	if err := s.Secrets.Providers().Revoke(ctx, g); err != nil {
		out = api.LoggedOut{Reason: errors.Message(err), Remedy: errors.RemedyOf(err)}
	}
	return edge.Respond(w, http.StatusOK, out)
}
