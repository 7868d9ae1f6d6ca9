// Package secrets serves named secrets, without their values.
package secrets

import (
	"net/http"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// Service serves the routes for secrets.
type Service struct {
	edge.Settings
	Secrets *secret.Vault // nil: not supported
}

// Routes returns one row per route.
func (s *Service) Routes() []edge.Route {
	const read, write = account.Read, account.Write
	return edge.Only(s.Secrets != nil, "secrets", []edge.Route{
		{Method: "POST", Path: api.Secrets, Handle: s.setSecret, Scope: write,
			Summary: "Store a secret; its values are never shown again",
			In:      api.SecretRequest{}, Out: api.Secret{}, Status: 201},
		{Method: "POST", Path: api.Rekey, Handle: s.rekey, Scope: write, Operator: true,
			Summary: "Replace the key file, and encrypt all secrets with the new key",
			Out:     api.Rekeyed{}, Status: 200},
		{Method: "GET", Path: api.Secrets, Handle: s.listSecrets, Scope: read,
			Summary: "List secrets by name, without their values",
			Query:   edge.QueryPage, Out: api.List[api.Secret]{}, Status: 200},
		{Method: "GET", Path: api.Secreted, Handle: s.getSecret, Scope: read,
			Summary: "Get the description of a secret", Out: api.Secret{}, Status: 200},
		{Method: "DELETE", Path: api.Secreted, Handle: s.deleteSecret, Scope: write,
			Summary: "Delete a secret; running sandboxes keep its values", Status: 204},
	})
}

var secretModes = map[string]secret.How{"": secret.Create, "create": secret.Create, "replace": secret.Replace,
	"merge": secret.Merge}

func (s *Service) setSecret(w http.ResponseWriter, r *http.Request) error {
	var req api.SecretRequest
	if err := edge.DecodeBody(w, r, 2*api.MaxBody, &req); err != nil {
		return err
	}
	how, ok := secretModes[req.Mode]
	if !ok {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid mode %.40q", req.Mode),
			"use create, replace or merge")
	}
	bound, err := bindingIn(req.Binding)
	if err != nil {
		return err
	}
	made, err := s.Secrets.SetBound(r.Context(), edge.Account(r), req.Name, req.Pairs, how, bound)
	return edge.Send(w, http.StatusCreated, secretOut, made, err)
}

func (s *Service) listSecrets(w http.ResponseWriter, r *http.Request) error {
	found, err := s.Secrets.List(r.Context(), edge.Account(r))
	if err != nil {
		return err
	}
	return edge.Paged(s.Settings, w, r, found, false, func(v secret.Secret) string { return v.Name }, secretOut)
}

func (s *Service) getSecret(w http.ResponseWriter, r *http.Request) error {
	found, err := s.Secrets.Get(r.Context(), edge.Account(r), r.PathValue("name"))
	return edge.Send(w, http.StatusOK, secretOut, found, err)
}

func (s *Service) deleteSecret(w http.ResponseWriter, r *http.Request) error {
	return edge.NoContent(w, s.Secrets.Delete(r.Context(), edge.Account(r), r.PathValue("name")))
}

func (s *Service) rekey(w http.ResponseWriter, r *http.Request) error {
	n, err := s.Secrets.Rekey(r.Context())
	if err != nil {
		return err
	}
	return edge.Respond(w, http.StatusOK, api.Rekeyed{Secrets: n})
}

func secretOut(v secret.Secret) api.Secret {
	return api.Secret{
		Name: v.Name, Keys: edge.Each(v.Keys, func(k string) string { return k }), Origin: string(v.Origin),
		Created: v.Created.UTC(), Updated: v.Updated.UTC(), LastUsed: v.Used.UTC(), Binding: bindingOut(v.Binding),
	}
}
