package account

import (
	"context"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Replay is a request that a client may send again, and its answer. The account and the client's
// Idempotency-Key identify it.
type Replay struct {
	Account string
	Key     string
	Request string // hash of method, path and body
	Created time.Time
	Status  int // HTTP status; 0 until there is an answer
	Type    string
	Body    []byte
}

// ReplayStore keeps Replays. Package store has one on SQLite and one in memory; package storetest proves them.
type ReplayStore interface {
	// BeginReplay records a request that has no answer yet. If its key is known, it returns the record and true
	// instead. It first removes records created before forget, and from time to time all but the newest 10,000.
	BeginReplay(ctx context.Context, r Replay, forget time.Time) (known Replay, again bool, err error)
	// EndReplay records the answer. Without an answer it removes the request.
	EndReplay(ctx context.Context, r Replay) error
}

// NameTaken is the error of a Store's InsertKey for a name in use.
func NameTaken(name string) error {
	return errors.Remedy(errors.Newf(errors.Conflict, "a key named %q exists already", name),
		"choose another name, or revoke that one first: harvest key rm %s", name)
}
