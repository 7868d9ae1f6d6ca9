package secret_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/secret"
)

// TestKept checks that what a borrower keeps is sealed, survives a restart and a new key, is not hidden, and goes with
// the borrower.
func TestKept(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	v := h.open(t)
	want := secret.Pairs{"spec": `{"Env":{"WORD":"ordinary-word-of-an-environment"}}`}
	keep := func(borrower string, p secret.Pairs) {
		t.Helper()
		if err := secret.Keep(t.Context(), v, account, borrower, p); err != nil {
			t.Fatal(err)
		}
	}
	missing := func(borrower string) {
		t.Helper()
		if got, err := secret.Kept(t.Context(), v, borrower); !errors.Is(err, errors.NotFound) {
			t.Errorf("%s keeps %d pairs, %v", borrower, len(got), err)
		}
	}
	missing("sbx_a")
	keep("sbx_a", secret.Pairs{"spec": "an earlier one"})
	keep("sbx_a", want)
	keep("sbx_b", want)
	loans, err := h.store.Loans(t.Context())
	if err != nil || len(loans) != 2 {
		t.Fatalf("%v, %v", loans, err)
	}
	for _, l := range loans {
		if strings.Contains(string(l.Sealed), "ordinary") {
			t.Errorf("%q is not sealed", l.Borrower)
		}
	}
	if _, err := v.Rekey(t.Context()); err != nil {
		t.Fatal(err)
	}
	v = h.open(t)
	if got, err := secret.Kept(t.Context(), v, "sbx_a"); err != nil || !maps.Equal(got, want) {
		t.Errorf("kept: %d pairs, %v", len(got), err)
	}
	if hidden("ordinary-word-of-an-environment") {
		t.Error("an ordinary word is hidden")
	}
	if err := secret.KeepOnlyFor(t.Context(), v, map[string]bool{"sbx_a": true}); err != nil {
		t.Fatal(err)
	}
	missing("sbx_b")
	v.ReturnAllBut(t.Context(), map[string]bool{"sbx_a": true})
	if _, err := secret.Kept(t.Context(), v, "sbx_a"); err != nil {
		t.Errorf("a borrower that has not ended: %v", err)
	}
	v.Return(t.Context(), "sbx_a")
	missing("sbx_a")
	keep("sbx_a", want)
	if err := secret.Discard(t.Context(), v, "sbx_a"); err != nil {
		t.Fatal(err)
	}
	missing("sbx_a")
	keep("sbx_a", want)
	v.ReturnAllBut(t.Context(), nil)
	missing("sbx_a")
}
