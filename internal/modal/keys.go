package modal

import (
	"context"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
)

// keysFresh is how long a successful key lookup is cached.
const keysFresh = 2 * time.Second

// present caches the keys that were found.
type present struct {
	mu   sync.Mutex
	seen map[string]sight // guarded by mu; by id
}

// sight is when a key was looked up, and its expiry; zero: never.
type sight struct{ at, end time.Time }

// whilePresent returns a context that ends with ctx and with the key that made a token; see account.Ended.
// Unauthenticated if the key has ended already.
func (s *Server) whilePresent(ctx context.Context, p account.Principal) (context.Context, context.CancelFunc, error) {
	end, err := s.present(ctx, p)
	if err != nil {
		return nil, nil, err
	}
	p.Expires = end // the token may expire earlier
	ctx, cancel := s.opts.Keys.Follow(ctx, p)
	return ctx, cancel, nil
}

// present returns the expiry of the key that made a token. Unauthenticated if the key was revoked or has
// expired.
func (s *Server) present(ctx context.Context, p account.Principal) (end time.Time, err error) {
	s.ring.mu.Lock()
	seen, known := s.ring.seen[p.KeyID]
	s.ring.mu.Unlock()
	now := time.Now()
	if known && now.Sub(seen.at) < keysFresh && !s.opts.Keys.Gone(p.KeyID) &&
		(seen.end.IsZero() || now.Before(seen.end)) {
		return seen.end, nil
	}
	by := account.Local()
	by.Account = p.Account
	all, err := s.opts.Keys.List(ctx, by, false)
	if err != nil {
		return end, err
	}
	s.ring.mu.Lock()
	defer s.ring.mu.Unlock()
	for id, old := range s.ring.seen {
		if now.Sub(old.at) >= keysFresh {
			delete(s.ring.seen, id)
		}
	}
	for _, k := range all {
		if k.ID == p.KeyID && (k.Expires.IsZero() || now.Before(k.Expires)) {
			if s.ring.seen == nil {
				s.ring.seen = map[string]sight{}
			}
			s.ring.seen[k.ID] = sight{now, k.Expires}
			return k.Expires, nil
		}
	}
	err = errors.Newf(errors.Unauthenticated, "the key of this token has been revoked, or has expired")
	return end, errors.Remedy(err, "set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET to the values of \"harvest modal env\"")
}
