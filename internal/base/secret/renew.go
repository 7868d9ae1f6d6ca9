package secret

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/grant"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/tasks"
)

// Times of renewals.
const (
	renewTime = 30 * time.Second // for one, with the wait for another server
	leaseTime = 40 * time.Second // more than renewTime: nobody renews with a lease that has ended
	leasePoll = 100 * time.Millisecond
	patience  = 5 * time.Second // of requests, while the access token has not ended
	minPause  = 5 * time.Second // after a failure
	maxPause  = 2 * time.Minute
)

// renewer renews logins: each one once at a time, whoever asks.
type renewer struct {
	work  tasks.Group
	mu    sync.Mutex
	going map[[2]string]*renewal // guarded by mu; by account and name
	rests map[[2]string]rest     // guarded by mu; of logins whose last renewal failed
	// unwritten are answers of providers that could not be stored: only they have the refresh token that is valid now.
	unwritten map[[2]string]unwritten // guarded by mu
}

// renewal is one that is going on.
type renewal struct {
	done chan struct{} // closed at the end
	err  error         // valid after done
}

// rest is the time after a failure in which there is no renewal.
type rest struct {
	until time.Time
	pause time.Duration
	err   error
}

type unwritten struct {
	leased Record
	next   grant.Grant
}

func newRenewer() *renewer {
	return &renewer{going: map[[2]string]*renewal{}, rests: map[[2]string]rest{}, unwritten: map[[2]string]unwritten{}}
}

// reset forgets the failures of a login that was replaced.
func (r *renewer) reset(account, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.rests, [2]string{account, name})
	delete(r.unwritten, [2]string{account, name})
}

// Close waits for the renewals that are going on.
func (v *Vault) Close(ctx context.Context) error { return v.renewer.work.CloseWithin(ctx) }

// current makes the access tokens of logins among the named secrets valid: it renews those that end soon, and waits for
// the result. An access token that cannot be renewed now is used until its end. Denied: the provider no longer accepts
// a login, and the user has to log in again. Unavailable: an access token has ended, and the provider cannot be
// reached.
func (v *Vault) current(ctx context.Context, account string, names ...string) error {
	for _, name := range names {
		if err := v.currentOf(ctx, account, name); err != nil {
			return err
		}
	}
	return nil
}

func (v *Vault) currentOf(ctx context.Context, account, name string) error {
	rec, err := v.opts.Store.Get(ctx, account, name)
	if errors.Is(err, errors.NotFound) {
		return nil // or of the environment
	}
	if err != nil || rec.Login == nil {
		return err
	}
	now := v.now()
	if err := rejected(name, *rec.Login, now); err != nil || !rec.Login.Due(now) {
		return err
	}
	if v.opts.Providers == nil {
		return errors.Newf(errors.Unsupported, "the server does not renew logins")
	}
	if rec.Login.Expired(now) {
		return v.renewed(ctx, account, name, now)
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = v.renewed(limited, account, name, now)
	if errors.KindOf(err) == errors.Denied || ctx.Err() != nil {
		return err
	}
	return nil // the next request tries again
}

// rejected returns Denied for a login that only the user can make valid.
func rejected(name string, s grant.State, now time.Time) error {
	why := s.Failed
	if why == "" && !s.Renews && s.Expired(now) {
		why = "the token of the login to " + name + " has expired, and cannot be renewed"
	}
	if why == "" {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Denied, "%s", why), `run "harvest login %s"`, name)
}

// renewed waits for a renewal of a login, which it starts if there is none.
func (v *Vault) renewed(ctx context.Context, account, name string, now time.Time) error {
	at, r := [2]string{account, name}, v.renewer
	r.mu.Lock()
	going := r.going[at]
	if rest := r.rests[at]; going == nil && now.Before(rest.until) {
		r.mu.Unlock()
		return rest.err
	}
	if going == nil {
		going = &renewal{done: make(chan struct{})}
		r.going[at] = going
		// It does not end with the request that asked for it: the answer has to be stored.
		started := r.work.Go(func() { v.renew(context.WithoutCancel(ctx), at, going) })
		if !started {
			delete(r.going, at)
			r.mu.Unlock()
			return errors.Newf(errors.Unavailable, "the server ends")
		}
	}
	r.mu.Unlock()
	select {
	case <-going.done:
		return going.err
	case <-ctx.Done():
		return errors.Explainf(context.Cause(ctx), errors.Canceled,
			"the request ended before the login to %s was renewed", name)
	}
}

// renew renews a login, and notes the result.
func (v *Vault) renew(ctx context.Context, at [2]string, going *renewal) {
	limited, cancel := context.WithTimeout(ctx, renewTime)
	defer cancel()
	err := v.renewOnce(limited, at)
	r := v.renewer
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil || errors.KindOf(err) == errors.Denied {
		delete(r.rests, at)
	} else {
		pause := min(max(minPause, 2*r.rests[at].pause), maxPause)
		r.rests[at] = rest{v.now().Add(pause), pause, err}
		logf.Warnf(ctx, "the login of %s to %s was not renewed; the next attempt is in %s: %v", at[0], at[1], pause,
			err)
	}
	delete(r.going, at)
	going.err = err
	close(going.done)
}

// renewOnce renews a login if it is still due, and nobody else does it.
func (v *Vault) renewOnce(ctx context.Context, at [2]string) error {
	v.renewer.mu.Lock()
	kept, written := v.renewer.unwritten[at]
	v.renewer.mu.Unlock()
	if written {
		return v.settle(ctx, kept.leased, kept.next, nil)
	}
	leased, g, err := v.lease(ctx, at)
	if err != nil || leased.Login == nil {
		return err
	}
	next, err := v.opts.Providers.Renew(ctx, g)
	return v.settle(ctx, leased, next, err)
}

// lease takes the exclusive right to renew a login, and waits while another server has it. The record is the zero one
// if there is nothing to renew any longer.
func (v *Vault) lease(ctx context.Context, at [2]string) (Record, grant.Grant, error) {
	for {
		leased, g, wait, err := v.tryLease(ctx, at)
		if err != nil || !wait {
			return leased, g, err
		}
		select {
		case <-time.After(leasePoll):
		case <-ctx.Done():
			return Record{}, grant.Grant{}, errors.Remedy(errors.Newf(errors.Unavailable,
				"another server renews the login to %s", at[1]), "try again in a minute")
		}
	}
}

// tryLease is one attempt of lease. It holds v.mu, so that no new key and no other change comes between.
func (v *Vault) tryLease(ctx context.Context, at [2]string) (leased Record, g grant.Grant, wait bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	rec, err := v.opts.Store.Get(ctx, at[0], at[1])
	if errors.Is(err, errors.NotFound) {
		return Record{}, grant.Grant{}, false, nil
	}
	now := v.now()
	if err != nil || rec.Login == nil || !rec.Login.Due(now) {
		if err == nil && rec.Login != nil { // another server may have found that the login is no longer accepted
			err = rejected(at[1], *rec.Login, now)
		}
		return Record{}, grant.Grant{}, false, err
	}
	if l := rec.Login.Lease; l != nil && now.Before(l.Until) {
		return Record{}, grant.Grant{}, rec.Login.Expired(now), nil
	}
	if g, err = v.grantOf(ctx, rec); err != nil {
		return Record{}, grant.Grant{}, false, err
	}
	leased = rec
	state := *rec.Login
	state.Lease = &grant.Lease{ID: rand.Text(), Until: now.Add(leaseTime)}
	leased.Login = &state
	done, err := v.opts.Store.Swap(ctx, rec, leased)
	return leased, g, err == nil && !done, err
}

// settle stores the result of a renewal before anybody uses it, and ends the lease. If the login was replaced or
// deleted meanwhile, the result is dropped.
func (v *Vault) settle(ctx context.Context, leased Record, next grant.Grant, failed error) error {
	ctx = context.WithoutCancel(ctx)
	at, r := [2]string{leased.Account, leased.Name}, v.renewer
	v.mu.Lock()
	defer v.mu.Unlock()
	changed := leased
	state := *leased.Login
	state.Lease = nil
	var all Pairs
	switch {
	case failed == nil:
		state = grant.StateOf(next, v.now())
		p, err := v.opts.Providers.Get(next.Provider)
		if err != nil {
			return err
		}
		text, err := next.Text()
		if err != nil {
			return err
		}
		all = pairsOf(p, next).with(text)
		if changed.Sealed, err = v.keys[0].seal(at[0], at[1], all); err != nil {
			return err
		}
	case errors.KindOf(failed) == errors.Denied:
		state.Failed = errors.Message(failed)
	}
	changed.Login = &state
	if failed != nil { // the values stay; a new key may have sealed them meanwhile
		rec, err := v.opts.Store.Get(ctx, at[0], at[1])
		if err != nil {
			return errors.Join(failed, err)
		}
		changed.Sealed = rec.Sealed
	}
	release := all.hide() // before anything can be said about it
	done, err := v.opts.Store.Swap(ctx, leased, changed)
	r.mu.Lock()
	if err != nil && failed == nil {
		r.unwritten[at] = unwritten{leased, next}
	} else {
		delete(r.unwritten, at)
	}
	r.mu.Unlock()
	if failed != nil || err != nil || !done {
		release()
	}
	switch {
	case err != nil:
		return errors.Join(failed, err)
	case !done:
		logf.Infof(ctx, "the login of %s to %s was changed while it was renewed", at[0], at[1])
		return nil
	case failed == nil:
		v.forget(at[0], at[1])
		v.hidden[at] = release
		logf.Infof(ctx, "the login of %s to %s was renewed until %s", at[0], at[1], state.Expires)
	case state.Failed != "":
		logf.Warnf(ctx, "the login of %s to %s has failed: %s", at[0], at[1], state.Failed)
		if v.opts.Failed != nil {
			v.opts.Failed(at[0], at[1], state.Failed)
		}
	}
	return failed
}

// renewable returns the function Renew of a Credential; nil if its value is current.
func (v *Vault) renewable(rec Record, key string) func(context.Context) (config.Secret, error) {
	if rec.Login == nil {
		return nil
	}
	if now := v.now(); !rec.Login.Due(now) && rejected(rec.Name, *rec.Login, now) == nil {
		return nil
	}
	return func(ctx context.Context) (config.Secret, error) {
		if err := v.currentOf(ctx, rec.Account, rec.Name); err != nil {
			return "", err
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		p, err := v.reveal(ctx, rec.Account, rec.Name)
		return config.Secret(p[key]), err
	}
}
