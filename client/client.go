// Package client is the Go client of a Harvest server. Errors keep the Kind, stage and remedy that the server gave them.
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

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/socket"
)

// Socket is the name of the server's Unix socket in the data directory.
const Socket = "harvest.sock"

// local stands where URLs have a host; the socket needs none.
const local = "http://harvest"

// Client talks to one server. All methods may be called concurrently. Requests are tried again where that is safe; see retry.go for when that is. Methods that name a sandbox take an id, a unique
// beginning of one, or a name.
type Client struct {
	http   *http.Client
	base   string      // URL without a path
	header http.Header // of every request
}

// New returns a client of the server of a data directory, without asking whether there is one.
func New(data string) *Client {
	return newClient(local, "", func(ctx context.Context, _, _ string) (net.Conn, error) { return socket.Dial(ctx, data, Socket) })
}

// At returns a client of the server at a URL, such as https://harvest.example.org, with a key that "harvest key create" made there.
// It does not ask whether there is one. Invalid if base is no such URL.
func At(base, key string) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "this is not the URL of a server"), "write it like https://harvest.example.org or http://127.0.0.1:7777")
	}
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "this is not a key"), "keys begin with hv_ and have no spaces")
	}
	return newClient(u.Scheme+"://"+u.Host, key, (&net.Dialer{Timeout: 10 * time.Second}).DialContext), nil
}

func newClient(base, key string, dial func(ctx context.Context, network, address string) (net.Conn, error)) *Client {
	c := &Client{base: base, header: http.Header{}, http: &http.Client{
		Transport: &http.Transport{
			DialContext: dial, DisableCompression: true, ExpectContinueTimeout: 5 * time.Second, MaxIdleConnsPerHost: 8, TLSHandshakeTimeout: 10 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // nothing that is asked for lies elsewhere
	}}
	if base != local {
		c.http.Transport.(*http.Transport).Proxy = http.ProxyFromEnvironment
	}
	if key != "" {
		c.header.Set("Authorization", "Bearer "+key)
	}
	return c
}

// Connect returns a client of the server of a data directory. Unavailable if none answers.
func Connect(ctx context.Context, data string) (*Client, error) {
	c := New(data)
	if _, err := c.Server(ctx); err != nil {
		return nil, errors.Remedy(err, "start one with: harvest up")
	}
	return c, nil
}

// Close closes connections that no request uses.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Execute runs Python code in a sandbox of its own and returns what it did (mission A1). What happens to the code, its time
// limit included, is a Result; an error means that it did not run. timeout 0 means the server's default.
func (c *Client) Execute(ctx context.Context, code string, timeout time.Duration) (api.Result, error) {
	if strings.TrimSpace(code) == "" {
		return api.Result{}, errors.Remedy(errors.Newf(errors.Invalid, "the code is empty"), "give some Python code")
	}
	return c.RunCommand(ctx, api.RunRequest{ExecRequest: api.ExecRequest{Code: code, TimeoutSeconds: timeout.Seconds()}})
}

// RunCommand runs a command in a sandbox of its own. Its output is in the Result.
func (c *Client) RunCommand(ctx context.Context, req api.RunRequest) (api.Result, error) {
	if err := checkText(req.ExecRequest); err != nil {
		return api.Result{}, err
	}
	var res api.Result
	return res, c.call(ctx, http.MethodPost, api.Run, nil, req, &res)
}

// Server tells about the server.
func (c *Client) Server(ctx context.Context) (api.Server, error) {
	var s api.Server
	return s, c.call(ctx, http.MethodGet, api.Readyz, nil, nil, &s)
}

// Backup returns the server's records as a tar stream, from which another server can go on. The caller closes it. Only the server's operator may.
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
	// The body ends, in whatever way, with the server.
	if _, err := io.Copy(io.Discard, resp.Body); err != nil && ctx.Err() != nil {
		return errors.Explainf(ctx.Err(), errors.KindOf(ctx.Err()), "the server did not end in time")
	}
	return nil
}

// call sends in as JSON, unless it is nil, and decodes the answer into out, unless that is nil.
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

// send sends in as JSON and returns the answer, which the caller closes, if it is one of success.
func (c *Client) send(ctx context.Context, method, path string, query url.Values, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, errors.Explainf(err, errors.Invalid, "the request cannot be written as JSON")
		}
		body = bytes.NewReader(data)
	}
	return c.do(ctx, method, path, query, body, http.Header{"Content-Type": {api.TypeJSON}})
}

func (c *Client) do(ctx context.Context, method, path string, query url.Values, body io.Reader, header http.Header) (*http.Response, error) {
	return c.doSized(ctx, method, path, query, body, -1, header)
}

// doSized is do with a body whose size is known; -1 if net/http has to find out.
func (c *Client) doSized(ctx context.Context, method, path string, query url.Values, body io.Reader, size int64, header http.Header) (*http.Response, error) {
	target := c.base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	return c.try(ctx, &request{method: method, target: target, path: path, body: body, size: size, header: header})
}

// unreachable explains why a request got no answer.
func (c *Client) unreachable(err error) error {
	if c.base != local && dialing(err) {
		return errors.Remedy(errors.Explainf(err, errors.Unavailable, "no server answers at %s", c.base), "check HARVEST_URL, and that the server runs: harvest up")
	}
	return broken(err)
}

// dialing reports whether there was no connection at all.
func dialing(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// broken explains an error of the connection.
func broken(err error) error {
	if err == nil || errors.KindOf(err) != errors.Internal {
		return err
	}
	return errors.Remedy(errors.Explainf(err, errors.Unavailable, "the connection to the server broke off"),
		"try again; server.log in the data directory may say why")
}

// failure reads the problem that resp holds.
func failure(resp *http.Response) error {
	var p api.Problem
	if err := json.NewDecoder(io.LimitReader(resp.Body, api.MaxBody)).Decode(&p); err != nil || p.Code == "" {
		return errors.Newf(errors.Unavailable, "the server answered with status %d", resp.StatusCode)
	}
	return Error(p)
}

// Error makes the error again that became p.
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

// put sends a tar stream, and get returns one, which the caller closes.
func (c *Client) put(ctx context.Context, route, path string, tar io.Reader) error {
	// The server refuses what it can before the stream is sent.
	header := http.Header{"Content-Type": {api.TypeTar}, "Expect": {"100-continue"}}
	resp, err := c.do(ctx, http.MethodPut, route, url.Values{"path": {path}}, tar, header)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func (c *Client) get(ctx context.Context, route, path string) (io.ReadCloser, error) {
	resp, err := c.do(ctx, http.MethodGet, route, url.Values{"path": {path}}, nil, http.Header{})
	if err != nil {
		return nil, err
	}
	return &checkedBody{resp.Body}, nil
}

// checkedBody explains why a body ends early.
type checkedBody struct{ io.ReadCloser }

func (b *checkedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = broken(err)
	}
	return n, err
}

// list returns all of a list, page by page.
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
