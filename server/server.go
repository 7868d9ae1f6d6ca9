// Package server is Harvest's HTTP face: it decodes requests, asks package sandbox and the engine's images and volumes to do
// the work, and encodes what they answer. It holds no policy. errors.go is the only exit for errors.
package server

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/sandbox"
	"github.com/RelevanceAI/harvest/volume"
)

// account is whose everything is: a server on a Unix socket serves the one person who can open it.
const account = "personal"

// Options of a Server; Fleet, Images and Volumes are required.
type Options struct {
	Fleet      *sandbox.Fleet
	Images     image.Builder
	Volumes    volume.Provider
	Engine     string // its name
	Version    string
	Background bool // it was started by a client and ends by itself
	// Shutdown, if set, is called, once, when a client asks the server to end. It must not wait for that end.
	Shutdown func()
}

// Server serves HTTP. All methods may be called concurrently.
type Server struct {
	opts Options
	http http.Server

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
	s.stopping, s.stop = context.WithCancel(ctx)
	s.http = http.Server{
		Handler:           s.middleware(s.routes()),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
	return s
}

// routes has one row per route.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for pattern, handle := range map[string]handler{
		"POST " + api.Sandboxes:       s.createSandbox,
		"GET " + api.Sandboxes:        s.listSandboxes,
		"GET " + api.Sandboxed:        s.getSandbox,
		"DELETE " + api.Sandboxed:     s.destroySandbox,
		"POST " + api.SandboxExtend:   s.extendSandbox,
		"POST " + api.SandboxSnapshot: s.snapshotSandbox,
		"POST " + api.SandboxFork:     s.forkSandbox,
		"POST " + api.SandboxExec:     s.exec,
		"GET " + api.SandboxExec:      s.execStream,
		"GET " + api.SandboxProcesses: s.listProcesses,
		"PUT " + api.SandboxArchive:   s.sandboxArchiveIn,
		"GET " + api.SandboxArchive:   s.sandboxArchiveOut,
		"POST " + api.Run:             s.run,
		"GET " + api.Run:              s.runStream,
		"POST " + api.Volumes:         s.createVolume,
		"GET " + api.Volumes:          s.listVolumes,
		"DELETE " + api.VolumeNamed:   s.deleteVolume,
		"PUT " + api.VolumeArchive:    s.volumeArchiveIn,
		"GET " + api.VolumeArchive:    s.volumeArchiveOut,
		"GET " + api.VolumeList:       s.listVolumeFiles,
		"DELETE " + api.VolumeFiles:   s.removeVolumeFile,
		"POST " + api.Images:          s.buildImage,
		"GET " + api.Images:           s.listImages,
		"GET " + api.Imaged:           s.getImage,
		"DELETE " + api.Imaged:        s.deleteImage,
		"POST " + api.Shutdown:        s.shutdown,
		"GET " + api.Healthz:          s.healthz,
		"GET " + api.Readyz:           s.readyz,
		"/":                           s.unknown,
	} {
		mux.Handle(pattern, s.handle(handle))
	}
	return mux
}

func (s *Server) unknown(_ http.ResponseWriter, r *http.Request) error {
	return errors.Remedy(errors.Newf(errors.NotFound, "there is no route %.10s %.200q", r.Method, r.URL.Path),
		"check the method and the path; the routes begin with /v1")
}

// Serve answers the connections of l until Close, or until l is closed after Stop. It returns the error that ended it earlier.
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
