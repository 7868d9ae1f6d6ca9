package broker

import (
	"bytes"
	"io"
	"net/http"
	"sync"
)

// Limits of the bodies in memory, in bytes.
const (
	maxSigned    = 32 << 20  // of a body that a signature needs
	maxHeldOfOne = 64 << 20  // of one sandbox
	maxHeld      = 512 << 20 // of all
)

// held counts the bytes of bodies in memory.
type held struct {
	mu    sync.Mutex
	of    map[string]int64 // guarded by mu: by sandbox
	total int64            // guarded by mu
}

// take counts bytes, and reports whether there is room for them.
func (h *held) take(id string, n int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of[id]+n > maxHeldOfOne || h.total+n > maxHeld {
		return false
	}
	h.of[id], h.total = h.of[id]+n, h.total+n
	return true
}

// give counts bytes that are free.
func (h *held) give(id string, n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.total -= n
	if h.of[id] -= n; h.of[id] <= 0 {
		delete(h.of, id)
	}
}

// hold reads the body of a request into memory, which is counted until release. The request keeps it.
func (e *exchange) hold(r *http.Request, limit int64) ([]byte, *refusal) {
	tooLong := &refusal{status: http.StatusRequestEntityTooLarge,
		why: "the body is too long: the credential needs all of it first, and 32 MiB at most"}
	n := r.ContentLength
	if n < 0 {
		n = limit
	}
	if n > limit {
		return nil, tooLong
	}
	if !e.s.b.bodies.take(e.s.sandbox.ID, n) {
		return nil, &refusal{status: http.StatusServiceUnavailable,
			why: "the bodies of too many requests with credentials are in memory"}
	}
	e.held += n
	text, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	switch {
	case err != nil:
		return nil, &refusal{status: http.StatusBadRequest, why: "the body of the request broke"}
	case int64(len(text)) > limit:
		return nil, tooLong
	}
	setBody(r, text)
	return text, nil
}

// release frees the memory of hold.
func (e *exchange) release() {
	if e.held > 0 {
		e.s.b.bodies.give(e.s.sandbox.ID, e.held)
	}
}

// setBody gives a request a body that is in memory.
func setBody(r *http.Request, text []byte) {
	r.Body, r.ContentLength = readCloser{bytes.NewReader(text), r.Body}, int64(len(text))
	r.Header.Del("Content-Length") // the transport writes it
}

type readCloser struct {
	io.Reader
	io.Closer
}
