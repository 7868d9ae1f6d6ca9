package client

import (
	"context"
	"net/http"

	"github.com/RelevanceAI/harvest/client/api"
)

// SetSecret stores a secret, and returns its description.
func (c *Client) SetSecret(ctx context.Context, req api.SecretRequest) (api.Secret, error) {
	return ask[api.Secret](ctx, c, http.MethodPost, api.Secrets, nil, req)
}

// Secrets returns all secrets by name, without their values.
func (c *Client) Secrets(ctx context.Context) ([]api.Secret, error) {
	return list[api.Secret](ctx, c, api.Secrets, nil)
}

// Secret returns the description of a secret.
func (c *Client) Secret(ctx context.Context, name string) (api.Secret, error) {
	return ask[api.Secret](ctx, c, http.MethodGet, api.Path(api.Secreted, name), nil, nil)
}

// Rekey creates a new key file, seals all secrets with it, and returns their number. Only the server's operator may
// call it.
func (c *Client) Rekey(ctx context.Context) (api.Rekeyed, error) {
	return ask[api.Rekeyed](ctx, c, http.MethodPost, api.Rekey, nil, nil)
}

// DeleteSecret deletes a secret. Sandboxes that use it keep its values.
func (c *Client) DeleteSecret(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.Secreted, name), nil, nil, nil)
}
