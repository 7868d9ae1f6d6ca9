// Package client is the Go client of a Harvest server. Errors have the Kind, stage and remedy from the server.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/socket"
)

// Socket is the name of the server's Unix socket in the data directory.
const Socket = "harvest.sock"

// local is the URL prefix for the socket, which needs no host.
const local = "http://harvest"

// Client talks to one server. All methods may be called concurrently. Requests are retried if that is safe; see
// retry.go. Methods that take a sandbox accept an ID, a unique prefix of an ID, or a name.
type Client struct {
	http   *http.Client
	base   string      // URL without a path
	header http.Header // of every request
}

// New returns a client for the server of a data directory. It does not check whether the server runs.
func New(data string) *Client {
	return newClient(local, "", func(ctx context.Context, _, _ string) (net.Conn,
		error) {
		return socket.Dial(ctx, data, Socket)
	})
}

// At returns a client for the server at a URL, such as https://harvest.example.org, with a key created there by
// "harvest key create". It does not check whether the server runs. It returns Invalid if base is not such a URL.
func At(base, key string) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "invalid URL of a server"),
			"give a URL such as https://harvest.example.org or http://127.0.0.1:7777")
	}
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "invalid key"),
			"give a key, which begins with hv_ and has no spaces")
	}
	return newClient(u.Scheme+"://"+u.Host, key, (&net.Dialer{Timeout: 10 * time.Second}).DialContext), nil
}

// Through returns a client for the server to which dial connects, with a key; "" means none.
func Through(dial func(ctx context.Context) (net.Conn, error), key string) *Client {
	return newClient(local, key, func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) })
}

func newClient(base, key string, dial func(ctx context.Context, network, address string) (net.Conn, error)) *Client {
	c := &Client{base: base, header: http.Header{}, http: &http.Client{
		Transport: &http.Transport{
			DialContext: dial, DisableCompression: true, ExpectContinueTimeout: 5 * time.Second, MaxIdleConnsPerHost: 8,
			TLSHandshakeTimeout: 10 * time.Second,
		},
		// The API has no redirects that a client should follow.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if base != local {
		c.http.Transport.(*http.Transport).Proxy = http.ProxyFromEnvironment
	}
	if key != "" {
		c.header.Set("Authorization", "Bearer "+key)
	}
	return c
}

// Connect returns a client for the server of a data directory. It returns Unavailable if no server responds.
func Connect(ctx context.Context, data string) (*Client, error) {
	c := New(data)
	if _, err := c.Server(ctx); err != nil {
		return nil, errors.Remedy(err, "start one with: harvest up")
	}
	return c, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Execute runs Python code in a new sandbox and returns the result. Failures of the code, its time limit
// included, are Results; an error means that the code did not run. timeout 0 means the server's default.
func (c *Client) Execute(ctx context.Context, code string, timeout time.Duration) (api.Result, error) {
	if strings.TrimSpace(code) == "" {
		return api.Result{}, errors.Remedy(errors.Newf(errors.Invalid, "no code given"), "give some Python code")
	}
	return c.RunCommand(ctx, api.RunRequest{ExecRequest: api.ExecRequest{Code: code,
		TimeoutSeconds: timeout.Seconds()}})
}

// RunCommand runs a command in a new sandbox. Its output is in the Result.
func (c *Client) RunCommand(ctx context.Context, req api.RunRequest) (api.Result, error) {
	if err := checkText(req.ExecRequest); err != nil {
		return api.Result{}, err
	}
	return ask[api.Result](ctx, c, http.MethodPost, api.Run, nil, req)
}

// Server returns information about the server.
func (c *Client) Server(ctx context.Context) (api.Server, error) {
	return ask[api.Server](ctx, c, http.MethodGet, api.Readyz, nil, nil)
}

// Backup returns the server's records as a tar stream, from which another server can take over. The caller closes it.
// Only the server's operator may call it.
func (c *Client) Backup(ctx context.Context, req api.BackupRequest) (io.ReadCloser, error) {
	resp, err := c.send(ctx, http.MethodPost, api.Backup, nil, req)
	if err != nil {
		return nil, err
	}
	return &checkedBody{resp.Body}, nil
}

// Shutdown ends the server and returns when it has ended. Sandboxes keep running.
func (c *Client) Shutdown(ctx context.Context, req api.ShutdownRequest) error {
	resp, err := c.send(ctx, http.MethodPost, api.Shutdown, nil, req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	// The body ends, cleanly or not, with the server.
	if _, err := io.Copy(io.Discard, resp.Body); err != nil && ctx.Err() != nil {
		return errors.Explainf(ctx.Err(), errors.KindOf(ctx.Err()), "the server did not end in time")
	}
	return nil
}

// call sends in as JSON, unless it is nil, and decodes the response into out, unless that is nil.
func (c *Client) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	resp, err := c.send(ctx, method, path, query, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	return broken(json.NewDecoder(resp.Body).Decode(out))
}

// ask is call with the response as its result.
func ask[T any](ctx context.Context, c *Client, method, path string, query url.Values, in any) (out T, err error) {
	err = c.call(ctx, method, path, query, in, &out)
	return out, err
}

// send sends in as JSON and returns the response if it is a success. The caller closes it.
func (c *Client) send(ctx context.Context, method, path string, query url.Values, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, errors.Explainf(err, errors.Invalid, "cannot encode the request as JSON")
		}
		body = bytes.NewReader(data)
	}
	return c.do(ctx, method, path, query, body, http.Header{"Content-Type": {api.TypeJSON}})
}

func (c *Client) do(ctx context.Context, method, path string, query url.Values, body io.Reader,
	header http.Header) (*http.Response, error) {
	return c.doSized(ctx, method, path, query, body, -1, header)
}

// doSized is do with a body of known size; -1 lets net/http determine it.
func (c *Client) doSized(ctx context.Context, method, path string, query url.Values, body io.Reader, size int64,
	header http.Header) (*http.Response, error) {
	target := c.base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	return c.try(ctx, &request{method: method, target: target, path: path, body: body, size: size, header: header})
}

// unreachable returns the error for a request without a response.
func (c *Client) unreachable(err error) error {
	if c.base != local && dialing(err) {
		return errors.Remedy(errors.Explainf(err, errors.Unavailable, "no server answers at %s", c.base),
			"check HARVEST_URL, and start the server: harvest up")
	}
	return broken(err)
}

// dialing reports whether the connection attempt failed.
func dialing(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// broken converts an error of the connection.
func broken(err error) error {
	if err == nil || errors.KindOf(err) != errors.Internal {
		return err
	}
	return errors.Remedy(errors.Explainf(err, errors.Unavailable, "the connection to the server broke"),
		"try again; server.log in the data directory may say why")
}

// failure decodes the problem in resp.
func failure(resp *http.Response) error {
	var p api.Problem
	if err := json.NewDecoder(io.LimitReader(resp.Body, api.MaxBody)).Decode(&p); err != nil || p.Code == "" {
		return errors.Newf(errors.Unavailable, "the server returned status %d", resp.StatusCode)
	}
	return Error(p)
}

// Error converts p back to an error.
func Error(p api.Problem) error {
	kind := errors.Kind(p.Code)
	if !slices.Contains(errors.Kinds, kind) {
		kind = errors.Internal
	}
	err := errors.Newf(kind, "%s", p.Detail)
	switch {
	case p.Remedy != "":
		err = errors.Remedy(err, "%s", p.Remedy)
	case kind == errors.Internal && p.RequestID != "":
		err = errors.Remedy(err, "look for %s in the server's log", p.RequestID)
	}
	if p.Stage != "" {
		err = errors.Stage(err, p.Stage)
	}
	if p.ReturnCode != 0 {
		err = errors.Exit(err, p.ReturnCode)
	}
	return err
}

// put sends a tar stream; get returns one, which the caller closes.
func (c *Client) put(ctx context.Context, route, path string, tar io.Reader) error {
	// With Expect, the server can refuse the request before the stream is sent.
	header := http.Header{"Content-Type": {api.TypeTar}, "Expect": {"100-continue"}}
	resp, err := c.do(ctx, http.MethodPut, route, url.Values{"path": {path}}, tar, header)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func (c *Client) get(ctx context.Context, route, path string) (io.ReadCloser, error) {
	return c.download(ctx, route, url.Values{"path": {path}}, http.Header{})
}

// checkedBody converts the error of a body that ends early.
type checkedBody struct{ io.ReadCloser }

func (b *checkedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = broken(err)
	}
	return n, err
}

// list returns all elements of a list, page by page.
func list[T any](ctx context.Context, c *Client, route string, query url.Values) ([]T, error) {
	all := []T{}
	query = maps.Clone(query)
	if query == nil {
		query = url.Values{}
	}
	for {
		var page api.List[T]
		if err := c.call(ctx, http.MethodGet, route, query, nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Data...)
		if page.NextCursor == "" {
			return all, nil
		}
		query.Set("cursor", page.NextCursor)
	}
}
