package repo

import (
	"context"
	"maps"

	"github.com/RelevanceAI/harvest/internal/base/binding"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/session/git"
)

// tokenKey is the variable of a token for the repository's server.
const tokenKey = "GIT_TOKEN"

// withhold keeps the token for the repository's server out of a sandbox, if it is in a secret that names no server. The
// sandbox's secrets of known services, and those that name their git server, are placeholders in any case.
func (a *attempt) withhold(ctx context.Context, req *spec.Request) (token secret.Credential, err error) {
	req.Borrows = true
	address, err := git.ParseAddress(a.repo.URL)
	if a.m.opts.Secrets == nil || req.Reveal || err != nil || address.Origin() == "" {
		return token, nil
	}
	var place binding.Place
	if err := place.Host.UnmarshalText([]byte(address.Origin())); err != nil {
		return token, err
	}
	for _, name := range req.Secrets {
		p, bound, err := a.m.opts.Secrets.Held(ctx, a.repo.Account, secret.Brokered, name)
		if err != nil {
			return token, err
		}
		if value := p[tokenKey]; value != "" && !bound {
			token = secret.Credential{Secret: name, Key: tokenKey, Value: config.Secret(value),
				Placeholder: binding.Placeholder([]byte(a.build.ID), name, value),
				Binding:     binding.Binding{Places: []binding.Place{place}}}
			req.Withhold = []string{tokenKey}
		}
	}
	return token, nil
}

// lend lends a sandbox the token that was withheld from it. A sandbox whose engine cannot keep it outside gets it.
func (a *attempt) lend(ctx context.Context, sb record.Sandbox, token secret.Credential) error {
	switch {
	case token.Value == "":
		return nil
	case !sb.Borrows:
		a.token = token.Value.Reveal()
		return nil
	}
	a.token = token.Placeholder
	return fleet.Lend(ctx, a.m.opts.Fleet, a.repo.Account, sb.ID, []secret.Credential{token})
}

// env returns the environment of a command with the token, or its placeholder.
func (a *attempt) env(of map[string]string) map[string]string {
	if a.token == "" {
		return of
	}
	of = maps.Clone(of)
	of[tokenKey] = a.token
	return of
}
