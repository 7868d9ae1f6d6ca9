package client

import (
	"net/http"
	"time"
)

// OnWait sets a function that is called for each request to which the server has not answered after a time. It must be
// called before the first request. The requests go on.
func (c *Client) OnWait(after time.Duration, report func()) {
	c.http.Transport = waiting{c.http.Transport, after, report}
}

// waiting is a transport that reports slow answers.
type waiting struct {
	http.RoundTripper
	after  time.Duration
	report func()
}

// RoundTrip implements http.RoundTripper. It returns with the header of the answer.
func (w waiting) RoundTrip(req *http.Request) (*http.Response, error) {
	timer := time.AfterFunc(w.after, w.report)
	defer timer.Stop()
	return w.RoundTripper.RoundTrip(req)
}

// CloseIdleConnections lets http.Client close those of the transport.
func (w waiting) CloseIdleConnections() {
	if t, ok := w.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}
