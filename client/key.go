package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/RelevanceAI/harvest/api"
)

// CreateKey makes a key. Its secret is in the answer and nowhere else.
func (c *Client) CreateKey(ctx context.Context, req api.KeyRequest) (api.NewKey, error) {
	var made api.NewKey
	return made, c.call(ctx, http.MethodPost, api.Keys, nil, req, &made)
}

// Keys returns the keys of one's account, or, for the server's operator, of every account.
func (c *Client) Keys(ctx context.Context, everyone bool) ([]api.Key, error) {
	query := url.Values{}
	if everyone {
		query.Set("all", "true")
	}
	return list[api.Key](ctx, c, api.Keys, query)
}

// RevokeKey ends a key, named by its id or its name.
func (c *Client) RevokeKey(ctx context.Context, ref string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.Keyed, ref), nil, nil, nil)
}

// Self says who one is, and what one's account has used.
func (c *Client) Self(ctx context.Context) (api.Self, error) {
	var self api.Self
	return self, c.call(ctx, http.MethodGet, api.Account, nil, nil, &self)
}

// SignInLink makes a link that signs a browser in, once.
func (c *Client) SignInLink(ctx context.Context) (string, error) {
	var link api.Link
	return link.URL, c.call(ctx, http.MethodPost, api.Links, nil, nil, &link)
}
