package server

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// linkRoutes returns the routes for connections and links to ports of sandboxes.
func (s *Server) linkRoutes() []edge.Route {
	return []edge.Route{
		{Method: "GET", Path: api.SandboxConnect, Handle: s.connectPort, Scope: account.Exec,
			Summary: "Connect to a port in a sandbox", Query: "port: number of the port",
			Socket: "binary messages carry the bytes, a text message is the end of its sender's stream"},
		{Method: "POST", Path: api.SandboxLinks, Handle: s.withRing(s.createPortLink), Scope: account.Exec,
			Summary: "Create a link to a port of the sandbox, usable by anyone; shown only this time",
			In:      api.PortLinkRequest{}, Out: api.NewPortLink{}, Status: 201, Secret: true},
		{Method: "GET", Path: api.SandboxLinks, Handle: s.withRing(s.listPortLinks), Scope: account.Read,
			Summary: "List the valid links of a sandbox, newest first",
			Query:   edge.QueryPage, Out: api.List[api.PortLink]{}, Status: 200},
		{Method: "DELETE", Path: api.SandboxLinked, Handle: s.withRing(s.revokePortLink), Scope: account.Exec,
			Summary: "Revoke a link, also in browsers that have opened it", Status: 204},
	}
}

// found returns the sandbox that a request names.
func (s *Server) found(r *http.Request) (record.Sandbox, error) {
	return s.opts.Fleet.Get(r.Context(), edge.Account(r), r.PathValue("id"))
}

func (s *Server) createPortLink(ring *account.Ring, w http.ResponseWriter, r *http.Request) error {
	var req api.PortLinkRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	if req.Port < 1 || req.Port > 65535 {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid port %d", req.Port), "give a number from 1 to 65535")
	}
	life, err := edge.Seconds("expires_in_seconds", req.ExpiresIn)
	if err != nil {
		return err
	}
	box, err := s.found(r)
	if err != nil {
		return err
	}
	if box.Status.Ended() {
		return errGone(box)
	}
	to := portHost{box.ID, req.Port}
	where, err := s.portURL(r, to)
	if err != nil {
		return err
	}
	made, secret, err := ring.Share(r.Context(), edge.PrincipalOf(r.Context()), to.subject(), life)
	if err != nil {
		return err
	}
	where.RawQuery = url.Values{api.LinkParameter: {secret.Reveal()}}.Encode()
	w.Header().Set("Cache-Control", "no-store")
	return edge.Respond(w, http.StatusCreated, api.NewPortLink{PortLink: linkOut(made), URL: where.String()})
}

func (s *Server) listPortLinks(ring *account.Ring, w http.ResponseWriter, r *http.Request) error {
	box, err := s.found(r)
	if err != nil {
		return err
	}
	all, err := ring.Shares(r.Context(), edge.PrincipalOf(r.Context()), box.ID+":")
	if err != nil {
		return err
	}
	return edge.Paged(s.settings, w, r, all, true, func(k account.Key) string { return k.ID }, linkOut)
}

func (s *Server) revokePortLink(ring *account.Ring, w http.ResponseWriter, r *http.Request) error {
	box, err := s.found(r)
	if err != nil {
		return err
	}
	return edge.NoContent(w, ring.Unshare(r.Context(), edge.PrincipalOf(r.Context()), box.ID+":", r.PathValue("link")))
}

func linkOut(k account.Key) api.PortLink {
	box, port, _ := strings.Cut(k.Subject, ":")
	n, _ := strconv.Atoi(port) // written by createPortLink
	return api.PortLink{ID: k.ID, SandboxID: box, Port: n, Created: k.Created.UTC(), Expires: k.Expires.UTC(),
		LastUsed: k.LastUsed.UTC()}
}

// base returns the address at which browsers reach the server: the host name in the request or, for the Unix socket,
// Options.URL. It returns Unsupported if no such address exists.
func (s *Server) base(r *http.Request) (string, error) {
	if p := peerOf(r.Context()); !p.local {
		return p.origin(), nil
	}
	if s.opts.URL == "" {
		err := errors.Newf(errors.Unsupported, "this server listens on no address that browsers can reach")
		if !s.opts.Background {
			return "", errors.Remedy(err, "stop it with \"harvest down\", and start it with: harvest up")
		}
		return "", errors.Remedy(err, "replace it with a server that does: harvest up")
	}
	return s.opts.URL, nil
}

// portURL returns the address at which browsers reach a port.
func (s *Server) portURL(r *http.Request, to portHost) (url.URL, error) {
	base, err := s.base(r)
	if err != nil {
		return url.URL{}, err
	}
	u, err := url.Parse(base)
	if err != nil {
		return url.URL{}, errors.Wrapf(err, "parse the server's address")
	}
	remedy := "set ports.domain in the server's configuration to a wildcard that resolves to it, such as " +
		"*.sandboxes.example.org"
	if s.opts.PortDomain == "" {
		return url.URL{}, errors.Remedy(errors.Newf(errors.Unsupported, "this server has no host names for ports"),
			"%s", remedy)
	}
	if name := hostname(u.Host); s.opts.PortDomain == "localhost" && name != "localhost" {
		if addr, err := netip.ParseAddr(name); err != nil || !addr.IsLoopback() {
			return url.URL{}, errors.Remedy(errors.Newf(errors.Unsupported,
				"host names for ports work only on the server's machine; its address is %.100q", name), "%s", remedy)
		}
	}
	host := to.label() + "." + s.opts.PortDomain
	if port := u.Port(); port != "" {
		host = net.JoinHostPort(host, port)
	}
	return url.URL{Scheme: u.Scheme, Host: host, Path: "/"}, nil
}
