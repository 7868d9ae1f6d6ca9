package server

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/errors"
)

type (
	principalKey struct{}
	peerKey      struct{}
	localKey     struct{}
)

// principalOf returns who asks. Every handler of a route with a scope has one.
func principalOf(ctx context.Context) account.Principal {
	p, _ := ctx.Value(principalKey{}).(account.Principal)
	return p
}

// accountOf returns the account of who asks: whose everything is that the request makes or sees.
func accountOf(ctx context.Context) string { return principalOf(ctx).Account }

// localListener marks its connections as those of somebody who needs no key.
type localListener struct{ net.Listener }

type localConn struct{ net.Conn }

func (l localListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return localConn{conn}, nil
}

// connContext notes where a connection came in.
func connContext(ctx context.Context, conn net.Conn) context.Context {
	_, local := conn.(localConn)
	return context.WithValue(ctx, localKey{}, local)
}

// peer is where a request comes from and what it calls us, as the proxies that we trust tell it.
type peer struct {
	local bool       // by a listener of ServeLocal
	addr  netip.Addr // not valid if local
	host  string     // as in the header Host
	https bool
}

func peerOf(ctx context.Context) peer {
	p, _ := ctx.Value(peerKey{}).(peer)
	return p
}

// peer returns where r comes from. Headers of a proxy count only if it is one of Options.Proxies: anybody can write them.
func (s *Server) peer(r *http.Request) peer {
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
	// The last address that no proxy of ours has is the client's; what stands before it, the client may have made up. The proxy that has written it there
	// was asked with what stands as far from the end of X-Forwarded-Proto, if all of them write theirs; what stands before that may be made up, too.
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

// hostname is host without its port, in lower case.
func hostname(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// checkHost returns Denied if a request was meant for a name that is not ours: a page of somebody else whose name was pointed at this
// machine (DNS rebinding) would otherwise be of the same origin as we are. Addresses cannot be pointed elsewhere.
func (s *Server) checkHost(p peer) error {
	name := hostname(p.host)
	if _, err := netip.ParseAddr(name); err == nil || p.local || name == "localhost" || slices.Contains(s.opts.Names, name) {
		return nil
	}
	return withStatus(errors.Remedy(errors.Newf(errors.Denied, "this server is not called %.100q", name),
		"use its address, or add the name to public_names in the server's configuration"), http.StatusMisdirectedRequest)
}

// checkSite returns Denied unless a request that came with a cookie comes from a page of ours. Browsers say so in the headers
// Sec-Fetch-Site and Origin (https://www.w3.org/TR/fetch-metadata/); one that says neither cannot change anything. SameSite=Strict alone is not
// enough: to it all ports of this machine are one site, and sandboxes may serve pages there.
func (p peer) checkSite(r *http.Request) error {
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	safe := (r.Method == http.MethodGet || r.Method == http.MethodHead) && !isUpgrade(r)
	switch {
	case site == "cross-site" || site == "same-site":
	case origin != "" && !p.isOrigin(origin):
	case !safe && site != "same-origin" && origin == "":
	default:
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Denied, "the request comes from a page of somebody else"), "use Harvest's own page, or a key")
}

func (p peer) isOrigin(origin string) bool {
	u, err := url.Parse(origin)
	scheme := "http"
	if p.https {
		scheme = "https"
	}
	return err == nil && u.Scheme == scheme && strings.EqualFold(u.Host, p.host)
}

func isUpgrade(r *http.Request) bool { return r.Header.Get("Upgrade") != "" }

// authenticate returns who asks: by a key, else as who may open the Unix socket, else by a browser's cookie.
// Unauthenticated if that is nobody, Denied if a page of somebody else sends our cookie.
func (s *Server) authenticate(r *http.Request) (account.Principal, error) {
	p := peerOf(r.Context())
	if header := r.Header.Get("Authorization"); header != "" {
		scheme, key, _ := strings.Cut(header, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return account.Principal{}, errors.Remedy(errors.Newf(errors.Unauthenticated, "the header Authorization is not a key"), "send \"Authorization: Bearer hv_…\"")
		}
		if s.opts.Keys == nil {
			return account.Principal{}, errors.Newf(errors.Unauthenticated, "this server has no keys")
		}
		return s.opts.Keys.Authenticate(r.Context(), account.APIKey, strings.TrimSpace(key))
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

// cookieName is the name of our cookie. With the prefix __Host- browsers refuse one that another host has set.
func (p peer) cookieName() string {
	if p.https {
		return "__Host-harvest"
	}
	return "harvest"
}
