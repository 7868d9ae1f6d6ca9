package client

import (
	"context"
	"net"
	"net/http"

	"github.com/RelevanceAI/harvest/client/api"
)

// SSH returns the server's key for SSH, and its address.
func (c *Client) SSH(ctx context.Context) (api.SSH, error) {
	return ask[api.SSH](ctx, c, http.MethodGet, api.SSHInfo, nil, nil)
}

// DialSSH connects to the SSH of a sandbox, or of the sandbox of a session. The server knows the client already: it
// accepts any user without a key. The end of ctx aborts only the connection attempt.
func (c *Client) DialSSH(ctx context.Context, ref string) (net.Conn, error) {
	return dialSocket(ctx, c, api.Path(api.SandboxSSH, ref))
}
