package memory

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/RelevanceAI/harvest/repo"
)

// Repos stores the records of repositories and of their image builds. The zero value is ready to
// use.
type Repos struct {
	mu     sync.Mutex
	repos  map[string]repo.Repo  // guarded by mu; by id
	builds map[string]repo.Build // guarded by mu; by id
}

var _ repo.Store = (*Repos)(nil)

// PutRepo implements repo.Store.
func (s *Repos) PutRepo(_ context.Context, r repo.Repo, builds ...repo.Build) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.repos {
		if other.ID != r.ID && other.Account == r.Account && other.Name == r.Name {
			return repo.NameTaken(r.Name)
		}
	}
	if s.repos == nil {
		s.repos, s.builds = map[string]repo.Repo{}, map[string]repo.Build{}
	}
	s.repos[r.ID] = r
	for _, b := range builds {
		b.Repo = r.ID
		s.builds[b.ID] = b
	}
	return nil
}

// Repo implements repo.Store.
func (s *Repos) Repo(_ context.Context, id string) (repo.Repo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.repos[id]
	if !ok {
		return repo.Repo{}, repo.NotFound(id)
	}
	return r, nil
}

// Repos implements repo.Store.
func (s *Repos) Repos(_ context.Context, account string) ([]repo.Repo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := []repo.Repo{}
	for _, r := range s.repos {
		if account == "" || r.Account == account {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b repo.Repo) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.ID, b.ID))
	})
	return found, nil
}

// DeleteRepo implements repo.Store.
func (s *Repos) DeleteRepo(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.repos[id]; !ok {
		return repo.NotFound(id)
	}
	delete(s.repos, id)
	for _, b := range s.of(id) {
		delete(s.builds, b.ID)
	}
	return nil
}

// of returns the builds of a repository, newest first. mu is held.
func (s *Repos) of(id string) []repo.Build {
	found := []repo.Build{}
	for _, b := range s.builds {
		if b.Repo == id {
			found = append(found, b)
		}
	}
	slices.SortFunc(found, func(a, b repo.Build) int { return cmp.Compare(b.ID, a.ID) })
	return found
}

// Builds implements repo.Store.
func (s *Repos) Builds(_ context.Context, id string, limit int) ([]repo.Build, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.of(id)
	if limit > 0 && len(found) > limit {
		found = found[:limit]
	}
	return found, nil
}

// TrimBuilds implements repo.Store.
func (s *Repos) TrimBuilds(_ context.Context, id string, keep int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if found := s.of(id); len(found) > keep {
		for _, b := range found[keep:] {
			delete(s.builds, b.ID)
		}
	}
	return nil
}
