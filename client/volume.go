package client

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// CreateVolume creates a volume if it is missing.
func (c *Client) CreateVolume(ctx context.Context, name string) (api.Volume, error) {
	return ask[api.Volume](ctx, c, http.MethodPost, api.Volumes, nil, api.VolumeRequest{Name: name})
}

// Volumes returns all volumes by name.
func (c *Client) Volumes(ctx context.Context) ([]api.Volume, error) {
	return list[api.Volume](ctx, c, api.Volumes, nil)
}

// DeleteVolume deletes a volume and its files. It returns Conflict while a sandbox uses it, and while changes of a
// sandbox have not been sent to S3.
func (c *Client) DeleteVolume(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.VolumeNamed, name), nil, nil, nil)
}

// DeleteVolumeForce is DeleteVolume, but also deletes a volume with changes that have not been sent to S3. These
// changes are lost.
func (c *Client) DeleteVolumeForce(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.VolumeNamed, name), url.Values{"force": {"true"}}, nil, nil)
}

// VolumeCopyIn is CopyIn for a volume.
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

// RemoveVolumeFile removes a file or a directory with its content from a volume.
func (c *Client) RemoveVolumeFile(ctx context.Context, name, path string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.VolumeFiles, name), url.Values{"path": {path}}, nil, nil)
}

// SyncVolume synchronizes a volume with its location in S3. progress, which may be nil, receives the statistics
// several times a second.
func (c *Client) SyncVolume(ctx context.Context, name string, req api.VolumeSyncRequest,
	progress func(api.SyncStats)) (api.Synced, error) {
	return c.sync(ctx, api.Path(api.VolumeSync, name), req, progress)
}

// SyncSandbox synchronizes a sandbox's volume with its location in S3, in the direction "up", "down" or "both".
// progress is as in SyncVolume.
func (c *Client) SyncSandbox(ctx context.Context, ref string, req api.SandboxSyncRequest,
	progress func(api.SyncStats)) (api.Synced, error) {
	return c.sync(ctx, api.Path(api.SandboxSync, ref), req, progress)
}

func (c *Client) sync(ctx context.Context, path string, req any, progress func(api.SyncStats)) (api.Synced, error) {
	var done api.Synced
	data, err := json.Marshal(req)
	if err != nil {
		return done, errors.Explainf(err, errors.Invalid, "cannot encode the request as JSON")
	}
	return done, c.follow(ctx, path, bytes.NewReader(data), api.TypeJSON,
		func(event string, data []byte) (bool, error) {
			switch event {
			case api.EventSyncing:
				return false, each(data, progress)
			case api.EventSynced:
				return true, broken(json.Unmarshal(data, &done))
			}
			return false, nil
		})
}

// VolumeVersions lists the versions of a volume in S3, the latest first. bucket, prefix and secret are as in a
// VolumeSyncRequest.
func (c *Client) VolumeVersions(ctx context.Context, name, bucket, prefix, secret string) ([]api.VolumeVersion, error) {
	return list[api.VolumeVersion](ctx, c, api.Path(api.VolumeVersions, name), s3Query(bucket, prefix, secret))
}

// PruneVersions deletes all versions of a volume in S3 except the latest keep ones.
func (c *Client) PruneVersions(ctx context.Context, name, bucket, prefix, secret string, keep int) error {
	query := s3Query(bucket, prefix, secret)
	query.Set("keep", strconv.Itoa(keep))
	return c.call(ctx, http.MethodDelete, api.Path(api.VolumeVersions, name), query, nil, nil)
}

func s3Query(bucket, prefix, secret string) url.Values {
	query := url.Values{}
	for key, value := range map[string]string{"bucket": bucket, "prefix": prefix, "secret": secret} {
		if value != "" {
			query.Set(key, value)
		}
	}
	return query
}
