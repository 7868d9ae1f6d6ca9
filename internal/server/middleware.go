package server

import (
	"context"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// ownID matches a request ID that a client may set: it is returned in headers and written to the log.
var ownID = pattern.New(`^[A-Za-z0-9._-]{1,64}$`)

// middleware assigns request IDs, counts and logs requests, and refuses them while the server is stopping.
func (s *Server) middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(api.HeaderRequestID)
		if !ownID().MatchString(id) {
			id = "req_" + strings.ToLower(ulid.Make().String())
		}
		ctx := logf.With(edge.WithRequestID(r.Context(), id), "request_id", id)
		from, v := s.peer(r), &visit{}
		ctx = context.WithValue(context.WithValue(ctx, peerKey{}, from), visitKey{}, v)
		r = r.WithContext(ctx)
		if r.Body != nil && r.Body != http.NoBody && !edge.IsUpgrade(r) {
			r.Body = &patient{ReadCloser: r.Body, rc: http.NewResponseController(w), limit: s.opts.Patience}
		}
		w.Header().Set(api.HeaderRequestID, id)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if from.https {
			w.Header().Set("Strict-Transport-Security", "max-age=31536000")
		}
		rec := &edge.Recorder{ResponseWriter: w}

		to, isPort := s.portHost(from)
		var foreign error // refusals are in the audit log, those of health checks too
		if !isPort {
			foreign = s.checkHost(from)
		}
		health := !isPort && foreign == nil && (r.URL.Path == api.Healthz || r.URL.Path == api.Readyz)
		if !health && (isPort || r.URL.Path != api.Shutdown) {
			defer s.begin()()
		}
		if !health {
			traced, end := s.traced(r, rec)
			ctx, r = traced, r.WithContext(traced)
			defer func() { end(r, v) }()
			start := time.Now()
			defer func() {
				logf.Infof(logf.With(ctx, v.attributes(from)...), "%s %.200q: %d, %d bytes in %.1f ms", r.Method,
					r.URL.Path, rec.Status, rec.Bytes,
					float64(time.Since(start).Microseconds())/1000)
				s.audit(r, v, rec.Status)
				s.metrics.done(r.Pattern, rec.Status, time.Since(start))
			}()
		}
		defer caught(rec, r)
		if !health && s.settings.Stopping.Err() != nil {
			w.Header().Set("Retry-After", "1") // nothing was done, and the next server may be starting
			edge.Fail(rec, r, edge.ErrStopping())
			return
		}
		if isPort {
			s.servePort(to).ServeHTTP(rec, r)
			return
		}
		if foreign != nil {
			edge.Fail(rec, r, foreign)
			return
		}
		next.ServeHTTP(rec, r)
	})
}

// attributes returns the log attributes for the sender of a request.
func (v *visit) attributes(from peer) []any {
	var all []any
	if v.who.KeyID != "" {
		all = append(all, "account", v.who.Account, "key_id", v.who.KeyID)
	}
	if !from.local {
		all = append(all, "address", from.addr.String())
	}
	return all
}

// patient is a body whose sender must not pause for longer than limit; the total time is not limited.
type patient struct {
	io.ReadCloser
	rc    *http.ResponseController
	limit time.Duration
	ended atomic.Pointer[error] // why reading has ended
}

// end makes reads fail, including those in progress.
func (p *patient) end(why error) {
	p.ended.Store(&why)
	_ = p.rc.SetReadDeadline(time.Unix(1, 0))
}

func (p *patient) Read(b []byte) (int, error) {
	_ = p.rc.SetReadDeadline(time.Now().Add(p.limit)) // fails only if it is not a connection
	if why := p.ended.Load(); why != nil {            // after the deadline was set: end sets another one
		return 0, *why
	}
	n, err := p.ReadCloser.Read(b)
	if why := p.ended.Load(); why != nil && err != nil && err != io.EOF {
		return n, *why
	}
	switch {
	case err == io.EOF:
		_ = p.rc.SetReadDeadline(time.Time{}) // for the next request
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = edge.WithStatus(errors.Remedy(errors.Explainf(err, errors.Timeout, "no data of the request's body for %s",
			p.limit), "send the whole body, as Content-Length says, without pauses"), http.StatusRequestTimeout)
	}
	return n, err
}

// caught turns a panic of a handler into an internal error.
func caught(w http.ResponseWriter, r *http.Request) {
	p := recover()
	if p == http.ErrAbortHandler { // from abort, or from a proxy whose upstream has disconnected
		edge.Abort(w)
	} else if p != nil {
		edge.Fail(w, r, errors.Errorf("panic: %v\n%s", p, debug.Stack()))
	}
}
