package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// ReadFile returns length bytes of a sandbox's file from offset, or all if length is below 0. The caller closes it.
// If the file is shorter than offset, it returns Invalid.
func (c *Client) ReadFile(ctx context.Context, ref, path string, offset, length int64) (io.ReadCloser, error) {
	header := http.Header{}
	switch {
	case length == 0 || offset < 0:
		return nil, errors.Newf(errors.Invalid, "nothing to read at offset %d", offset)
	case length > 0:
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, offset+length-1))
	case offset > 0:
		header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	return c.download(ctx, api.Path(api.SandboxFiles, ref), url.Values{"path": {path}}, header)
}

// Condition restricts a change of a file to a version of it. If the condition does not hold, the change fails with
// Conflict and has no effect.
type Condition struct {
	ETag string // the file must exist with this ETag, such as that of api.File; "*" means any
	New  bool   // the file must not exist; for WriteFileIf
}

func (cond Condition) set(header http.Header) {
	if cond.ETag != "" {
		header.Set("If-Match", cond.ETag)
	}
	if cond.New {
		header.Set("If-None-Match", "*")
	}
}

// WriteFile writes a file of a sandbox atomically: readers see all size bytes or the old state. mode 0 keeps the mode
// of an existing file, and is 0644 for a new one.
func (c *Client) WriteFile(ctx context.Context, ref, path string, mode uint32, size int64,
	content io.Reader) (api.File, error) {
	return c.WriteFileIf(ctx, ref, path, mode, size, content, Condition{})
}

// WriteFileIf is WriteFile with a condition. Of two writers with the same ETag one fails with Conflict.
func (c *Client) WriteFileIf(ctx context.Context, ref, path string, mode uint32, size int64, content io.Reader,
	cond Condition) (api.File, error) {
	query := url.Values{"path": {path}}
	if mode != 0 {
		query.Set("mode", strconv.FormatUint(uint64(mode), 8))
	}
	body := io.NopCloser(io.LimitReader(content, size))
	if size == 0 {
		body = http.NoBody
	}
	header := http.Header{"Content-Type": {"application/octet-stream"}, "Expect": {"100-continue"}}
	cond.set(header)
	resp, err := c.doSized(ctx, http.MethodPut, api.Path(api.SandboxFiles, ref), query, body, size, header)
	if err != nil {
		return api.File{}, err
	}
	defer resp.Body.Close()
	var made api.File
	return made, broken(json.NewDecoder(resp.Body).Decode(&made))
}

// RemoveFile removes a file or an empty directory of a sandbox, or, with recursive, a directory with its content.
func (c *Client) RemoveFile(ctx context.Context, ref, path string, recursive bool) error {
	return c.RemoveFileIf(ctx, ref, path, recursive, Condition{})
}

// RemoveFileIf is RemoveFile with a condition.
func (c *Client) RemoveFileIf(ctx context.Context, ref, path string, recursive bool, cond Condition) error {
	query := url.Values{"path": {path}, "recursive": {strconv.FormatBool(recursive)}}
	header := http.Header{}
	cond.set(header)
	resp, err := c.do(ctx, http.MethodDelete, api.Path(api.SandboxFiles, ref), query, nil, header)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// ListFiles lists a directory of a sandbox, by name.
func (c *Client) ListFiles(ctx context.Context, ref, dir string) ([]api.File, error) {
	return list[api.File](ctx, c, api.Path(api.FilesList, ref), url.Values{"path": {dir}})
}

// StatFile returns the metadata of a file of a sandbox; with follow, those of a symbolic link's target.
func (c *Client) StatFile(ctx context.Context, ref, path string, follow bool) (api.File, error) {
	var found api.File
	query := url.Values{"path": {path}, "follow": {strconv.FormatBool(follow)}}
	return found, c.call(ctx, http.MethodGet, api.Path(api.FilesStat, ref), query, nil, &found)
}

// MoveFile moves or renames a file or directory of a sandbox.
func (c *Client) MoveFile(ctx context.Context, ref string, req api.MoveRequest) (api.File, error) {
	return ask[api.File](ctx, c, http.MethodPost, api.Path(api.FilesMove, ref), nil, req)
}

// MakeDirectory creates a directory in a sandbox.
func (c *Client) MakeDirectory(ctx context.Context, ref string, req api.MkdirRequest) (api.File, error) {
	return ask[api.File](ctx, c, http.MethodPost, api.Path(api.FilesMkdir, ref), nil, req)
}

// WatchFiles calls each for changes at path and, with recursive, below it, until each returns an error, ctx ends or
// path itself is removed. The first change is "ready": from then on, no change is lost without a "lagged". "lagged"
// reports that there were too many changes, or that the connection broke meanwhile.
func (c *Client) WatchFiles(ctx context.Context, ref, path string, recursive bool,
	each func(api.FileChange) error) error {
	query := url.Values{"path": {path}, "recursive": {strconv.FormatBool(recursive)}}
	again := false
	return c.resume(ctx, func(l *link) error {
		return c.watchOnce(ctx, api.Path(api.FilesWatch, ref), query, func(change api.FileChange) error {
			l.ever, l.pause = true, firstAgain
			if again && change.Kind == "ready" {
				change.Kind = "lagged"
			}
			again = true
			if err := each(change); err != nil || change.Kind == "removed" &&
				strings.Trim(change.Path, "/") == strings.Trim(path, "/") {
				return stop{err} // the watch ends with the watched path
			}
			return nil
		})
	})
}

// watchOnce reads the changes of one connection.
func (c *Client) watchOnce(ctx context.Context, path string, query url.Values, each func(api.FileChange) error) error {
	resp, err := c.do(ctx, http.MethodGet, path, query, nil, http.Header{"Accept": {api.TypeEvents}})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return readEvents(resp.Body, func(name string, data []byte) error {
		switch name {
		case api.EventFile:
			var change api.FileChange
			if err := json.Unmarshal(data, &change); err != nil {
				return broken(err)
			}
			return each(change)
		case api.EventProblem:
			var p api.Problem
			if err := json.Unmarshal(data, &p); err != nil {
				return broken(err)
			}
			return Error(p)
		}
		return nil
	})
}
