package netstack

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/RelevanceAI/harvest/internal/engine/gateway"
)

// denialWindow is the time during which equal denials are counted instead of reported. maxDenials limits the
// different denials in that time.
const (
	denialWindow = 5 * time.Second
	maxDenials   = 128
)

// denials reports each denial once and counts equal ones. It has no timer while nothing is denied.
type denials struct {
	tell  func(gateway.Denial) // nil for no reports
	total atomic.Uint64

	mu      sync.Mutex
	counts  map[gateway.Denial]int // guarded by mu: number of equal denials since the first was reported
	more    int                    // guarded by mu: number of denials beyond maxDenials
	pending *time.Timer            // guarded by mu: nil while counts is empty
}

func (d *denials) add(denial gateway.Denial) {
	d.total.Add(1)
	if d.tell == nil {
		return
	}
	denial.Time, denial.Count = time.Time{}, 0
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pending == nil {
		d.counts = map[gateway.Denial]int{}
		d.pending = time.AfterFunc(denialWindow, d.flush)
	}
	_, known := d.counts[denial]
	switch {
	case known:
		d.counts[denial]++
	case len(d.counts) >= maxDenials:
		d.more++
	default:
		d.counts[denial] = 0
		denial.Time, denial.Count = time.Now(), 1
		d.tell(denial)
	}
}

// flush reports the counted denials, and starts over.
func (d *denials) flush() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pending == nil {
		return
	}
	d.pending.Stop()
	d.pending = nil
	now := time.Now()
	for denial, n := range d.counts {
		if n > 0 {
			denial.Time, denial.Count = now, n
			d.tell(denial)
		}
	}
	if d.more > 0 {
		d.tell(gateway.Denial{Time: now, Protocol: "tcp",
			Reason: "many different connections were refused in a short time", Count: d.more})
	}
	d.counts, d.more = nil, 0
}
