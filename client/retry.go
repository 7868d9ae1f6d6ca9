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

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// A request is retried if it cannot have had an effect, or if doing it twice has the same effect as once:
//   - no connection could be established, or the server says when to retry (the header Retry-After). A server that says
//     so while it stops may have a successor: requests wait for it;
//   - the connection broke before a response, and the request is a GET, a DELETE, or a POST with an Idempotency-Key.
//     Every POST that can be sent twice has such a key, and the server executes it once.
//
// Commands are an exception: the server kills a command whose connection breaks, and its effects remain. Commands
// have no key, because the server would have to store their response, which takes longer than many commands. Streams
// of files, the check whether a server runs, and the request to end it are not retried either.
const (
	tries     = 4
	firstWait = 100 * time.Millisecond // before the second try; then doubled each time, with jitter
	longWait  = 5 * time.Second        // maximum Retry-After; with a longer one the caller gets the response
	successor = 15 * time.Second       // how long a request waits for the next server after one that is stopping
)

// request is a request of one method of Client.
type request struct {
	method, target, path string
	body                 io.Reader
	size                 int64 // of body; -1 lets net/http determine it
	header               http.Header
}

// repeatable reports whether r can be sent twice.
func (r *request) repeatable() bool {
	_, whole := r.body.(*bytes.Reader)
	return (r.body == nil || whole) && r.path != api.Readyz && r.path != api.Shutdown
}

// once reports whether the server executes r once, even if it arrives twice.
func (r *request) once() bool {
	switch r.method {
	case http.MethodGet, http.MethodDelete:
		return true
	case http.MethodPost:
		return r.path != api.Run && !strings.HasSuffix(r.path, "/exec")
	}
	return false
}

// try sends r until it gets a final response.
func (c *Client) try(ctx context.Context, r *request) (*http.Response, error) {
	if r.method == http.MethodPost && r.repeatable() && r.once() {
		r.header.Set(api.HeaderIdempotency, rand.Text())
	}
	wait, lost := firstWait, false
	var until time.Time // while it is ahead, a successor of the server is awaited, whatever the number of tries
	for n := 1; ; n++ {
		resp, err := c.roundTrip(ctx, r)
		if err == nil {
			return resp, nil
		}
		if lost && r.method == http.MethodDelete && errors.Is(err, errors.NotFound) {
			// The first attempt had succeeded.
			return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}, nil
		}
		var f *failed
		again := errors.As(err, &f) && r.repeatable() && (f.unsent || f.after > 0 || f.lost && r.once())
		if !again || f.after > longWait || ctx.Err() != nil {
			return nil, err
		}
		if f.stopping && until.IsZero() {
			until = time.Now().Add(successor)
		}
		if n >= tries && !time.Now().Before(until) {
			return nil, err
		}
		lost = lost || f.lost
		timer := time.NewTimer(max(f.after, wait/2+mrand.N(wait/2)))
		wait = min(2*wait, time.Second)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		}
	}
}

// failed is the error of a request without success.
type failed struct {
	error
	unsent bool          // no connection could be established
	lost   bool          // there was no response
	after  time.Duration // the server's Retry-After, if any
	// stopping: the server refused the request with a Retry-After, since it is stopping.
	stopping bool
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
		return nil, errors.Explainf(err, errors.Invalid, "invalid URL of the request")
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
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // 0 if missing
	return nil, &failed{error: failure(resp), after: time.Duration(seconds) * time.Second,
		stopping: seconds > 0 && resp.StatusCode == http.StatusServiceUnavailable}
}
