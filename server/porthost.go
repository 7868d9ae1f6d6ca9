package server

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/pattern"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox"
)

// portHost is a port of a sandbox that has a host name of its own, PORT-SANDBOX.DOMAIN, where SANDBOX is the id with '-' for '_'. Whatever
// is served there is of an origin of its own: it cannot read what the server or other sandboxes serve, nor get their cookies.
type portHost struct {
	sandbox string // id
	port    int
}

// portLabel is the first label of such a name.
var portLabel = pattern.New(`^([1-9][0-9]{0,4})-sbx-([0-9a-z]{26})$`)

// portHost returns what a name leads to, if it is one of a port.
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

// subject is what links to the port have in their record.
func (h portHost) subject() string { return h.sandbox + ":" + strconv.Itoa(h.port) }

// portCookies are the names of the cookies that a link sets, on the port's host name only: in a window, and in a frame of our page. With the prefix
// __Host- no other host can set one.
func (p peer) portCookies() (window, frame string) {
	if p.https {
		return "__Host-harvest-port", "__Host-harvest-frame"
	}
	return "harvest-port", "harvest-frame"
}

// origin is how a browser calls where the request went.
func (p peer) origin() string {
	return map[bool]string{true: "https://", false: "http://"}[p.https] + p.host
}

// servePort answers a request for the host name of a port: with a redirect if it is a link that is opened, else with what the port answers.
func (s *Server) servePort(to portHost) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		r.Pattern = "a port's host name" // for the metrics
		who, opened, err := s.authenticatePort(r, to)
		if err != nil {
			if limit := s.limits.allow(w, peerOf(r.Context()).addr.String(), strangers); limit != nil {
				return limit
			}
			return err
		}
		ctx := context.WithValue(logf.With(r.Context(), "account", who.Account, "key_id", who.KeyID), principalKey{}, who)
		r = r.WithContext(ctx)
		if v := visitOf(ctx); v != nil {
			v.who, v.audited = who, true
		}
		if err := s.limits.allow(w, who.KeyID, s.opts.Rate); err != nil {
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

// authenticatePort returns who asks for a port: by a key, by a link that is being opened, or by the cookie that it has left. The server's own
// cookie is never asked for; it is of another host.
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
	opened = secret != "" && !isUpgrade(r) && (r.Method == http.MethodGet || r.Method == http.MethodHead)
	if !opened {
		window, frame := p.portCookies()
		cookie, err := r.Cookie(frame) // which nobody gets who is not in a frame of our page
		if err != nil {
			cookie, err = r.Cookie(window)
		}
		if err != nil {
			return who, false, errors.Remedy(errors.Newf(errors.Unauthenticated, "this port is not open to everybody"),
				"open a link to it, which \"harvest sandbox port SANDBOX PORT --link\" prints, or send \"Authorization: Bearer hv_…\"")
		}
		if err := s.checkVisit(r); err != nil {
			return who, false, err
		}
		secret = cookie.Value
	}
	who, err = s.opts.Keys.Authenticate(r.Context(), account.Link, secret)
	if err == nil && who.Subject != to.subject() {
		return account.Principal{}, false, errors.Remedy(errors.Newf(errors.Unauthenticated, "this link leads to another port"), "open it as it is, or ask for a link to this one")
	}
	return who, opened, err
}

// checkVisit returns Denied unless a request that came with a link's cookie comes from the port's own pages, or is somebody who follows a link,
// or our page that has the port in a frame. All sandboxes may be one site to a browser, and so SameSite alone would let pages of one act on another.
func (s *Server) checkVisit(r *http.Request) error {
	p, site, origin := peerOf(r.Context()), r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	dest := r.Header.Get("Sec-Fetch-Dest")
	follows := r.Method == http.MethodGet && !isUpgrade(r) && r.Header.Get("Sec-Fetch-Mode") == "navigate" && (dest == "document" || isFrame(r) && s.fromPage(r))
	if follows || site != "cross-site" && site != "same-site" && (origin == "" || p.isOrigin(origin)) {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Denied, "the request comes from a page of somebody else"), "open the port's own page, or use a key")
}

// isFrame tells whether a browser asks for what it shows in a frame.
func isFrame(r *http.Request) bool { return r.Header.Get("Sec-Fetch-Dest") == "iframe" }

// fromPage tells whether a page of ours asks: what pages that others serve cannot make a browser say.
func (s *Server) fromPage(r *http.Request) bool {
	u, err := url.Parse(r.Header.Get("Referer"))
	if err != nil || u.Host == "" {
		return false
	}
	from := peer{host: u.Host}
	_, isPort := s.portHost(from)
	return !isPort && s.checkHost(from) == nil
}

// openLink leaves the link's secret as a cookie and sends the browser on to the same address without it.
func openLink(w http.ResponseWriter, r *http.Request, who account.Principal) {
	p := peerOf(r.Context())
	query := r.URL.Query()
	secret := query.Get(api.LinkParameter)
	query.Del(api.LinkParameter)
	window, frame := p.portCookies()
	cookie := http.Cookie{
		// Lax, since links are opened from elsewhere.
		Name: window, Value: secret, Path: "/", Expires: who.Expires, Secure: p.https, HttpOnly: true, SameSite: http.SameSiteLaxMode,
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	if isFrame(r) {
		h.Set("Referrer-Policy", "origin") // checkVisit asks where the frame is
		cookie.Name = frame
		if p.https || strings.HasSuffix(hostname(p.host), ".localhost") { // which browsers trust without TLS
			// Our page may be of another site. Partitioned: only frames of that site have the cookie.
			cookie.SameSite, cookie.Secure, cookie.Partitioned = http.SameSiteNoneMode, true, true
		}
	}
	http.SetCookie(w, &cookie)
	// With its origin: a path of two slashes would lead elsewhere.
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

// ourKey returns the key of a request, if it has one of ours: other credentials are for what it is passed on to.
func ourKey(r *http.Request) (string, bool) {
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	key = strings.TrimSpace(key)
	return key, strings.EqualFold(scheme, "Bearer") && strings.HasPrefix(key, "hv_")
}

// errGone says that there is nothing to reach in a sandbox any more.
func errGone(box sandbox.Sandbox) error {
	return errors.Remedy(errors.Newf(errors.Gone, "sandbox %s is %s", box.ID, box.Status), "create a new sandbox")
}
