// Package server is Harvest's HTTP face: it decodes requests, asks package sandbox and the engine's images and volumes to do
// the work, and encodes what they answer. It holds no policy. errors.go is the only exit for errors.
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

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/account/oidc"
	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/event"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/repo"
	"github.com/RelevanceAI/harvest/sandbox"
	"github.com/RelevanceAI/harvest/schedule"
	"github.com/RelevanceAI/harvest/secret"
	"github.com/RelevanceAI/harvest/session"
	"github.com/RelevanceAI/harvest/storage"
	"github.com/RelevanceAI/harvest/volume"
)

// Options of a Server; Fleet, Images and Volumes are required.
type Options struct {
	Fleet   *sandbox.Fleet
	Images  image.Builder
	Volumes volume.Provider
	// Export, if set, writes an image as an OCI archive.
	Export func(ctx context.Context, img image.Image, w io.Writer) error
	// Backup, if set, writes what another server needs to go on as a tar stream, with the key files if keys is true.
	Backup func(ctx context.Context, keys bool, w io.Writer) error
	// ImageAge is how long an image must be unused to be collected when a request does not say.
	ImageAge time.Duration
	// Temp is where build contexts wait; "" means the system's directory for such things.
	Temp       string
	Engine     string // its name
	Version    string
	Background bool // it was started by a client and ends by itself
	// Keys, if set, are how programs and browsers sign in. Without any, only connections of ServeLocal are let in.
	Keys *account.Ring
	// OIDC, if set, is a provider with which people sign in beside keys and links.
	OIDC *oidc.Provider
	// Replays, if set, keeps answers for requests that come again with the same Idempotency-Key.
	Replays account.ReplayStore
	// Secret signs what clients give back to us, such as cursors. Without one, they end with this Server.
	Secret []byte

	Secrets   *secret.Vault       // nil: there are none
	Schedules *schedule.Scheduler // nil: there are none
	Events    *event.Journal      // nil: there are none
	Sessions  *session.Manager    // nil: there are none
	Repos     *repo.Manager       // nil: there are none
	Storage   *storage.Manager    // nil: there is no S3

	URL string // where browsers reach the server; "" if nowhere
	// ModalURL is where programs written for Modal reach it; "" if nowhere.
	ModalURL string
	Names    []string // what the server is called, in lower case, beside "localhost" and addresses
	// PortDomain is below what the host names of ports are; "" if they have none. Whatever else is below it is nobody's.
	PortDomain string
	Proxies    []netip.Prefix // whose X-Forwarded-… headers are believed
	Rate       float64        // requests a second of each key; 0 means no limit
	Audit      io.Writer      // gets a line of JSON for each request that may change something; nil for none
	AuditFile  string         // where that can be read again; "" if nowhere
	// Doctor, if set, says what works on this machine, and what to do about the rest.
	Doctor func(ctx context.Context) []api.Finding
	// Patience is how long a client may send nothing of a body that it has begun, and take nothing of events, until it is given up; 0 means a minute.
	Patience time.Duration
	// Heartbeat is how long a stream of events may be quiet before a comment shows that it lives; 0 means 15 seconds.
	Heartbeat time.Duration

	// Shutdown, if set, is called, once, when a client asks the server to end. It must not wait for that end.
	Shutdown func()
}

// Server serves HTTP. All methods may be called concurrently.
type Server struct {
	opts     Options
	http     http.Server
	key      []byte // signs
	limits   limits
	terms    terminals
	attached attachments
	ports    http.RoundTripper // to ports of sandboxes
	metrics  *metrics
	tracer   trace.Tracer // of whoever has opened package internal/trace
	flying   flights      // requests with an Idempotency-Key
	changing fileLocks    // files that requests are changing right now
	// auditing is held while a line of the audit log is written.
	auditing sync.Mutex

	stopping context.Context // ends with Stop
	stop     context.CancelFunc
	done     chan struct{} // closed by Close

	mu       sync.Mutex
	requests int       // guarded by mu: under way, those for health and shutdown excepted
	idle     time.Time // guarded by mu: since when requests is 0
	asked    bool      // guarded by mu: Shutdown was called
	closed   bool      // guarded by mu
}

// New returns a Server that is ready for Serve. The end of ctx stops it, as Stop does, without waiting.
func New(ctx context.Context, opts Options) *Server {
	s := &Server{opts: opts, done: make(chan struct{}), idle: time.Now()}
	if s.opts.Patience == 0 {
		s.opts.Patience = time.Minute
	}
	if s.opts.Heartbeat == 0 {
		s.opts.Heartbeat = 15 * time.Second
	}
	s.stopping, s.stop = context.WithCancel(ctx)
	if s.key = opts.Secret; len(s.key) == 0 {
		s.key = []byte(rand.Text())
	}
	s.ports, s.metrics = s.openTransport(), newMetrics(s)
	s.tracer = otel.Tracer("github.com/RelevanceAI/harvest/server")
	// HTTP/2 is for listeners with TLS that offer it. Browsers make connections of HTTP/1.1 for WebSockets even then.
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
		// A connection carries many requests: one that has gone without a word must be found out, or all its streams stay.
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 250, SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second, WriteByteTimeout: time.Minute},
	}
	return s
}

func (s *Server) unknown(_ http.ResponseWriter, r *http.Request) error {
	return errors.Remedy(errors.Newf(errors.NotFound, "there is no route %.10s %.200q", r.Method, r.URL.Path),
		"check the method and the path; "+api.Docs+" lists the routes")
}

// ServeLocal is Serve for a listener to which only its owner can connect, such as a Unix socket in a directory of mode 0700: who
// comes that way needs no key, and is the operator.
func (s *Server) ServeLocal(l net.Listener) error { return s.Serve(localListener{l}) }

// Serve answers the connections of l, who need a key, until Close, or until l is closed after Stop. It returns the error that ended it earlier.
func (s *Server) Serve(l net.Listener) error {
	err := s.http.Serve(l)
	if errors.Is(err, http.ErrServerClosed) || s.stopping.Err() != nil && errors.Is(err, net.ErrClosed) {
		return nil
	}
	return errors.Wrapf(err, "serve")
}

// Stop refuses new requests and waits, until ctx ends, for those under way. Streams end without an end: the commands behind
// them, and all sandboxes, go on.
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

// Close closes the listener and all connections. It is repeatable.
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

// Idle returns for how long no request has been under way; 0 while one is.
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

// begin counts a request until the function that it returns is called.
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
