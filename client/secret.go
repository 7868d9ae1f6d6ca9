package client

import (
	"context"
	"net/http"

	"github.com/RelevanceAI/harvest/api"
)

// SetSecret stores a secret, and returns its description.
func (c *Client) SetSecret(ctx context.Context, req api.SecretRequest) (api.Secret, error) {
	var made api.Secret
	return made, c.call(ctx, http.MethodPost, api.Secrets, nil, req, &made)
}

// Secrets returns all secrets by name, without their values.
func (c *Client) Secrets(ctx context.Context) ([]api.Secret, error) {
	return list[api.Secret](ctx, c, api.Secrets, nil)
}

// Secret returns the description of a secret.
func (c *Client) Secret(ctx context.Context, name string) (api.Secret, error) {
	var found api.Secret
	return found, c.call(ctx, http.MethodGet, api.Path(api.Secreted, name), nil, nil, &found)
}

// Rekey creates a new key file, seals all secrets with it, and returns their number. Only the server's operator may
// call it.
func (c *Client) Rekey(ctx context.Context) (api.Rekeyed, error) {
	var done api.Rekeyed
	return done, c.call(ctx, http.MethodPost, api.Rekey, nil, nil, &done)
}

// DeleteSecret deletes a secret. Sandboxes that use it keep its values.
func (c *Client) DeleteSecret(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.Secreted, name), nil, nil, nil)
}
