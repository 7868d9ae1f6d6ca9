package dicts_test

import (
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/store/dicts"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// TestEntriesExpire checks that an entry is gone a week after its last use, reads included, and that a Dict without a
// name ends after its client's last heartbeat.
func TestEntriesExpire(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	store := testdb.Open(t).Dicts()
	d := dicts.New(store, func() time.Time { return now })
	made, err := d.Create(t.Context(), dicts.Dict{Account: "acme", ID: "di-1"}, []dicts.Entry{{Key: []byte("read")},
		{Key: []byte("checked")}, {Key: []byte("idle")}})
	if err != nil || !made.Ephemeral() {
		t.Fatalf("%+v, %v", made, err)
	}
	now = now.Add(6 * 24 * time.Hour)
	if _, found, err := d.Value(t.Context(), "acme", "di-1", []byte("read")); err != nil || !found {
		t.Errorf("after six days: %v, %v", found, err)
	}
	if found, err := d.Contains(t.Context(), "acme", "di-1", []byte("checked")); err != nil || !found {
		t.Errorf("after six days: %v, %v", found, err)
	}
	now = now.Add(2 * 24 * time.Hour)
	has := map[string]bool{}
	if err := d.Each(t.Context(), "acme", "di-1", true, func(e dicts.Entry) error {
		has[string(e.Key)] = true
		return nil
	}); err != nil || !has["read"] || !has["checked"] || has["idle"] {
		t.Errorf("after eight days there are %v, %v", has, err)
	}
	if n, err := d.Len(t.Context(), "acme", "di-1"); err != nil || n != 2 {
		t.Errorf("after eight days there are %d, %v", n, err)
	}
	if _, found, err := d.Pop(t.Context(), "acme", "di-1", []byte("idle")); err != nil || found {
		t.Errorf("an expired entry was popped: %v", err)
	}
	if err := d.Hear(t.Context(), "acme", "di-1"); err != nil {
		t.Error(err)
	}
	if err := d.Expire(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := d.Get(t.Context(), "acme", "di-1"); err != nil {
		t.Errorf("after a heartbeat: %v", err)
	}
	now = now.Add(dicts.EphemeralLife + time.Second)
	if err := d.Expire(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := d.Get(t.Context(), "acme", "di-1"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("without heartbeats: %v", err)
	}
}

// TestEachReadsAll checks that Each returns every entry of a Dict of several pages, and stops at an error.
func TestEachReadsAll(t *testing.T) {
	t.Parallel()
	d := dicts.New(testdb.Open(t).Dicts(), nil)
	if _, err := d.Create(t.Context(), dicts.Dict{Account: "acme", ID: "di-1", Name: "d"}, nil); err != nil {
		t.Fatal(err)
	}
	const many = 250
	var entries []dicts.Entry
	for i := range many {
		entries = append(entries, dicts.Entry{Key: []byte{byte(i)}, Value: []byte{byte(i), 1}})
	}
	if _, err := d.Update(t.Context(), "acme", "di-1", entries, false); err != nil {
		t.Fatal(err)
	}
	n := 0
	if err := d.Each(t.Context(), "acme", "di-1", true, func(e dicts.Entry) error {
		if len(e.Value) != 2 || e.Value[0] != e.Key[0] {
			t.Errorf("%v has %v", e.Key, e.Value)
		}
		n++
		return nil
	}); err != nil || n != many {
		t.Errorf("%d entries, %v", n, err)
	}
	stop := errors.Newf(errors.Canceled, "stop")
	if err := d.Each(t.Context(), "acme", "di-1", false, func(dicts.Entry) error { return stop }); !errors.Is(err,
		stop) {
		t.Errorf("each returns %v", err)
	}
}

// TestTooLarge checks the limit of one entry.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	d := dicts.New(testdb.Open(t).Dicts(), nil)
	_, err := d.Create(t.Context(), dicts.Dict{Account: "acme", ID: "di-1", Name: "d"},
		[]dicts.Entry{{Key: []byte("k"), Value: make([]byte, dicts.MostValue)}})
	if errors.KindOf(err) != errors.Invalid {
		t.Errorf("create: %v", err)
	}
	if _, err := d.Get(t.Context(), "acme", "di-1"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("it was created: %v", err)
	}
}
