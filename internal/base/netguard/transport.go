package netguard

import (
	"net"
	"net/http"
	"net/url"
	"time"
)

// Transport sends HTTP requests under Rules. Each redirect is a separate request and is checked, too.
// Transports with different rules share no connections. Transport implements http.RoundTripper and may be used
// concurrently.
type Transport struct {
	rules   Rules
	proxy   func(*http.Request) (*url.URL, error)
	direct  *http.Transport
	proxied *http.Transport
}

// NewTransport returns a transport with the settings of base except its DialContext; nil means the defaults. It
// uses a proxy if base has one.
func (r Rules) NewTransport(base *http.Transport) *Transport {
	if base == nil {
		base = usual()
	}
	t := &Transport{rules: r, proxy: base.Proxy, direct: base.Clone(), proxied: base.Clone()}
	t.direct.Proxy, t.direct.DialContext, t.direct.DialTLSContext = nil, r.DialContext, nil
	t.proxied.DialContext = (&net.Dialer{Timeout: connectTime, KeepAlive: 30 * time.Second}).DialContext
	return t
}

// usual returns a transport for servers of the internet, with the proxy of the environment.
func usual() *http.Transport {
	return &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConns: 100,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second, ExpectContinueTimeout: time.Second}
}

// RoundTrip implements http.RoundTripper. Refusal recognizes the errors of refused requests.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.proxy == nil {
		return t.direct.RoundTrip(req)
	}
	via, err := t.proxy(req)
	if err == nil && via == nil {
		return t.direct.RoundTrip(req)
	}
	if err == nil && !t.rules.configured(req.URL.Host) {
		err = t.rules.CheckHost(req.Context(), req.URL.Hostname())
	}
	if err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	return t.proxied.RoundTrip(req)
}

// Direct returns the transport for requests to base if they use no proxy. The rules also hold for it.
func (t *Transport) Direct(base *url.URL) (direct *http.Transport, ok bool) {
	if t.proxy != nil {
		if via, err := t.proxy(&http.Request{URL: base}); via != nil || err != nil {
			return nil, false
		}
	}
	return t.direct, true
}

// Unguarded returns a transport that connects as t does, for sockets that the caller has chosen.
func Unguarded(t *http.Transport) *Transport { return &Transport{direct: t, proxied: t} }

// CloseIdleConnections closes the idle connections.
func (t *Transport) CloseIdleConnections() {
	t.direct.CloseIdleConnections()
	t.proxied.CloseIdleConnections()
}

// Client returns a client under the rules with a time limit for each request.
func (r Rules) Client(limit time.Duration) *http.Client {
	return &http.Client{Transport: r.NewTransport(nil), Timeout: limit}
}
