package client

import (
	"context"
	"net/http"

	"github.com/RelevanceAI/harvest/api"
)

// SetSecret stores a secret, and says what is known of it.
func (c *Client) SetSecret(ctx context.Context, req api.SecretRequest) (api.Secret, error) {
	var made api.Secret
	return made, c.call(ctx, http.MethodPost, api.Secrets, nil, req, &made)
}

// Secrets returns all secrets by name, without their values.
func (c *Client) Secrets(ctx context.Context) ([]api.Secret, error) {
	return list[api.Secret](ctx, c, api.Secrets, nil)
}

// Secret says what is known of a secret.
func (c *Client) Secret(ctx context.Context, name string) (api.Secret, error) {
	var found api.Secret
	return found, c.call(ctx, http.MethodGet, api.Path(api.Secreted, name), nil, nil, &found)
}

// Rekey makes a new key file, seals all secrets with it, and returns how many there are. Only the server's operator may.
func (c *Client) Rekey(ctx context.Context) (api.Rekeyed, error) {
	var done api.Rekeyed
	return done, c.call(ctx, http.MethodPost, api.Rekey, nil, nil, &done)
}

// DeleteSecret removes a secret. Sandboxes that have it keep it.
func (c *Client) DeleteSecret(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.Secreted, name), nil, nil, nil)
}
