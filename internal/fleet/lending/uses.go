package lending

import (
	"context"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// Limits of what is reported about one sandbox: beyond them, uses are reported together.
const (
	usesEvery = 10 * time.Second // between two reports of equal uses
	maxUses   = 256              // different ones in that time; others are reported without their path
)

// uses reports the uses of a sandbox's credentials: the first of equal ones at once, and how many others followed it
// after usesEvery.
type uses struct {
	ctx    context.Context // nothing is reported after its end
	report func(record.Use)

	mu   sync.Mutex
	seen map[record.Use]*repeats // guarded by mu; by a use without its time
}

// repeats are equal uses that are not reported yet.
type repeats struct {
	count int
	last  time.Time
}

func newUses(ctx context.Context, report func(record.Use)) *uses {
	return &uses{ctx: ctx, report: report, seen: map[record.Use]*repeats{}}
}

// add takes note of a use.
func (s *uses) add(u record.Use) {
	said := u
	u.Time = time.Time{}
	s.mu.Lock()
	if s.seen[u] == nil && len(s.seen) >= maxUses {
		u.Path, said.Path = "", ""
	}
	if r := s.seen[u]; r != nil {
		r.count++
		r.last = said.Time
		s.mu.Unlock()
		return
	}
	s.seen[u] = &repeats{}
	s.mu.Unlock()
	time.AfterFunc(usesEvery, func() { s.repeated(u) })
	s.report(said)
}

// repeated reports the uses that followed u, which has no time.
func (s *uses) repeated(u record.Use) {
	s.mu.Lock()
	r := s.seen[u]
	if r.count == 0 || s.ctx.Err() != nil {
		delete(s.seen, u)
		s.mu.Unlock()
		return
	}
	said := u
	said.Time, said.Count = r.last, r.count
	*r = repeats{}
	s.mu.Unlock()
	time.AfterFunc(usesEvery, func() { s.repeated(u) })
	s.report(said)
}
