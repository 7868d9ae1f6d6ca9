// Package ids makes identifiers that sort in the order in which one process made them, even if the clock is set
// back meanwhile. Lists, queues and the pruning of history rely on that order.
package ids

import (
	"crypto/rand"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// maker makes identifiers from a clock. Its methods may be called concurrently.
type maker struct {
	now func() time.Time

	mu      sync.Mutex
	last    uint64                 // guarded by mu: milliseconds of the last identifier
	entropy *ulid.MonotonicEntropy // guarded by mu
}

var ids = maker{now: time.Now}

// New returns a lower-case ULID greater than all earlier ones of this process.
func New() string { return ids.next() }

func (m *maker) next() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.entropy == nil {
		m.entropy = ulid.Monotonic(rand.Reader, 0)
	}
	m.last = max(m.last, ulid.Timestamp(m.now()))
	id, err := ulid.New(m.last, m.entropy)
	for err != nil { // the random part is exhausted: the next millisecond has a new one
		m.last++
		id, err = ulid.New(m.last, m.entropy)
	}
	return strings.ToLower(id.String())
}
