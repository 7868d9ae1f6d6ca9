package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
)

// RunKeys runs the suite of account.Store. open returns a new, empty store.
func RunKeys(t *testing.T, open func(t *testing.T) account.Store) {
	for name, check := range map[string]func(*testing.T, account.Store){
		"a key comes back as it was put": keyRoundTrip,
		"names are unique":               keyNames,
		"lists are newest first":         keyLists,
		"use is noted":                   keyUsed,
		"a deleted key is gone":          keyDeleted,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, open(t))
		})
	}
}

func key(id, owner, name string) account.Key {
	at := day.Truncate(time.Microsecond)
	return account.Key{
		ID: id, Kind: account.APIKey, Account: owner, Name: name, Role: account.Admin,
		Scopes:  []account.Scope{account.Exec, account.Read},
		Created: at, Expires: at.Add(time.Hour), LastUsed: at.Add(time.Minute), Hash: "hash of " + id,
		Subject: "of " + id,
		MadeBy:  "maker of " + id, Until: at.Add(2 * time.Hour), Root: "root of " + id,
	}
}

func insert(t *testing.T, s account.Store, keys ...account.Key) {
	t.Helper()
	for _, k := range keys {
		if err := s.InsertKey(t.Context(), k); err != nil {
			t.Fatalf("insert %s: %v", k.ID, err)
		}
	}
}

func keyRoundTrip(t *testing.T, s account.Store) {
	bare := account.Key{ID: "key_2", Kind: account.SignIn, Account: "acme", Role: account.Member,
		Created: day.Truncate(time.Microsecond), Hash: "h"}
	for _, want := range []account.Key{key("key_1", "acme", "n"), bare} {
		insert(t, s, want)
		got, err := s.KeyByHash(t.Context(), want.Hash)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("key changed (-put +got):\n%s", diff)
		}
	}
	if _, err := s.KeyByHash(t.Context(), "other"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("no such hash: %v", err)
	}
}

func keyNames(t *testing.T, s account.Store) {
	nameless, also := key("key_3", "acme", ""), key("key_4", "acme", "")
	signIn := key("sig_1", "acme", "n")
	signIn.Kind = account.SignIn
	insert(t, s, key("key_1", "acme", "n"), key("key_2", "other", "n"), nameless, also, signIn)
	if err := s.InsertKey(t.Context(), key("key_5", "acme", "n")); errors.KindOf(err) != errors.Conflict {
		t.Errorf("a name twice: %v", err)
	}
	same := key("key_6", "other", "")
	same.Hash = key("key_1", "acme", "n").Hash
	if err := s.InsertKey(t.Context(), same); errors.KindOf(err) != errors.Conflict {
		t.Errorf("a hash twice: %v", err)
	}
}

func keyLists(t *testing.T, s account.Store) {
	signIn := key("sig_1", "acme", "")
	signIn.Kind = account.SignIn
	insert(t, s, key("key_1", "acme", "a"), key("key_3", "acme", "c"), key("key_2", "other", "b"), signIn)
	for _, c := range []struct {
		owner string
		kind  account.Kind
		want  []string
	}{
		{"acme", account.APIKey, []string{"key_3", "key_1"}}, {"", account.APIKey, []string{"key_3", "key_2", "key_1"}},
		{"acme", account.SignIn, []string{"sig_1"}}, {"none", account.APIKey, []string{}},
	} {
		found, err := s.Keys(t.Context(), c.owner, c.kind)
		got := []string{}
		for _, k := range found {
			got = append(got, k.ID)
		}
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%q %s: %v\n%s", c.owner, c.kind, err, diff)
		}
	}
}

func keyUsed(t *testing.T, s account.Store) {
	insert(t, s, key("key_1", "acme", "a"))
	at := day.Add(9 * time.Hour).Truncate(time.Microsecond)
	if err := s.KeyUsed(t.Context(), "key_1", at); err != nil {
		t.Fatal(err)
	}
	if got, err := s.KeyByHash(t.Context(), "hash of key_1"); err != nil || !got.LastUsed.Equal(at) {
		t.Errorf("last used %v, %v", got.LastUsed, err)
	}
	if err := s.KeyUsed(t.Context(), "key_2", at); err != nil {
		t.Errorf("of a key that is gone: %v", err)
	}
}

func keyDeleted(t *testing.T, s account.Store) {
	insert(t, s, key("key_1", "acme", "a"))
	if err := s.DeleteKey(t.Context(), "key_1"); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteKey(t.Context(), "key_1"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("again: %v", err)
	}
	if _, err := s.KeyByHash(t.Context(), "hash of key_1"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("found: %v", err)
	}
	insert(t, s, key("key_2", "acme", "a"))
}

// RunReplays runs the suite of account.ReplayStore. open returns a new, empty store.
func RunReplays(t *testing.T, open func(t *testing.T) account.ReplayStore) {
	for name, check := range map[string]func(*testing.T, account.ReplayStore){
		"an answer comes back":        replayRoundTrip,
		"without an answer forgotten": replayForgotten,
		"old ones are forgotten":      replayOld,
		"one of many begins":          replayRace,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, open(t))
		})
	}
}

func replayOf(key string) account.Replay {
	return account.Replay{Account: "acme", Key: key, Request: "sum", Created: day}
}

func begin(t *testing.T, s account.ReplayStore, r account.Replay, forget time.Time) (account.Replay, bool) {
	t.Helper()
	known, again, err := s.BeginReplay(t.Context(), r, forget)
	if err != nil {
		t.Fatal(err)
	}
	return known, again
}

func replayRoundTrip(t *testing.T, s account.ReplayStore) {
	r := replayOf("k")
	if _, again := begin(t, s, r, day); again {
		t.Error("a new one is known")
	}
	if known, again := begin(t, s, r, day); !again || known.Status != 0 {
		t.Errorf("before it has an answer: %+v, %t", known, again)
	}
	r.Status, r.Type, r.Body = 201, "text/plain", []byte("\x00body")
	if err := s.EndReplay(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	known, again := begin(t, s, account.Replay{Account: "acme", Key: "k", Request: "other", Created: day}, day)
	if !again || known.Status != 201 || known.Type != r.Type || string(known.Body) != string(r.Body) ||
		known.Request != "sum" {
		t.Errorf("known: %+v, %t", known, again)
	}
	other := replayOf("k")
	other.Account = "other"
	if _, again := begin(t, s, other, day); again {
		t.Error("another account's is known")
	}
	empty := replayOf("empty")
	begin(t, s, empty, day)
	empty.Status = 204
	if err := s.EndReplay(t.Context(), empty); err != nil {
		t.Fatal(err)
	}
	if known, again := begin(t, s, empty, day); !again || known.Status != 204 || len(known.Body) != 0 {
		t.Errorf("without a body: %+v, %t", known, again)
	}
}

func replayForgotten(t *testing.T, s account.ReplayStore) {
	begin(t, s, replayOf("k"), day)
	if err := s.EndReplay(t.Context(), replayOf("k")); err != nil {
		t.Fatal(err)
	}
	if _, again := begin(t, s, replayOf("k"), day); again {
		t.Error("it is known")
	}
}

func replayOld(t *testing.T, s account.ReplayStore) {
	begin(t, s, replayOf("k"), day)
	later := replayOf("k")
	later.Created = day.Add(48 * time.Hour)
	if _, again := begin(t, s, later, day.Add(24*time.Hour)); again {
		t.Error("an old one is known")
	}
	if _, again := begin(t, s, later, day.Add(24*time.Hour)); !again {
		t.Error("a new one is not known")
	}
}

func replayRace(t *testing.T, s account.ReplayStore) {
	var mu sync.Mutex
	first := 0
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			r := replayOf("k")
			r.Request = fmt.Sprint(i)
			_, again, err := s.BeginReplay(t.Context(), r, day)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			} else if !again {
				first++
			}
		})
	}
	wg.Wait()
	if first != 1 {
		t.Errorf("%d of 8 began", first)
	}
}
