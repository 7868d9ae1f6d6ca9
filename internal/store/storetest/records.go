package storetest

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/RelevanceAI/harvest/internal/store/records"
)

// RunRecords runs the suite of records.Store. open returns a new, empty store.
func RunRecords(t *testing.T, open func(t *testing.T) records.Store) {
	for name, check := range map[string]func(*testing.T, records.Store){
		"records round trip":              recordsRoundTrip,
		"put replaces":                    recordsReplace,
		"delete removes numbers, or all":  recordsDelete,
		"accounts and kinds are apart":    recordsApart,
		"a record is the caller's own":    recordsOwn,
		"a missing object has no records": recordsMissing,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, open(t))
		})
	}
}

func recordOf(kind records.Kind, account, id string, number int64, data string) records.Record {
	return records.Record{Kind: kind, ID: records.ID{Account: account, ID: id}, Number: number, Data: []byte(data)}
}

func putRecords(t *testing.T, s records.Store, all ...records.Record) {
	t.Helper()
	if err := s.Put(t.Context(), all...); err != nil {
		t.Fatal(err)
	}
}

func listed(t *testing.T, s records.Store, kind records.Kind, want ...records.Record) {
	t.Helper()
	got, err := s.List(t.Context(), kind)
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
		t.Errorf("list of %s: %v\n%s", kind, err, diff)
	}
}

func recordsRoundTrip(t *testing.T, s records.Store) {
	a, b := recordOf(records.Journal, "", "sb-1", 2, "two"), recordOf(records.Journal, "", "sb-1", 10, "ten")
	c, large := recordOf(records.Journal, "", "sb-2", 0, ""), recordOf(records.Journal, "", "sb-2", 1<<62, "\x00\xff")
	putRecords(t, s, large, b, a)
	putRecords(t, s, c)
	listed(t, s, records.Journal, a, b, c, large)
	got, err := s.Get(t.Context(), records.Journal, a.ID)
	if diff := cmp.Diff([]records.Record{a, b}, got); err != nil || diff != "" {
		t.Errorf("get: %v\n%s", err, diff)
	}
	ids, err := s.IDs(t.Context(), records.Journal)
	if diff := cmp.Diff([]records.ID{a.ID, c.ID}, ids); err != nil || diff != "" {
		t.Errorf("IDs: %v\n%s", err, diff)
	}
}

func recordsReplace(t *testing.T, s records.Store) {
	putRecords(t, s, recordOf(records.App, "acme", "ap-1", 0, "old"), recordOf(records.App, "acme", "ap-2", 0, "kept"))
	putRecords(t, s, recordOf(records.App, "acme", "ap-1", 0, "new"))
	listed(t, s, records.App, recordOf(records.App, "acme", "ap-1", 0, "new"),
		recordOf(records.App, "acme", "ap-2", 0, "kept"))
}

func recordsDelete(t *testing.T, s records.Store) {
	id := records.ID{Account: "acme", ID: "qu-1"}
	of := func(n int64) records.Record { return recordOf(records.QueueValue, "acme", "qu-1", n, "value") }
	other := recordOf(records.QueueValue, "acme", "qu-2", 1, "other")
	putRecords(t, s, of(1), of(2), of(3), of(4), other)
	if err := s.Delete(t.Context(), records.QueueValue, id, 1, 3, 7); err != nil {
		t.Fatal(err)
	}
	listed(t, s, records.QueueValue, of(2), of(4), other)
	for range 2 { // a missing object is not an error
		if err := s.Delete(t.Context(), records.QueueValue, id); err != nil {
			t.Fatal(err)
		}
	}
	listed(t, s, records.QueueValue, other)
}

func recordsApart(t *testing.T, s records.Store) {
	app, image := recordOf(records.App, "acme", "x", 0, "app"), recordOf(records.DeletedImage, "acme", "x", 0, "image")
	other := recordOf(records.App, "other", "x", 0, "other's")
	putRecords(t, s, app, image, other)
	if err := s.Delete(t.Context(), records.App, app.ID); err != nil {
		t.Fatal(err)
	}
	listed(t, s, records.App, other)
	listed(t, s, records.DeletedImage, image)
}

func recordsOwn(t *testing.T, s records.Store) {
	given := recordOf(records.App, "acme", "ap-1", 0, "given")
	putRecords(t, s, given)
	copy(given.Data, "wrong")
	listed(t, s, records.App, recordOf(records.App, "acme", "ap-1", 0, "given"))
}

func recordsMissing(t *testing.T, s records.Store) {
	got, err := s.Get(t.Context(), records.App, records.ID{Account: "acme", ID: "ap-1"})
	ids, err2 := s.IDs(t.Context(), records.App)
	if len(got) != 0 || len(ids) != 0 || err != nil || err2 != nil {
		t.Errorf("an empty store has %v, %v, %v, %v", got, ids, err, err2)
	}
	putRecords(t, s) // no records
	listed(t, s, records.App)
}

// Unwritable is a store of records in which changes fail with Err, unless it is nil.
type Unwritable struct {
	records.Store
	Err error
}

// Put implements records.Store.
func (u *Unwritable) Put(ctx context.Context, all ...records.Record) error {
	if u.Err != nil {
		return u.Err
	}
	return u.Store.Put(ctx, all...)
}

// Delete implements records.Store.
func (u *Unwritable) Delete(ctx context.Context, kind records.Kind, id records.ID, numbers ...int64) error {
	if u.Err != nil {
		return u.Err
	}
	return u.Store.Delete(ctx, kind, id, numbers...)
}
