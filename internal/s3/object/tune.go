package object

import (
	"net/http"
	"time"
)

// Tuning changes properties of a bucket that otherwise follow from its server's answers, for tests
// of other packages. Zero values change nothing.
type Tuning struct {
	// Transport wraps the transport of all requests.
	Transport func(http.RoundTripper) http.RoundTripper
	Backoff   time.Duration // maximum backoff between retries
	Silence   time.Duration // maximum wait for an answer
	Skew      time.Duration // correction of this machine's clock
	// MD5 means that the server does not know CRC-64/NVME.
	MD5 bool
	// SingleDeletions means that the server deletes one object a request.
	SingleDeletions bool
}

// Tune applies a Tuning. It must not be called while requests are in progress.
func (b *Bucket) Tune(t Tuning) {
	if t.Transport != nil {
		b.http.Transport, b.wire = t.Transport(b.http.Transport), nil
	}
	if t.Backoff > 0 {
		b.retry = retryer(t.Backoff)
	}
	if t.Silence > 0 {
		b.silence = t.Silence
	}
	if t.Skew != 0 {
		b.skew.Store(int64(t.Skew))
	}
	if t.MD5 {
		b.md5.Store(true)
	}
	if t.SingleDeletions {
		b.single.Store(true)
	}
}
