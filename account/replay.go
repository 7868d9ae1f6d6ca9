package account

import (
	"context"
	"time"

	"github.com/RelevanceAI/harvest/errors"
)

// Replay is a request that may come again, known by its account and the Idempotency-Key that its sender gave it, and its answer.
type Replay struct {
	Account string
	Key     string
	Request string // hash of method, path and body
	Created time.Time
	Status  int // of HTTP; 0 until there is an answer
	Type    string
	Body    []byte
}

// ReplayStore keeps Replays. Package store has one on SQLite and one in memory; package storetest proves them.
type ReplayStore interface {
	// BeginReplay records a request that has no answer yet. If its key is known, it returns what is known of it, and true, instead.
	// What was created before forget is forgotten first, and at some time all but the newest 10,000.
	BeginReplay(ctx context.Context, r Replay, forget time.Time) (known Replay, again bool, err error)
	// EndReplay records the answer; without one, it forgets the request.
	EndReplay(ctx context.Context, r Replay) error
}

// NameTaken is what a Store's InsertKey returns when the name is in use.
func NameTaken(name string) error {
	return errors.Remedy(errors.Newf(errors.Conflict, "a key named %q exists already", name), "choose another name, or revoke that one first: harvest key rm %s", name)
}
