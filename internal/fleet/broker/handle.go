package broker

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// exchange is a request of a sandbox, with its answer.
type exchange struct {
	s           *session
	credentials []Credential
	used        []Credential // whose values are in the request
	encoded     []maskPair   // credentials of basic authentication in the request, with those that have placeholders
	signature   *signature   // that is made again; nil without one
	body        *lentBody    // nil if it is sent as it is
	held        int64        // bytes of the body in memory
	status      int
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	e, _ := ctx.Value(exchangeKey{}).(*exchange)
	return e
}

// newProxy returns the proxy of all sessions. It changes nothing of a request or an answer but the credentials.
func newProxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			s := exchangeOf(r.In.Context()).s
			r.Out.URL.Scheme, r.Out.URL.Host = "http", s.host.Name
			if s.secure() {
				r.Out.URL.Scheme = "https"
			}
			if strings.Contains(s.host.Name, ":") {
				r.Out.URL.Host = "[" + s.host.Name + "]"
			}
			r.Out.Host = r.In.Host
			// These are the client's own: the broker is no proxy that the host should know of.
			r.Out.URL.RawQuery = r.In.URL.RawQuery
			r.Out.Trailer = r.In.Trailer // it gets its values after the body
			for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
				if values := r.In.Header[name]; values != nil {
					r.Out.Header[name] = values
				}
			}
		},
		Transport:     transport{},
		FlushInterval: -1,
		ErrorLog:      quiet,
		ModifyResponse: func(resp *http.Response) error {
			e := exchangeOf(resp.Request.Context())
			e.status = resp.StatusCode
			e.mask(resp)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			e := exchangeOf(r.Context())
			if r.Context().Err() != nil {
				panic(http.ErrAbortHandler) // the sandbox has ended the request
			}
			logf.Debugf(r.Context(), "a request of sandbox %s to %s: %v", e.s.sandbox.ID, e.s.host.Name, err)
			text := "the connection to " + e.s.host.Name + " broke"
			if message := errors.Message(err); errors.KindOf(err) == errors.Unavailable && message != "" {
				text = message
			}
			e.status = http.StatusBadGateway
			refuse(w, e.status, text)
		},
	}
}

// transport sends each request over the connections of its session.
type transport struct{}

// RoundTrip implements http.RoundTripper.
func (transport) RoundTrip(r *http.Request) (*http.Response, error) {
	return exchangeOf(r.Context()).s.transport.RoundTrip(r)
}

// refuse answers a request. The text is one sentence without a period.
func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Harvest", "credentials")
	w.WriteHeader(status)
	fmt.Fprintf(w, "Harvest: %s.\n", text)
}

// handle serves a request of a sandbox.
func (b *Broker) handle(w http.ResponseWriter, r *http.Request) {
	s := sessionOf(r.Context())
	e := &exchange{s: s}
	if status, text := s.check(r); status != 0 {
		refuse(w, status, text)
		return
	}
	var err error
	if e.credentials, err = s.sandbox.Credentials(r.Context()); err != nil {
		logf.Warnf(r.Context(), "credentials of sandbox %s: %v", s.sandbox.ID, err)
		refuse(w, http.StatusServiceUnavailable, "the credentials of this sandbox cannot be read now")
		return
	}
	path := r.URL.EscapedPath()
	defer e.release()
	if refused := e.lend(r); refused != nil {
		status := cmp.Or(refused.status, http.StatusForbidden)
		use := Use{Time: time.Now(), Secret: refused.Secret, Key: refused.Key, Host: s.host.Name, Method: r.Method,
			Path: path, Status: status, Refused: refused.why}
		s.sandbox.Report(use)
		if refused.end {
			s.sandbox.End(use)
		}
		refuseSigned(w, r, status, refused.why)
		return
	}
	defer func() {
		for _, c := range append(e.used, e.body.used(e.used)...) {
			s.sandbox.Report(Use{Time: time.Now(), Secret: c.Secret, Key: c.Key, Host: s.host.Name, Method: r.Method,
				Path: path, Status: e.status})
		}
	}()
	_ = http.NewResponseController(w).EnableFullDuplex() // only HTTP/1 needs it, and has it
	b.proxy.ServeHTTP(lowerMeta{w}, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, e)))
}

// check returns the status and the text of a refusal for requests that can have no credentials, or 0.
func (s *session) check(r *http.Request) (status int, text string) {
	name, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		name = strings.Trim(r.Host, "[]")
	}
	switch {
	case s.crowded:
		return http.StatusServiceUnavailable, "the sandbox has too many connections to hosts with credentials"
	case !strings.EqualFold(strings.TrimSuffix(name, "."), s.host.Name):
		return http.StatusMisdirectedRequest, "this connection is to " + s.host.Name +
			"; requests to another host need one of their own"
	case r.Method == http.MethodTrace || r.Method == http.MethodConnect:
		return http.StatusMethodNotAllowed, "the method " + r.Method +
			" cannot be used with a host that has credentials"
	}
	return 0, ""
}
