package server

import (
	"net/http"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/secret"
)

func (s *Server) secretRoutes() []route {
	const read, write = account.Read, account.Write
	return []route{
		{method: "POST", path: api.Secrets, handle: s.setSecret, scope: write,
			summary: "Store a secret; its values are never shown again",
			in:      api.SecretRequest{}, out: api.Secret{}, status: 201},
		{method: "POST", path: api.Rekey, handle: s.rekey, scope: write, operator: true,
			summary: "Replace the key file, and encrypt all secrets with the new key",
			out:     api.Rekeyed{}, status: 200},
		{method: "GET", path: api.Secrets, handle: s.listSecrets, scope: read,
			summary: "List secrets by name, without their values",
			query:   queryPage, out: api.List[api.Secret]{}, status: 200},
		{method: "GET", path: api.Secreted, handle: s.getSecret, scope: read,
			summary: "Get the description of a secret", out: api.Secret{}, status: 200},
		{method: "DELETE", path: api.Secreted, handle: s.deleteSecret, scope: write,
			summary: "Delete a secret; running sandboxes keep its values", status: 204},
	}
}

// vault returns the server's secrets, or Unsupported.
func (s *Server) vault() (*secret.Vault, error) {
	if s.opts.Secrets == nil {
		return nil, lacks("secrets")
	}
	return s.opts.Secrets, nil
}

var secretModes = map[string]secret.How{"": secret.Create, "create": secret.Create, "replace": secret.Replace,
	"merge": secret.Merge}

func (s *Server) setSecret(w http.ResponseWriter, r *http.Request) error {
	vault, err := s.vault()
	if err != nil {
		return err
	}
	var req api.SecretRequest
	if err := decodeBody(w, r, 2*api.MaxBody, &req); err != nil {
		return err
	}
	how, ok := secretModes[req.Mode]
	if !ok {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid mode %.40q", req.Mode),
			"use create, replace or merge")
	}
	made, err := vault.Set(r.Context(), accountOf(r.Context()), req.Name, req.Pairs, how)
	if err != nil {
		return err
	}
	return respond(w, http.StatusCreated, secretOut(made))
}

func (s *Server) listSecrets(w http.ResponseWriter, r *http.Request) error {
	vault, err := s.vault()
	if err != nil {
		return err
	}
	found, err := vault.List(r.Context(), accountOf(r.Context()))
	if err != nil {
		return err
	}
	return paged(s, w, r, found, false, func(v secret.Secret) string { return v.Name }, secretOut)
}

func (s *Server) getSecret(w http.ResponseWriter, r *http.Request) error {
	vault, err := s.vault()
	if err != nil {
		return err
	}
	found, err := vault.Get(r.Context(), accountOf(r.Context()), r.PathValue("name"))
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, secretOut(found))
}

func (s *Server) deleteSecret(w http.ResponseWriter, r *http.Request) error {
	vault, err := s.vault()
	if err != nil {
		return err
	}
	if err := vault.Delete(r.Context(), accountOf(r.Context()), r.PathValue("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) rekey(w http.ResponseWriter, r *http.Request) error {
	vault, err := s.vault()
	if err != nil {
		return err
	}
	n, err := vault.Rekey(r.Context())
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, api.Rekeyed{Secrets: n})
}

func secretOut(v secret.Secret) api.Secret {
	return api.Secret{
		Name: v.Name, Keys: each(v.Keys, func(k string) string { return k }), Origin: string(v.Origin),
		Created: v.Created.UTC(), Updated: v.Updated.UTC(), LastUsed: v.Used.UTC(),
	}
}
