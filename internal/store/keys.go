package store

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
)

// Keys stores API keys and sign-ins.
type Keys struct{ db *DB }

var _ account.Store = Keys{}

// Keys returns the store of keys and sign-ins.
func (db *DB) Keys() Keys { return Keys{db} }

// InsertKey implements account.Store.
func (s Keys) InsertKey(ctx context.Context, k account.Key) error {
	scopes := make([]string, len(k.Scopes))
	for i, scope := range k.Scopes {
		scopes[i] = string(scope)
	}
	_, err := s.db.write.ExecContext(ctx,
		`INSERT INTO keys (id, kind, account, name, role, scopes, hash, created, expires, last_used, subject,
			made_by, until, root)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		k.ID, string(k.Kind), k.Account, k.Name, string(k.Role), strings.Join(scopes, " "), k.Hash,
		micros(k.Created), micros(k.Expires), micros(k.LastUsed), k.Subject, k.MadeBy, micros(k.Until), k.Root)
	if taken(err) {
		return account.NameTaken(k.Name)
	}
	return s.db.explain(err, "write the record of "+k.ID)
}

// KeyByHash implements account.Store.
func (s Keys) KeyByHash(ctx context.Context, hash string) (account.Key, error) {
	found, err := s.query(ctx, "WHERE hash = ?", hash)
	return only(found, err, errors.Newf(errors.NotFound, "there is no such key"))
}

// Keys implements account.Store.
func (s Keys) Keys(ctx context.Context, owner string, kind account.Kind) ([]account.Key, error) {
	return s.query(ctx, "WHERE kind = ? AND (account = ? OR ? = '') ORDER BY id DESC", string(kind), owner, owner)
}

// KeyUsed implements account.Store.
func (s Keys) KeyUsed(ctx context.Context, id string, at time.Time) error {
	_, err := s.db.write.ExecContext(ctx, "UPDATE keys SET last_used = ? WHERE id = ?", micros(at), id)
	return s.db.explain(err, "record the use of "+id)
}

// DeleteKey implements account.Store.
func (s Keys) DeleteKey(ctx context.Context, id string) error {
	return s.db.explain(mustChange(ctx, s.db.write, account.NoKey(id), "DELETE FROM keys WHERE id = ?", id),
		"delete "+id)
}

func (s Keys) query(ctx context.Context, clause string, args ...any) ([]account.Key, error) {
	return scanAll(ctx, s.db, "read the keys", func(rows *sql.Rows, k *account.Key) error {
		var scopes string
		var created, expires, used, until int64
		err := rows.Scan(&k.ID, &k.Kind, &k.Account, &k.Name, &k.Role, &scopes, &k.Hash, &created, &expires, &used,
			&k.Subject, &k.MadeBy, &until, &k.Root)
		for _, scope := range strings.Fields(scopes) {
			k.Scopes = append(k.Scopes, account.Scope(scope))
		}
		k.Created, k.Expires, k.LastUsed, k.Until = fromMicros(created), fromMicros(expires), fromMicros(used),
			fromMicros(until)
		return err
	}, "SELECT id, kind, account, name, role, scopes, hash, created, expires, last_used, subject, made_by, until, "+
		"root FROM keys "+clause, args...)
}

// Replays stores the responses to idempotent requests, for retries.
type Replays struct{ db *DB }

var _ account.ReplayStore = Replays{}

// Replays returns the store of responses for retries.
func (db *DB) Replays() Replays { return Replays{db} }

// The newest mostReplays are kept, regardless of the number of requests a day. The others are
// removed after every trimReplays requests.
const (
	mostReplays = 10_000
	trimReplays = 500
)

// BeginReplay implements account.ReplayStore.
func (s Replays) BeginReplay(ctx context.Context, r account.Replay, forget time.Time) (account.Replay, bool, error) {
	known := account.Replay{Account: r.Account, Key: r.Key}
	found := false
	err := s.db.change(ctx, "record a request", func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "DELETE FROM replays WHERE created < ?", forget.Unix()); err != nil {
			return err
		}
		err := tx.QueryRowContext(ctx, "SELECT request, status, type, body FROM replays WHERE account = ? AND key = ?",
			r.Account, r.Key).
			Scan(&known.Request, &known.Status, &known.Type, &known.Body)
		if found = err == nil; found || !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		known = r
		if _, err := tx.ExecContext(ctx,
			"INSERT INTO replays (account, key, request, created, status, type, body) VALUES (?, ?, ?, ?, 0, '', x'')",
			r.Account, r.Key, r.Request, r.Created.Unix()); err != nil || s.db.replays.Add(1)%trimReplays != 0 {
			return err
		}
		_, err = tx.ExecContext(ctx,
			"DELETE FROM replays WHERE created < (SELECT created FROM replays ORDER BY created DESC LIMIT 1 OFFSET ?)",
			mostReplays)
		return err
	})
	if err != nil {
		return account.Replay{}, false, err
	}
	return known, found, nil
}

// EndReplay implements account.ReplayStore.
func (s Replays) EndReplay(ctx context.Context, r account.Replay) error {
	var err error
	if r.Status == 0 {
		_, err = s.db.write.ExecContext(ctx, "DELETE FROM replays WHERE account = ? AND key = ?", r.Account, r.Key)
	} else {
		_, err = s.db.write.ExecContext(ctx,
			"UPDATE replays SET status = ?, type = ?, body = ? WHERE account = ? AND key = ?", r.Status, r.Type,
			blob(r.Body), r.Account, r.Key)
	}
	return s.db.explain(err, "record an answer")
}
