package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/RelevanceAI/harvest/client/api"
)

// CreateSandbox creates a sandbox that is ready for commands. progress, if not nil, receives the progress of an image
// build.
func (c *Client) CreateSandbox(ctx context.Context, req api.SandboxRequest,
	progress func(api.Progress)) (api.Sandbox, error) {
	var made api.Sandbox
	return made, c.events(ctx, api.Sandboxes, req, progress, api.EventReady, &made)
}

// Sandboxes returns one page, newest first, and the cursor of the next.
func (c *Client) Sandboxes(ctx context.Context, filter api.SandboxFilter) ([]api.Sandbox, string, error) {
	query := url.Values{}
	if filter.All {
		query.Set("all", "true")
	}
	if filter.Everyone {
		query.Set("everyone", "true")
	}
	if filter.Name != "" {
		query.Set("name", filter.Name)
	}
	for key, value := range filter.Tags {
		query.Add("tag", key+"="+value)
	}
	if filter.Limit != 0 {
		query.Set("limit", strconv.Itoa(filter.Limit))
	}
	if filter.Cursor != "" {
		query.Set("cursor", filter.Cursor)
	}
	var page api.List[api.Sandbox]
	err := c.call(ctx, http.MethodGet, api.Sandboxes, query, nil, &page)
	return page.Data, page.NextCursor, err
}

// Sandbox returns a sandbox.
func (c *Client) Sandbox(ctx context.Context, ref string) (api.Sandbox, error) {
	return ask[api.Sandbox](ctx, c, http.MethodGet, api.Path(api.Sandboxed, ref), nil, nil)
}

// SandboxUsage returns the resource usage of a sandbox over its life.
func (c *Client) SandboxUsage(ctx context.Context, ref string) (api.Used, error) {
	return ask[api.Used](ctx, c, http.MethodGet, api.Path(api.SandboxUsage, ref), nil, nil)
}

// DestroySandbox ends a sandbox and releases its resources. It is idempotent.
func (c *Client) DestroySandbox(ctx context.Context, ref string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.Sandboxed, ref), nil, nil, nil)
}

// DestroySandboxSync is DestroySandbox, but sync determines whether the sandbox's volume is sent to S3 first, instead
// of the sandbox's own setting.
func (c *Client) DestroySandboxSync(ctx context.Context, ref string, sync bool) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.Sandboxed, ref),
		url.Values{"sync": {strconv.FormatBool(sync)}}, nil, nil)
}

// DestroyAnySandbox is DestroySandbox for the server's operator: it takes the complete ID of a sandbox of any
// account.
func (c *Client) DestroyAnySandbox(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.Sandboxed, id), url.Values{"everyone": {"true"}}, nil, nil)
}

// ExtendSandbox extends the lifetime of a sandbox or sets its idle limit.
func (c *Client) ExtendSandbox(ctx context.Context, ref string, req api.ExtendRequest) (api.Sandbox, error) {
	return ask[api.Sandbox](ctx, c, http.MethodPost, api.Path(api.SandboxExtend, ref), nil, req)
}

// SuspendSandbox suspends a sandbox: its files are kept, and if possible its processes, and its resources are released.
// The next operation on it wakes it. Conflict: it is in use.
func (c *Client) SuspendSandbox(ctx context.Context, ref string) (api.Sandbox, error) {
	return ask[api.Sandbox](ctx, c, http.MethodPost, api.Path(api.SandboxSuspend, ref), nil, nil)
}

// WakeSandbox wakes a suspended sandbox.
func (c *Client) WakeSandbox(ctx context.Context, ref string) (api.Sandbox, error) {
	return ask[api.Sandbox](ctx, c, http.MethodPost, api.Path(api.SandboxWake, ref), nil, nil)
}

// SnapshotSandbox creates an image of a sandbox's files while it runs.
func (c *Client) SnapshotSandbox(ctx context.Context, ref string, req api.SnapshotRequest) (api.Image, error) {
	return ask[api.Image](ctx, c, http.MethodPost, api.Path(api.SandboxSnapshot, ref), nil, req)
}

// ForkSandbox creates a copy of a running sandbox with its current files.
func (c *Client) ForkSandbox(ctx context.Context, ref string, req api.ForkRequest) (api.Sandbox, error) {
	return ask[api.Sandbox](ctx, c, http.MethodPost, api.Path(api.SandboxFork, ref), nil, req)
}

// SetNetwork replaces the network policy of a running sandbox. The server closes connections that are no longer
// allowed.
func (c *Client) SetNetwork(ctx context.Context, ref string, network api.Network) (api.Sandbox, error) {
	return ask[api.Sandbox](ctx, c, http.MethodPost, api.Path(api.SandboxNetwork, ref), nil, network)
}

// Exec runs a command. Its output is in the Result.
func (c *Client) Exec(ctx context.Context, ref string, req api.ExecRequest) (api.Result, error) {
	if err := checkText(req); err != nil {
		return api.Result{}, err
	}
	req.Detach = false
	return ask[api.Result](ctx, c, http.MethodPost, api.Path(api.SandboxExec, ref), nil, req)
}

// ExecDetached starts a command in the background; Attach connects to it later.
func (c *Client) ExecDetached(ctx context.Context, ref string, req api.ExecRequest) (api.Started, error) {
	if err := checkText(req); err != nil {
		return api.Started{}, err
	}
	req.Detach = true
	return ask[api.Started](ctx, c, http.MethodPost, api.Path(api.SandboxExec, ref), nil, req)
}

// Processes returns the commands that were started in a sandbox, as long as their output is kept.
func (c *Client) Processes(ctx context.Context, ref string) ([]api.Process, error) {
	return list[api.Process](ctx, c, api.Path(api.SandboxProcesses, ref), nil)
}

// CopyIn unpacks a tar stream below a directory of a sandbox.
func (c *Client) CopyIn(ctx context.Context, ref, dir string, tar io.Reader) error {
	return c.put(ctx, api.Path(api.SandboxArchive, ref), dir, tar)
}

// CopyOut returns a tar stream of a path in a sandbox: one entry for a file, the whole tree for a directory. The caller
// closes it.
func (c *Client) CopyOut(ctx context.Context, ref, path string) (io.ReadCloser, error) {
	return c.get(ctx, api.Path(api.SandboxArchive, ref), path)
}
