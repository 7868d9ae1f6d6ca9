package client

import (
	"context"
	"net"
	"net/url"
	"strconv"

	"github.com/coder/websocket"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/transport/bytestream"
)

// Dial connects to a port on which a command in the sandbox listens, on any of its addresses, loopback included. The
// end of ctx aborts only the connection attempt. The connection has CloseWrite, like TCP connections; it is closed
// when a deadline passes. Dial returns Unavailable if no process listens.
func (c *Client) Dial(ctx context.Context, ref string, port int) (net.Conn, error) {
	query := url.Values{"port": {strconv.Itoa(port)}}
	return dialSocket(ctx, c, api.Path(api.SandboxConnect, ref)+"?"+query.Encode())
}

// dialSocket connects to a route whose WebSocket carries bytes.
func dialSocket(ctx context.Context, c *Client, path string) (net.Conn, error) {
	ws, resp, err := websocket.Dial(ctx, c.base+path,
		&websocket.DialOptions{HTTPClient: c.http, HTTPHeader: c.header.Clone()})
	if err != nil {
		if resp != nil && resp.StatusCode >= 300 {
			return nil, failure(resp)
		}
		return nil, broken(err)
	}
	return bytestream.New(context.WithoutCancel(ctx), ws), nil
}
