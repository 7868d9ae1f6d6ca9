// Package ids makes identifiers that sort in the order in which one process made them, also when the clock is set back meanwhile: lists, queues and what is
// kept of a history go by them.
package ids

import (
	"crypto/rand"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// maker makes identifiers on a clock. Its methods may be called concurrently.
type maker struct {
	now func() time.Time

	mu      sync.Mutex
	last    uint64                 // guarded by mu: milliseconds of the last one
	entropy *ulid.MonotonicEntropy // guarded by mu
}

var ids = maker{now: time.Now}

// New returns a ULID in lower case, greater than all that this process has made before.
func New() string { return ids.next() }

func (m *maker) next() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.entropy == nil {
		m.entropy = ulid.Monotonic(rand.Reader, 0)
	}
	m.last = max(m.last, ulid.Timestamp(m.now()))
	id, err := ulid.New(m.last, m.entropy)
	for err != nil { // the random part has come to its end: the next millisecond has a new one
		m.last++
		id, err = ulid.New(m.last, m.entropy)
	}
	return strings.ToLower(id.String())
}
