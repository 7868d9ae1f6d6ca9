package credentials

import (
	"context"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/tasks"
)

const (
	renewRetry  = 30 * time.Second // pause before a failed renewal is retried
	revokeLimit = 5 * time.Second  // how long the end of a session waits for GitHub to revoke tokens
)

// Keeper keeps the credentials in the sandbox of one session valid while the session is open.
type Keeper struct {
	ctx   context.Context
	id    string // of the session
	work  *tasks.Group
	fresh func(ctx context.Context) (Logins, error)

	mu     sync.Mutex
	logins Logins             // guarded by mu; in the sandbox
	stop   context.CancelFunc // guarded by mu; of the renewal; nil if there are no logins
	closed bool               // guarded by mu
}

// NewKeeper returns the Keeper of a session, which runs until ctx ends or Close is called. work counts its goroutines.
// fresh returns current credentials that it has put into the sandbox, as Source.Refresh does.
func NewKeeper(ctx context.Context, work *tasks.Group, id string,
	fresh func(ctx context.Context) (Logins, error)) *Keeper {
	return &Keeper{ctx: ctx, work: work, id: id, fresh: fresh}
}

// Take takes over the logins that the sandbox has, and schedules their renewal before they expire. If the Keeper is
// closed, Take revokes them.
func (k *Keeper) Take(l Logins) {
	if !k.set(l) {
		l.Revoke(context.WithoutCancel(k.ctx))
		l.Release()
	}
}

// set is Take, and returns false if the Keeper is closed.
func (k *Keeper) set(l Logins) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return false
	}
	k.drop()
	if len(l) == 0 {
		return true
	}
	ctx, stop := context.WithCancel(k.ctx)
	k.logins, k.stop = l, stop
	if at := l.expires(); !at.IsZero() {
		k.work.Go(func() { k.renewAt(ctx, at) })
	}
	return true
}

// renewAt gets new credentials after five sixths of the time until at. For a token that is valid for an hour, this
// leaves ten minutes for retries.
func (k *Keeper) renewAt(ctx context.Context, at time.Time) {
	wait := max(time.Until(at)*5/6, time.Second)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		fresh, err := k.fresh(ctx)
		if err == nil {
			k.Take(fresh)
			return
		}
		if ctx.Err() != nil {
			return
		}
		logf.Errorf(ctx, "renew the credentials of session %s: %v", k.id, err)
		wait = renewRetry
	}
}

// Find is Take for a session that an earlier server started: it gets fresh credentials, in the background.
func (k *Keeper) Find() {
	k.work.Go(func() {
		l, err := k.fresh(k.ctx)
		if err != nil {
			logf.Errorf(k.ctx, "find the credentials of session %s: %v", k.id, err)
		}
		k.Take(l)
	})
}

// drop stops the renewal. k.mu is held.
func (k *Keeper) drop() { k.detach().Release() }

// detach stops the renewal and returns the logins. k.mu is held.
func (k *Keeper) detach() Logins {
	if k.stop != nil {
		k.stop()
	}
	l := k.logins
	k.logins, k.stop = nil, nil
	return l
}

// Close stops the renewal. The credentials in the sandbox remain until it ends.
func (k *Keeper) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	k.drop()
}

// End is Close for the end of the session: it also revokes the tokens that Harvest created. The file of credentials is
// removed with the sandbox.
func (k *Keeper) End(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeLimit)
	defer cancel()
	k.mu.Lock()
	k.closed = true
	l := k.detach()
	k.mu.Unlock()
	l.Revoke(ctx)
	l.Release()
}
