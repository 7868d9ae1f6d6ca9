package event

import (
	"context"
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
	visible int64         // guarded by mu; of the newest event that readers are told of, which come in groups
	recent  []*Event      // guarded by mu; the newest events, without gaps, since there are readers
	bytes   int           // guarded by mu; of recent
	readers int           // guarded by mu
	wake    chan struct{} // guarded by mu; closed when visible grows, and at the end
	woken   time.Time     // guarded by mu; when that was last
	waiting bool          // guarded by mu; it will be soon
	ended   bool          // guarded by mu; no event will follow
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
	s.loaded, s.last, s.visible = true, last, last
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
		s.visible = s.last
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
	wait := min(opts.Delay, time.Duration(s.readers)*perReader) - time.Since(s.woken)
	switch {
	case s.waiting:
	case wait <= 0:
		s.show()
	default:
		s.waiting = true
		time.AfterFunc(wait, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.waiting = false
			s.show()
		})
	}
}

// show wakes the readers. mu is held.
func (s *stream) show() {
	s.visible, s.woken = s.last, time.Now()
	close(s.wake)
	s.wake = make(chan struct{})
}

// end lets the readers have what there is, and no more.
func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.show()
}
