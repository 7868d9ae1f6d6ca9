package memory

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/errors"
)

// Keys stores keys and sign-ins. The zero value is ready to use.
type Keys struct {
	mu   sync.Mutex
	keys map[string]account.Key // guarded by mu; by id
}

var _ account.Store = (*Keys)(nil)

// InsertKey implements account.Store.
func (s *Keys) InsertKey(_ context.Context, k account.Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.keys {
		if k.Name != "" && other.Name == k.Name && other.Account == k.Account && other.Kind == k.Kind {
			return account.NameTaken(k.Name)
		}
	}
	if s.keys == nil {
		s.keys = map[string]account.Key{}
	}
	k.Scopes = slices.Clone(k.Scopes)
	s.keys[k.ID] = k
	return nil
}

// KeyByHash implements account.Store.
func (s *Keys) KeyByHash(_ context.Context, hash string) (account.Key, error) {
	found := s.find(func(k account.Key) bool { return k.Hash == hash })
	if len(found) == 0 {
		return account.Key{}, errors.Newf(errors.NotFound, "there is no such key")
	}
	return found[0], nil
}

// Keys implements account.Store.
func (s *Keys) Keys(_ context.Context, owner string, kind account.Kind) ([]account.Key, error) {
	return s.find(func(k account.Key) bool { return k.Kind == kind && (owner == "" || k.Account == owner) }), nil
}

func (s *Keys) find(keep func(account.Key) bool) []account.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := []account.Key{}
	for _, k := range s.keys {
		if keep(k) {
			k.Scopes = slices.Clone(k.Scopes)
			found = append(found, k)
		}
	}
	slices.SortFunc(found, func(a, b account.Key) int { return strings.Compare(b.ID, a.ID) })
	return found
}

// KeyUsed implements account.Store.
func (s *Keys) KeyUsed(_ context.Context, id string, at time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.keys[id]; ok {
		k.LastUsed = at
		s.keys[id] = k
	}
	return nil
}

// DeleteKey implements account.Store.
func (s *Keys) DeleteKey(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.keys[id]; !ok {
		return account.NoKey(id)
	}
	delete(s.keys, id)
	return nil
}

// Replays stores the responses to idempotent requests, for retries. The zero value is ready to use.
type Replays struct {
	mu      sync.Mutex
	replays map[[2]string]account.Replay // guarded by mu; by account and key
}

var _ account.ReplayStore = (*Replays)(nil)

// BeginReplay implements account.ReplayStore.
func (s *Replays) BeginReplay(_ context.Context, r account.Replay, forget time.Time) (account.Replay, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, old := range s.replays {
		if old.Created.Before(forget) {
			delete(s.replays, key)
		}
	}
	if known, ok := s.replays[[2]string{r.Account, r.Key}]; ok {
		return known, true, nil
	}
	if s.replays == nil {
		s.replays = map[[2]string]account.Replay{}
	}
	s.replays[[2]string{r.Account, r.Key}] = r
	return r, false, nil
}

// EndReplay implements account.ReplayStore.
func (s *Replays) EndReplay(_ context.Context, r account.Replay) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Status == 0 {
		delete(s.replays, [2]string{r.Account, r.Key})
		return nil
	}
	s.replays[[2]string{r.Account, r.Key}] = r
	return nil
}
