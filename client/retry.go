package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	mrand "math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
)

// A request is tried again when it cannot have done anything, or when doing it twice is the same as once:
//   - nobody took the connection, or the server says when to come back (the header Retry-After);
//   - the connection broke off before an answer, and the request is a GET, a DELETE, or a POST with an Idempotency-Key, which
//     every POST has that can be sent twice. The server answers those once.
//
// Commands are an exception: one whose connection breaks off is ended by the server, and has done what it has done. So they have no key,
// whose answer the server would have to write down, which takes longer than many a command's way through it. Neither is
// a stream of files sent twice, nor a question whether there is a server, nor the request to end it.
const (
	tries     = 4
	firstWait = 100 * time.Millisecond // before the second; then twice as long each time, with jitter
	longWait  = 5 * time.Second        // what a server may ask for; beyond that its answer is the caller's
)

// request is what one method of Client sends.
type request struct {
	method, target, path string
	body                 io.Reader
	size                 int64 // of body; -1 if net/http has to find out
	header               http.Header
}

// repeatable reports whether r can be sent twice.
func (r *request) repeatable() bool {
	_, whole := r.body.(*bytes.Reader)
	return (r.body == nil || whole) && r.path != api.Readyz && r.path != api.Shutdown
}

// once reports whether the server does r once, also when it comes twice.
func (r *request) once() bool {
	switch r.method {
	case http.MethodGet, http.MethodDelete:
		return true
	case http.MethodPost:
		return r.path != api.Run && !strings.HasSuffix(r.path, "/exec")
	}
	return false
}

// try sends r until there is an answer that stays.
func (c *Client) try(ctx context.Context, r *request) (*http.Response, error) {
	if r.method == http.MethodPost && r.repeatable() && r.once() {
		r.header.Set(api.HeaderIdempotency, rand.Text())
	}
	wait, lost := firstWait, false
	for n := 1; ; n++ {
		resp, err := c.roundTrip(ctx, r)
		if err == nil {
			return resp, nil
		}
		if lost && r.method == http.MethodDelete && errors.Is(err, errors.NotFound) {
			return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}, nil // the first time it was done
		}
		var f *failed
		again := errors.As(err, &f) && n < tries && r.repeatable() && (f.unsent || f.after > 0 || f.lost && r.once())
		if !again || f.after > longWait || ctx.Err() != nil {
			return nil, err
		}
		lost = lost || f.lost
		timer := time.NewTimer(max(f.after, wait/2+mrand.N(wait/2)))
		wait *= 2
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		}
	}
}

// failed is why a request has no answer of success.
type failed struct {
	error
	unsent bool          // nobody took the connection
	lost   bool          // there is no answer
	after  time.Duration // when to come back, if the server says so
}

func (f *failed) Unwrap() error { return f.error }

// roundTrip sends r once.
func (c *Client) roundTrip(ctx context.Context, r *request) (*http.Response, error) {
	if whole, ok := r.body.(*bytes.Reader); ok {
		if _, err := whole.Seek(0, io.SeekStart); err != nil {
			return nil, errors.Wrapf(err, "begin the body again")
		}
	}
	req, err := http.NewRequestWithContext(ctx, r.method, r.target, r.body)
	if err != nil {
		return nil, errors.Explainf(err, errors.Invalid, "the request has no valid URL")
	}
	if r.size >= 0 {
		req.ContentLength = r.size
	}
	req.Header = r.header.Clone()
	for name := range c.header {
		req.Header.Set(name, c.header.Get(name))
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, &failed{error: c.unreachable(err), unsent: dialing(err), lost: !dialing(err)}
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // 0 if there is none
	return nil, &failed{error: failure(resp), after: time.Duration(seconds) * time.Second}
}
