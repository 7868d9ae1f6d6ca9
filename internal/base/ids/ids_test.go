package ids

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
)

// mission: A8
func TestOrderOutlivesTheClock(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	m := maker{now: func() time.Time { return at }}
	last := ""
	for _, by := range []time.Duration{0, 0, time.Millisecond, -time.Hour, 0, time.Minute, 2 * time.Hour,
		-365 * 24 * time.Hour, 0} {
		at = at.Add(by)
		for range 1000 {
			id := m.next()
			if id <= last || len(id) != 26 || id != strings.ToLower(id) {
				t.Fatalf("after %q comes %q, when the clock was moved by %s", last, id, by)
			}
			last = id
		}
	}
	// The last one of its millisecond.
	m = maker{now: func() time.Time { return at }, entropy: ulid.Monotonic(full{}, 1)}
	if one, two := m.next(), m.next(); one >= two {
		t.Errorf("%q, then %q", one, two)
	}
}

// full is all that is random at its end.
type full struct{}

func (full) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 0xff
	}
	return len(p), nil
}

func TestNew(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var all sync.WaitGroup
	seen := map[string]bool{}
	for range 8 {
		all.Go(func() {
			last := ""
			for range 1000 {
				id := New()
				mu.Lock()
				if seen[id] || id <= last {
					t.Errorf("%q comes after %q, or twice", id, last)
				}
				seen[id] = true
				mu.Unlock()
				last = id
			}
		})
	}
	all.Wait()
}
