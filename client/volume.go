package client

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/RelevanceAI/harvest/api"
)

// CreateVolume makes a volume if it is missing.
func (c *Client) CreateVolume(ctx context.Context, name string) (api.Volume, error) {
	var made api.Volume
	return made, c.call(ctx, http.MethodPost, api.Volumes, nil, api.VolumeRequest{Name: name}, &made)
}

// Volumes returns all volumes by name.
func (c *Client) Volumes(ctx context.Context) ([]api.Volume, error) {
	return list[api.Volume](ctx, c, api.Volumes, nil)
}

// DeleteVolume removes a volume and its files.
func (c *Client) DeleteVolume(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.VolumeNamed, name), nil, nil, nil)
}

// VolumeCopyIn and VolumeCopyOut are CopyIn and CopyOut of a volume.
func (c *Client) VolumeCopyIn(ctx context.Context, name, dir string, tar io.Reader) error {
	return c.put(ctx, api.Path(api.VolumeArchive, name), dir, tar)
}

// VolumeCopyOut returns a tar stream of a path in a volume. The caller closes it.
func (c *Client) VolumeCopyOut(ctx context.Context, name, path string) (io.ReadCloser, error) {
	return c.get(ctx, api.Path(api.VolumeArchive, name), path)
}

// VolumeFiles lists a directory of a volume.
func (c *Client) VolumeFiles(ctx context.Context, name, dir string) ([]api.Entry, error) {
	return list[api.Entry](ctx, c, api.Path(api.VolumeList, name), url.Values{"path": {dir}})
}

// RemoveVolumeFile removes a file or a whole directory of a volume.
func (c *Client) RemoveVolumeFile(ctx context.Context, name, path string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.VolumeFiles, name), url.Values{"path": {path}}, nil, nil)
}
