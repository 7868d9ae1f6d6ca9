package memory

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/RelevanceAI/harvest/modalapi/records"
)

// Records stores the records of Modal's protocol. The zero value is ready to use.
type Records struct {
	mu  sync.Mutex
	all []records.Record // guarded by mu; sorted
}

var _ records.Store = (*Records)(nil)

func compareRecords(a, b records.Record) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Account, b.Account), cmp.Compare(a.ID.ID, b.ID.ID),
		cmp.Compare(a.Number, b.Number))
}

// Put implements records.Store.
func (s *Records) Put(_ context.Context, all ...records.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range all {
		r.Data = bytes.Clone(r.Data)
		at, found := slices.BinarySearchFunc(s.all, r, compareRecords)
		if found {
			s.all[at] = r
		} else {
			s.all = slices.Insert(s.all, at, r)
		}
	}
	return nil
}

// Get implements records.Store.
func (s *Records) Get(_ context.Context, kind records.Kind, id records.ID) ([]records.Record, error) {
	return s.where(func(r records.Record) bool { return r.Kind == kind && r.ID == id }), nil
}

// List implements records.Store.
func (s *Records) List(_ context.Context, kind records.Kind) ([]records.Record, error) {
	return s.where(func(r records.Record) bool { return r.Kind == kind }), nil
}

func (s *Records) where(wanted func(records.Record) bool) []records.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []records.Record
	for _, r := range s.all {
		if wanted(r) {
			r.Data = bytes.Clone(r.Data)
			found = append(found, r)
		}
	}
	return found
}

// IDs implements records.Store.
func (s *Records) IDs(ctx context.Context, kind records.Kind) ([]records.ID, error) {
	all, err := s.List(ctx, kind)
	var ids []records.ID
	for _, r := range all {
		ids = append(ids, r.ID)
	}
	return slices.Compact(ids), err
}

// Delete implements records.Store.
func (s *Records) Delete(_ context.Context, kind records.Kind, id records.ID, numbers ...int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(r records.Record) bool {
		return r.Kind == kind && r.ID == id && (len(numbers) == 0 || slices.Contains(numbers, r.Number))
	})
	return nil
}
