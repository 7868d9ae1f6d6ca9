// Package server is Harvest's HTTP API: it authenticates requests, limits and audits them, and passes them to the
// handlers of their subject, which are packages below it. It contains no policy.
package server

import (
	"context"
	"crypto/rand"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/account/oidc"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/schedule"
	"github.com/RelevanceAI/harvest/internal/fleet/storage"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/server/edge"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/inbox"
	"github.com/RelevanceAI/harvest/internal/session/repo"
)

// Options of a Server; Fleet, Images and Volumes are required.
type Options struct {
	Fleet   *fleet.Fleet
	Images  image.Builder
	Volumes volume.Provider
	// Export, if set, writes an image as an OCI archive.
	Export func(ctx context.Context, img image.Image, w io.Writer) error
	// Backup, if set, writes a tar stream with the data that another server needs to take over, including the key
	// files if keys is true.
	Backup func(ctx context.Context, keys bool, w io.Writer) error
	// ImageAge is how long an image must be unused to be collected, if the request does not specify an age.
	ImageAge time.Duration
	// Temp is the directory for build contexts; "" means the system's temporary directory.
	Temp       string
	Engine     string // name of the engine
	Version    string
	Background bool // a client started it, and it ends by itself
	// Keys, if set, authenticates programs and browsers. Without keys, only connections of ServeLocal are accepted.
	Keys *account.Ring
	// OIDC, if set, is a provider for sign-in in addition to keys and links.
	OIDC *oidc.Provider
	// Replays, if set, stores responses for repeated requests with the same Idempotency-Key.
	Replays account.ReplayStore
	// Secret signs data that clients send back, such as cursors. Without it, such data becomes invalid when this
	// Server ends.
	Secret []byte

	Secrets   *secret.Vault       // nil: not supported
	Schedules *schedule.Scheduler // nil: not supported
	Events    *event.Journal      // nil: not supported
	Inbox     *inbox.Box          // nil: not supported
	Sessions  *session.Manager    // nil: not supported
	Repos     *repo.Manager       // nil: not supported
	Storage   *storage.Manager    // nil: S3 is not supported
	SSH       SSH                 // zero: not supported

	URL string // address of the server for browsers; "" if none
	// ModalURL is the address for programs written for Modal; "" if none.
	ModalURL string
	// ModalAuthority is the certificate (PEM) that signs those of Modal's tunnels; "" if none.
	ModalAuthority string
	Names          []string // host names of the server, in lower case, besides "localhost" and addresses
	// PortDomain is the parent domain of the host names of ports; "" if ports have none. The server serves no other
	// names below it.
	PortDomain string
	Proxies    []netip.Prefix // trusted for X-Forwarded-… headers
	Rate       float64        // requests per second and key; 0 means no limit
	Audit      io.Writer      // receives a JSON line per request that may change something; nil for none
	AuditFile  string         // path for reading these lines; "" if none
	// Doctor, if set, reports which features work on this machine, and remedies for the others.
	Doctor func(ctx context.Context) []api.Finding
	// Patience is how long a client may pause while it sends a body or reads events, until it is disconnected; 0
	// means a minute.
	Patience time.Duration
	// Heartbeat is the maximum pause of an event stream before a comment is sent as a sign of life; 0 means 15
	// seconds.
	Heartbeat time.Duration

	// Shutdown, if set, is called once when a client asks the server to end. It must not wait for that end.
	Shutdown func()
}

// Server serves HTTP. All methods may be called concurrently.
type Server struct {
	opts     Options
	http     http.Server
	settings edge.Settings // its Stopping ends with Stop
	parts    parts
	limits   edge.Limits

	ports   http.RoundTripper // connects to ports of sandboxes
	metrics *metrics
	tracer  trace.Tracer // no-op unless package internal/base/trace is open
	flying  flights      // requests with an Idempotency-Key
	inner   *innerServer // MCP
	// auditing is held while a line of the audit log is written.
	auditing sync.Mutex

	stop context.CancelFunc
	done chan struct{} // closed by Close

	mu       sync.Mutex
	requests int       // guarded by mu: in progress, except those for health and shutdown
	idle     time.Time // guarded by mu: since when requests is 0
	asked    bool      // guarded by mu: Shutdown was called
	closed   bool      // guarded by mu
}

// New returns a Server that is ready for Serve. When ctx ends, the Server stops, as after Stop, without waiting.
func New(ctx context.Context, opts Options) *Server {
	s := &Server{opts: opts, done: make(chan struct{}), idle: time.Now()}
	if s.opts.Patience == 0 {
		s.opts.Patience = time.Minute
	}
	if s.opts.Heartbeat == 0 {
		s.opts.Heartbeat = 15 * time.Second
	}
	s.settings = edge.Settings{Key: opts.Secret, Heartbeat: s.opts.Heartbeat}
	s.settings.Stopping, s.stop = context.WithCancel(ctx)
	if len(s.settings.Key) == 0 {
		s.settings.Key = []byte(rand.Text())
	}
	s.ports, s.metrics = s.openTransport(), newMetrics(s)
	s.tracer = otel.Tracer("github.com/RelevanceAI/harvest/server")
	s.parts = s.openParts()
	s.inner = newInner(s)
	// HTTP/2 is for TLS listeners that offer it. Browsers use HTTP/1.1 connections for WebSockets even then.
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	s.http = http.Server{
		Handler:           s.middleware(s.router()),
		ConnContext:       connContext,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		Protocols:         &protocols,
		// A connection carries many requests: a dead connection must be detected, or all its streams stay open.
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 250, SendPingTimeout: 30 * time.Second,
			PingTimeout: 15 * time.Second, WriteByteTimeout: time.Minute},
	}
	return s
}

func (s *Server) unknown(_ http.ResponseWriter, r *http.Request) error {
	return errors.Remedy(errors.Newf(errors.NotFound, "unknown route %.10s %.200q", r.Method, r.URL.Path),
		"check the method and the path; "+api.Docs+" lists the routes")
}

// ServeLocal is Serve for a listener to which only its owner can connect, such as a Unix socket in a directory of
// mode 0700. Its clients need no key and are the operator.
func (s *Server) ServeLocal(l net.Listener) error { return s.Serve(localListener{l}) }

// Serve serves the connections of l, which need a key, until Close, or until l is closed after Stop. It returns the
// error if it ended earlier.
func (s *Server) Serve(l net.Listener) error {
	err := s.http.Serve(l)
	if errors.Is(err, http.ErrServerClosed) || s.settings.Stopping.Err() != nil && errors.Is(err, net.ErrClosed) {
		return nil
	}
	return errors.Wrapf(err, "serve")
}

// Stop refuses new requests and waits, until ctx ends, for those in progress. Streams are cut off without an end
// message; the commands behind them, and all sandboxes, keep running.
func (s *Server) Stop(ctx context.Context) {
	s.stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for s.active() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Close closes the listener and all connections. It is idempotent.
func (s *Server) Close() error {
	s.stop()
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if first {
		close(s.done)
	}
	return errors.Wrapf(s.http.Close(), "close the server")
}

// Idle returns how long no request has been in progress; 0 while one is.
func (s *Server) Idle() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests > 0 {
		return 0
	}
	return time.Since(s.idle)
}

func (s *Server) active() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// begin counts a request until the returned function is called.
func (s *Server) begin() func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.requests--
		s.idle = time.Now()
	}
}
