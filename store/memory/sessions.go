package memory

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/RelevanceAI/harvest/sandbox/record"
	"github.com/RelevanceAI/harvest/session/records"
)

// Sessions stores the records of sessions and their messages. The zero value is ready to use.
type Sessions struct {
	Boxes *Sandboxes // for TakeSession; may be nil without spares

	mu       sync.Mutex
	sessions map[string]records.Session // guarded by mu; by id
	messages map[string]records.Message // guarded by mu; by id
}

var _ records.Store = (*Sessions)(nil)

// PutSession implements session.Store.
func (s *Sessions) PutSession(_ context.Context, record records.Session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions == nil {
		s.sessions = map[string]records.Session{}
	}
	s.sessions[record.ID] = record
	return nil
}

// Session implements session.Store.
func (s *Sessions) Session(_ context.Context, id string) (records.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record, ok := s.sessions[id]
	if !ok {
		return records.Session{}, records.NotFound(id)
	}
	return record, nil
}

// Sessions implements session.Store.
func (s *Sessions) Sessions(_ context.Context, account string, live bool, before string,
	limit int) ([]records.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, known := s.sessions[before]; known {
		before = place(r)
	}
	found := []records.Session{}
	for _, r := range s.sessions {
		if (account == "" || r.Account == account && !r.Spare) && (!live || r.Ended.IsZero()) &&
			(before == "" || place(r) < before) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b records.Session) int { return cmp.Compare(place(b), place(a)) })
	if limit > 0 && len(found) > limit {
		found = found[:limit]
	}
	return found, nil
}

// place returns the position of a session in lists.
func place(s records.Session) string { return cmp.Or(s.Place, s.ID) }

// TakeSession implements session.Store.
func (s *Sessions) TakeSession(ctx context.Context, record records.Session, messages []records.Message,
	box record.Sandbox) error {
	if s.Boxes != nil {
		if err := s.Boxes.Put(ctx, box); err != nil {
			return err
		}
	}
	for _, m := range messages {
		if err := s.PutMessage(ctx, m); err != nil {
			return err
		}
	}
	return s.PutSession(ctx, record)
}

// DropSession implements session.Store.
func (s *Sessions) DropSession(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, id)
	maps.DeleteFunc(s.messages, func(_ string, m records.Message) bool { return m.Session == id })
	return nil
}

// Totals implements session.Store.
func (s *Sessions) Totals(_ context.Context, account string) (t records.Totals, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.sessions {
		if r.Account == account && !r.Spare {
			t.Sessions++
			t.Turns += r.Turns
			t.Usage.Add(r.Usage)
		}
	}
	return t, nil
}

// PutMessage implements session.Store.
func (s *Sessions) PutMessage(_ context.Context, m records.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.messages == nil {
		s.messages = map[string]records.Message{}
	}
	s.messages[m.ID] = m
	return nil
}

// Messages implements session.Store.
func (s *Sessions) Messages(_ context.Context, id string) ([]records.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := []records.Message{}
	for _, m := range s.messages {
		if m.Session == id {
			found = append(found, m)
		}
	}
	slices.SortFunc(found, func(a, b records.Message) int { return cmp.Compare(a.ID, b.ID) })
	return found, nil
}
