package memory

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/secret"
)

// Secrets stores sealed secrets. The zero value is ready to use.
type Secrets struct {
	mu      sync.Mutex
	records map[[2]string]secret.Record // guarded by mu; by account and name
	loans   map[string]secret.Loan      // guarded by mu; by borrower
}

var _ secret.Store = (*Secrets)(nil)

// Put implements secret.Store.
func (s *Secrets) Put(_ context.Context, records ...secret.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.records == nil {
		s.records = map[[2]string]secret.Record{}
	}
	for _, r := range records {
		s.records[[2]string{r.Account, r.Name}] = cloneSecret(r)
	}
	return nil
}

// Get implements secret.Store.
func (s *Secrets) Get(_ context.Context, account, name string) (secret.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records[[2]string{account, name}]
	if !ok {
		return secret.Record{}, secret.NotFound(name)
	}
	return cloneSecret(r), nil
}

// List implements secret.Store.
func (s *Secrets) List(_ context.Context, account string) ([]secret.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []secret.Record
	for _, r := range s.records {
		if account == "" || r.Account == account {
			found = append(found, cloneSecret(r))
		}
	}
	slices.SortFunc(found, func(a, b secret.Record) int {
		if c := strings.Compare(a.Account, b.Account); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return found, nil
}

// Delete implements secret.Store.
func (s *Secrets) Delete(_ context.Context, account, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.records[[2]string{account, name}]; !ok {
		return secret.NotFound(name)
	}
	delete(s.records, [2]string{account, name})
	return nil
}

// Used implements secret.Store.
func (s *Secrets) Used(_ context.Context, account, name string, at time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.records[[2]string{account, name}]; ok {
		r.Used = at
		s.records[[2]string{account, name}] = r
	}
	return nil
}

// PutLoans implements secret.Store.
func (s *Secrets) PutLoans(_ context.Context, loans ...secret.Loan) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loans == nil {
		s.loans = map[string]secret.Loan{}
	}
	for _, l := range loans {
		l.Sealed = slices.Clone(l.Sealed)
		s.loans[l.Borrower] = l
	}
	return nil
}

// Loans implements secret.Store.
func (s *Secrets) Loans(context.Context) ([]secret.Loan, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []secret.Loan
	for _, borrower := range slices.Sorted(maps.Keys(s.loans)) {
		l := s.loans[borrower]
		l.Sealed = slices.Clone(l.Sealed)
		found = append(found, l)
	}
	return found, nil
}

// DeleteLoans implements secret.Store.
func (s *Secrets) DeleteLoans(_ context.Context, borrowers ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range borrowers {
		delete(s.loans, b)
	}
	return nil
}

func cloneSecret(r secret.Record) secret.Record {
	r.Keys, r.Sealed = slices.Clone(r.Keys), slices.Clone(r.Sealed)
	return r
}
