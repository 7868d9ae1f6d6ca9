package server

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
)

// statuses is the one table from kinds to HTTP.
var statuses = map[errors.Kind]int{
	errors.Invalid:         http.StatusBadRequest,
	errors.Unauthenticated: http.StatusUnauthorized,
	errors.Denied:          http.StatusForbidden,
	errors.NotFound:        http.StatusNotFound,
	errors.Conflict:        http.StatusConflict,
	errors.Gone:            http.StatusGone,
	errors.Exhausted:       http.StatusTooManyRequests,
	errors.Unsupported:     http.StatusNotImplemented,
	errors.Unavailable:     http.StatusServiceUnavailable,
	errors.Timeout:         http.StatusGatewayTimeout,
	errors.Canceled:        499, // as proxies have it: the client closed the request
	errors.Internal:        http.StatusInternalServerError,
}

// statusError is an error whose status is more exact than that of its kind.
type statusError struct {
	error
	status int
}

func (e statusError) Unwrap() error { return e.error }

func withStatus(err error, status int) error { return statusError{err, status} }

func statusOf(err error) int {
	var exact statusError
	switch {
	case errors.As(err, &exact):
		return exact.status
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT): // a disk, and no quota of ours
		return http.StatusInsufficientStorage
	}
	return statuses[errors.KindOf(err)]
}

// retryable are the kinds for which the same request may work later.
var retryable = map[errors.Kind]bool{errors.Exhausted: true, errors.Unavailable: true, errors.Timeout: true}

// lacks is for routes of a part that this server was made without.
func lacks(what string) error {
	return errors.Remedy(errors.Newf(errors.Unsupported, "this server has no %s", what), "a server that `harvest up` starts has all parts")
}

// handler is an http.HandlerFunc that returns its failure instead of writing it. What it returns after it has begun to
// answer breaks the connection off, so that nobody takes half an answer for a whole one.
type handler func(w http.ResponseWriter, r *http.Request) error

func (s *Server) handle(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h(w, r); err != nil {
			fail(w, r, err)
		}
	})
}

// fail answers with err, or breaks the answer off that has begun.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	p := problem(r.Context(), err)
	if rec, ok := w.(*recorder); ok && rec.status != 0 {
		abort(w)
		return
	}
	text := append(marshal(p), '\n')
	rc := http.NewResponseController(w)
	// Without it, net/http reads a part of the body before it answers, and closes the connection soon after.
	_ = rc.EnableFullDuplex()
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="harvest"`)
	}
	w.Header().Set("Content-Type", api.TypeProblem)
	if wantsPage(r) {
		text = asPage(p, r)
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'")
		h.Set("Cache-Control", "no-store")
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(p.Status)
	if _, err := w.Write(text); err != nil || rc.Flush() != nil {
		return
	}
	drain(rc, r)
}

// lateBody is how long a refused request may go on sending, until its sender has read why.
const lateBody = 10 * time.Second

// drain reads what is still sent. A connection that is closed before would break the sender's write, and the sender would
// report that instead of the answer (RFC 9112, 9.6).
func drain(rc *http.ResponseController, r *http.Request) {
	if r.Body == nil || rc.SetReadDeadline(time.Now().Add(lateBody)) != nil {
		return
	}
	if _, err := io.Copy(io.Discard, r.Body); err == nil {
		_ = rc.SetReadDeadline(time.Time{})
	}
}

// abort breaks an answer off: the connection with HTTP/1.1, the stream alone with HTTP/2, for which net/http wants a panic.
func abort(w http.ResponseWriter) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close()
		return
	}
	panic(http.ErrAbortHandler)
}

// problem turns err into what clients may know, and logs what they may not. Every failure leaves through it.
func problem(ctx context.Context, err error) *api.Problem {
	kind := errors.KindOf(err)
	if kind == errors.Internal {
		logf.Errorf(ctx, "%v", err)
	} else {
		logf.Infof(ctx, "%s: %v", kind, err)
	}
	return &api.Problem{
		Type: "/problems/" + string(kind), Title: errors.Message(kind), Status: statusOf(err), Code: string(kind),
		Detail: errors.Message(err), Stage: errors.StageOf(err), Remedy: errors.RemedyOf(err),
		Retryable: retryable[kind], RequestID: requestID(ctx), ReturnCode: errors.ExitOf(err),
	}
}
