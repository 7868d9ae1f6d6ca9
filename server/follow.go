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

// endGrace is for how long a handler may say why it ends, after the key of its request has ended. Then the connection is cut.
const endGrace = time.Second

// follow ends a request with the key that it came with: its context, the rest of its body, and soon after that its connection, so that no
// stream, terminal, tunnel, upload or download outlives the key. The caller must call the function when the request is done.
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

// whileKey returns what call returns or, without waiting for it, why the key of the request has ended. Then call still gets to its end, since its
// context ends too: to kill a command takes a while.
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

// accept makes a WebSocket of a request. Who asks is known by now, and if a page's cookie says so, that the page is ours. It is closed when the key
// of the request ends, with the reason.
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
