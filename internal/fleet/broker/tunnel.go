package broker

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// tunnel makes connections to a host through the proxy that the sandbox asked for one.
type tunnel struct {
	proxy  netip.AddrPort
	target string      // host and port
	head   http.Header // of the sandbox's request
	open   func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)

	mu    sync.Mutex
	first net.Conn // guarded by mu: the connection that the sandbox asked for; nil once it is used
}

// acceptTunnel reads the CONNECT request at the beginning of a connection, and answers it as the proxy does.
func (s *session) acceptTunnel() error {
	_ = s.SetReadDeadline(time.Now().Add(headTime))
	in := bufio.NewReader(io.LimitReader(s.Conn, maxHeader))
	req, err := http.ReadRequest(in)
	if err != nil {
		return errors.Wrapf(err, "read a CONNECT request")
	}
	_ = s.SetReadDeadline(time.Time{})
	name, port, err := net.SplitHostPort(req.RequestURI)
	if err != nil || !strings.EqualFold(strings.TrimSuffix(name, "."), s.host.Name) || in.Buffered() > 0 {
		return errors.Errorf("a CONNECT request for %.100q, not %s, or with data", req.RequestURI, s.host.Name)
	}
	if s.port, err = strconv.Atoi(port); err != nil {
		return errors.Wrapf(err, "read the port of a CONNECT request")
	}
	t := &tunnel{proxy: s.host.Addr, target: req.RequestURI, head: req.Header, open: s.b.opts.Dial}
	ctx, cancel := context.WithTimeout(s.b.ctx, dialTime)
	defer cancel()
	conn, answer, err := t.connect(ctx)
	if err != nil {
		_, werr := io.WriteString(s.Conn, "HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\n\r\n")
		return errors.Join(err, werr)
	}
	// The answer may be a refusal, such as that the proxy wants a password. Then it has a body.
	if answer.StatusCode != http.StatusOK {
		defer conn.Close()
		answer.Close = true
		return errors.Wrapf(answer.Write(s.Conn), "pass the answer of a proxy on")
	}
	t.first, s.tunnel = conn, t
	_, err = io.WriteString(s.Conn, "HTTP/1.1 200 Connection established\r\n\r\n")
	return errors.Wrapf(err, "answer a CONNECT request")
}

// dial returns a connection to the host.
func (t *tunnel) dial(ctx context.Context) (net.Conn, error) {
	t.mu.Lock()
	first := t.first
	t.first = nil
	t.mu.Unlock()
	if first != nil {
		return first, nil
	}
	conn, answer, err := t.connect(ctx)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.Join(errors.Newf(errors.Unavailable, "the proxy at %s answers with the status %d", t.proxy,
			answer.StatusCode), conn.Close())
	}
	return conn, err
}

// connect asks the proxy for a connection.
func (t *tunnel) connect(ctx context.Context) (net.Conn, *http.Response, error) {
	conn, err := t.open(ctx, t.proxy)
	if err != nil {
		return nil, nil, errors.Explainf(err, errors.Unavailable, "the proxy at %s cannot be reached", t.proxy)
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: t.target}, Host: t.target, Header: t.head}
	if err = req.Write(conn); err == nil {
		// A host speaks only after the client, so that the reader holds nothing of the connection after a success.
		var answer *http.Response
		if answer, err = http.ReadResponse(bufio.NewReader(conn), req); err == nil {
			return conn, answer, nil
		}
	}
	return nil, nil, errors.Join(errors.Explainf(err, errors.Unavailable, "the proxy at %s does not answer", t.proxy),
		conn.Close())
}

func (t *tunnel) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.first != nil {
		_ = t.first.Close()
		t.first = nil
	}
}
