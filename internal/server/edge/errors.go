package edge

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// statuses maps kinds of errors to HTTP statuses.
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
	errors.Canceled:        499, // as used by proxies: the client closed the request
	errors.Internal:        http.StatusInternalServerError,
}

// statusError is an error with a more specific status than that of its kind.
type statusError struct {
	error
	status int
}

func (e statusError) Unwrap() error { return e.error }

// WithStatus returns err with a status that is more specific than that of its kind.
func WithStatus(err error, status int) error { return statusError{err, status} }

func statusOf(err error) int {
	var exact statusError
	switch {
	case errors.As(err, &exact):
		return exact.status
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT): // the disk, not a quota of Harvest
		return http.StatusInsufficientStorage
	}
	return statuses[errors.KindOf(err)]
}

// retryable are the kinds of errors after which a retry may succeed.
var retryable = map[errors.Kind]bool{errors.Exhausted: true, errors.Unavailable: true, errors.Timeout: true}

// Lacks returns the error of routes whose part is not configured on this server.
func Lacks(what string) error {
	return errors.Remedy(errors.Newf(errors.Unsupported, "this server has no %s", what),
		"use a server that was started with `harvest up`; it has all parts")
}

// Handler is an http.HandlerFunc that returns its error instead of writing it. An error after the start of the
// response aborts the connection, so that a client does not take a partial response for a complete one.
type Handler func(w http.ResponseWriter, r *http.Request) error

// ServeHTTP implements http.Handler.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h(w, r); err != nil {
		Fail(w, r, err)
	}
}

// Fail answers with err, or aborts a response that has begun.
func Fail(w http.ResponseWriter, r *http.Request, err error) {
	p := Problem(r.Context(), err)
	if rec, ok := w.(*Recorder); ok && rec.Status != 0 {
		Abort(w)
		return
	}
	text := append(Marshal(p), '\n')
	rc := http.NewResponseController(w)
	// Without full duplex, net/http reads a part of the body before it answers, and closes the connection soon after.
	_ = rc.EnableFullDuplex()
	if p.Status == http.StatusUnauthorized && w.Header().Get("WWW-Authenticate") == "" {
		w.Header().Set("WWW-Authenticate", `Bearer realm="harvest"`)
	}
	w.Header().Set("Content-Type", api.TypeProblem)
	if wantsPage(r) {
		text = asPage(p, r)
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", errorPagePolicy)
		h.Set("Cache-Control", "no-store")
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(p.Status)
	if _, err := w.Write(text); err != nil || rc.Flush() != nil {
		return
	}
	drain(rc, r)
}

// lateBody is how long the sender of a refused request may continue to send before it reads the response.
const lateBody = 10 * time.Second

// drain reads the rest of the body. If the connection were closed earlier, the sender's write would fail, and the
// sender would report that error instead of the response (RFC 9112, 9.6).
func drain(rc *http.ResponseController, r *http.Request) {
	if r.Body == nil || rc.SetReadDeadline(time.Now().Add(lateBody)) != nil {
		return
	}
	if _, err := io.Copy(io.Discard, r.Body); err == nil {
		_ = rc.SetReadDeadline(time.Time{})
	}
}

// Abort aborts a response: the whole connection with HTTP/1.1, only the stream with HTTP/2, for which net/http
// requires a panic.
func Abort(w http.ResponseWriter) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close()
		return
	}
	panic(http.ErrAbortHandler)
}

// Problem converts err to a response without internal details, and logs the details. All errors pass through it.
func Problem(ctx context.Context, err error) *api.Problem {
	kind := errors.KindOf(err)
	if kind == errors.Internal {
		logf.Errorf(ctx, "%v", err)
	} else {
		logf.Infof(ctx, "%s: %v", kind, err)
	}
	return &api.Problem{
		Type: "/problems/" + string(kind), Title: errors.Message(kind), Status: statusOf(err), Code: string(kind),
		Detail: errors.Message(err), Stage: errors.StageOf(err), Remedy: errors.RemedyOf(err),
		Retryable: retryable[kind], RequestID: RequestID(ctx), ReturnCode: errors.ExitOf(err),
	}
}

// EndedBy returns why the key of a request has ended, else err.
func EndedBy(ctx context.Context, err error) error {
	if why := account.Ended(ctx); why != nil {
		return why
	}
	return err
}

// ErrStopping returns the error of requests that come while the server is stopping.
func ErrStopping() error {
	return errors.Remedy(errors.Newf(errors.Unavailable, "the server is stopping"), "try again in a moment")
}
