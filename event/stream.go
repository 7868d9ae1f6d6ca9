package event

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/errors"
)

// stream is what a Journal knows of a stream that is written or read.
type stream struct {
	name string
	refs int // guarded by Journal.mu: readers, those that are about to be included

	mu      sync.Mutex
	loaded  bool          // guarded by mu; last is known
	last    int64         // guarded by mu; of the newest event that is persisted
	recent  []*Event      // guarded by mu; the newest events, without gaps, since there are readers
	bytes   int           // guarded by mu; of recent
	readers int           // guarded by mu
	groups  []*group      // guarded by mu; of readers, none before the first
	delay   time.Duration // guarded by mu; the most that a group waits
	timer   *time.Timer   // guarded by mu; when the next group is due; nil before it was needed
	ended   bool          // guarded by mu; no event will follow
}

// Readers are told of events in groups, each in its turn: if all were told at once, the last of many would wait until the others
// have got theirs, while nothing is sent between two such times.
const (
	groups = 16
	sooner = 100 * time.Microsecond // than it is due a group is told, so that few readers make few timers
)

// group is some of a stream's readers. All of it is guarded by the stream's mu.
type group struct {
	readers int
	visible int64         // the newest event that they are told of
	wake    chan struct{} // closed when visible grows, and at the end
	due     time.Time     // before it they are not told of more
}

// join returns the group of one more reader.
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

// leave is the end of a reader.
func (s *stream) leave(g *group) {
	g.readers--
	s.readers--
	if s.readers == 0 {
		s.recent, s.bytes = nil, 0
	}
}

// load finds out where the stream ends.
func (s *stream) load(ctx context.Context, store Store) (last int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loaded {
		return s.last, nil
	}
	if last, err = store.Last(ctx, s.name); err != nil {
		return 0, errors.Wrapf(err, "find the last event of %s", s.name)
	}
	if last != s.last { // a write was persisted although it failed: recent lacks it
		s.recent, s.bytes = nil, 0
	}
	s.loaded, s.last = true, last
	for _, g := range s.groups {
		g.visible = last
	}
	return last, nil
}

// unload has last read again: what became of the last write is not known.
func (s *stream) unload() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded = false
}

// add shows events that are persisted.
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

// tell tells the groups that are due of what is new, and sees to the others when they are. mu is held.
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
		g.due = now.Add(s.delay * time.Duration(groups-len(due)+i+1) / groups) // those that came together part
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

// end lets the readers have what there is, and no more.
func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for _, g := range s.groups {
		g.show(s.last)
	}
}
