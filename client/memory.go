package client

import (
	"context"
	"net/http"

	"github.com/RelevanceAI/harvest/api"
)

// Memories returns the repositories of which something is remembered, by name.
func (c *Client) Memories(ctx context.Context) ([]api.Memory, error) {
	return list[api.Memory](ctx, c, api.Memories, nil)
}

// Memory returns what is remembered of a repository, which is named OWNER-REPOSITORY.
func (c *Client) Memory(ctx context.Context, name string) (api.MemoryGraph, error) {
	var found api.MemoryGraph
	return found, c.call(ctx, http.MethodGet, api.Path(api.Memoried, name), nil, nil, &found)
}

// Remember remembers something of a repository, instead of what was known under its name.
func (c *Client) Remember(ctx context.Context, name, entity string, req api.EntityRequest) error {
	return c.call(ctx, http.MethodPut, api.Path(api.MemoryEntity, name, entity), nil, req, nil)
}

// Forget forgets an entity and its relations, or with "" everything of the repository.
func (c *Client) Forget(ctx context.Context, name, entity string) error {
	if entity == "" {
		return c.call(ctx, http.MethodDelete, api.Path(api.Memoried, name), nil, nil, nil)
	}
	return c.call(ctx, http.MethodDelete, api.Path(api.MemoryEntity, name, entity), nil, nil, nil)
}
