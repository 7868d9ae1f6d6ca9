package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/RelevanceAI/harvest/client/api"
)

// CreateKey creates a key. Its secret is only in this response.
func (c *Client) CreateKey(ctx context.Context, req api.KeyRequest) (api.NewKey, error) {
	return ask[api.NewKey](ctx, c, http.MethodPost, api.Keys, nil, req)
}

// Keys returns the keys of the caller's account, or, for the server's operator, of every account.
func (c *Client) Keys(ctx context.Context, everyone bool) ([]api.Key, error) {
	query := url.Values{}
	if everyone {
		query.Set("all", "true")
	}
	return list[api.Key](ctx, c, api.Keys, query)
}

// RevokeKey revokes a key by its ID or name.
func (c *Client) RevokeKey(ctx context.Context, ref string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.Keyed, ref), nil, nil, nil)
}

// Self returns the caller's identity, and the usage of its account.
func (c *Client) Self(ctx context.Context) (api.Self, error) {
	return ask[api.Self](ctx, c, http.MethodGet, api.Account, nil, nil)
}

// SignInLink returns a single-use link that signs a browser in.
func (c *Client) SignInLink(ctx context.Context) (string, error) {
	var link api.Link
	return link.URL, c.call(ctx, http.MethodPost, api.Links, nil, nil, &link)
}
