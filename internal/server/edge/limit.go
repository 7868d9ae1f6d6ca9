package edge

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/RelevanceAI/harvest/client/errors"
)

const (
	burstSeconds = 2               // requests of so many seconds may arrive at once
	forget       = 5 * time.Minute // after this time an unused limiter is full again anyway
)

// Limits limits the request rate by key or address. All methods may be called concurrently.
type Limits struct {
	mu   sync.Mutex
	by   map[string]*limited // guarded by mu; by key or address
	next time.Time           // guarded by mu; when to remove unused ones
}

type limited struct {
	*rate.Limiter
	used time.Time
}

// Allow returns Exhausted and sets Retry-After if who exceeds perSecond requests a second. 0 means no limit.
func (l *Limits) Allow(w http.ResponseWriter, who string, perSecond float64) error {
	if perSecond <= 0 {
		return nil
	}
	now := time.Now()
	l.mu.Lock()
	if l.by == nil {
		l.by = map[string]*limited{}
	}
	if now.After(l.next) {
		for key, one := range l.by {
			if now.Sub(one.used) > forget {
				delete(l.by, key)
			}
		}
		l.next = now.Add(forget)
	}
	one := l.by[who]
	if one == nil {
		one = &limited{Limiter: rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond*burstSeconds)))}
		l.by[who] = one
	}
	one.used = now
	l.mu.Unlock()
	if one.AllowN(now, 1) {
		return nil
	}
	w.Header().Set("Retry-After", strconv.Itoa(max(1, int(1/perSecond))))
	return errors.Remedy(errors.Newf(errors.Exhausted, "more than %g requests a second", perSecond),
		"wait a second, and send fewer requests")
}
