package anonymous

import (
	"bytes"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/store/records"
	"github.com/RelevanceAI/harvest/internal/store/storetest"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

func open(t *testing.T, store records.Store, key string) *Secrets {
	t.Helper()
	s, err := Open(t.Context(), store, []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestLife checks that secrets live as long as they are used, across restarts, and no longer, and that their records
// are sealed.
func TestLife(t *testing.T) {
	t.Parallel()
	store, now := testdb.Open(t).Records(), time.Now()
	s := open(t, store, "key")
	old, used := records.ID{Account: "acc", ID: "st-old"}, records.ID{Account: "acc", ID: "st-used"}
	for id, value := range map[records.ID]string{old: "value-of-old", used: "value-of-used"} {
		if err := s.Add(id, secret.Pairs{"A": value}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := store.List(t.Context(), records.Secret)
	if err != nil || len(all) != 2 {
		t.Fatalf("there are %d records, %v", len(all), err)
	}
	for _, r := range all {
		if bytes.Contains(r.Data, []byte("value-of")) {
			t.Errorf("the record of %s has the value", r.ID.ID)
		}
	}
	now = now.Add(Life)
	if pairs, ok := s.Get(used, now); !ok || pairs["A"] != "value-of-used" {
		t.Errorf("a used secret has %v, %v", pairs, ok)
	}
	now = now.Add(2 * touchAfter)
	s.Sweep(now)
	for name, s := range map[string]*Secrets{"this server": s, "the next": open(t, store, "key")} {
		if pairs, ok := s.Get(used, now); !ok || pairs["A"] != "value-of-used" {
			t.Errorf("%s: a used secret has %v, %v", name, pairs, ok)
		}
		if _, ok := s.Get(old, now); ok {
			t.Errorf("%s: an unused secret exists", name)
		}
		if _, ok := s.Get(records.ID{Account: "other", ID: used.ID}, now); ok {
			t.Errorf("%s: another account has it", name)
		}
	}
	if _, ok := s.Get(used, now.Add(2*Life)); ok {
		t.Error("an expired secret is returned before the sweep")
	}
}

// TestOtherKey checks that secrets that another key sealed, and damaged ones, are removed.
func TestOtherKey(t *testing.T) {
	t.Parallel()
	store, id := testdb.Open(t).Records(), records.ID{Account: "acc", ID: "st-1"}
	if err := open(t, store, "key").Add(id, secret.Pairs{"A": "value"}); err != nil {
		t.Fatal(err)
	}
	for _, r := range []records.Record{{Data: nil}, {Number: 1, Data: Data(time.Now(), []byte("\x00{"))},
		{Number: 2, Data: Data(time.Now(), nil)}} {
		r.Kind, r.ID = records.Secret, records.ID{Account: "acc", ID: "st-damaged"}
		if err := store.Put(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, store, "another key")
	left, err := store.List(t.Context(), records.Secret)
	if _, ok := s.Get(id, time.Now()); ok || err != nil || len(left) != 0 {
		t.Errorf("with another key there is %v, records %v, %v", ok, left, err)
	}
}

// TestDelete checks that a secret is removed once, and only if its record is.
func TestDelete(t *testing.T) {
	t.Parallel()
	store, id := &storetest.Unwritable{Store: testdb.Open(t).Records()}, records.ID{Account: "acc", ID: "st-1"}
	s := open(t, store, "key")
	if err := s.Add(id, secret.Pairs{"A": "value"}); err != nil {
		t.Fatal(err)
	}
	store.Err = errors.Newf(errors.Exhausted, "the disk is full")
	if _, err := s.Delete(id); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("on a full disk: %v", err)
	}
	if _, ok := s.Get(id, time.Now()); !ok {
		t.Error("the secret is gone, and returns with the next server")
	}
	other := records.ID{Account: "acc", ID: "st-2"}
	if err := s.Add(other, secret.Pairs{"A": "other"}); err != nil {
		t.Errorf("a secret for this server only: %v", err)
	}
	if _, ok := s.Get(other, time.Now()); !ok {
		t.Error("it does not work until this server ends")
	}
	store.Err = nil
	for _, want := range []bool{true, false} {
		if found, err := s.Delete(id); found != want || err != nil {
			t.Errorf("deleted: %v, %v, want %v", found, err, want)
		}
	}
}
