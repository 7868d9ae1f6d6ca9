// Package memory stores records in memory, for tests and for runs without persistent records.
package memory

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/sandbox/record"
	"github.com/RelevanceAI/harvest/sandbox/usage"
)

// Sandboxes stores the records of sandboxes. The zero value is ready to use.
type Sandboxes struct {
	mu      sync.Mutex
	records map[string]record.Sandbox // guarded by mu; by id
	usage   map[string]usage.Usage    // guarded by mu; by id
	totals  map[string]record.Totals  // guarded by mu; by account
}

var _ record.Store = (*Sandboxes)(nil)

// Put implements record.Store.
func (s *Sandboxes) Put(_ context.Context, sb record.Sandbox) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, other := range s.records {
		if sb.Name != "" && !sb.Status.Ended() && id != sb.ID && other.Name == sb.Name && other.Account == sb.Account &&
			!other.Status.Ended() {
			return record.NameTaken(sb.Name)
		}
	}
	if s.records == nil {
		s.records, s.totals = map[string]record.Sandbox{}, map[string]record.Totals{}
	}
	if before, known := s.records[sb.ID]; sb.Status.Ended() && (!known || !before.Status.Ended()) {
		t := s.totals[sb.Account]
		t.Add(sb, sb.Ended)
		s.totals[sb.Account] = t
	}
	s.records[sb.ID] = sb.Clone()
	return nil
}

// Get implements record.Store.
func (s *Sandboxes) Get(_ context.Context, id string) (record.Sandbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb, ok := s.records[id]
	if !ok {
		return record.Sandbox{}, errors.Newf(errors.NotFound, "there is no sandbox %.80q", id)
	}
	return sb.Clone(), nil
}

// List implements record.Store.
func (s *Sandboxes) List(_ context.Context, account string, filter record.Filter) ([]record.Sandbox, error) {
	return s.newest(filter.Limit, func(sb record.Sandbox) bool {
		for key, value := range filter.Tags {
			if got, ok := sb.Tags[key]; !ok || got != value {
				return false
			}
		}
		wanted := filter.All || !sb.Status.Ended()
		if len(filter.Statuses) > 0 {
			wanted = slices.Contains(filter.Statuses, sb.Status)
		}
		return wanted && (account == "" || sb.Account == account) && (filter.Name == "" || sb.Name == filter.Name) &&
			(filter.Before == "" || sb.ID < filter.Before)
	}), nil
}

// Find implements record.Store.
func (s *Sandboxes) Find(_ context.Context, account, prefix string, limit int) ([]record.Sandbox, error) {
	return s.newest(limit, func(sb record.Sandbox) bool {
		return sb.Account == account &&
			strings.HasPrefix(sb.ID, prefix)
	}), nil
}

// Delete implements record.Store.
func (s *Sandboxes) Delete(_ context.Context, endedBefore time.Time) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.records)
	maps.DeleteFunc(s.records, func(_ string, sb record.Sandbox) bool {
		return sb.Status.Ended() && sb.Ended.Before(endedBefore)
	})
	maps.DeleteFunc(s.usage, func(id string, _ usage.Usage) bool {
		_, kept := s.records[id]
		return !kept
	})
	return before - len(s.records), nil
}

// Totals implements record.Store.
func (s *Sandboxes) Totals(_ context.Context, account string) (record.Totals, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.totals[account], nil
}

// PutUsage implements record.Store.
func (s *Sandboxes) PutUsage(_ context.Context, id string, u usage.Usage) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.usage == nil {
		s.usage = map[string]usage.Usage{}
	}
	u.Samples = slices.Clone(u.Samples)
	s.usage[id] = u
	return nil
}

// Usage implements record.Store.
func (s *Sandboxes) Usage(_ context.Context, id string) (usage.Usage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.usage[id]
	u.Samples = slices.Clone(u.Samples)
	return u, nil
}

func (s *Sandboxes) newest(limit int, keep func(record.Sandbox) bool) []record.Sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []record.Sandbox
	for _, sb := range s.records {
		if keep(sb) {
			found = append(found, sb.Clone())
		}
	}
	slices.SortFunc(found, func(a, b record.Sandbox) int { return strings.Compare(b.ID, a.ID) })
	if limit > 0 && len(found) > limit {
		found = found[:limit]
	}
	return found
}
