package client

import (
	"context"
	"net/http"

	"github.com/RelevanceAI/harvest/api"
)

// CreatePortLink makes a link with which anybody's browser reaches a port of a sandbox, until it ends or is revoked. Its URL is in the answer
// and nowhere else. Unsupported if the server has no host names for ports.
func (c *Client) CreatePortLink(ctx context.Context, ref string, req api.PortLinkRequest) (api.NewPortLink, error) {
	var made api.NewPortLink
	return made, c.call(ctx, http.MethodPost, api.Path(api.SandboxLinks, ref), nil, req, &made)
}

// PortLinks returns a sandbox's links that have not ended, newest first.
func (c *Client) PortLinks(ctx context.Context, ref string) ([]api.PortLink, error) {
	return list[api.PortLink](ctx, c, api.Path(api.SandboxLinks, ref), nil)
}

// RevokePortLink ends a link. Who has opened it is kept out from then on, too.
func (c *Client) RevokePortLink(ctx context.Context, ref, id string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.SandboxLinked, ref, id), nil, nil, nil)
}
