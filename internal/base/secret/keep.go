package secret

import (
	"context"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// keptPrefix begins the names under which Keep stores: beside the loans, but nothing of them is hidden. No borrower's
// name begins so.
const keptPrefix = "kept\x00"

// keptFor returns the borrower of a loan, and whether the loan is what Keep stored for it.
func keptFor(l Loan) (borrower string, kept bool) { return strings.CutPrefix(l.Borrower, keptPrefix) }

// Keep seals values for a borrower and stores them until Discard, or until the borrower returns its loan. They replace
// those that it kept before. They need not be secrets: unlike those of a loan, they are not hidden in outputs.
func Keep(ctx context.Context, v *Vault, account, borrower string, p Pairs) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	err := v.ready(ctx)
	if err == nil {
		err = v.ensureKey()
	}
	if err != nil {
		return err
	}
	l := Loan{Account: account, Borrower: keptPrefix + borrower}
	if l.Sealed, err = v.keys[0].seal(l.Account, l.as().Name, p); err != nil {
		return err
	}
	return v.opts.Store.PutLoans(ctx, l)
}

// Kept returns what a borrower keeps. NotFound: it keeps nothing.
func Kept(ctx context.Context, v *Vault, borrower string) (Pairs, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.ready(ctx); err != nil {
		return nil, err
	}
	loans, err := v.opts.Store.Loans(ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range loans {
		if who, kept := keptFor(l); kept && who == borrower {
			return v.keys.unseal(l.as())
		}
	}
	return nil, errors.Newf(errors.NotFound, "nothing is kept for %s", borrower)
}

// KeepOnlyFor removes what all other borrowers keep.
func KeepOnlyFor(ctx context.Context, v *Vault, borrowers map[string]bool) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	loans, err := v.opts.Store.Loans(ctx)
	if err != nil {
		return err
	}
	var gone []string
	for _, l := range loans {
		if who, kept := keptFor(l); kept && !borrowers[who] {
			gone = append(gone, l.Borrower)
		}
	}
	return v.opts.Store.DeleteLoans(ctx, gone...)
}

// Discard removes what a borrower keeps.
func Discard(ctx context.Context, v *Vault, borrower string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.opts.Store.DeleteLoans(ctx, keptPrefix+borrower)
}
