package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// proxyRoutes returns the routes to ports of sandboxes: HTTP, WebSockets and server-sent events.
func (s *Server) proxyRoutes() []edge.Route {
	var all []edge.Route
	for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		all = append(all, edge.Route{Method: method, Path: api.SandboxPort, Handle: s.proxyPort, Scope: account.Exec,
			Raw: true, Status: 200, RawOut: "*/*",
			Summary: "Send a request to an HTTP server on a port in the sandbox, including WebSockets and event " +
				"streams"})
	}
	return all
}

// ourHeaders and ourCookies are for communication between a client and the server. Programs in sandboxes must not see
// or set them.
var (
	ourHeaders = []string{"Authorization", api.HeaderIdempotency, "X-Forwarded-For", "X-Forwarded-Host",
		"X-Forwarded-Proto", "Forwarded", "X-Real-Ip"}
	ourCookies = []string{"harvest", "__Host-harvest", "harvest-port", "__Host-harvest-port", "harvest-frame",
		"__Host-harvest-frame", "harvest-oidc", "__Host-harvest-oidc"}
)

// openTransport returns the transport for ports. Its hosts are PORT.SANDBOX.ACCOUNT: the caller has checked the
// access already.
func (s *Server) openTransport() http.RoundTripper {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, errors.Wrapf(err, "parse the address of a port")
			}
			parts := strings.SplitN(host, ".", 3)
			if len(parts) != 3 {
				return nil, errors.Errorf("%q: not a port of a sandbox", address)
			}
			port, err := strconv.Atoi(parts[0])
			if err != nil {
				return nil, errors.Wrapf(err, "parse the number of a port")
			}
			return s.opts.Fleet.Dial(ctx, parts[2], parts[1], port)
		},
		// The connection ends in the sandbox, whose servers make their certificates themselves. Host is localhost, too.
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"},
		TLSHandshakeTimeout:    30 * time.Second,
		DisableKeepAlives:      true, // an open connection keeps a sandbox from becoming idle
		DisableCompression:     true,
		ResponseHeaderTimeout:  5 * time.Minute,
		MaxResponseHeaderBytes: 256 << 10,
	}
}

// proxyPort passes a request to a port. The response is untrusted, so browsers show it in a page with an opaque
// origin: it can neither read the server's content nor act for the user.
func (s *Server) proxyPort(w http.ResponseWriter, r *http.Request) error {
	port, err := strconv.Atoi(r.PathValue("port"))
	if err != nil || port < 1 || port > 65535 {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid port %.20q", r.PathValue("port")),
			"give a number from 1 to 65535")
	}
	box, err := s.found(r)
	if err != nil {
		return err
	}
	prefix, _, _ := strings.Cut(r.URL.EscapedPath(), "/ports/")
	return s.passOn(w, r, box, port, prefix+"/ports/"+r.PathValue("port"))
}

// passOn passes a request to a port of a sandbox. prefix is the part of the path that leads there; "" if the port has
// its own host name.
func (s *Server) passOn(w http.ResponseWriter, r *http.Request, box record.Sandbox, port int, prefix string) error {
	if box.Status.Ended() {
		return errGone(box)
	}
	w.Header().Del("Cache-Control") // the response does not come from this server
	p := passage{from: peerOf(r.Context()), box: box, port: port, prefix: prefix}
	proxy := httputil.ReverseProxy{
		Transport: s.ports, FlushInterval: -1, // send events at once
		Rewrite: p.request, ModifyResponse: p.response,
		// ErrorHandler's argument is the outgoing request, which may have no body.
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			err = edge.EndedBy(r.Context(), err)
			if errors.KindOf(err) == errors.Internal {
				err = edge.WithStatus(errors.Remedy(errors.Explainf(err, errors.Unavailable, "port %d: no answer",
					port), "check the server inside the sandbox"), http.StatusBadGateway)
			}
			edge.Fail(w, r, err)
		},
	}
	// Otherwise, net/http closes the body of an HTTP/1 request once the answer begins, and an early answer is cut.
	_ = http.NewResponseController(w).EnableFullDuplex()
	proxy.ServeHTTP(w, r)
	return nil
}

// passage is a request that is passed to a port.
type passage struct {
	from   peer
	box    record.Sandbox
	port   int
	prefix string // as in passOn
}

// inside returns the address of the server inside the sandbox.
func (p passage) inside() string { return "localhost:" + strconv.Itoa(p.port) }

// originInside returns the origin of the server inside the sandbox.
func originInside(p passage) string {
	scheme := "http"
	if slices.ContainsFunc(p.box.PortDetails, func(d spec.PortDetail) bool {
		return d.Port == p.port && d.Protocol == "https"
	}) {
		scheme = "https"
	}
	return scheme + "://" + p.inside()
}

// request removes data that is not for the sandbox from the request, and adds the headers X-Forwarded-*. Development
// servers reject unknown host names, so Host and Origin are those inside the sandbox.
func (p passage) request(r *httputil.ProxyRequest) {
	out := r.Out
	out.URL.Scheme, _, _ = strings.Cut(originInside(p), ":")
	out.URL.Host, out.Host = strconv.Itoa(p.port)+"."+p.box.ID+"."+p.box.Account, p.inside()
	key, keyed := ourKey(r.In)
	keyed = keyed || account.IsAccess(key) // no key here, and no business of the sandbox
	for _, name := range ourHeaders {
		own := p.prefix == "" && (name == api.HeaderIdempotency || name == "Authorization" && !keyed)
		if !own { // with a host name of its own, the sandbox's server has its own credentials
			out.Header.Del(name)
		}
	}
	stripCookies(out)
	out.Header.Set("X-Forwarded-Host", p.from.host)
	out.Header.Set("X-Forwarded-Proto", map[bool]string{true: "https", false: "http"}[p.from.https])
	if p.from.addr.IsValid() {
		out.Header.Set("X-Forwarded-For", p.from.addr.String())
	}
	if p.prefix == "" {
		if p.from.isOrigin(out.Header.Get("Origin")) {
			out.Header.Set("Origin", originInside(p))
		}
		return
	}
	out.URL.Path = strings.TrimPrefix(r.In.URL.Path, p.prefix)
	out.URL.RawPath = strings.TrimPrefix(r.In.URL.EscapedPath(), p.prefix)
	out.Header.Set("X-Forwarded-Prefix", p.prefix)
}

// response removes headers that would affect other hosts from a response, and maps redirects back to the address of
// the request.
func (p passage) response(resp *http.Response) error {
	h := resp.Header
	for _, name := range []string{api.HeaderRequestID, api.HeaderVersion, "Clear-Site-Data",
		"Strict-Transport-Security"} {
		h.Del(name)
	}
	if p.prefix != "" {
		h.Set("Content-Security-Policy", "sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads")
		h.Set("Referrer-Policy", "no-referrer")
		h.Del("Service-Worker-Allowed")
	} else if rest, ok := strings.CutPrefix(h.Get("Location"), originInside(p)); ok &&
		(rest == "" || strings.ContainsAny(rest[:1], "/?#")) {
		h.Set("Location", p.from.origin()+rest)
	}
	cookies := h.Values("Set-Cookie")
	h.Del("Set-Cookie")
	for _, text := range cookies {
		if name, _, _ := strings.Cut(text, "="); !slices.Contains(ourCookies, strings.TrimSpace(name)) {
			h.Add("Set-Cookie", hostOnly(text))
		}
	}
	return nil
}

// hostOnly returns a cookie without its domain, so that it does not reach other sandboxes' hosts or this server.
func hostOnly(cookie string) string {
	parts := strings.Split(cookie, ";")
	parts = slices.DeleteFunc(parts, func(part string) bool {
		name, _, _ := strings.Cut(part, "=")
		return strings.EqualFold(strings.TrimSpace(name), "domain")
	})
	return strings.Join(parts, ";")
}

// stripCookies removes Harvest's cookies from a request.
func stripCookies(r *http.Request) {
	cookies := r.Cookies()
	r.Header.Del("Cookie")
	for _, c := range cookies {
		if !slices.Contains(ourCookies, c.Name) {
			r.AddCookie(c)
		}
	}
}
