package client

import (
	"context"
	"net/http"

	"github.com/RelevanceAI/harvest/client/api"
)

// Memories returns the repositories that have a memory, by name.
func (c *Client) Memories(ctx context.Context) ([]api.Memory, error) {
	return list[api.Memory](ctx, c, api.Memories, nil)
}

// Memory returns the memory of a repository, whose name is OWNER-REPOSITORY.
func (c *Client) Memory(ctx context.Context, name string) (api.MemoryGraph, error) {
	return ask[api.MemoryGraph](ctx, c, http.MethodGet, api.Path(api.Memoried, name), nil, nil)
}

// Remember stores an entity in a repository's memory, and replaces the previous one of that name.
func (c *Client) Remember(ctx context.Context, name, entity string, req api.EntityRequest) error {
	return c.call(ctx, http.MethodPut, api.Path(api.MemoryEntity, name, entity), nil, req, nil)
}

// Forget removes an entity and its relations or, with "", the whole memory of the repository.
func (c *Client) Forget(ctx context.Context, name, entity string) error {
	if entity == "" {
		return c.call(ctx, http.MethodDelete, api.Path(api.Memoried, name), nil, nil, nil)
	}
	return c.call(ctx, http.MethodDelete, api.Path(api.MemoryEntity, name, entity), nil, nil, nil)
}
