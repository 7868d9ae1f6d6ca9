package environments_test

import (
	"slices"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/modal/environments"
	"github.com/RelevanceAI/harvest/internal/store/records"
	"github.com/RelevanceAI/harvest/internal/store/storetest"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

func open(t *testing.T, store records.Store) *environments.Map {
	t.Helper()
	m, err := environments.Open(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func prefix(t *testing.T, m *environments.Map, account, name string) string {
	t.Helper()
	p, err := m.Prefix(account, name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestRename checks that a renamed environment keeps its prefix, that its earlier name gets another one, and that both
// survive a restart.
func TestRename(t *testing.T) {
	t.Parallel()
	store := testdb.Open(t).Records()
	m := open(t, store)
	if m.Renamed("acme") || prefix(t, m, "acme", "dev") != "dev" {
		t.Error("a new environment has another prefix than its name")
	}
	if err := m.Rename("acme", "dev", "staging"); err != nil {
		t.Fatal(err)
	}
	again := prefix(t, m, "acme", "dev")
	for range 2 {
		if prefix(t, m, "acme", "staging") != "dev" || again == "dev" || prefix(t, m, "acme", "dev") != again {
			t.Errorf("staging is %s, dev is %s", prefix(t, m, "acme", "staging"), prefix(t, m, "acme", "dev"))
		}
		if m.Name("acme", "dev") != "staging" || m.Name("acme", again) != "dev" || m.Name("acme", "x") != "x" {
			t.Error("the names are not those of the prefixes")
		}
		if prefix(t, m, "other", "dev") != "dev" || m.Renamed("other") {
			t.Error("another account is affected")
		}
		m = open(t, store)
	}
	if err := m.Rename("acme", "staging", "dev"); errors.KindOf(err) != errors.Conflict {
		t.Errorf("to a taken name: %v", err)
	}
	if got := m.Known("acme", "dev", "x"); !slices.Equal(got, []string{"dev", "main", "staging", "x"}) {
		t.Errorf("known are %v", got)
	}
	if err := errors.Join(m.Delete("acme", "dev"), m.Delete("acme", "dev")); err != nil {
		t.Error(err)
	}
	if err := m.Rename("acme", "staging", "dev"); err != nil {
		t.Errorf("back: %v", err)
	}
	if m.Renamed("acme") || prefix(t, m, "acme", "dev") != "dev" {
		t.Error("it has not its first name again")
	}
}

// TestCreate checks that names are recorded once, and that a record that cannot be stored is not made.
func TestCreate(t *testing.T) {
	t.Parallel()
	store := &storetest.Unwritable{Store: testdb.Open(t).Records()}
	m := open(t, store)
	if err := m.Create("acme", "dev"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dev", environments.Main} {
		if err := m.Create("acme", name); errors.KindOf(err) != errors.Conflict {
			t.Errorf("%s twice: %v", name, err)
		}
	}
	store.Err = errors.Newf(errors.Exhausted, "the disk is full")
	if err := m.Create("acme", "new"); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("on a full disk: %v", err)
	}
	if err := m.Rename("acme", "dev", "new"); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("a rename on a full disk: %v", err)
	}
	if err := m.Delete("acme", "dev"); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("a deletion on a full disk: %v", err)
	}
	if got := m.Known("acme"); !slices.Equal(got, []string{"dev", "main"}) {
		t.Errorf("known are %v", got)
	}
}
