package server

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/server/authorize"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// strangers is the limit of requests without valid credentials, per second and address.
const strangers = 20

// signingIn is the limit of requests to the routes of OAuth, per second and address.
const signingIn = 50

type (
	peerKey  struct{}
	localKey struct{}
)

// localListener marks its connections as local: they need no key.
type localListener struct{ net.Listener }

type localConn struct{ net.Conn }

func (l localListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return localConn{conn}, nil
}

// connContext records whether a connection is local, or for which request of MCP it is.
func connContext(ctx context.Context, conn net.Conn) context.Context {
	if inner, ok := conn.(innerConn); ok {
		return context.WithValue(context.WithValue(ctx, innerKey{}, inner.peer), innerUser{}, inner.user)
	}
	_, local := conn.(localConn)
	return context.WithValue(ctx, localKey{}, local)
}

// peer describes the sender of a request and the address that it used, according to the trusted proxies.
type peer struct {
	local bool       // through a listener of ServeLocal
	addr  netip.Addr // invalid if local
	host  string     // as in the header Host
	https bool
}

func peerOf(ctx context.Context) peer {
	p, _ := ctx.Value(peerKey{}).(peer)
	return p
}

// peer returns the sender of r. Headers of a proxy count only if the proxy is one of Options.Proxies, since any
// client can send them.
func (s *Server) peer(r *http.Request) peer {
	if p, ok := r.Context().Value(innerKey{}).(peer); ok {
		return p
	}
	local, _ := r.Context().Value(localKey{}).(bool)
	p := peer{local: local, host: r.Host, https: r.TLS != nil}
	if local {
		return p
	}
	if addr, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		p.addr = addr.Addr().Unmap()
	}
	if !s.trusts(p.addr) {
		return p
	}
	// The client's address is the last one that is not a trusted proxy; addresses before it may be forged. The proxy
	// that recorded this address received the request with the protocol at the same position from the end of
	// X-Forwarded-Proto, if all proxies write theirs; entries before it may be forged, too.
	proxies := 0
	for _, text := range slices.Backward(strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")) {
		addr, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil {
			break
		}
		p.addr = addr.Unmap()
		proxies++
		if !s.trusts(p.addr) {
			break
		}
	}
	if host := r.Header.Get("X-Forwarded-Host"); host != "" && !strings.Contains(host, ",") {
		p.host = host
	}
	if proto := strings.Join(r.Header.Values("X-Forwarded-Proto"), ","); proto != "" {
		all := strings.Split(proto, ",")
		p.https = strings.EqualFold(strings.TrimSpace(all[max(0, len(all)-max(1, proxies))]), "https")
	}
	return p
}

func (s *Server) trusts(addr netip.Addr) bool {
	return slices.ContainsFunc(s.opts.Proxies, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// hostname returns host without its port, in lower case.
func hostname(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// checkHost returns Denied if the request's host name does not belong to this server. Otherwise a foreign page whose
// name resolves to this machine (DNS rebinding) would have the same origin as the server. IP addresses are allowed,
// since they cannot be rebound.
func (s *Server) checkHost(p peer) error {
	name := hostname(p.host)
	if _, err := netip.ParseAddr(name); err == nil || p.local || name == "localhost" ||
		slices.Contains(s.opts.Names, name) {
		return nil
	}
	return edge.WithStatus(errors.Remedy(errors.Newf(errors.Denied, "unknown server name %.100q", name),
		"use the server's address, or add the name to public_names in its configuration"),
		http.StatusMisdirectedRequest)
}

// checkSite returns Denied unless a request with a cookie comes from one of this server's pages. Browsers send the
// headers Sec-Fetch-Site and Origin (https://www.w3.org/TR/fetch-metadata/); a request without both may only read.
// SameSite=Strict alone is not enough: it treats all ports of this machine as one site, and sandboxes may serve pages
// there.
func (p peer) checkSite(r *http.Request) error {
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	safe := (r.Method == http.MethodGet || r.Method == http.MethodHead) && !edge.IsUpgrade(r)
	switch {
	case site == "cross-site" || site == "same-site":
	case origin != "" && !p.isOrigin(origin):
	case !safe && site != "same-origin" && origin == "":
	default:
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Denied, "the request comes from a page of another site"),
		"use Harvest's own page, or a key")
}

func (p peer) isOrigin(origin string) bool {
	u, err := url.Parse(origin)
	scheme := "http"
	if p.https {
		scheme = "https"
	}
	return err == nil && u.Scheme == scheme && strings.EqualFold(u.Host, p.host)
}

// authenticate returns the caller: by a key, else as the user of the Unix socket, else by a browser's cookie. It
// returns Unauthenticated if there is no valid credential, and Denied if a foreign page sends the cookie.
func (s *Server) authenticate(r *http.Request) (account.Principal, error) {
	p := peerOf(r.Context())
	if who, ok := r.Context().Value(innerUser{}).(account.Principal); ok && who.KeyID != "" {
		return who, nil
	}
	if header := r.Header.Get("Authorization"); header != "" {
		scheme, key, _ := strings.Cut(header, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return account.Principal{}, errors.Remedy(errors.Newf(errors.Unauthenticated,
				"invalid Authorization header"), "send \"Authorization: Bearer hv_…\"")
		}
		if s.opts.Keys == nil {
			return account.Principal{}, errors.Newf(errors.Unauthenticated, "this server has no keys")
		}
		key = strings.TrimSpace(key)
		if account.IsAccess(key) {
			return accessed(s.opts.Keys, r, key)
		}
		return s.opts.Keys.Authenticate(r.Context(), account.APIKey, key)
	}
	if p.local {
		return account.Local(), nil
	}
	cookie, err := r.Cookie(p.cookieName())
	if err != nil || s.opts.Keys == nil {
		return account.Principal{}, s.errSignIn()
	}
	if err := p.checkSite(r); err != nil {
		return account.Principal{}, err
	}
	return s.opts.Keys.Authenticate(r.Context(), account.SignIn, cookie.Value)
}

// cookieName is the name of the session cookie. Browsers refuse cookies with the prefix __Host- that another host
// sets.
func (p peer) cookieName() string {
	if p.https {
		return "__Host-harvest"
	}
	return "harvest"
}

// accessed returns the caller with an access token of OAuth, which is for /mcp alone.
func accessed(ring *account.Ring, r *http.Request, token string) (account.Principal, error) {
	if r.URL.Path != api.MCP {
		return account.Principal{}, errors.Remedy(errors.Newf(errors.Unauthenticated,
			"an access token of OAuth is for %s only", api.MCP), "send a key of \"harvest key create NAME\"")
	}
	return account.Access(r.Context(), ring, token)
}

// challenged returns err, an error of authenticate. If it means that a client of MCP must sign in, the response says
// where.
func challenged(s *Server, w http.ResponseWriter, r *http.Request, err error) error {
	if errors.KindOf(err) != errors.Unauthenticated {
		return err
	}
	code := ""
	if r.Header.Get("Authorization") != "" {
		code = "invalid_token"
	}
	challenge(s, w, r, code)
	return err
}

// challenge sends a client of MCP the address at which it can sign in.
func challenge(s *Server, w http.ResponseWriter, r *http.Request, code string) {
	if r.URL.Path != api.MCP || s.opts.Keys == nil {
		return
	}
	if base, err := s.base(r); err == nil {
		w.Header().Set("WWW-Authenticate", authorize.Challenge(base, code))
	}
}
