package store

import (
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/store/storetest"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	storetest.RunKeys(t, func(t *testing.T) account.Store { return open(t, filepath.Join(t.TempDir(), "db")).Keys() })
	storetest.RunReplays(t, func(t *testing.T) account.ReplayStore {
		return open(t,
			filepath.Join(t.TempDir(), "db")).Replays()
	})
}

func TestKeysOnAClosedDatabase(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "db"))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	k, r := db.Keys(), db.Replays()
	_, byHash := k.KeyByHash(t.Context(), "x")
	_, list := k.Keys(t.Context(), "", account.APIKey)
	_, _, begin := r.BeginReplay(t.Context(), account.Replay{}, storetest.Full("x").Created)
	for what, err := range map[string]error{
		"InsertKey": k.InsertKey(t.Context(), account.Key{}), "KeyByHash": byHash, "Keys": list,
		"DeleteKey": k.DeleteKey(t.Context(), "x"),
		"KeyUsed":   k.KeyUsed(t.Context(), "x", storetest.Full("x").Created), "BeginReplay": begin,
		"EndReplay": r.EndReplay(t.Context(), account.Replay{Status: 200}),
	} {
		if err == nil {
			t.Errorf("%s on a closed database succeeded", what)
		}
	}
}

func TestSigningKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := SigningKey(dir)
	if err != nil || len(first) != signerSize {
		t.Fatalf("%d bytes, %v", len(first), err)
	}
	if again, err := SigningKey(dir); err != nil || string(again) != string(first) {
		t.Errorf("another one, %v", err)
	}
	if other, err := SigningKey(t.TempDir()); err != nil || string(other) == string(first) {
		t.Errorf("the same in another directory, %v", err)
	}
	if _, err := SigningKey(filepath.Join(dir, "none")); err == nil {
		t.Error("no error in a directory that does not exist")
	}
}
