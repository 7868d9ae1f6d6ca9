package memory

import (
	"context"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/event"
)

// Events stores events. The zero value is ready to use.
type Events struct {
	mu      sync.Mutex
	streams map[string][]*event.Event // guarded by mu
	last    map[string]int64          // guarded by mu
}

var _ event.Store = (*Events)(nil)

// Append implements event.Store.
func (s *Events) Append(_ context.Context, events []*event.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := map[string]int64{}
	for _, e := range events {
		if next[e.Stream] == 0 {
			next[e.Stream] = s.last[e.Stream]
		}
		next[e.Stream]++
		if e.ID != next[e.Stream] {
			return errors.Errorf("the event %d of %s cannot follow %d", e.ID, e.Stream, next[e.Stream]-1)
		}
	}
	if s.streams == nil {
		s.streams, s.last = map[string][]*event.Event{}, map[string]int64{}
	}
	for _, e := range events {
		s.streams[e.Stream], s.last[e.Stream] = append(s.streams[e.Stream], e), e.ID
	}
	return nil
}

// Read implements event.Store.
func (s *Events) Read(_ context.Context, stream string, after int64, limit int) ([]*event.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.streams[stream]
	from := sort.Search(len(all), func(i int) bool { return all[i].ID > after })
	return slices.Clone(all[from:min(from+limit, len(all))]), nil
}

// Last implements event.Store.
func (s *Events) Last(_ context.Context, stream string) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last[stream], nil
}

// Prune implements event.Store.
func (s *Events) Prune(_ context.Context, stream string, before time.Time) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	removed := 0
	for name, all := range s.streams {
		if stream != "" && name != stream {
			continue
		}
		kept := slices.DeleteFunc(slices.Clone(all), func(e *event.Event) bool { return e.Time.Before(before) })
		removed += len(all) - len(kept)
		s.streams[name] = kept
	}
	return removed, nil
}
