package storetest

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/store/dicts"
)

// RunDicts runs the suite of dicts.Store. open returns a new, empty store.
func RunDicts(t *testing.T, open func(t *testing.T) dicts.Store) {
	for name, check := range map[string]func(*testing.T, dicts.Store){
		"records round trip":                dictRecords,
		"accounts are apart":                dictAccounts,
		"a missing Dict is NotFound":        dictMissing,
		"entries round trip":                dictEntries,
		"an update is written or not":       dictAtomic,
		"existing keys may be kept":         dictOnlyMissing,
		"keys are listed in pages":          dictKeys,
		"old entries and Dicts are removed": dictExpire,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, open(t))
		})
	}
}

func dictOf(account, id, name string) dicts.Dict {
	at := day.Truncate(time.Millisecond)
	return dicts.Dict{Account: account, ID: id, Environment: "main", Name: name, Created: at, Heard: at}
}

func createDicts(t *testing.T, s dicts.Store, all ...dicts.Dict) {
	t.Helper()
	for _, d := range all {
		if err := s.Create(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
}

// putEntries writes pairs of key and value.
func putEntries(t *testing.T, s dicts.Store, account, id string, at time.Time, pairs ...string) {
	t.Helper()
	var entries []dicts.Entry
	for i := 0; i < len(pairs); i += 2 {
		entries = append(entries, dicts.Entry{Key: []byte(pairs[i]), Value: []byte(pairs[i+1])})
	}
	if wrote, err := s.Put(t.Context(), account, id, entries, dicts.Put{At: at, Most: 1 << 20}); err != nil || !wrote {
		t.Fatalf("put: %v, %v", wrote, err)
	}
}

// entry checks the value of a key; "" means that the key is missing.
func entry(t *testing.T, s dicts.Store, account, id, key, want string) {
	t.Helper()
	value, _, found, err := s.Value(t.Context(), account, id, []byte(key))
	if err != nil || found != (want != "") || string(value) != want {
		t.Errorf("%s %s[%s] is %q, %v, %v, want %q", account, id, key, value, found, err, want)
	}
	if _, has, err := s.Used(t.Context(), account, id, []byte(key)); err != nil || has != found {
		t.Errorf("%s %s has %s: %v, %v", account, id, key, has, err)
	}
}

func dictRecords(t *testing.T, s dicts.Store) {
	one, two, loose := dictOf("acme", "di-1", "one"), dictOf("acme", "di-2", "two"), dictOf("acme", "di-3", "")
	two.Environment = "dev"
	createDicts(t, s, two, one, loose)
	if err := s.Create(t.Context(), one); errors.KindOf(err) != errors.Conflict {
		t.Errorf("an ID twice: %v", err)
	}
	got, err := s.Get(t.Context(), "acme", "di-2")
	if diff := cmp.Diff(two, got); err != nil || diff != "" {
		t.Errorf("get: %v\n%s", err, diff)
	}
	loose.Heard = loose.Heard.Add(time.Minute)
	if err := s.Hear(t.Context(), "acme", "di-3", loose.Heard); err != nil {
		t.Error(err)
	}
	if err := s.Delete(t.Context(), "acme", "di-1"); err != nil {
		t.Error(err)
	}
	all, err := s.List(t.Context(), "acme")
	if diff := cmp.Diff([]dicts.Dict{two, loose}, all); err != nil || diff != "" {
		t.Errorf("list: %v\n%s", err, diff)
	}
}

func dictAccounts(t *testing.T, s dicts.Store) {
	createDicts(t, s, dictOf("acme", "di-1", "one"), dictOf("other", "di-1", "one"))
	putEntries(t, s, "acme", "di-1", day, "k", "acme's")
	entry(t, s, "other", "di-1", "k", "")
	putEntries(t, s, "other", "di-1", day, "k", "other's")
	if err := s.Clear(t.Context(), "acme", "di-1"); err != nil {
		t.Error(err)
	}
	entry(t, s, "acme", "di-1", "k", "")
	entry(t, s, "other", "di-1", "k", "other's")
	if err := s.Delete(t.Context(), "acme", "di-1"); err != nil {
		t.Error(err)
	}
	if all, err := s.List(t.Context(), "acme"); err != nil || len(all) != 0 {
		t.Errorf("acme has %v, %v", all, err)
	}
	entry(t, s, "other", "di-1", "k", "other's")
}

func dictMissing(t *testing.T, s dicts.Store) {
	ctx, key := t.Context(), []byte("k")
	_, get := s.Get(ctx, "acme", "di-1")
	_, put := s.Put(ctx, "acme", "di-1", []dicts.Entry{{Key: key}}, dicts.Put{At: day, Most: 1})
	_, _, _, value := s.Value(ctx, "acme", "di-1", key)
	_, _, used := s.Used(ctx, "acme", "di-1", key)
	_, _, _, remove := s.Remove(ctx, "acme", "di-1", key)
	_, keys := s.Keys(ctx, "acme", "di-1", nil, 1, day)
	_, count := s.Count(ctx, "acme", "di-1", 1, day)
	for what, err := range map[string]error{"Get": get, "Put": put, "Value": value, "Used": used, "Remove": remove,
		"Keys": keys, "Count": count, "Clear": s.Clear(ctx, "acme", "di-1"), "Delete": s.Delete(ctx, "acme", "di-1"),
		"Hear": s.Hear(ctx, "acme", "di-1", day), "Touch": s.Touch(ctx, "acme", "di-1", key, day)} {
		if errors.KindOf(err) != errors.NotFound {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func dictEntries(t *testing.T, s dicts.Store) {
	at := day.Truncate(time.Millisecond)
	createDicts(t, s, dictOf("acme", "di-1", "one"))
	putEntries(t, s, "acme", "di-1", at, "a", "\x00\xff", "b", "2")
	putEntries(t, s, "acme", "di-1", at.Add(time.Second), "b", "3", "", "empty key")
	entry(t, s, "acme", "di-1", "a", "\x00\xff")
	entry(t, s, "acme", "di-1", "b", "3")
	entry(t, s, "acme", "di-1", "", "empty key")
	entry(t, s, "acme", "di-1", "c", "")
	if used, _, err := s.Used(t.Context(), "acme", "di-1", []byte("b")); err != nil ||
		!used.Equal(at.Add(time.Second)) {
		t.Errorf("b was used at %v, %v", used, err)
	}
	if err := s.Touch(t.Context(), "acme", "di-1", []byte("b"), at.Add(time.Hour)); err != nil {
		t.Error(err)
	}
	if err := s.Touch(t.Context(), "acme", "di-1", []byte("c"), at); err != nil {
		t.Errorf("a missing key: %v", err)
	}
	value, used, found, err := s.Remove(t.Context(), "acme", "di-1", []byte("b"))
	if err != nil || !found || string(value) != "3" || !used.Equal(at.Add(time.Hour)) {
		t.Errorf("removed %q of %v, %v, %v", value, used, found, err)
	}
	if _, _, found, err = s.Remove(t.Context(), "acme", "di-1", []byte("b")); err != nil || found {
		t.Errorf("removed it twice: %v", err)
	}
	if n, err := s.Count(t.Context(), "acme", "di-1", 10, time.Time{}); err != nil || n != 2 {
		t.Errorf("%d entries, %v", n, err)
	}
	if n, err := s.Count(t.Context(), "acme", "di-1", 1, time.Time{}); err != nil || n != 1 {
		t.Errorf("%d entries of at most one, %v", n, err)
	}
	if _, err := s.Put(t.Context(), "acme", "di-1", []dicts.Entry{{Key: []byte("none")}},
		dicts.Put{At: at, Most: 100}); err != nil {
		t.Errorf("an empty value: %v", err)
	}
	if value, _, found, err := s.Value(t.Context(), "acme", "di-1", []byte("none")); err != nil || !found ||
		len(value) != 0 {
		t.Errorf("an empty value is %q, %v, %v", value, found, err)
	}
}

// dictAtomic checks that an update that does not fit changes nothing, and that sizes follow all changes.
func dictAtomic(t *testing.T, s dicts.Store) {
	createDicts(t, s, dictOf("acme", "di-1", "one"))
	put := func(most int64, key string, size int) error {
		_, err := s.Put(t.Context(), "acme", "di-1", []dicts.Entry{{Key: []byte("first"), Value: []byte("1")},
			{Key: []byte(key), Value: bytes.Repeat([]byte("x"), size)}}, dicts.Put{At: day, Most: most})
		return err
	}
	if err := put(20, "a", 14); errors.KindOf(err) != errors.Exhausted { // 6 + 15 bytes
		t.Errorf("too large: %v", err)
	}
	entry(t, s, "acme", "di-1", "first", "")
	if err := put(21, "a", 14); err != nil {
		t.Error(err)
	}
	if err := put(21, "a", 14); err != nil {
		t.Errorf("the same once more: %v", err)
	}
	if err := put(21, "b", 14); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("one more: %v", err)
	}
	if _, _, _, err := s.Remove(t.Context(), "acme", "di-1", []byte("a")); err != nil {
		t.Error(err)
	}
	if err := put(21, "b", 14); err != nil {
		t.Errorf("after one was removed: %v", err)
	}
	if err := s.Clear(t.Context(), "acme", "di-1"); err != nil {
		t.Error(err)
	}
	if err := put(21, "c", 14); err != nil {
		t.Errorf("after all were removed: %v", err)
	}
	if err := s.Expire(t.Context(), day.Add(time.Hour), time.Time{}); err != nil {
		t.Error(err)
	}
	if err := put(21, "d", 14); err != nil {
		t.Errorf("after all have expired: %v", err)
	}
}

func dictOnlyMissing(t *testing.T, s dicts.Store) {
	createDicts(t, s, dictOf("acme", "di-1", "one"))
	putEntries(t, s, "acme", "di-1", day, "a", "1")
	put := func(key string, fresh time.Time) bool {
		t.Helper()
		wrote, err := s.Put(t.Context(), "acme", "di-1", []dicts.Entry{{Key: []byte(key), Value: []byte("2")}},
			dicts.Put{OnlyMissing: true, At: day.Add(2 * time.Hour), Fresh: fresh, Most: 100})
		if err != nil {
			t.Error(err)
		}
		return wrote
	}
	if put("a", day) || !put("b", day) {
		t.Error("the wrong ones were written")
	}
	entry(t, s, "acme", "di-1", "a", "1")
	if !put("a", day.Add(time.Hour)) {
		t.Error("an expired key is kept")
	}
	entry(t, s, "acme", "di-1", "a", "2")
}

func dictKeys(t *testing.T, s dicts.Store) {
	createDicts(t, s, dictOf("acme", "di-1", "one"), dictOf("acme", "di-2", "two"))
	var want []string
	for i := range 7 {
		key := fmt.Sprintf("k%d", i)
		want = append(want, key)
		putEntries(t, s, "acme", "di-1", day.Add(time.Duration(i)*time.Second), key, "v")
	}
	putEntries(t, s, "acme", "di-2", day, "k1x", "v")
	list := func(limit int, fresh time.Time) (got []string) {
		t.Helper()
		var after []byte
		for {
			keys, err := s.Keys(t.Context(), "acme", "di-1", after, limit, fresh)
			if err != nil {
				t.Fatal(err)
			}
			for _, k := range keys {
				got = append(got, string(k))
			}
			if len(keys) < limit {
				return got
			}
			after = keys[len(keys)-1]
		}
	}
	for _, limit := range []int{1, 3, 7, 8} {
		if diff := cmp.Diff(want, list(limit, time.Time{})); diff != "" {
			t.Errorf("in pages of %d:\n%s", limit, diff)
		}
	}
	if diff := cmp.Diff(want[4:], list(2, day.Add(4*time.Second))); diff != "" {
		t.Errorf("the fresh ones:\n%s", diff)
	}
	if n, err := s.Count(t.Context(), "acme", "di-1", 10, day.Add(4*time.Second)); err != nil || n != 3 {
		t.Errorf("%d fresh ones, %v", n, err)
	}
}

func dictExpire(t *testing.T, s dicts.Store) {
	loose, heard := dictOf("acme", "di-2", ""), dictOf("acme", "di-3", "")
	heard.Heard = day.Add(time.Hour)
	createDicts(t, s, dictOf("acme", "di-1", "one"), loose, heard)
	putEntries(t, s, "acme", "di-1", day, "old", "1")
	putEntries(t, s, "acme", "di-1", day.Add(time.Hour), "new", "1")
	putEntries(t, s, "acme", "di-2", day.Add(time.Hour), "k", "v")
	if err := s.Expire(t.Context(), day.Add(time.Minute), day.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	entry(t, s, "acme", "di-1", "old", "")
	entry(t, s, "acme", "di-1", "new", "1")
	if _, err := s.Get(t.Context(), "acme", "di-2"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("the Dict of a client that is gone: %v", err)
	}
	if _, err := s.Get(t.Context(), "acme", "di-3"); err != nil {
		t.Errorf("the Dict of a client that is there: %v", err)
	}
	createDicts(t, s, loose)
	entry(t, s, "acme", "di-2", "k", "")
}
