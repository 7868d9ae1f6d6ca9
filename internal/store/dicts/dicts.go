// Package dicts serves Modal's Dicts: named maps of bytes that programs of an account share. It holds the limits and
// the lifetimes; a Store keeps the records. Keys and values are opaque.
package dicts

import (
	"context"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// The limits that Modal documents.
const (
	MostEntries  = 10_000             // of one update
	MostValue    = 100 << 20          // bytes of one entry, key and value
	MostBytes    = 10 << 30           // of one Dict
	MostCounted  = 100_000            // Len returns no more
	EntryLife    = 7 * 24 * time.Hour // without a read or a write
	mostKey      = 64 << 10           // bytes; Modal documents no limit
	mostDicts    = 10_000             // of one account; Modal documents no limit
	touchAfter   = time.Hour          // resolution of an entry's last use
	keysPerQuery = 100
)

// EphemeralLife is how long a Dict without a name exists after its client's last heartbeat. Clients send one every
// 300 s.
const EphemeralLife = 15 * time.Minute

// Dict is the record of a Dict.
type Dict struct {
	Account     string
	ID          string // unique within the account
	Environment string
	Name        string // "" for an ephemeral Dict
	Created     time.Time
	Heard       time.Time // the last heartbeat of an ephemeral Dict
}

// Ephemeral reports whether the Dict ends with its client.
func (d Dict) Ephemeral() bool { return d.Name == "" }

// Entry is a key with its value.
type Entry struct{ Key, Value []byte }

// Size is the number of bytes that count against the limits.
func (e Entry) Size() int64 { return int64(len(e.Key)) + int64(len(e.Value)) }

// Put are the options of Store.Put.
type Put struct {
	OnlyMissing bool      // keep the entries that exist
	At          time.Time // the time of use of the written entries
	Fresh       time.Time // entries last used before are missing
	Most        int64     // bytes that the Dict may have afterwards
}

// Store keeps Dicts. Methods that name a Dict return NotFound if the account has none with that ID. Times have a
// resolution of at least a millisecond.
type Store interface {
	// Create adds a Dict. Conflict if its ID exists.
	Create(ctx context.Context, d Dict) error
	Get(ctx context.Context, account, id string) (Dict, error)
	// List returns the Dicts of an account, sorted by ID.
	List(ctx context.Context, account string) ([]Dict, error)
	// Delete removes a Dict and its entries.
	Delete(ctx context.Context, account, id string) error
	// Hear sets the time of the last heartbeat.
	Hear(ctx context.Context, account, id string, at time.Time) error
	// Put writes all entries or, on an error, none. It reports whether it wrote any. Exhausted if the Dict would be
	// larger than p.Most.
	Put(ctx context.Context, account, id string, entries []Entry, p Put) (wrote bool, err error)
	// Value returns the value of a key and its last use.
	Value(ctx context.Context, account, id string, key []byte) (value []byte, used time.Time, found bool, err error)
	// Used returns the last use of a key.
	Used(ctx context.Context, account, id string, key []byte) (used time.Time, found bool, err error)
	// Touch sets the last use of a key, if it exists.
	Touch(ctx context.Context, account, id string, key []byte, at time.Time) error
	// Remove removes a key and returns its value and its last use.
	Remove(ctx context.Context, account, id string, key []byte) (value []byte, used time.Time, found bool, err error)
	// Keys returns at most limit keys after a key, in order, which were used at fresh or later.
	Keys(ctx context.Context, account, id string, after []byte, limit int, fresh time.Time) ([][]byte, error)
	// Count counts the keys that were used at fresh or later, up to most.
	Count(ctx context.Context, account, id string, most int, fresh time.Time) (int, error)
	// Clear removes all entries.
	Clear(ctx context.Context, account, id string) error
	// Expire removes the entries last used before fresh, and the ephemeral Dicts last heard of before heard.
	Expire(ctx context.Context, fresh, heard time.Time) error
}

// NotFound is the error of Store for a Dict that the account does not have.
func NotFound(id string) error { return errors.Newf(errors.NotFound, "Dict '%.100s' not found", id) }

// Full is the error of Store.Put for a Dict that would be too large.
func Full(most int64) error {
	return errors.Remedy(errors.Newf(errors.Exhausted, "Dict: would have more than %d bytes", most),
		"remove entries, or use a volume")
}

// Dicts serves the Dicts of a Store. Its methods may be called concurrently.
type Dicts struct {
	store Store
	now   func() time.Time
}

// New returns the Dicts of a store. now is the clock; nil means time.Now.
func New(store Store, now func() time.Time) *Dicts {
	if now == nil {
		now = time.Now
	}
	return &Dicts{store, now}
}

func (s *Dicts) fresh() time.Time { return s.now().Add(-EntryLife) }

// Create adds a Dict with its first entries, and sets its times. Conflict if its ID exists.
func (s *Dicts) Create(ctx context.Context, d Dict, first []Entry) (Dict, error) {
	if err := check(first); err != nil {
		return Dict{}, err
	}
	all, err := s.store.List(ctx, d.Account)
	if err != nil {
		return Dict{}, err
	}
	if len(all) >= mostDicts {
		err := errors.Newf(errors.Exhausted, "account: has %d Dicts", mostDicts)
		return Dict{}, errors.Remedy(err, "delete some")
	}
	d.Created = s.now().UTC()
	d.Heard = d.Created
	if err := s.store.Create(ctx, d); err != nil {
		return Dict{}, err
	}
	if len(first) > 0 {
		if _, err := s.Update(ctx, d.Account, d.ID, first, false); err != nil {
			return Dict{}, errors.Join(err, s.store.Delete(context.WithoutCancel(ctx), d.Account, d.ID))
		}
	}
	return d, nil
}

// Get returns the record of a Dict.
func (s *Dicts) Get(ctx context.Context, account, id string) (Dict, error) {
	return s.store.Get(ctx, account, id)
}

// List returns the named Dicts of an account, sorted by ID.
func (s *Dicts) List(ctx context.Context, account string) ([]Dict, error) {
	all, err := s.store.List(ctx, account)
	named := all[:0:0]
	for _, d := range all {
		if !d.Ephemeral() {
			named = append(named, d)
		}
	}
	return named, err
}

// Delete removes a Dict and its entries.
func (s *Dicts) Delete(ctx context.Context, account, id string) error {
	return s.store.Delete(ctx, account, id)
}

// Hear extends the life of an ephemeral Dict.
func (s *Dicts) Hear(ctx context.Context, account, id string) error {
	return s.store.Hear(ctx, account, id, s.now().UTC())
}

// check returns an error if entries exceed the limits of an update.
func check(entries []Entry) error {
	if len(entries) > MostEntries {
		return errors.Remedy(errors.Newf(errors.Invalid, "Dict: an update has %d entries, more than %d",
			len(entries), MostEntries), "split the update")
	}
	for _, e := range entries {
		if len(e.Key) > mostKey {
			return errors.Newf(errors.Invalid, "Dict: a key has %d bytes, more than %d", len(e.Key), mostKey)
		}
		if e.Size() > MostValue {
			// Python's SDK recognizes the status.
			return errors.Newf(errors.Invalid, "Dict: an entry has %d bytes, more than %d (status = '413')",
				e.Size(), MostValue)
		}
	}
	return nil
}

// Update writes entries, all or none. With onlyMissing, it keeps the keys that exist. It reports whether it wrote any.
func (s *Dicts) Update(ctx context.Context, account, id string, entries []Entry, onlyMissing bool) (bool, error) {
	if err := check(entries); err != nil {
		return false, err
	}
	return s.store.Put(ctx, account, id, entries,
		Put{OnlyMissing: onlyMissing, At: s.now().UTC(), Fresh: s.fresh(), Most: MostBytes})
}

// Value returns the value of a key. The key's life starts again.
func (s *Dicts) Value(ctx context.Context, account, id string, key []byte) (value []byte, found bool, err error) {
	value, used, found, err := s.store.Value(ctx, account, id, key)
	if err != nil || !found || used.Before(s.fresh()) {
		return nil, false, err
	}
	return value, true, s.touch(ctx, account, id, key, used)
}

// Contains reports whether a key exists. The key's life starts again.
func (s *Dicts) Contains(ctx context.Context, account, id string, key []byte) (bool, error) {
	used, found, err := s.store.Used(ctx, account, id, key)
	if err != nil || !found || used.Before(s.fresh()) {
		return false, err
	}
	return true, s.touch(ctx, account, id, key, used)
}

func (s *Dicts) touch(ctx context.Context, account, id string, key []byte, used time.Time) error {
	if now := s.now().UTC(); now.Sub(used) > touchAfter {
		return s.store.Touch(ctx, account, id, key, now)
	}
	return nil
}

// Pop removes a key and returns its value.
func (s *Dicts) Pop(ctx context.Context, account, id string, key []byte) (value []byte, found bool, err error) {
	value, used, found, err := s.store.Remove(ctx, account, id, key)
	if err != nil || !found || used.Before(s.fresh()) {
		return nil, false, err
	}
	return value, true, nil
}

// Len returns the number of keys, at most MostCounted.
func (s *Dicts) Len(ctx context.Context, account, id string) (int, error) {
	return s.store.Count(ctx, account, id, MostCounted, s.fresh())
}

// Clear removes all entries.
func (s *Dicts) Clear(ctx context.Context, account, id string) error {
	return s.store.Clear(ctx, account, id)
}

// Each calls do with each entry, in the order of keys, until do returns an error. It holds one value at a time. Entries
// that are added or removed meanwhile may or may not appear. Without values, the entries have keys only.
func (s *Dicts) Each(ctx context.Context, account, id string, values bool, do func(Entry) error) error {
	var after []byte
	for {
		keys, err := s.store.Keys(ctx, account, id, after, keysPerQuery, s.fresh())
		if err != nil {
			return err
		}
		for _, key := range keys {
			e, found := Entry{Key: key}, true
			if values {
				e.Value, found, err = s.Value(ctx, account, id, key)
			} else {
				found, err = s.Contains(ctx, account, id, key)
			}
			if err == nil && found {
				err = do(e)
			}
			if err != nil {
				return err
			}
		}
		if len(keys) < keysPerQuery {
			return nil
		}
		after = keys[len(keys)-1]
	}
}

// Expire removes expired entries and the Dicts of clients that sent no heartbeats.
func (s *Dicts) Expire(ctx context.Context) error {
	return s.store.Expire(ctx, s.fresh(), s.now().Add(-EphemeralLife))
}
