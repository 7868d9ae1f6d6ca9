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

// MoveMemory adds a memory to another one, which may not exist yet, and deletes the first. Of two entities with the
// same name, that of the second memory stays. Conflict while a sandbox uses the first.
func (c *Client) MoveMemory(ctx context.Context, from, to string) error {
	return c.call(ctx, http.MethodPost, api.Path(api.MemoryMove, from), nil, api.MoveMemoryRequest{To: to}, nil)
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
