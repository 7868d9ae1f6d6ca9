package fleet

import (
	"context"
	"slices"

	"github.com/RelevanceAI/harvest/internal/base/logf"
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
