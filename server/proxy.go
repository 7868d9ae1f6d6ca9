package server

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
)

// proxyRoutes lead to ports of sandboxes: HTTP, WebSockets and server-sent events.
func (s *Server) proxyRoutes() []route {
	var all []route
	for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		all = append(all, route{method: method, path: api.SandboxPort, handle: s.proxyPort, scope: account.Exec, raw: true, status: 200, rawOut: "*/*",
			summary: "Ask an HTTP server that listens on a port in the sandbox; WebSockets and event streams, too"})
	}
	return all
}

// ours are the headers and cookies that are between a client and us, and that no program in a sandbox must see or set.
var (
	ourHeaders = []string{"Authorization", api.HeaderIdempotency, "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Forwarded", "X-Real-Ip"}
	ourCookies = []string{"harvest", "__Host-harvest"}
)

// openTransport returns what connects to ports. Its hosts are PORT.SANDBOX.ACCOUNT: whoever asks for one was found to be allowed.
func (s *Server) openTransport() http.RoundTripper {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, errors.Wrapf(err, "the address of a port")
			}
			parts := strings.SplitN(host, ".", 3)
			if len(parts) != 3 {
				return nil, errors.Errorf("%q is no port of a sandbox", address)
			}
			port, err := strconv.Atoi(parts[0])
			if err != nil {
				return nil, errors.Wrapf(err, "the number of a port")
			}
			return s.opts.Fleet.Dial(ctx, parts[2], parts[1], port)
		},
		DisableKeepAlives:      true, // an open connection keeps a sandbox from being idle
		DisableCompression:     true,
		ResponseHeaderTimeout:  5 * time.Minute,
		MaxResponseHeaderBytes: 256 << 10,
	}
}

// proxyPort passes a request on to a port. What comes back is not ours, and is shown in a page of no origin: it can neither read ours nor act
// for who looks at it.
func (s *Server) proxyPort(w http.ResponseWriter, r *http.Request) error {
	port, err := strconv.Atoi(r.PathValue("port"))
	if err != nil || port < 1 || port > 65535 {
		return errors.Remedy(errors.Newf(errors.Invalid, "%.20q is no port", r.PathValue("port")), "give a number from 1 to 65535")
	}
	box, err := s.opts.Fleet.Get(r.Context(), accountOf(r.Context()), r.PathValue("id"))
	if err != nil {
		return err
	}
	if box.Status.Ended() {
		return errors.Remedy(errors.Newf(errors.Gone, "sandbox %s is %s", box.ID, box.Status), "create a new sandbox")
	}
	from := peerOf(r.Context())
	prefix, _, _ := strings.Cut(r.URL.EscapedPath(), "/ports/")
	prefix += "/ports/" + r.PathValue("port")
	proxy := httputil.ReverseProxy{
		Transport: s.ports, FlushInterval: -1, // events at once
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", strconv.Itoa(port)+"."+box.ID+"."+box.Account
			p.Out.URL.Path = strings.TrimPrefix(p.In.URL.Path, prefix)
			p.Out.URL.RawPath = strings.TrimPrefix(p.In.URL.EscapedPath(), prefix)
			p.Out.Host = "localhost:" + strconv.Itoa(port)
			for _, name := range ourHeaders {
				p.Out.Header.Del(name)
			}
			stripCookies(p.Out)
			p.Out.Header.Set("X-Forwarded-Host", from.host)
			p.Out.Header.Set("X-Forwarded-Proto", map[bool]string{true: "https", false: "http"}[from.https])
			p.Out.Header.Set("X-Forwarded-Prefix", prefix)
			if from.addr.IsValid() {
				p.Out.Header.Set("X-Forwarded-For", from.addr.String())
			}
		},
		ModifyResponse: func(resp *http.Response) error {
			h := resp.Header
			h.Set("Content-Security-Policy", "sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads")
			h.Set("Referrer-Policy", "no-referrer")
			for _, name := range []string{api.HeaderRequestID, api.HeaderVersion, "Clear-Site-Data", "Strict-Transport-Security", "Service-Worker-Allowed"} {
				h.Del(name)
			}
			cookies := h.Values("Set-Cookie")
			h.Del("Set-Cookie")
			for _, text := range cookies {
				if name, _, _ := strings.Cut(text, "="); !slices.Contains(ourCookies, strings.TrimSpace(name)) {
					h.Add("Set-Cookie", text)
				}
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if errors.KindOf(err) == errors.Internal {
				err = withStatus(errors.Remedy(errors.Explainf(err, errors.Unavailable, "what listens on port %d gave no answer", port), "see whether it works inside the sandbox"),
					http.StatusBadGateway)
			}
			fail(w, r, err)
		},
	}
	proxy.ServeHTTP(w, r)
	return nil
}

// stripCookies takes our cookies out of a request.
func stripCookies(r *http.Request) {
	cookies := r.Cookies()
	r.Header.Del("Cookie")
	for _, c := range cookies {
		if !slices.Contains(ourCookies, c.Name) {
			r.AddCookie(c)
		}
	}
}
