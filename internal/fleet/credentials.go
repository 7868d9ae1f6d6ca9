package fleet

import (
	"context"
	"slices"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/fleet/lending"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// borrower describes e's sandbox to package lending. e's record is new.
func borrower(f *Fleet, e *entry) lending.Sandbox {
	return lending.Sandbox{ID: e.id, Account: e.record.Holder(),
		Lent: func() []string {
			f.mu.Lock()
			defer f.mu.Unlock()
			return slices.Clone(e.record.Lent)
		},
		Hosts: func() []string {
			f.mu.Lock()
			defer f.mu.Unlock()
			return slices.Clone(e.record.LentHosts)
		},
		PerTurn: func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return e.record.PerTurn
		},
		Report: func(u record.Use) { used(f, e, u) },
		End: func(u record.Use) {
			f.tasks.Go(func() {
				ctx := logf.With(f.ctx, "sandbox_id", e.id)
				reason := "a request to " + u.Host + " had the placeholder of the secret " + u.Secret + ": " + u.Refused
				if err := f.end(ctx, e, "", reason); err != nil {
					logf.Errorf(ctx, "end a sandbox for the use of a credential: %v", err)
				}
			})
		}}
}

// Lend lends credentials to a running sandbox that borrows, in place of those that Lend lent it before. They are kept
// in memory: the caller lends them again when the server has started. Kinds: NotFound, Conflict and Gone (it does not
// run), Unsupported (it does not borrow), those of the network policy.
func Lend(ctx context.Context, f *Fleet, account, ref string, all []secret.Credential) error {
	if err := f.begin(); err != nil {
		return err
	}
	defer f.tasks.Done()
	e, box, leave, err := f.enter(ctx, account, ref)
	if err != nil {
		return err
	}
	defer leave()
	e.network.Lock()
	defer e.network.Unlock()
	if !f.current(e).Borrows {
		return errors.Newf(errors.Unsupported, "the sandbox %s cannot be lent credentials", e.id)
	}
	if _, err := f.update(ctx, e, func(sb *record.Sandbox) error {
		sb.LentHosts = lending.Hosts(all)
		return sb.RequireStatus(record.Running)
	}); err != nil {
		return err
	}
	e.loan.Give(all)
	return f.putInForce(ctx, e, box)
}

// LendSecret lends a running sandbox one more secret of its account, and returns what its programs may have of it:
// placeholders if it is bound to hosts or of a known service, otherwise the values. A sandbox that does not borrow has
// nothing of a bound secret that it was not created with. Kinds: those of Lend, without Unsupported.
func LendSecret(ctx context.Context, f *Fleet, account, ref, name string) (secret.Pairs, error) {
	if err := f.begin(); err != nil {
		return nil, err
	}
	defer f.tasks.Done()
	e, box, leave, err := f.enter(ctx, account, ref)
	if err != nil {
		return nil, err
	}
	defer leave()
	e.network.Lock()
	defer e.network.Unlock()
	sb := f.current(e)
	terms := secret.Bound
	if sb.Borrows && !sb.Reveal {
		terms = secret.Brokered
	}
	held, bound, err := f.opts.Secrets.Held(ctx, sb.Holder(), terms, name)
	switch {
	case err == nil && sb.Reveal && slices.Contains(sb.Secrets, name):
		p, release, err := f.opts.Secrets.Reveal(ctx, sb.Holder(), name)
		if err == nil {
			release() // the sandbox's loan hides them
		}
		return p, err
	case err != nil || !bound || slices.Contains(sb.Lent, name):
		return held, err
	case terms == secret.Bound:
		return nil, nil
	}
	if _, err := f.update(ctx, e, func(sb *record.Sandbox) error {
		sb.Lent = append(slices.Clone(sb.Lent), name)
		return sb.RequireStatus(record.Running)
	}); err != nil {
		return nil, err
	}
	return held, f.putInForce(ctx, e, box)
}

// LendNow lets a sandbox whose credentials are lent per turn use them, or ends that. A server that finds the sandbox
// later begins with the end.
func LendNow(f *Fleet, id string, now bool) {
	f.mu.Lock()
	e := f.live[id]
	f.mu.Unlock()
	if e != nil {
		e.loan.LendNow(now)
	}
}

// used publishes the use of a credential, and logs it.
func used(f *Fleet, e *entry, u record.Use) {
	f.mu.Lock()
	sb := f.snapshot(e)
	f.mu.Unlock()
	kind := record.EventCredentialUsed
	if u.Refused != "" {
		kind = record.EventCredentialRefused
	}
	logf.Infof(logf.With(f.ctx, "sandbox_id", e.id), "%s: secret %s, %s %s%.200q, status %d %s", kind, u.Secret,
		u.Method, u.Host, u.Path, u.Status, u.Refused)
	f.emit(record.Event{Type: kind, Sandbox: sb, Use: u})
}

// rebind makes running sandboxes follow the change of a secret, whose binding may name other hosts now.
func rebind(f *Fleet, account, name string) {
	f.mu.Lock()
	var all []*entry
	for _, e := range f.live {
		if e.box != nil && e.record.Holder() == account && slices.Contains(e.record.Lent, name) {
			all = append(all, e)
		}
	}
	f.mu.Unlock()
	for _, e := range all {
		ctx := logf.With(context.WithoutCancel(f.ctx), "sandbox_id", e.id)
		e.network.Lock()
		f.mu.Lock()
		box := e.box
		f.mu.Unlock()
		if box != nil {
			if err := f.putInForce(ctx, e, box); err != nil {
				logf.Warnf(ctx, "apply the change of the secret %s: %v", name, err)
			}
		}
		e.network.Unlock()
	}
}
