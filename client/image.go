package client

import (
	"context"
	"net/http"

	"github.com/RelevanceAI/harvest/api"
)

// BuildImage returns the image, building it if it does not exist or if req.Force. progress may be nil.
func (c *Client) BuildImage(ctx context.Context, req api.BuildRequest, progress func(api.Progress)) (api.Image, error) {
	var built api.Image
	return built, c.events(ctx, api.Images, req, progress, api.EventBuilt, &built)
}

// Images returns all images, newest first.
func (c *Client) Images(ctx context.Context) ([]api.Image, error) {
	return list[api.Image](ctx, c, api.Images, nil)
}

// Image returns an image by its id, a unique beginning of it, a digest, or a name.
func (c *Client) Image(ctx context.Context, ref string) (api.Image, error) {
	var found api.Image
	return found, c.call(ctx, http.MethodGet, api.Path(api.Imaged, ref), nil, nil, &found)
}

// DeleteImage removes an image that no sandbox uses.
func (c *Client) DeleteImage(ctx context.Context, ref string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.Imaged, ref), nil, nil, nil)
}
