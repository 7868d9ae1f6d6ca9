package storetest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/binding"
	"github.com/RelevanceAI/harvest/internal/base/grant"
	"github.com/RelevanceAI/harvest/internal/base/secret"
)

// RunSecrets runs the suite of secret.Store. open returns a new, empty store.
func RunSecrets(t *testing.T, open func(t *testing.T) secret.Store) {
	for name, check := range map[string]func(*testing.T, secret.Store){
		"a record comes back as it was put": secretRoundTrip,
		"accounts are apart":                secretAccounts,
		"a missing record is NotFound":      secretMissing,
		"use is noted":                      secretUsed,
		"all records or none":               secretAll,
		"a login is swapped once":           secretSwap,
		"loans are kept until they end":     secretLoans,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, open(t))
		})
	}
}

func sealed(account, name string) secret.Record {
	at := day.Truncate(time.Microsecond)
	return secret.Record{
		Account: account, Name: name, Keys: []string{"A", "B_C"}, Sealed: []byte("\x00\xff" + name),
		Created: at, Updated: at.Add(time.Second), Used: at.Add(time.Minute),
	}
}

func putSecrets(t *testing.T, s secret.Store, records ...secret.Record) {
	t.Helper()
	if err := s.Put(t.Context(), records...); err != nil {
		t.Fatal(err)
	}
}

func listSecrets(t *testing.T, s secret.Store, account string, want ...secret.Record) {
	t.Helper()
	got, err := s.List(t.Context(), account)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the secrets of %q (-want +got):\n%s", account, diff)
	}
}

func secretRoundTrip(t *testing.T, s secret.Store) {
	r := sealed("acme", "one")
	bound, err := binding.Preset("github")
	if err != nil {
		t.Fatal(err)
	}
	r.Binding, r.Placeholders = &bound, map[string]string{"A": "ghp_x"}
	never := sealed("acme", "two")
	never.Used = time.Time{}
	for range 3 { // the later calls replace
		putSecrets(t, s, r, never)
		for _, want := range []secret.Record{r, never} {
			got, err := s.Get(t.Context(), "acme", want.Name)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("record changed (-put +got):\n%s", diff)
			}
			got.Keys[0], got.Sealed[0] = "x", 'x' // the caller's copy
		}
		r.Keys, r.Sealed, r.Updated = []string{"C"}, []byte("other"), r.Updated.Add(time.Hour)
		if r.Binding == nil {
			r.Placeholders = nil
		}
		r.Binding = nil
	}
}

// secretSwap checks that of two changes of the same login one succeeds, and that they change nothing else.
func secretSwap(t *testing.T, s secret.Store) {
	r := sealed("acme", "claude")
	putSecrets(t, s, r)
	swap := func(old, changed secret.Record) bool {
		t.Helper()
		done, err := s.Swap(t.Context(), old, changed)
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	if swap(r, r) {
		t.Error("a secret that is no login was swapped")
	}
	r.Login = &grant.State{Provider: "claude", Renewed: r.Created}
	putSecrets(t, s, r)
	next := r
	next.Login, next.Sealed = &grant.State{Provider: "claude", Renewed: r.Updated, Renews: true}, []byte("next")
	changed := next
	changed.Keys, changed.Name = []string{"X"}, "claude"
	if !swap(r, changed) {
		t.Error("not swapped")
	}
	if swap(r, changed) {
		t.Error("swapped twice")
	}
	listSecrets(t, s, "acme", next)
	if err := s.Delete(t.Context(), "acme", "claude"); err != nil {
		t.Fatal(err)
	}
	if swap(next, r) {
		t.Error("a deleted login came back")
	}
	listSecrets(t, s, "acme")
}

func secretAccounts(t *testing.T, s secret.Store) {
	a, b, c := sealed("acme", "one"), sealed("acme", "two"), sealed("other", "one")
	putSecrets(t, s, c, b, a)
	listSecrets(t, s, "", a, b, c)
	listSecrets(t, s, "acme", a, b)
	listSecrets(t, s, "nobody")
	if err := s.Delete(t.Context(), "acme", "one"); err != nil {
		t.Fatal(err)
	}
	listSecrets(t, s, "", b, c)
}

func secretMissing(t *testing.T, s secret.Store) {
	putSecrets(t, s, sealed("acme", "one"))
	_, get := s.Get(t.Context(), "other", "one")
	for what, err := range map[string]error{
		"Get": get, "Delete of another account's": s.Delete(t.Context(), "other", "one"),
		"Delete": s.Delete(t.Context(), "acme", "none"),
	} {
		if !errors.Is(err, errors.NotFound) {
			t.Errorf("%s: %v, want NotFound", what, err)
		}
	}
}

func secretUsed(t *testing.T, s secret.Store) {
	r := sealed("acme", "one")
	putSecrets(t, s, r)
	r.Used = r.Used.Add(time.Hour)
	for _, name := range []string{"one", "none"} {
		if err := s.Used(t.Context(), "acme", name, r.Used); err != nil {
			t.Fatal(err)
		}
	}
	listSecrets(t, s, "", r)
}

func secretLoans(t *testing.T, s secret.Store) {
	putSecrets(t, s, sealed("acme", "one"))
	a, b := secret.Loan{Account: "acme", Borrower: "sbx_a", Sealed: []byte("\x00a")},
		secret.Loan{Account: "other", Borrower: "sbx_b", Sealed: []byte("b")}
	want := func(loans ...secret.Loan) {
		t.Helper()
		got, err := s.Loans(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(loans, got); diff != "" {
			t.Errorf("loans (-want +got):\n%s", diff)
		}
		for i := range got {
			got[i].Sealed[0] = 'x' // the caller's copy
		}
	}
	want()
	if err := s.PutLoans(t.Context(), b, a); err != nil {
		t.Fatal(err)
	}
	want(a, b)
	a.Sealed = []byte("again")
	if err := s.PutLoans(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	want(a, b)
	if err := s.DeleteLoans(t.Context(), "sbx_a", "sbx_c"); err != nil {
		t.Fatal(err)
	}
	want(b)
	listSecrets(t, s, "acme", sealed("acme", "one"))
}

func secretAll(t *testing.T, s secret.Store) {
	putSecrets(t, s)
	var all []secret.Record
	for _, name := range []string{"a", "b", "c", "d"} {
		all = append(all, sealed("acme", name))
	}
	putSecrets(t, s, all...)
	listSecrets(t, s, "acme", all...)
}
