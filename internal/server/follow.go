package server

import (
	"context"
	"net/http"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// endGrace is how long a handler may respond with the reason after the key of its request has ended. Then the
// connection is closed.
const endGrace = time.Second

// follow ends a request when its key ends: its context, the reading of its body, and shortly after that its
// connection. No stream, terminal, tunnel, upload or download outlives the key. The caller must call the returned
// function when the request is done.
func (s *Server) follow(w http.ResponseWriter, r *http.Request, who account.Principal) (*http.Request, func()) {
	if s.opts.Keys == nil || who.KeyID == "" {
		return r, func() {}
	}
	ctx, done := s.opts.Keys.Follow(r.Context(), who)
	body, _ := r.Body.(*patient)
	finished := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		why := account.Ended(ctx)
		if why == nil {
			return
		}
		if body != nil {
			body.end(why)
		}
		select {
		case <-finished:
		case <-time.After(endGrace):
			if rec, ok := w.(*edge.Recorder); ok {
				rec.Cut()
			}
		}
	})
	return r.WithContext(ctx), func() {
		close(finished)
		stop()
		done()
	}
}
