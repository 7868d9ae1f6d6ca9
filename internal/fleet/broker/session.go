package broker

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// session is a connection of a sandbox, with the connections to its host. Its Conn is the sandbox's end.
type session struct {
	net.Conn
	b       *Broker
	sandbox Sandbox
	host    engine.Interception
	port    int  // of the host
	crowded bool // there are too many connections: requests get the status 503

	once      sync.Once
	transport *http.Transport
	tunnel    *tunnel // through a proxy; nil without one

	mu     sync.Mutex
	first  net.Conn // guarded by mu: a connection to the host for the first request; nil once it is used
	failed error    // guarded by mu: why there is none
}

// protocols are those that the broker speaks, as ALPN names them.
var protocols = []string{"h2", "http/1.1"}

// serve passes the connection to the HTTP server. For TLS, it becomes one of TLS first.
func (s *session) serve() {
	s.transport = &http.Transport{DialContext: s.dialHost, DialTLSContext: s.dialHost, DisableCompression: true,
		ForceAttemptHTTP2: true, MaxResponseHeaderBytes: maxHeader, IdleConnTimeout: idleTime,
		ExpectContinueTimeout: continueTime}
	if s.host.Connect {
		if err := s.acceptTunnel(); err != nil {
			logf.Debugf(s.b.ctx, "a connection of sandbox %s to %s: %v", s.sandbox.ID, s.host.Name, err)
			_ = s.Close()
			return
		}
	}
	if !s.secure() {
		s.b.queue.put(s)
		return
	}
	secured := tls.Server(s, &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: s.configure})
	ctx, cancel := context.WithTimeout(s.b.ctx, headTime)
	err := secured.HandshakeContext(ctx)
	cancel()
	if err != nil {
		s.distrusted(err)
		_ = s.Close()
		return
	}
	s.b.queue.put(secured)
}

// distrusted reports the end of a handshake, if the client does not accept the certificate.
func (s *session) distrusted(err error) {
	var alert *net.OpError
	if !errors.As(err, &alert) || alert.Op != "remote error" || !strings.Contains(alert.Err.Error(), "certificate") {
		return
	}
	all, err := s.sandbox.Credentials(s.b.ctx)
	if err != nil {
		logf.Warnf(s.b.ctx, "credentials of sandbox %s: %v", s.sandbox.ID, err)
	}
	for _, c := range all {
		if _, ok := c.Binding.Place(s.host.Name, s.port, false); ok {
			s.sandbox.Report(Use{Time: time.Now(), Secret: c.Secret, Key: c.Key, Host: s.host.Name,
				Refused: "the client does not accept the certificate of the sandbox's own authority: let it trust " +
					"the file in SSL_CERT_FILE, or give the sandbox the value with --reveal"})
		}
	}
}

// Close ends the connection and those to the host. It implements net.Conn.
func (s *session) Close() error {
	err := s.Conn.Close()
	s.once.Do(func() {
		s.mu.Lock()
		first := s.first
		s.first = nil
		s.mu.Unlock()
		if first != nil {
			_ = first.Close()
		}
		if s.tunnel != nil {
			s.tunnel.close()
		}
		s.transport.CloseIdleConnections()
		s.b.leave(s.sandbox.ID)
	})
	return err
}

// configure answers a ClientHello. It connects to the host first, so that the sandbox speaks the protocol that the host
// chooses. If that fails, the sandbox's requests get the reason.
func (s *session) configure(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	_, err := netip.ParseAddr(s.host.Name)
	unnamed := hello.ServerName == "" && err == nil // clients do not name addresses: RFC 6066, section 3
	if !unnamed && !strings.EqualFold(strings.TrimSuffix(hello.ServerName, "."), s.host.Name) {
		return nil, errors.Errorf("a ClientHello for another host than the connection is bound to")
	}
	leaf, err := s.sandbox.Authority.Certificate(s.host.Name)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*leaf}}
	var offered []string
	for _, p := range protocols {
		if slices.Contains(hello.SupportedProtos, p) {
			offered = append(offered, p)
		}
	}
	ctx, cancel := context.WithTimeout(hello.Context(), dialTime)
	defer cancel()
	chosen := ""
	up, err := s.dialTLS(ctx, offered)
	if err == nil {
		chosen = up.ConnectionState().NegotiatedProtocol
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.failed = err
		chosen = "http/1.1"
	} else {
		s.first = up
	}
	if slices.Contains(offered, chosen) {
		config.NextProtos = []string{chosen}
	}
	return config, nil
}

// dialHost returns a connection to the host, the first one if it is still unused. It is for requests: a proxied one
// has TLS, too.
func (s *session) dialHost(ctx context.Context, _, _ string) (net.Conn, error) {
	s.mu.Lock()
	first, failed := s.first, s.failed
	s.first, s.failed = nil, nil
	s.mu.Unlock()
	switch {
	case failed != nil:
		return nil, failed
	case first != nil:
		return first, nil
	case s.secure():
		return s.dialTLS(ctx, protocols)
	}
	return s.dial(ctx)
}

// secure reports whether the connection has TLS.
func (s *session) secure() bool { return s.host.TLS || s.host.Connect }

func (s *session) dialTLS(ctx context.Context, protocols []string) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	up := tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.host.Name, RootCAs: s.b.opts.Roots,
		NextProtos: protocols})
	if err := up.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(errors.Explainf(err, errors.Unavailable, "the TLS handshake with %s failed: %s",
			s.host.Name, reason(err)), conn.Close())
	}
	return up, nil
}

// reason describes an error of a handshake, which comes from the network, to users.
func reason(err error) string {
	var invalid *tls.CertificateVerificationError
	switch {
	case errors.As(err, &invalid):
		return invalid.Err.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "it took too long"
	}
	return "the connection broke, or it refused"
}

// dial connects to the address of the interception, and through it to the host if it is a proxy.
func (s *session) dial(ctx context.Context) (net.Conn, error) {
	if s.tunnel != nil {
		return s.tunnel.dial(ctx)
	}
	conn, err := s.b.opts.Dial(ctx, s.host.Addr)
	return conn, errors.Explainf(err, errors.Unavailable, "%s cannot be reached at %s", s.host.Name, s.host.Addr)
}

type sessionKey struct{}

// withSession is the ConnContext of the server.
func withSession(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return context.WithValue(ctx, sessionKey{}, c)
}

// sessionOf returns the session of a request.
func sessionOf(ctx context.Context) *session {
	s, _ := ctx.Value(sessionKey{}).(*session)
	return s
}
