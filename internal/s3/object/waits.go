package object

import (
	"sync"
	"time"
)

// waits measures for how long a server has answered nothing, although requests wait for it.
type waits struct {
	mu    sync.Mutex
	open  int       // guarded by mu
	since time.Time // guarded by mu; of the last answer, or of the first request since all were answered
}

// begin notes a request with its retries, until the returned function is called.
func (w *waits) begin() (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == 0 {
		w.since = time.Now()
	}
	w.open++
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.open--
		w.since = time.Now()
	})
}

// Waiting returns for how long the server has answered nothing, although requests wait for it, and the server's name.
// Retries of a request belong to it.
func (b *Bucket) Waiting() (host string, since time.Duration) {
	w := b.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == 0 {
		return b.base.Host, 0
	}
	return b.base.Host, time.Since(w.since)
}
