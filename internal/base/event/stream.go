package event

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// stream is the Journal's state of a stream that is written or read.
type stream struct {
	name string
	refs int // guarded by Journal.mu: readers, including those about to join

	mu      sync.Mutex
	loaded  bool          // guarded by mu; last is known
	last    int64         // guarded by mu; id of the newest persisted event
	recent  []*Event      // guarded by mu; the newest events, without gaps, since the first reader joined
	bytes   int           // guarded by mu; size of recent
	readers int           // guarded by mu
	groups  []*group      // guarded by mu; of readers, empty until the first reader joins
	delay   time.Duration // guarded by mu; the longest time that a group waits
	timer   *time.Timer   // guarded by mu; fires when the next group is due; nil until first needed
	ended   bool          // guarded by mu; no event will follow
}

// Readers are notified in groups, one group after the other. If all were notified at once, the last of many
// readers would wait for all the others, and nothing would be sent between two notifications.
const (
	groups = 16
	sooner = 100 * time.Microsecond // a group may be notified this early, so that few readers need few timers
)

// group is some of a stream's readers. All of it is guarded by the stream's mu.
type group struct {
	readers int
	visible int64         // id of the newest event they may read
	wake    chan struct{} // closed when visible grows, and at the end
	due     time.Time     // no notification before this time
}

// join adds a reader to a group and returns the group.
func (s *stream) join() *group {
	if s.groups == nil {
		for range groups {
			s.groups = append(s.groups, &group{wake: make(chan struct{})})
		}
	}
	g := slices.MinFunc(s.groups, func(a, b *group) int { return a.readers - b.readers })
	if g.readers == 0 {
		g.visible = s.last
	}
	g.readers++
	s.readers++
	return g
}

// leave removes a reader from its group.
func (s *stream) leave(g *group) {
	g.readers--
	s.readers--
	if s.readers == 0 {
		s.recent, s.bytes = nil, 0
	}
}

// load reads the stream's last id from store.
func (s *stream) load(ctx context.Context, store Store) (last int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loaded {
		return s.last, nil
	}
	if last, err = store.Last(ctx, s.name); err != nil {
		return 0, errors.Wrapf(err, "find the last event of %s", s.name)
	}
	if last != s.last { // a failed write was persisted after all: recent lacks its events
		s.recent, s.bytes = nil, 0
	}
	s.loaded, s.last = true, last
	for _, g := range s.groups {
		g.visible = last
	}
	return last, nil
}

// unload makes the next load read last again, because the outcome of the last write is unknown.
func (s *stream) unload() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded = false
}

// add shows persisted events to the readers.
func (s *stream) add(events []*Event, opts Options) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = events[len(events)-1].ID
	if s.readers == 0 {
		return
	}
	for _, e := range events {
		e.frame = e.encode()
		s.bytes += len(e.frame)
	}
	s.recent = append(s.recent, events...)
	drop := 0
	for len(s.recent)-drop > opts.Window || s.bytes > opts.WindowBytes && drop < len(s.recent)-1 {
		s.bytes -= len(s.recent[drop].frame)
		s.recent[drop] = nil
		drop++
	}
	s.recent = s.recent[drop:]
	s.delay = min(opts.Delay, time.Duration(s.readers)*perReader)
	s.tell()
}

// tell notifies the groups that are due of new events, and sets a timer for the others. mu is held.
func (s *stream) tell() {
	now := time.Now()
	var due []*group
	var next time.Time
	for _, g := range s.groups {
		switch {
		case g.readers == 0 || g.visible >= s.last:
		case g.due.After(now.Add(sooner)):
			if next.IsZero() || g.due.Before(next) {
				next = g.due
			}
		default:
			due = append(due, g)
		}
	}
	for i, g := range due {
		g.show(s.last)
		g.due = now.Add(s.delay * time.Duration(groups-len(due)+i+1) / groups) // spread groups notified together
	}
	switch {
	case next.IsZero():
	case s.timer == nil:
		s.timer = time.AfterFunc(next.Sub(now), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.tell()
		})
	default:
		s.timer.Reset(next.Sub(now))
	}
}

// show wakes the readers.
func (g *group) show(last int64) {
	g.visible = last
	close(g.wake)
	g.wake = make(chan struct{})
}

// end notifies the readers that no more events will come.
func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for _, g := range s.groups {
		g.show(s.last)
	}
}
