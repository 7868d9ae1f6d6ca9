package trace

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/RelevanceAI/harvest/errors"
)

const (
	attempts = 5           // attempts to deliver a batch, within the exporter's patience
	pause    = time.Second // before the first retry; it doubles
)

// exporter sends spans to a collector. It implements sdk.SpanExporter.
type exporter struct {
	url      *url.URL
	header   http.Header
	patience time.Duration // time limit of a batch
	http     *http.Client
}

var _ sdk.SpanExporter = (*exporter)(nil)

// ExportSpans sends a batch. It retries while the collector is not ready.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	ctx, cancel := context.WithTimeout(ctx, e.patience)
	defer cancel()
	body := encode(spans)
	wait := pause
	for n := 1; ; n++ {
		again, after, err := e.send(ctx, body)
		if err == nil || !again || n == attempts {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(max(wait, after)):
		}
		wait *= 2
	}
}

// send sends a batch once. again reports whether it may be sent again, at the earliest after the duration
// after.
func (e *exporter) send(ctx context.Context, body []byte) (again bool, after time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url.String(), bytes.NewReader(body))
	if err != nil {
		return false, 0, errors.Wrapf(err, "the request to the collector")
	}
	req.Header = e.header.Clone()
	req.Header.Set("Content-Type", "application/x-protobuf")
	resp, err := e.http.Do(req)
	if err != nil {
		return true, 0, errors.Wrapf(err, "reach the collector")
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)); err != nil {
		return false, 0, nil // the collector has the spans
	}
	if resp.StatusCode < 300 {
		return false, 0, nil
	}
	switch resp.StatusCode { // according to the protocol
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = true
	}
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // without the header, the exporter chooses
	return again, time.Duration(max(0, seconds)) * time.Second, errors.Errorf("the collector answers %s", resp.Status)
}

// Shutdown implements sdk.SpanExporter.
func (e *exporter) Shutdown(context.Context) error {
	e.http.CloseIdleConnections()
	return nil
}
