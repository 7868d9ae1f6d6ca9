// Package broker lends credentials to sandboxes. A sandbox has placeholders. Its connections to the hosts of its
// credentials end here: the broker puts the values in place of the placeholders, and sends the requests on.
//
// A connection of the sandbox has one connection to the host, and speaks the protocol that the host chose (HTTP/1.1 or
// HTTP/2). It keeps no bodies, but small ones whose length changes, and those that a signature needs. It answers
// requests that it refuses with a status and a sentence.
package broker

import (
	"context"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/authority"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// Limits of a broker. Beyond them, requests get the status 503.
const (
	maxConns      = 4096 // of all sandboxes
	maxConnsOfOne = 512  // of one sandbox
	maxStreams    = 256  // requests at once on a connection of HTTP/2
	maxHeader     = 128 << 10

	headTime = 30 * time.Second // for the head of a request
	idleTime = 5 * time.Minute  // between requests
	dialTime = 30 * time.Second // for a connection to a host, with its handshake

	// continueTime is for a host's answer to "Expect: 100-continue". Many hosts have none. Clients wait as long.
	continueTime = time.Second
)

// Credential is a value of a secret, with the text that stands for it in the sandbox.
type Credential = secret.Credential

// Use is a request that had a credential, or wanted one.
type Use = record.Use

// Sandbox is a sandbox with credentials. Its functions may be called concurrently, and must not block for long.
type Sandbox struct {
	ID string
	// Authority signs the certificates that the sandbox trusts.
	Authority *authority.Authority
	// Credentials returns the credentials that the sandbox has now.
	Credentials func(ctx context.Context) ([]Credential, error)
	// Report takes note of a use.
	Report func(Use)
	// End ends the sandbox, because of a use that its binding forbids.
	End func(Use)
}

// Options are the options of New.
type Options struct {
	// Dial connects to an address; nil selects the network of this machine.
	Dial func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
	// Roots are the authorities of hosts; nil selects those of this machine.
	Roots *x509.CertPool
}

// Broker lends credentials to any number of sandboxes. Its methods may be called concurrently.
type Broker struct {
	ctx    context.Context
	opts   Options
	server *http.Server
	proxy  *httputil.ReverseProxy
	queue  queue

	mu    sync.Mutex
	conns map[string]int // guarded by mu: open connections by sandbox
	total int            // guarded by mu

	bodies held
}

// quiet drops what net/http says of connections that broke.
var quiet = log.New(io.Discard, "", 0)

// New starts a broker, whose work ends with ctx.
func New(ctx context.Context, opts Options) *Broker {
	if opts.Dial == nil {
		opts.Dial = func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr.String())
		}
	}
	b := &Broker{ctx: ctx, opts: opts, conns: map[string]int{},
		queue: queue{conns: make(chan net.Conn), done: make(chan struct{})}}
	b.bodies.of = map[string]int64{}
	b.proxy = newProxy()
	b.server = &http.Server{Handler: http.HandlerFunc(b.handle), ConnContext: withSession, ReadHeaderTimeout: headTime,
		IdleTimeout: idleTime, MaxHeaderBytes: maxHeader, ErrorLog: quiet,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams}}
	go func() { _ = b.server.Serve(&b.queue) }()
	return b
}

// Close ends all connections.
func (b *Broker) Close() error {
	err := b.server.Close()
	return errors.Wrapf(err, "close the broker of credentials")
}

// Serve serves a connection of a sandbox. It returns at once, and closes the connection at its end.
func (b *Broker) Serve(s Sandbox, c *engine.Intercepted) {
	conn := &session{b: b, sandbox: s, Conn: c, host: c.Interception, port: int(c.Addr.Port())}
	conn.crowded = !b.enter(s.ID)
	go conn.serve()
}

// enter counts a connection, and reports whether there is room for it.
func (b *Broker) enter(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns[id]++
	b.total++
	return b.conns[id] <= maxConnsOfOne && b.total <= maxConns
}

func (b *Broker) leave(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.total--
	if b.conns[id]--; b.conns[id] == 0 {
		delete(b.conns, id)
	}
}

// queue is the listener of the server: connections come from sandboxes. It implements net.Listener.
type queue struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

// Accept implements net.Listener.
func (q *queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (q *queue) Close() error {
	q.once.Do(func() { close(q.done) })
	return nil
}

// Addr implements net.Listener.
func (q *queue) Addr() net.Addr { return &net.UnixAddr{Name: "broker", Net: "unix"} }

// put passes a connection to the server, or closes it if the broker is closed.
func (q *queue) put(c net.Conn) {
	select {
	case q.conns <- c:
	case <-q.done:
		_ = c.Close()
	}
}
