package server

import (
	"context"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/coder/websocket"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/sandbox"
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
			if rec, ok := w.(*recorder); ok {
				rec.cut()
			}
		}
	})
	return r.WithContext(ctx), func() {
		close(finished)
		stop()
		done()
	}
}

// endedBy returns why the key of a request has ended, else err.
func endedBy(ctx context.Context, err error) error {
	if why := account.Ended(ctx); why != nil {
		return why
	}
	return err
}

// whileKey returns the result of call. If the key of the request ends first, whileKey returns the reason at once and
// does not wait for call, because killing a command takes a while. call still completes, since its context ends, too.
func whileKey(ctx context.Context, call func() (sandbox.Result, error)) (sandbox.Result, error) {
	type result struct {
		sandbox.Result
		err error
	}
	done := make(chan result, 1)
	ended := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		if account.Ended(ctx) != nil {
			close(ended)
		}
	})()
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- result{err: errors.Errorf("panic: %v\n%s", p, debug.Stack())}
			}
		}()
		res, err := call()
		done <- result{res, err}
	}()
	select {
	case r := <-done:
		return r.Result, endedBy(ctx, r.err)
	case <-ended:
		return sandbox.Result{}, account.Ended(ctx)
	}
}

// accept upgrades a request to a WebSocket. The caller is already authenticated and, if a cookie was used, its page
// was checked. The connection is closed with the reason when the key of the request ends.
func accept(w http.ResponseWriter, r *http.Request) (*websocket.Conn, func(), error) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(r.Context(), func() {
		if why := account.Ended(r.Context()); why != nil {
			_ = conn.Close(websocket.StatusPolicyViolation, errors.Message(why))
		}
	})
	return conn, func() { stop(); _ = conn.CloseNow() }, nil
}
