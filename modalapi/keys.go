package modalapi

import (
	"context"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/errors"
)

// keysFresh is for how long a key that was there is taken to be there still.
const keysFresh = 2 * time.Second

// present are the keys that were there when they were looked for, and when that was.
type present struct {
	mu   sync.Mutex
	seen map[string]time.Time // guarded by mu; by id
}

// whilePresent returns a context that ends with ctx, and soon after the key with which a token was made. Unauthenticated if that has ended already.
func (s *Server) whilePresent(ctx context.Context, p account.Principal) (context.Context, context.CancelFunc, error) {
	if err := s.present(ctx, p); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	s.tasks.Go(func() {
		tick := time.NewTicker(keysFresh)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if errors.KindOf(s.present(ctx, p)) == errors.Unauthenticated {
					cancel()
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return ctx, cancel, nil
}

// present returns Unauthenticated if the key with which a token was made has been revoked, or has expired.
func (s *Server) present(ctx context.Context, p account.Principal) error {
	s.ring.mu.Lock()
	at, known := s.ring.seen[p.KeyID]
	s.ring.mu.Unlock()
	if known && time.Since(at) < keysFresh {
		return nil
	}
	by := account.Local()
	by.Account = p.Account
	all, err := s.opts.Keys.List(ctx, by, false)
	if err != nil {
		return err
	}
	now := time.Now()
	s.ring.mu.Lock()
	defer s.ring.mu.Unlock()
	for id, at := range s.ring.seen {
		if now.Sub(at) >= keysFresh {
			delete(s.ring.seen, id)
		}
	}
	for _, k := range all {
		if k.ID == p.KeyID && (k.Expires.IsZero() || now.Before(k.Expires)) {
			if s.ring.seen == nil {
				s.ring.seen = map[string]time.Time{}
			}
			s.ring.seen[k.ID] = now
			return nil
		}
	}
	err = errors.Newf(errors.Unauthenticated, "the key of this token has been revoked, or has expired")
	return errors.Remedy(err, "Set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET to what \"harvest modal env\" prints")
}
