package server

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// portHost is a port of a sandbox with a separate host name, PORT-SANDBOX.DOMAIN, where SANDBOX is the ID with '-'
// for '_'. Content served there has a separate origin: it cannot read content of the server or of other sandboxes,
// and does not receive their cookies.
type portHost struct {
	sandbox string // id
	port    int
}

// portLabel matches the first label of such a name.
var portLabel = pattern.New(`^([1-9][0-9]{0,4})-sbx-([0-9a-z]{26})$`)

// portHost returns the port that a host name stands for, if it is a port's name.
func (s *Server) portHost(p peer) (portHost, bool) {
	label, ok := strings.CutSuffix(hostname(p.host), "."+s.opts.PortDomain)
	if !ok || s.opts.PortDomain == "" || p.local {
		return portHost{}, false
	}
	m := portLabel().FindStringSubmatch(label)
	if m == nil {
		return portHost{}, false
	}
	port, err := strconv.Atoi(m[1])
	return portHost{"sbx_" + m[2], port}, err == nil && port <= 65535
}

func (h portHost) label() string {
	return strconv.Itoa(h.port) + "-" + strings.ReplaceAll(h.sandbox, "_", "-")
}

// subject identifies the port in the records of its links.
func (h portHost) subject() string { return h.sandbox + ":" + strconv.Itoa(h.port) }

// portCookies returns the names of the cookies that a link sets, on the port's host name only: for a window, and for
// a frame of the server's page. With the prefix __Host- no other host can set one.
func (p peer) portCookies() (window, frame string) {
	if p.https {
		return "__Host-harvest-port", "__Host-harvest-frame"
	}
	return "harvest-port", "harvest-frame"
}

// origin returns the origin to which the browser sent the request.
func (p peer) origin() string {
	return map[bool]string{true: "https://", false: "http://"}[p.https] + p.host
}

// servePort serves a request for the host name of a port: a link is redirected, and other requests are passed to the
// port.
func (s *Server) servePort(to portHost) edge.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		r.Pattern = "a port's host name" // for the metrics
		who, opened, err := s.authenticatePort(r, to)
		if err != nil {
			if limit := s.limits.Allow(w, peerOf(r.Context()).addr.String(), strangers); limit != nil {
				return limit
			}
			return err
		}
		ctx := edge.WithPrincipal(logf.With(r.Context(), "account", who.Account, "key_id", who.KeyID), who)
		r = r.WithContext(ctx)
		if v := visitOf(ctx); v != nil {
			v.who, v.audited = who, true
		}
		if err := s.limits.Allow(w, who.KeyID, s.opts.Rate); err != nil {
			return err
		}
		if err := who.May(account.Exec); err != nil {
			return err
		}
		if opened {
			openLink(w, r, who)
			return nil
		}
		r, done := s.follow(w, r, who)
		defer done()
		box, err := s.opts.Fleet.Get(ctx, who.Account, to.sandbox)
		if err != nil {
			return err
		}
		return s.passOn(w, r, box, to.port, "")
	}
}

// authenticatePort returns the caller of a port: by a key, by a link that is being opened, or by the cookie that the
// link set. The server's own cookie is not used; it belongs to another host.
func (s *Server) authenticatePort(r *http.Request, to portHost) (who account.Principal, opened bool, err error) {
	if s.opts.Keys == nil {
		return who, false, errors.Newf(errors.Unauthenticated, "this server has no keys")
	}
	if key, ok := ourKey(r); ok {
		who, err = s.opts.Keys.Authenticate(r.Context(), account.APIKey, key)
		return who, false, err
	}
	p := peerOf(r.Context())
	secret := r.URL.Query().Get(api.LinkParameter)
	opened = secret != "" && !edge.IsUpgrade(r) && (r.Method == http.MethodGet || r.Method == http.MethodHead)
	if !opened {
		window, frame := p.portCookies()
		cookie, err := r.Cookie(frame) // sent only in a frame of the server's page
		if err != nil {
			cookie, err = r.Cookie(window)
		}
		if err != nil {
			return who, false, errors.Remedy(errors.Newf(errors.Unauthenticated, "this port is not public"),
				"open a link of \"harvest sandbox port SANDBOX PORT --link\", or send \"Authorization: Bearer hv_…\"")
		}
		if err := s.checkVisit(r); err != nil {
			return who, false, err
		}
		secret = cookie.Value
	}
	who, err = s.opts.Keys.Authenticate(r.Context(), account.Link, secret)
	if err == nil && who.Subject != to.subject() {
		return account.Principal{}, false,
			errors.Remedy(errors.Newf(errors.Unauthenticated, "this link is for another port"),
				"open the link without changes, or create a link to this port")
	}
	return who, opened, err
}

// checkVisit returns Denied unless a request with a link's cookie comes from the port's own pages, from a followed
// link, or from the server's page that has the port in a frame. Browsers may treat all sandboxes as one site, so
// SameSite alone would let pages of one sandbox act on another.
func (s *Server) checkVisit(r *http.Request) error {
	p, site, origin := peerOf(r.Context()), r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	dest := r.Header.Get("Sec-Fetch-Dest")
	follows := r.Method == http.MethodGet && !edge.IsUpgrade(r) && r.Header.Get("Sec-Fetch-Mode") == "navigate" &&
		(dest == "document" || isFrame(r) && s.fromPage(r))
	if follows || site != "cross-site" && site != "same-site" && (origin == "" || p.isOrigin(origin)) {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Denied, "the request comes from a page of another site"),
		"open the port's own page, or use a key")
}

// isFrame reports whether the browser loads a frame.
func isFrame(r *http.Request) bool { return r.Header.Get("Sec-Fetch-Dest") == "iframe" }

// fromPage reports whether the request comes from one of the server's own pages. Foreign pages cannot forge this
// header in a browser.
func (s *Server) fromPage(r *http.Request) bool {
	u, err := url.Parse(r.Header.Get("Referer"))
	if err != nil || u.Host == "" {
		return false
	}
	from := peer{host: u.Host}
	_, isPort := s.portHost(from)
	return !isPort && s.checkHost(from) == nil
}

// openLink sets the link's secret as a cookie and redirects the browser to the same address without it.
func openLink(w http.ResponseWriter, r *http.Request, who account.Principal) {
	p := peerOf(r.Context())
	query := r.URL.Query()
	secret := query.Get(api.LinkParameter)
	query.Del(api.LinkParameter)
	window, frame := p.portCookies()
	cookie := http.Cookie{
		// Lax, since links are opened from other sites.
		Name: window, Value: secret, Path: "/", Expires: who.Expires, Secure: p.https, HttpOnly: true,
		SameSite: http.SameSiteLaxMode,
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	if isFrame(r) {
		h.Set("Referrer-Policy", "origin") // checkVisit checks the embedding page
		cookie.Name = frame
		if p.https || strings.HasSuffix(hostname(p.host), ".localhost") { // browsers trust .localhost without TLS
			// The server's page may belong to another site. Partitioned: only frames on that site have the cookie.
			cookie.SameSite, cookie.Secure, cookie.Partitioned = http.SameSiteNoneMode, true, true
		}
	}
	http.SetCookie(w, &cookie)
	// The location includes the origin: a path that begins with two slashes would lead to another host.
	to := url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: query.Encode()}
	h.Set("Location", p.origin()+to.EscapedPath()+queryMark(to.RawQuery))
	w.WriteHeader(http.StatusSeeOther)
}

func queryMark(query string) string {
	if query == "" {
		return ""
	}
	return "?" + query
}

// ourKey returns the key of a request if it is one of Harvest's: other credentials are for the server in the sandbox.
func ourKey(r *http.Request) (string, bool) {
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	key = strings.TrimSpace(key)
	return key, strings.EqualFold(scheme, "Bearer") && strings.HasPrefix(key, "hv_")
}

// errGone returns the error for a sandbox that has ended.
func errGone(box record.Sandbox) error {
	return errors.Remedy(errors.Newf(errors.Gone, "sandbox %s is %s", box.ID, box.Status), "create a new sandbox")
}
