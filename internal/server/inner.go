package server

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/mcp"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// innerServer serves the Model Context Protocol. Its tools are a client of this server's own API: each of their
// requests comes through a pipe, with the address and the key, or the user, of the request of MCP. So rights, limits
// and the audit log hold for tools as for all clients.
type innerServer struct {
	server  *Server
	handler *sdk.StreamableHTTPHandler
	locks   mcp.Locks

	once  sync.Once // starts to serve conns
	conns chan net.Conn
}

type (
	innerKey    struct{}
	innerUser   struct{} // of the context of a tool's request: the user whose client of OAuth uses the tool
	innerClient struct{} // of a request's context: its client
)

// innerConn is a connection of a tool. peer is the sender of the request of MCP. If it has an access token of OAuth,
// user is its principal: the token is not for other routes, and may expire before the tool is done.
type innerConn struct {
	net.Conn
	peer peer
	user account.Principal
}

// newInner returns the server of tools. It keeps nothing between requests: an environment is found by its name.
func newInner(s *Server) *innerServer {
	in := &innerServer{server: s, conns: make(chan net.Conn)}
	in.handler = sdk.NewStreamableHTTPHandler(func(r *http.Request) *sdk.Server {
		c, _ := r.Context().Value(innerClient{}).(*client.Client)
		return mcp.New(mcp.Options{Client: c, Version: s.opts.Version, Locks: &in.locks})
	}, &sdk.StreamableHTTPOptions{
		Stateless: true, PropagateRequestCancellation: true, MaxRequestBodyBytes: api.MaxExec,
		DisableLocalhostProtection: true, // the middleware checks the name of the server
	})
	return in
}

func (in *innerServer) routes() []edge.Route {
	return []edge.Route{
		{Method: "POST", Path: api.MCP, Handle: in.serve, Scope: account.Read, Raw: true,
			Summary: "Model Context Protocol (streamable HTTP): tools for agents; needs a key or a token of OAuth",
			RawIn:   api.TypeJSON, RawOut: api.TypeEvents, Status: 200},
		{Method: "GET", Path: api.MCP, Handle: in.refuse, Scope: account.Read,
			Summary: "Refused: the server keeps no sessions of the Model Context Protocol", Status: 405},
	}
}

// refuse responds that there is no stream of messages beside those of requests.
func (in *innerServer) refuse(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Allow", http.MethodPost)
	return edge.WithStatus(errors.Remedy(errors.Newf(errors.Unsupported, "there are no sessions of MCP here"),
		"send messages with POST"), http.StatusMethodNotAllowed)
}

func (in *innerServer) serve(w http.ResponseWriter, r *http.Request) error {
	p := peerOf(r.Context())
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if scheme == "" && !p.local {
		return challenged(in.server, w, r, errors.Remedy(errors.Newf(errors.Unauthenticated,
			"tools need a key, not the cookie of a browser"),
			"send \"Authorization: Bearer hv_…\"; harvest key create makes a key"))
	}
	user := account.Principal{}
	if who := edge.PrincipalOf(r.Context()); who.Kind == account.OAuth {
		user, key = who, ""
	}
	in.once.Do(func() { go func() { _ = in.server.Serve(innerListener{in}) }() })
	c := client.Through(func(ctx context.Context) (net.Conn, error) {
		return in.dial(ctx, p, user)
	}, strings.TrimSpace(key))
	defer c.Close()
	in.handler.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), innerClient{}, c)))
	return nil
}

// dial connects a tool to the server.
func (in *innerServer) dial(ctx context.Context, p peer, user account.Principal) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case in.conns <- innerConn{far, p, user}:
		return near, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-in.server.done:
		return nil, net.ErrClosed
	}
}

// innerListener accepts the connections of tools.
type innerListener struct{ in *innerServer }

func (l innerListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.in.conns:
		return conn, nil
	case <-l.in.server.done:
		return nil, net.ErrClosed
	}
}

func (innerListener) Close() error   { return nil }
func (innerListener) Addr() net.Addr { return &net.UnixAddr{Name: "mcp", Net: "unix"} }
