package client

import (
	"context"
	"net/http"

	"github.com/RelevanceAI/harvest/client/api"
)

// CreatePortLink creates a link with which any browser can reach a port of a sandbox, until it expires or is revoked.
// Its URL is only in this response. It returns Unsupported if the server has no host names for ports.
func (c *Client) CreatePortLink(ctx context.Context, ref string, req api.PortLinkRequest) (api.NewPortLink, error) {
	return ask[api.NewPortLink](ctx, c, http.MethodPost, api.Path(api.SandboxLinks, ref), nil, req)
}

// PortLinks returns a sandbox's active links, newest first.
func (c *Client) PortLinks(ctx context.Context, ref string) ([]api.PortLink, error) {
	return list[api.PortLink](ctx, c, api.Path(api.SandboxLinks, ref), nil)
}

// RevokePortLink revokes a link. Browsers that have opened it lose access, too.
func (c *Client) RevokePortLink(ctx context.Context, ref, id string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.SandboxLinked, ref, id), nil, nil, nil)
}
