package secret_test

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/secret"
)

func hidden(text string) bool { return logf.Redacted(text) == logf.Hidden }

func lend(t *testing.T, v *secret.Vault, borrower string, names ...string) secret.Pairs {
	t.Helper()
	p, _, err := v.Lend(t.Context(), account, borrower, secret.Bound, names...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestLoansOutliveSecretsAndServers checks that a sandbox's secrets stay hidden after the secret was deleted and the
// server restarted, until the sandbox has ended.
// mission: F6
func TestLoansOutliveSecretsAndServers(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	v := h.open(t)
	set(t, v, "s", secret.Pairs{"TOKEN": "loan-of-the-first"}, secret.Create)
	if p := lend(t, v, "sbx_a", "s"); p["TOKEN"] != "loan-of-the-first" {
		t.Errorf("lent: %v", p)
	}
	set(t, v, "s", secret.Pairs{"TOKEN": "loan-of-the-second"}, secret.Replace)
	lend(t, v, "sbx_b", "s")
	if err := v.Delete(t.Context(), account, "s"); err != nil {
		t.Fatal(err)
	}
	if !hidden("loan-of-the-first") || !hidden("loan-of-the-second") {
		t.Error("a value that a sandbox has is seen")
	}
	if _, err := v.Rekey(t.Context()); err != nil { // which seals loans, too
		t.Fatal(err)
	}
	loans, err := h.store.Loans(t.Context())
	if err != nil || len(loans) != 2 {
		t.Fatalf("%v, %v", loans, err)
	}
	// This process acts as two servers: it must forget the values that the first one has hidden.
	for _, borrower := range []string{"sbx_a", "sbx_b", "sbx_b", "sbx_none"} {
		v.Return(t.Context(), borrower)
	}
	if left, err := h.store.Loans(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if hidden("loan-of-the-first") || hidden("loan-of-the-second") {
		t.Error("a value that nobody has is hidden for ever")
	}
	if err := h.store.PutLoans(t.Context(), loans...); err != nil {
		t.Fatal(err)
	}
	v = h.open(t)
	if !hidden("loan-of-the-first") || !hidden("loan-of-the-second") {
		t.Error("after a restart, a value that a sandbox has is seen")
	}
	v.ReturnAllBut(t.Context(), map[string]bool{"sbx_b": true})
	if hidden("loan-of-the-first") || !hidden("loan-of-the-second") {
		t.Error("not just the loan of the sandbox that ended meanwhile has ended")
	}
	v.Return(t.Context(), "sbx_b")
}

// mission: F3, F6
func TestLoansOfTheEnvironment(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.environ = []string{"LINEAR_API_KEY=loan-of-the-environment"}
	v := h.open(t)
	if p := lend(t, v, "sbx_a", "linear"); p["LINEAR_API_KEY"] != "loan-of-the-environment" {
		t.Errorf("lent: %v", p)
	}
	loans, err := h.store.Loans(t.Context())
	if err != nil || len(loans) != 1 {
		t.Fatalf("%v, %v", loans, err)
	}
	_, _, err = v.Lend(t.Context(), account, "sbx_c", secret.Bound, "none")
	wantError(t, err, errors.NotFound)
	// A loan cannot be opened as another record.
	if err := h.store.Put(t.Context(), secret.Record{Account: account, Name: "sbx_a",
		Sealed: loans[0].Sealed}); err != nil {
		t.Fatal(err)
	}
	_, _, err = v.Reveal(t.Context(), account, "sbx_a")
	wantError(t, err, errors.Internal, "damaged")
	if err := h.store.Delete(t.Context(), account, "sbx_a"); err != nil {
		t.Fatal(err)
	}
	// Without a key file that can be used, they are hidden as long as the server runs.
	set(t, v, "other", secret.Pairs{"A": "x"}, secret.Create)
	if err := os.WriteFile(h.keyFile, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	v = h.open(t)
	lend(t, v, "sbx_b", "linear")
	if loans, err := h.store.Loans(t.Context()); err != nil || len(loans) != 1 {
		t.Errorf("%v, %v", loans, err)
	}
}

// forgetful fails in all operations on loans.
type forgetful struct{ secret.Store }

func (forgetful) PutLoans(context.Context, ...secret.Loan) error {
	return errors.Newf(errors.Exhausted, "the disk is full")
}
func (forgetful) DeleteLoans(context.Context, ...string) error {
	return errors.Newf(errors.Exhausted, "the disk is full")
}

func TestLoansThatCannotBeNoted(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	v := h.open(t)
	set(t, v, "s", secret.Pairs{"TOKEN": "loan-that-cannot-be-noted"}, secret.Create)
	lend(t, v, "sbx_a", "s")
	h.store = forgetful{h.store}
	v = h.open(t)
	_, _, err := v.Lend(t.Context(), account, "sbx_b", secret.Bound, "s")
	wantError(t, err, errors.Exhausted, "full")
	_, err = v.Rekey(t.Context())
	wantError(t, err, errors.Exhausted, "full")
	if _, _, err := v.Lend(t.Context(), account, "sbx_b", secret.Bound, "s"); !errors.Is(err, errors.Exhausted) {
		t.Error(err)
	}
	v.Return(t.Context(), "sbx_a") // logged; the next server does it
	if loans, err := h.store.Loans(t.Context()); err != nil ||
		!slices.ContainsFunc(loans, func(l secret.Loan) bool { return l.Borrower == "sbx_a" }) {
		t.Errorf("%v, %v", loans, err)
	}
}
