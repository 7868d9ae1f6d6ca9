package volumeids_test

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/modal/volumeids"
	"github.com/RelevanceAI/harvest/internal/store/records"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

var derived = volumeids.Derivation{
	ID: func(name string) string { return "vo-n" + name },
	Name: func(id string) (string, error) {
		if name, ok := strings.CutPrefix(id, "vo-n"); ok && name != "" {
			return name, nil
		}
		return "", errors.Newf(errors.NotFound, "no volume")
	},
	Fresh: func(random string) string { return "vo-x" + random },
}

const acc = "acme"

func open(t *testing.T, store records.Store) *volumeids.Map {
	t.Helper()
	m, err := volumeids.Open(t.Context(), store, derived)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestRenamedVolumesKeepTheirIDs checks the IDs after renames and deletions, also by the next server.
func TestRenamedVolumesKeepTheirIDs(t *testing.T) {
	t.Parallel()
	store := testdb.Open(t).Records()
	m := open(t, store)
	check := func(name, id string) string {
		t.Helper()
		m = open(t, store)
		got, err := m.ID(acc, name)
		back, backErr := m.Name(acc, got)
		if err != nil || backErr != nil || back != name || id != "" && got != id {
			t.Errorf("%s: the ID is %s (%v), want %s; its name is %s (%v)", name, got, err, id, back, backErr)
		}
		return got
	}
	renamed := func() error { return nil }
	check("a", "vo-na")
	if err := m.Rename(acc, "a", "b", func() error { return errors.Newf(errors.Conflict, "taken") }); err == nil {
		t.Error("a rename that fails")
	}
	check("a", "vo-na")
	if err := m.Rename(acc, "a", "b", renamed); err != nil {
		t.Fatal(err)
	}
	check("b", "vo-na")
	if name, err := m.Name(acc, "vo-nb"); !errors.Is(err, errors.NotFound) {
		t.Errorf("the derived ID of the new name finds %q, %v", name, err)
	}
	second := check("a", "") // a new volume
	if second == "vo-na" || !strings.HasPrefix(second, "vo-x") {
		t.Errorf("a new volume of the earlier name has the ID %s", second)
	}
	check("a", second)
	if id, err := m.ID("other", "a"); err != nil || id != "vo-na" {
		t.Errorf("the ID in another account is %s, %v", id, err)
	}
	if err := m.Rename(acc, "b", "c", renamed); err != nil {
		t.Fatal(err)
	}
	check("c", "vo-na")
	check("b", "vo-nb")
	if err := m.Forget(acc, "c"); err != nil {
		t.Fatal(err)
	}
	check("c", "vo-nc")
	if err := m.Forget(acc, "none"); err != nil {
		t.Error(err)
	}
}
