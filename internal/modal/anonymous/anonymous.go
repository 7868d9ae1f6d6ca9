// Package anonymous holds Modal's secrets without a name, which clients make for a request: sandboxes are created with
// them, and they expire when they are no longer used. A store of records keeps them sealed, for the next server.
package anonymous

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/modal/sealing"
	"github.com/RelevanceAI/harvest/internal/store/records"
)

// Life is how long a secret is kept after its last use, give or take touchAfter. No sandbox created with it lives
// longer.
const Life = 24 * time.Hour

const (
	mostSecrets = 10000
	touchAfter  = time.Hour // resolution of the last use
)

// Secrets holds the secrets of all accounts. Its methods may be called concurrently.
type Secrets struct {
	ctx   context.Context // of changes; it never ends
	store records.Store
	key   []byte // seals the records

	mu   sync.Mutex
	byID map[records.ID]*kept // guarded by mu
}

type kept struct {
	pairs   secret.Pairs
	used    time.Time // as recorded
	release func()    // stops the redaction of the values in logs
}

// Open loads the secrets of an earlier server. It removes those that another key sealed.
func Open(ctx context.Context, store records.Store, key []byte) (*Secrets, error) {
	s := &Secrets{ctx: context.WithoutCancel(ctx), store: store, key: key, byID: map[records.ID]*kept{}}
	all, err := store.List(ctx, records.Secret)
	if err != nil {
		return nil, errors.Wrapf(err, "read the anonymous secrets")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range all {
		pairs, used, err := s.open(r.Data)
		if err == nil {
			s.byID[r.ID] = newKept(pairs, used)
			continue
		}
		logf.Warnf(ctx, "forget the anonymous secret %s of %s: %v", r.ID.ID, r.Account, err)
		if err := store.Delete(ctx, records.Secret, r.ID); err != nil {
			return nil, errors.Wrapf(err, "remove an anonymous secret")
		}
	}
	s.sweep(time.Now())
	return s, nil
}

func newKept(pairs secret.Pairs, used time.Time) *kept {
	return &kept{pairs: pairs, used: used, release: logf.Redact(slices.Collect(maps.Values(pairs))...)}
}

// Data returns the data of a record whose content is sealed already: the last use in milliseconds, and the content.
func Data(used time.Time, content []byte) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(used.UnixMilli())), content...)
}

// seal returns the data of a record.
func (s *Secrets) seal(pairs secret.Pairs, used time.Time) ([]byte, error) {
	text, err := json.Marshal(map[string]string(pairs)) // the type itself hides its values
	if err != nil {
		return nil, err
	}
	var content bytes.Buffer
	if err := sealing.Seal(&content, s.key, bytes.NewReader(text)); err != nil {
		return nil, err
	}
	return Data(used, content.Bytes()), nil
}

// open reads the output of seal.
func (s *Secrets) open(data []byte) (secret.Pairs, time.Time, error) {
	damaged := errors.Newf(errors.Invalid, "the record is damaged") // another error might quote the content
	if len(data) < 8 {
		return nil, time.Time{}, damaged
	}
	plain, err := sealing.Unseal(bytes.NewReader(data[8:]), s.key)
	if err != nil {
		return nil, time.Time{}, err
	}
	text, err := io.ReadAll(plain)
	if err != nil {
		return nil, time.Time{}, err
	}
	var pairs map[string]string
	if json.Unmarshal(text, &pairs) != nil {
		return nil, time.Time{}, damaged
	}
	return pairs, time.UnixMilli(int64(binary.BigEndian.Uint64(data))), nil
}

// put records a secret. s.mu is held.
func (s *Secrets) put(id records.ID, pairs secret.Pairs, used time.Time) error {
	data, err := s.seal(pairs, used)
	if err == nil {
		err = s.store.Put(s.ctx, records.Record{Kind: records.Secret, ID: id, Data: data})
	}
	return errors.Wrapf(err, "keep an anonymous secret")
}

// Add adds a secret. Exhausted if there are too many.
func (s *Secrets) Add(id records.ID, pairs secret.Pairs) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.sweep(now)
	if len(s.byID) >= mostSecrets {
		return errors.Remedy(errors.Newf(errors.Exhausted, "there are %d secrets without a name", mostSecrets),
			"give secrets that are used often a name")
	}
	if err := s.put(id, pairs, now); err != nil { // the secret still works until this server ends
		logf.Errorf(s.ctx, "%v", err)
	}
	s.byID[id] = newKept(maps.Clone(pairs), now)
	return nil
}

// Get returns the values of a secret, and extends its life.
func (s *Secrets) Get(id records.ID, now time.Time) (secret.Pairs, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.byID[id]
	if found == nil || expired(found, now) {
		return nil, false
	}
	if now.Sub(found.used) > touchAfter {
		if err := s.put(id, found.pairs, now); err != nil {
			logf.Warnf(s.ctx, "%v", err) // the next server may drop the secret early
		} else {
			found.used = now
		}
	}
	return found.pairs, true
}

func expired(k *kept, now time.Time) bool { return now.Sub(k.used) > Life+touchAfter }

// Delete removes a secret and reports whether it existed.
func (s *Secrets) Delete(id records.ID) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID[id] == nil {
		return false, nil
	}
	return true, s.drop(id)
}

// drop removes a secret. s.mu is held.
func (s *Secrets) drop(id records.ID) error {
	if err := s.store.Delete(s.ctx, records.Secret, id); err != nil {
		return errors.Wrapf(err, "remove an anonymous secret")
	}
	s.byID[id].release()
	delete(s.byID, id)
	return nil
}

// Sweep removes the secrets that were not used within Life.
func (s *Secrets) Sweep(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(now)
}

func (s *Secrets) sweep(now time.Time) {
	for id, k := range s.byID {
		if !expired(k, now) {
			continue
		}
		if err := s.drop(id); err != nil {
			logf.Errorf(s.ctx, "%v", err) // the next sweep retries
		}
	}
}
