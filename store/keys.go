package store

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/errors"
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
		`INSERT INTO keys (id, kind, account, name, role, scopes, hash, created, expires, last_used, subject, made_by, until)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, k.ID, string(k.Kind), k.Account, k.Name, string(k.Role), strings.Join(scopes, " "), k.Hash,
		micros(k.Created), micros(k.Expires), micros(k.LastUsed), k.Subject, k.MadeBy, micros(k.Until))
	var e *sqlite.Error
	if errors.As(err, &e) && e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE {
		return account.NameTaken(k.Name)
	}
	if err != nil {
		return s.db.explain(err, "write the record of "+k.ID)
	}
	return nil
}

// KeyByHash implements account.Store.
func (s Keys) KeyByHash(ctx context.Context, hash string) (account.Key, error) {
	found, err := s.query(ctx, "WHERE hash = ?", hash)
	if err != nil {
		return account.Key{}, err
	}
	if len(found) == 0 {
		return account.Key{}, errors.Newf(errors.NotFound, "there is no such key")
	}
	return found[0], nil
}

// Keys implements account.Store.
func (s Keys) Keys(ctx context.Context, owner string, kind account.Kind) ([]account.Key, error) {
	return s.query(ctx, "WHERE kind = ? AND (account = ? OR ? = '') ORDER BY id DESC", string(kind), owner, owner)
}

// KeyUsed implements account.Store.
func (s Keys) KeyUsed(ctx context.Context, id string, at time.Time) error {
	if _, err := s.db.write.ExecContext(ctx, "UPDATE keys SET last_used = ? WHERE id = ?", micros(at), id); err != nil {
		return s.db.explain(err, "record the use of "+id)
	}
	return nil
}

// DeleteKey implements account.Store.
func (s Keys) DeleteKey(ctx context.Context, id string) error {
	result, err := s.db.write.ExecContext(ctx, "DELETE FROM keys WHERE id = ?", id)
	if err != nil {
		return s.db.explain(err, "delete "+id)
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return account.NoKey(id)
	}
	return nil
}

func (s Keys) query(ctx context.Context, clause string, args ...any) ([]account.Key, error) {
	known, err := s.db.statement(ctx, s.db.read,
		"SELECT id, kind, account, name, role, scopes, hash, created, expires, last_used, subject, made_by, until "+
			"FROM keys "+clause)
	if err != nil {
		return nil, s.db.explain(err, "read the keys")
	}
	rows, err := known.QueryContext(ctx, args...)
	if err != nil {
		return nil, s.db.explain(err, "read the keys")
	}
	defer rows.Close()
	found := []account.Key{}
	for rows.Next() {
		var k account.Key
		var scopes string
		var created, expires, used, until int64
		if err := rows.Scan(&k.ID, &k.Kind, &k.Account, &k.Name, &k.Role, &scopes, &k.Hash, &created, &expires, &used,
			&k.Subject, &k.MadeBy, &until); err != nil {
			return nil, s.db.explain(err, "read a key")
		}
		for _, scope := range strings.Fields(scopes) {
			k.Scopes = append(k.Scopes, account.Scope(scope))
		}
		k.Created, k.Expires, k.LastUsed, k.Until = fromMicros(created), fromMicros(expires), fromMicros(used),
			fromMicros(until)
		found = append(found, k)
	}
	if err := rows.Err(); err != nil {
		return nil, s.db.explain(err, "read the keys")
	}
	return found, nil
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
	tx, err := s.db.write.BeginTx(ctx, nil)
	if err != nil {
		return account.Replay{}, false, s.db.explain(err, "begin to record a request")
	}
	defer func(tx *sql.Tx) { _ = tx.Rollback() }(tx) // does nothing after Commit
	if _, err := tx.ExecContext(ctx, "DELETE FROM replays WHERE created < ?", forget.Unix()); err != nil {
		return account.Replay{}, false, s.db.explain(err, "forget old requests")
	}
	known := account.Replay{Account: r.Account, Key: r.Key}
	err = tx.QueryRowContext(ctx, "SELECT request, status, type, body FROM replays WHERE account = ? AND key = ?",
		r.Account, r.Key).
		Scan(&known.Request, &known.Status, &known.Type, &known.Body)
	if err == nil {
		return known, true, nil
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return account.Replay{}, false, s.db.explain(err, "look for a request")
	}
	if _, err := tx.ExecContext(ctx,
		"INSERT INTO replays (account, key, request, created, status, type, body) VALUES (?, ?, ?, ?, 0, '', x'')",
		r.Account, r.Key, r.Request, r.Created.Unix()); err != nil {
		return account.Replay{}, false, s.db.explain(err, "record a request")
	}
	if s.db.replays.Add(1)%trimReplays == 0 {
		if _, err := tx.ExecContext(ctx,
			"DELETE FROM replays WHERE created < (SELECT created FROM replays ORDER BY created DESC LIMIT 1 OFFSET ?)",
			mostReplays); err != nil {
			return account.Replay{}, false, s.db.explain(err, "forget old requests")
		}
	}
	if err := tx.Commit(); err != nil {
		return account.Replay{}, false, s.db.explain(err, "record a request")
	}
	return r, false, nil
}

// EndReplay implements account.ReplayStore.
func (s Replays) EndReplay(ctx context.Context, r account.Replay) error {
	var err error
	if r.Status == 0 {
		_, err = s.db.write.ExecContext(ctx, "DELETE FROM replays WHERE account = ? AND key = ?", r.Account, r.Key)
	} else {
		body := r.Body
		if body == nil {
			body = []byte{}
		}
		_, err = s.db.write.ExecContext(ctx,
			"UPDATE replays SET status = ?, type = ?, body = ? WHERE account = ? AND key = ?", r.Status, r.Type, body,
			r.Account, r.Key)
	}
	if err != nil {
		return s.db.explain(err, "record an answer")
	}
	return nil
}
