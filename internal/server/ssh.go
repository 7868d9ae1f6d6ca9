package server

import (
	"context"
	"net"
	"net/http"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/bytestream"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// SSH is the SSH of a server.
type SSH struct {
	// Serve serves a connection of a client that is known to a sandbox. from is the client's address, if it has one.
	Serve   func(ctx context.Context, conn net.Conn, who account.Principal, sandbox, from string)
	HostKey string // as in api.SSH
	Listen  string // as in api.SSH
}

func sshRoutes(s *Server) []edge.Route {
	return []edge.Route{
		{Method: "GET", Path: api.SSHInfo, Handle: serverHandler(s, describeSSH), Scope: account.Read,
			Summary: "Get the server's key and address for SSH", Out: api.SSH{}, Status: 200},
		{Method: "GET", Path: api.SandboxSSH, Handle: serverHandler(s, connectSSH), Scope: account.Exec,
			Summary: "Connect to a sandbox, or to the sandbox of a session, by SSH, without a key of SSH",
			Socket:  "binary messages carry the bytes, a text message is the end of its sender's stream"},
	}
}

// serverHandler returns a handler that knows the server.
func serverHandler(s *Server, handle func(s *Server, w http.ResponseWriter, r *http.Request) error) edge.Handler {
	return func(w http.ResponseWriter, r *http.Request) error { return handle(s, w, r) }
}

func describeSSH(s *Server, w http.ResponseWriter, _ *http.Request) error {
	if s.opts.SSH.Serve == nil {
		return edge.Lacks("SSH")
	}
	return edge.Respond(w, http.StatusOK, api.SSH{HostKey: s.opts.SSH.HostKey, Listen: s.opts.SSH.Listen})
}

// connectSSH serves SSH on a WebSocket. The connection is closed when the server stops.
func connectSSH(s *Server, w http.ResponseWriter, r *http.Request) error {
	if s.opts.SSH.Serve == nil {
		return edge.Lacks("SSH")
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return errors.Remedy(errors.Newf(errors.Invalid, "GET %.200s: needs a WebSocket", r.URL.Path),
			"connect with harvest ssh, or with a WebSocket")
	}
	ws, release, err := edge.Accept(w, r)
	if err != nil {
		return nil // accept has responded
	}
	defer release()
	ctx, leave := context.WithCancel(context.WithoutCancel(r.Context()))
	defer leave()
	defer context.AfterFunc(s.settings.Stopping, leave)()
	from := ""
	if p := peerOf(r.Context()); !p.local {
		from = p.addr.String()
	}
	s.opts.SSH.Serve(ctx, bytestream.New(ctx, ws), edge.PrincipalOf(r.Context()), r.PathValue("id"), from)
	return nil
}
