package memory

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/modalapi/dicts"
)

// Dicts stores the Dicts of Modal's protocol. The zero value is ready to use.
type Dicts struct {
	mu  sync.Mutex
	all map[[2]string]*dict // guarded by mu; by account and ID
}

type dict struct {
	dicts.Dict
	entries map[string]dictEntry // by key
}

type dictEntry struct {
	value []byte
	used  time.Time
}

var _ dicts.Store = (*Dicts)(nil)

// with calls do with a Dict.
func (s *Dicts) with(account, id string, do func(d *dict)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.all[[2]string{account, id}]
	if d == nil {
		return dicts.NotFound(id)
	}
	do(d)
	return nil
}

// Create implements dicts.Store.
func (s *Dicts) Create(_ context.Context, d dicts.Dict) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[[2]string]*dict{}
	}
	key := [2]string{d.Account, d.ID}
	if s.all[key] != nil {
		return errors.Newf(errors.Conflict, "Dict '%.100s' already exists", d.Name)
	}
	s.all[key] = &dict{d, map[string]dictEntry{}}
	return nil
}

// Get implements dicts.Store.
func (s *Dicts) Get(_ context.Context, account, id string) (found dicts.Dict, err error) {
	err = s.with(account, id, func(d *dict) { found = d.Dict })
	return found, err
}

// List implements dicts.Store.
func (s *Dicts) List(_ context.Context, account string) ([]dicts.Dict, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []dicts.Dict
	for _, d := range s.all {
		if d.Account == account {
			found = append(found, d.Dict)
		}
	}
	slices.SortFunc(found, func(a, b dicts.Dict) int { return strings.Compare(a.ID, b.ID) })
	return found, nil
}

// Delete implements dicts.Store.
func (s *Dicts) Delete(_ context.Context, account, id string) error {
	return s.with(account, id, func(*dict) { delete(s.all, [2]string{account, id}) })
}

// Hear implements dicts.Store.
func (s *Dicts) Hear(_ context.Context, account, id string, at time.Time) error {
	return s.with(account, id, func(d *dict) { d.Heard = at })
}

// Put implements dicts.Store.
func (s *Dicts) Put(_ context.Context, account, id string, entries []dicts.Entry, p dicts.Put) (bool, error) {
	wrote, full := false, false
	err := s.with(account, id, func(d *dict) {
		before, size := maps.Clone(d.entries), d.size()
		for _, e := range entries {
			if old, ok := d.entries[string(e.Key)]; ok && p.OnlyMissing && !old.used.Before(p.Fresh) {
				continue
			}
			d.entries[string(e.Key)] = dictEntry{bytes.Clone(e.Value), p.At}
			wrote = true
		}
		if after := d.size(); after > p.Most && after > size {
			d.entries, full, wrote = before, true, false
		}
	})
	if full {
		err = dicts.Full(p.Most)
	}
	return wrote, err
}

func (d *dict) size() (n int64) {
	for key, e := range d.entries {
		n += int64(len(key)) + int64(len(e.value))
	}
	return n
}

// Value implements dicts.Store.
func (s *Dicts) Value(_ context.Context, account, id string, key []byte) (value []byte, used time.Time, found bool,
	err error) {
	err = s.with(account, id, func(d *dict) {
		var e dictEntry
		e, found = d.entries[string(key)]
		value, used = bytes.Clone(e.value), e.used
	})
	return value, used, found, err
}

// Used implements dicts.Store.
func (s *Dicts) Used(ctx context.Context, account, id string, key []byte) (used time.Time, found bool, err error) {
	_, used, found, err = s.Value(ctx, account, id, key)
	return used, found, err
}

// Touch implements dicts.Store.
func (s *Dicts) Touch(_ context.Context, account, id string, key []byte, at time.Time) error {
	return s.with(account, id, func(d *dict) {
		if e, ok := d.entries[string(key)]; ok {
			d.entries[string(key)] = dictEntry{e.value, at}
		}
	})
}

// Remove implements dicts.Store.
func (s *Dicts) Remove(_ context.Context, account, id string, key []byte) (value []byte, used time.Time, found bool,
	err error) {
	err = s.with(account, id, func(d *dict) {
		var e dictEntry
		e, found = d.entries[string(key)]
		value, used = e.value, e.used
		delete(d.entries, string(key))
	})
	return value, used, found, err
}

// Keys implements dicts.Store.
func (s *Dicts) Keys(_ context.Context, account, id string, after []byte, limit int,
	fresh time.Time) (keys [][]byte, err error) {
	err = s.with(account, id, func(d *dict) {
		for _, key := range slices.Sorted(maps.Keys(d.entries)) {
			if (after == nil || key > string(after)) && !d.entries[key].used.Before(fresh) && len(keys) < limit {
				keys = append(keys, []byte(key))
			}
		}
	})
	return keys, err
}

// Count implements dicts.Store.
func (s *Dicts) Count(ctx context.Context, account, id string, most int, fresh time.Time) (int, error) {
	keys, err := s.Keys(ctx, account, id, nil, most, fresh)
	return len(keys), err
}

// Clear implements dicts.Store.
func (s *Dicts) Clear(_ context.Context, account, id string) error {
	return s.with(account, id, func(d *dict) { clear(d.entries) })
}

// Expire implements dicts.Store.
func (s *Dicts) Expire(_ context.Context, fresh, heard time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, d := range s.all {
		maps.DeleteFunc(d.entries, func(_ string, e dictEntry) bool { return e.used.Before(fresh) })
		if d.Ephemeral() && d.Heard.Before(heard) {
			delete(s.all, key)
		}
	}
	return nil
}
