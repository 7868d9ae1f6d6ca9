package secret

import (
	"context"
	"maps"
	"slices"

	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// Loan is what a borrower, such as a sandbox, has of secrets, or what Keep stored for it, sealed. It is kept until the
// borrower has ended, so that the values stay hidden whatever becomes of the secrets meanwhile, and through restarts.
type Loan struct {
	Account, Borrower string
	Sealed            []byte
}

// as is the record under whose account and name a loan is sealed. No secret can have that name.
func (l Loan) as() Record {
	return Record{Account: l.Account, Name: "loan\x00" + l.Borrower, Sealed: l.Sealed}
}

// Lend is Reveal for a borrower, who has the values until Return, or placeholders of those that terms keep back: bound
// are the names of their secrets. A borrower borrows once.
func (v *Vault) Lend(ctx context.Context, account, borrower string, terms Terms, names ...string) (p Pairs,
	bound []string, err error) {
	if terms == Revealed { // placeholders need no valid values
		if err := v.current(ctx, account, names...); err != nil {
			return nil, nil, err
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	all, release, err := v.revealAll(ctx, account, names)
	if err != nil {
		return nil, nil, err
	}
	p = maps.Clone(all)
	if terms != Revealed {
		p, bound, err = v.withPlaceholders(ctx, account, terms, names)
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	v.lent[borrower] = release
	if err := v.record(ctx, Loan{Account: account, Borrower: borrower}, all); err != nil {
		delete(v.lent, borrower)
		release()
		return nil, nil, err
	}
	return p, bound, nil
}

// Held returns the pairs of a secret as borrowers on terms have them, other than Revealed: with placeholders in place
// of the values if it is bound, which bound reports. NotFound: the secret does not exist.
func (v *Vault) Held(ctx context.Context, account string, terms Terms, name string) (p Pairs, bound bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p, names, err := v.withPlaceholders(ctx, account, terms, []string{name})
	return p, len(names) > 0, err
}

// withPlaceholders returns the pairs of secrets as borrowers on terms have them, and the names of those of which they
// have placeholders. v.mu is held.
func (v *Vault) withPlaceholders(ctx context.Context, account string, terms Terms, names []string) (all Pairs,
	bound []string, err error) {
	all = Pairs{}
	for _, name := range names {
		rec, p, err := v.pairs(ctx, account, name)
		if err != nil {
			return nil, nil, err
		}
		maps.Copy(all, p)
		if rec.bindingOf(p, terms) == nil {
			continue
		}
		held, err := v.placeholders(ctx, rec, p)
		if err != nil {
			return nil, nil, err
		}
		maps.Copy(all, held)
		bound = append(bound, name)
	}
	return all, bound, nil
}

// Relend lends a borrower what another one has, whatever has become of the secrets meanwhile. Who has nothing lends
// nothing, and so does who has only what could not be sealed.
func (v *Vault) Relend(ctx context.Context, from, to string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	loans, err := v.opts.Store.Loans(ctx)
	if err != nil {
		return err
	}
	for _, l := range loans {
		if l.Borrower != from {
			continue
		}
		if err := v.ready(ctx); err != nil {
			return err
		}
		p, err := v.keys.unseal(l.as())
		if err != nil {
			return err
		}
		release := p.hide()
		if err := v.record(ctx, Loan{Account: l.Account, Borrower: to}, p); err != nil {
			release()
			return err
		}
		v.lent[to] = release
	}
	return nil
}

// record persists a loan. v.mu is held.
func (v *Vault) record(ctx context.Context, l Loan, p Pairs) error {
	if err := v.ready(ctx); err != nil {
		// The values are those of the environment: those of secrets could not have been revealed.
		logf.Warnf(ctx, "the secrets of %s are hidden only until the server ends: %v", l.Borrower, err)
		return nil
	}
	if err := v.ensureKey(); err != nil {
		return err
	}
	var err error
	if l.Sealed, err = v.keys[0].seal(l.Account, l.as().Name, p); err != nil {
		return err
	}
	return v.opts.Store.PutLoans(ctx, l)
}

// Return ends a loan. It is repeatable.
func (v *Vault) Return(ctx context.Context, borrower string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.giveBack(ctx, borrower)
}

// ReturnAllBut ends the loans of all other borrowers: they ended while no server ran.
func (v *Vault) ReturnAllBut(ctx context.Context, borrowers map[string]bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var gone []string
	loans, err := v.opts.Store.Loans(ctx)
	if err != nil {
		logf.Errorf(ctx, "read the loans of secrets: %v", err)
		return
	}
	for _, l := range loans {
		if who, _ := keptFor(l); !borrowers[who] {
			gone = append(gone, who)
		}
	}
	v.giveBack(ctx, gone...)
}

// giveBack ends loans. v.mu is held.
func (v *Vault) giveBack(ctx context.Context, borrowers ...string) {
	if len(borrowers) == 0 {
		return
	}
	gone := slices.Clone(borrowers)
	for _, b := range borrowers {
		gone = append(gone, keptPrefix+b)
	}
	if err := v.opts.Store.DeleteLoans(ctx, gone...); err != nil {
		logf.Errorf(ctx, "note that secrets were given back: %v", err) // the next server does it
	}
	for _, b := range borrowers {
		if release := v.lent[b]; release != nil {
			release()
			delete(v.lent, b)
		}
	}
}

// openLoans hides what has been lent.
func (v *Vault) openLoans(ctx context.Context) error {
	loans, err := v.opts.Store.Loans(ctx)
	if err != nil {
		return err
	}
	for _, l := range loans {
		if _, kept := keptFor(l); kept {
			continue
		}
		p, err := v.keys.unseal(l.as())
		if err != nil {
			logf.Errorf(ctx, "the secrets of %s are not hidden: %v", l.Borrower, err)
			continue
		}
		v.lent[l.Borrower] = p.hide()
	}
	return nil
}

// resealed returns all loans sealed with k. v.mu is held.
func (v *Vault) resealed(ctx context.Context, k key) ([]Loan, error) {
	loans, err := v.opts.Store.Loans(ctx)
	if err != nil {
		return nil, err
	}
	kept := loans[:0]
	for _, l := range loans {
		p, err := v.keys.unseal(l.as())
		if err != nil {
			logf.Errorf(ctx, "the secrets of %s are no longer hidden: %v", l.Borrower, err)
			continue
		}
		if l.Sealed, err = k.seal(l.Account, l.as().Name, p); err != nil {
			return nil, err
		}
		kept = append(kept, l)
	}
	return kept, nil
}
