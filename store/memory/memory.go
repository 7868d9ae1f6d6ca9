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
	"github.com/RelevanceAI/harvest/sandbox"
)

// Sandboxes stores the records of sandboxes. The zero value is ready to use.
type Sandboxes struct {
	mu      sync.Mutex
	records map[string]sandbox.Sandbox // guarded by mu; by id
	usage   map[string]sandbox.Usage   // guarded by mu; by id
	totals  map[string]sandbox.Totals  // guarded by mu; by account
}

var _ sandbox.Store = (*Sandboxes)(nil)

// Put implements sandbox.Store.
func (s *Sandboxes) Put(_ context.Context, sb sandbox.Sandbox) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, other := range s.records {
		if sb.Name != "" && !sb.Status.Ended() && id != sb.ID && other.Name == sb.Name && other.Account == sb.Account &&
			!other.Status.Ended() {
			return sandbox.NameTaken(sb.Name)
		}
	}
	if s.records == nil {
		s.records, s.totals = map[string]sandbox.Sandbox{}, map[string]sandbox.Totals{}
	}
	if before, known := s.records[sb.ID]; sb.Status.Ended() && (!known || !before.Status.Ended()) {
		t := s.totals[sb.Account]
		t.Add(sb, sb.Ended)
		s.totals[sb.Account] = t
	}
	s.records[sb.ID] = sb.Clone()
	return nil
}

// Get implements sandbox.Store.
func (s *Sandboxes) Get(_ context.Context, id string) (sandbox.Sandbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb, ok := s.records[id]
	if !ok {
		return sandbox.Sandbox{}, errors.Newf(errors.NotFound, "there is no sandbox %.80q", id)
	}
	return sb.Clone(), nil
}

// List implements sandbox.Store.
func (s *Sandboxes) List(_ context.Context, account string, filter sandbox.Filter) ([]sandbox.Sandbox, error) {
	return s.newest(filter.Limit, func(sb sandbox.Sandbox) bool {
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

// Find implements sandbox.Store.
func (s *Sandboxes) Find(_ context.Context, account, prefix string, limit int) ([]sandbox.Sandbox, error) {
	return s.newest(limit, func(sb sandbox.Sandbox) bool {
		return sb.Account == account &&
			strings.HasPrefix(sb.ID, prefix)
	}), nil
}

// Delete implements sandbox.Store.
func (s *Sandboxes) Delete(_ context.Context, endedBefore time.Time) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.records)
	maps.DeleteFunc(s.records, func(_ string, sb sandbox.Sandbox) bool {
		return sb.Status.Ended() && sb.Ended.Before(endedBefore)
	})
	maps.DeleteFunc(s.usage, func(id string, _ sandbox.Usage) bool {
		_, kept := s.records[id]
		return !kept
	})
	return before - len(s.records), nil
}

// Totals implements sandbox.Store.
func (s *Sandboxes) Totals(_ context.Context, account string) (sandbox.Totals, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.totals[account], nil
}

// PutUsage implements sandbox.Store.
func (s *Sandboxes) PutUsage(_ context.Context, id string, u sandbox.Usage) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.usage == nil {
		s.usage = map[string]sandbox.Usage{}
	}
	u.Samples = slices.Clone(u.Samples)
	s.usage[id] = u
	return nil
}

// Usage implements sandbox.Store.
func (s *Sandboxes) Usage(_ context.Context, id string) (sandbox.Usage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.usage[id]
	u.Samples = slices.Clone(u.Samples)
	return u, nil
}

func (s *Sandboxes) newest(limit int, keep func(sandbox.Sandbox) bool) []sandbox.Sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []sandbox.Sandbox
	for _, sb := range s.records {
		if keep(sb) {
			found = append(found, sb.Clone())
		}
	}
	slices.SortFunc(found, func(a, b sandbox.Sandbox) int { return strings.Compare(b.ID, a.ID) })
	if limit > 0 && len(found) > limit {
		found = found[:limit]
	}
	return found
}
