package client

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// AddRepo registers a repository. BuildRepo or the server's schedule builds its image later.
func (c *Client) AddRepo(ctx context.Context, req api.RepoRequest) (api.Repo, error) {
	return ask[api.Repo](ctx, c, http.MethodPost, api.Repos, nil, req)
}

// Repos returns the account's repositories, by name.
func (c *Client) Repos(ctx context.Context) ([]api.Repo, error) {
	return list[api.Repo](ctx, c, api.Repos, nil)
}

// Repo returns a repository by its ID or name.
func (c *Client) Repo(ctx context.Context, ref string) (api.Repo, error) {
	return ask[api.Repo](ctx, c, http.MethodGet, api.Path(api.Repoed, ref), nil, nil)
}

// RemoveRepo deletes a repository and its images that are not in use.
func (c *Client) RemoveRepo(ctx context.Context, ref string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.Repoed, ref), nil, nil, nil)
}

// BuildRepo starts a build of a repository's image from the beginning, or joins the build under way. FollowRepoBuild
// returns its result.
func (c *Client) BuildRepo(ctx context.Context, ref string) (api.RepoBuilt, error) {
	return ask[api.RepoBuilt](ctx, c, http.MethodPost, api.Path(api.RepoBuild, ref), nil, nil)
}

// RefreshRepo starts an update of a repository's image, which may find it up to date, or joins the build under way.
// FollowRepoBuild returns its result.
func (c *Client) RefreshRepo(ctx context.Context, ref string) (api.RepoBuilt, error) {
	return ask[api.RepoBuilt](ctx, c, http.MethodPost, api.Path(api.RepoRefresh, ref), nil, nil)
}

// RepoBuilds returns the history of a repository, newest first. It does not include refreshes without changes.
func (c *Client) RepoBuilds(ctx context.Context, ref string) ([]api.RepoBuilt, error) {
	return list[api.RepoBuilt](ctx, c, api.Path(api.RepoBuilds, ref), nil)
}

// FollowRepoBuild passes the events of a build to each, from its beginning, and returns its result. each may be nil.
func (c *Client) FollowRepoBuild(ctx context.Context, b api.RepoBuilt,
	each func(kind string, e api.RepoEvent)) (api.RepoBuilt, error) {
	for e, err := range c.Events(ctx, Follow{Stream: b.RepoID}) {
		if err != nil {
			return b, err
		}
		var data api.RepoEvent
		if err := json.Unmarshal(e.Data, &data); err != nil {
			return b, broken(err)
		}
		if data.BuildID != b.ID {
			continue
		}
		if each != nil {
			each(e.Type, data)
		}
		if e.Type == api.EventBuildEnded && data.Build != nil {
			return *data.Build, nil
		}
	}
	return b, errors.Wrapf(ctx.Err(), "follow the build %s", b.ID)
}
