package oci

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

const (
	attempts = 5
	// longestWait is the longest delay to accept from a registry. For longer ones, the request
	// fails.
	longestWait = time.Minute
)

// retry retries requests after transient failures, such as rate limits and broken connections.
type retry struct {
	next  http.RoundTripper
	pause time.Duration // before the first retry; doubled each time
}

func (r *retry) RoundTrip(req *http.Request) (*http.Response, error) {
	for try := 1; ; try++ {
		resp, err := r.next.RoundTrip(req)
		if try == attempts || req.Context().Err() != nil || err != nil && !broken(err) || err == nil &&
			!temporary(resp.StatusCode) || !rewind(req) {
			return resp, err
		}
		wait := backoff(r.pause, try)
		if err == nil {
			if asked, ok := retryAfter(resp.Header); ok {
				if asked > longestWait {
					return resp, nil
				}
				wait = asked
			}
			resp.Body.Close()
		}
		if err := sleep(req.Context(), wait); err != nil {
			return nil, err
		}
	}
}

// rewind resets the body for a retry, and reports whether that is possible.
func rewind(req *http.Request) bool {
	if req.Body == nil || req.Body == http.NoBody {
		return true
	}
	if req.GetBody == nil {
		return false
	}
	body, err := req.GetBody()
	req.Body = body
	return err == nil
}

// broken reports whether a connection failed in a way that may not recur. A failure to connect is
// not retried: wrong names, ports and certificates stay wrong.
func broken(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return false
	}
	var timeout net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE) ||
		errors.As(err, &timeout) && timeout.Timeout()
}

func temporary(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// backoff returns the delay after that many failures, with jitter.
func backoff(first time.Duration, failures int) time.Duration {
	d := first << min(failures-1, 5)
	return d/2 + rand.N(d/2+1)
}

// retryAfter returns the delay that the server requests, in seconds or as a date.
func retryAfter(h http.Header) (time.Duration, bool) {
	text := h.Get("Retry-After")
	if n, err := strconv.Atoi(text); err == nil && n >= 0 {
		return time.Duration(min(n, 1<<20)) * time.Second, true
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, time.Until(at)), true
	}
	return 0, false
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return errors.Wrapf(context.Cause(ctx), "wait for the registry")
	}
}
