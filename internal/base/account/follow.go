package account

import (
	"context"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// goneKept is how long the end of a key is remembered. It exceeds the time that a request takes from
// Authenticate to Follow.
const goneKept = 10 * time.Minute

// follower is one context that ends with a key.
type follower struct{ cancel context.CancelCauseFunc }

// Follow returns a context that ends with ctx, or as soon as the key, sign-in or link of p is revoked or
// expires. In the latter case Ended returns the reason. The caller must call the function when the work is
// done.
func (r *Ring) Follow(ctx context.Context, p Principal) (context.Context, context.CancelFunc) {
	if p.KeyID == "" {
		return context.WithCancel(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	f := &follower{cancel}
	r.mu.Lock()
	_, gone := r.gone[p.KeyID]
	if r.following[p.KeyID] == nil {
		r.following[p.KeyID] = map[*follower]bool{}
	}
	r.following[p.KeyID][f] = true
	r.mu.Unlock()
	if gone {
		cancel(errRevoked())
	}
	stop := func() bool { return false }
	if !p.Expires.IsZero() {
		stop = time.AfterFunc(p.Expires.Sub(r.now()), func() { cancel(errExpired()) }).Stop
	}
	return ctx, func() {
		stop()
		cancel(nil)
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.following[p.KeyID], f)
		if len(r.following[p.KeyID]) == 0 {
			delete(r.following, p.KeyID)
		}
	}
}

// ended is the cause of a context whose key has ended.
type ended struct{ err error }

func (e *ended) Error() string { return e.err.Error() }
func (e *ended) Unwrap() error { return e.err }

// Ended returns, as Unauthenticated, why the key of a context from Follow has ended. It returns nil if the key
// is still valid.
func Ended(ctx context.Context) error {
	var e *ended
	if ctx.Err() == nil || !errors.As(context.Cause(ctx), &e) {
		return nil
	}
	return e
}

func errRevoked() error {
	return &ended{errors.Remedy(errors.Newf(errors.Unauthenticated, "the key was revoked"),
		"ask an admin of the account for a new one")}
}

func errExpired() error {
	return &ended{errors.Remedy(errors.Newf(errors.Unauthenticated, "the key has expired"),
		"ask an admin of the account for a new one")}
}

func errSignedOut() error {
	return &ended{errors.Remedy(errors.Newf(errors.Unauthenticated, "you signed out"),
		"sign in with a new link, which \"harvest key link\" prints")}
}

// end cancels the contexts that follow a key. The key is no longer in the store.
func (r *Ring) end(id string, why error) {
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for old, at := range r.gone {
		if now.Sub(at) > goneKept {
			delete(r.gone, old)
		}
	}
	r.gone[id] = now
	for f := range r.following[id] {
		f.cancel(why)
	}
	for hash, l := range r.links { // links not used to sign in yet
		if l.as.KeyID == id || l.as.Root == id {
			delete(r.links, hash)
		}
	}
}

// Gone reports whether a key was revoked within the last minutes.
func (r *Ring) Gone(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, gone := r.gone[id]
	return gone
}

// insert stores a key that another key made. It returns Unauthenticated if the maker was revoked meanwhile, and
// then leaves no new key behind.
func (r *Ring) insert(ctx context.Context, k Key) error {
	if err := r.store.InsertKey(ctx, k); err != nil {
		return err
	}
	if !r.Gone(k.MadeBy) && !r.Gone(k.Root) {
		return nil
	}
	return errors.Join(errRevoked(), r.store.DeleteKey(context.WithoutCancel(ctx), k.ID))
}

// drop revokes a key. A key that does not exist is not an error. The records that were made with it go first: if the
// store fails, or the server ends meanwhile, the key is there still and can be revoked again.
func drop(ctx context.Context, r *Ring, k Key) error {
	if err := r.revokeMade(ctx, k); err != nil {
		return err
	}
	if err := r.store.DeleteKey(ctx, k.ID); err != nil && errors.KindOf(err) != errors.NotFound {
		return err
	}
	logf.Infof(ctx, "%s of account %s revoked", k.ID, k.Account)
	r.end(k.ID, errRevoked())
	return r.revokeMade(ctx, k) // those made meanwhile
}

// makes returns the kinds of the records that end with a key of this kind. Keys that an admin made with it stay,
// because they belong to other users; they expire no later than the key would have.
func (k Kind) makes() []Kind {
	switch k {
	case Link, access, refresh:
		return nil
	case OAuth:
		return []Kind{access, refresh, Link}
	}
	return []Kind{SignIn, Link, OAuth}
}

// revokeMade revokes the sign-ins, links and grants that were made with a key, and those made with them: they act for
// that key.
func (r *Ring) revokeMade(ctx context.Context, by Key) error {
	var all error
	for _, kind := range by.Kind.makes() {
		made, err := r.store.Keys(ctx, by.Account, kind)
		all = errors.Join(all, err)
		for _, k := range made {
			if k.MadeBy == by.ID || k.Root == by.ID {
				all = errors.Join(all, drop(ctx, r, k))
			}
		}
	}
	return all
}

// earlier returns the earlier of two expiry times. The zero time means no expiry.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
