package client

import (
	"context"
	"net/http"

	"github.com/RelevanceAI/harvest/client/api"
)

// Logins returns all providers, with the state of the login to each.
func (c *Client) Logins(ctx context.Context) ([]api.Login, error) {
	return list[api.Login](ctx, c, api.Logins, nil)
}

// BeginLogin begins a login to a provider, or finishes it if the request has a token.
func (c *Client) BeginLogin(ctx context.Context, provider string, req api.LoginRequest) (api.LoginAttempt, error) {
	return ask[api.LoginAttempt](ctx, c, http.MethodPost, api.Path(api.LoginTo, provider), nil, req)
}

// FinishLogin finishes a login with a code. Without one, it waits until the user has typed the attempt's UserCode at
// the provider, or ctx ends.
func (c *Client) FinishLogin(ctx context.Context, provider, code string) (api.Login, error) {
	return ask[api.Login](ctx, c, http.MethodPost, api.Path(api.LoginFinished, provider), nil,
		api.LoginFinish{Code: code})
}

// Logout deletes a login, and revokes it at the provider.
func (c *Client) Logout(ctx context.Context, provider string) (api.LoggedOut, error) {
	return ask[api.LoggedOut](ctx, c, http.MethodDelete, api.Path(api.LoginTo, provider), nil, nil)
}
