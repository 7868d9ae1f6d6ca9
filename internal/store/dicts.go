package store

import (
	"context"
	"database/sql"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/store/dicts"
)

// Dicts stores the Dicts of Modal's protocol.
type Dicts struct{ db *DB }

var _ dicts.Store = Dicts{}

// Dicts returns the store of Dicts.
func (db *DB) Dicts() Dicts { return Dicts{db} }

const dictColumns = "SELECT account, id, environment, name, created_at, heard_at FROM dicts "

// Create implements dicts.Store.
func (s Dicts) Create(ctx context.Context, d dicts.Dict) error {
	err := mustChange(ctx, s.db.write, errors.Newf(errors.Conflict, "Dict '%.100s' already exists", d.Name),
		"INSERT INTO dicts (account, id, environment, name, created_at, heard_at) "+
			"VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (account, id) DO NOTHING",
		d.Account, d.ID, d.Environment, d.Name, micros(d.Created), micros(d.Heard))
	return s.db.explain(err, "write a Dict")
}

// Get implements dicts.Store.
func (s Dicts) Get(ctx context.Context, account, id string) (dicts.Dict, error) {
	found, err := s.query(ctx, dictColumns+"WHERE account = ? AND id = ?", account, id)
	return only(found, err, dicts.NotFound(id))
}

// List implements dicts.Store.
func (s Dicts) List(ctx context.Context, account string) ([]dicts.Dict, error) {
	return s.query(ctx, dictColumns+"WHERE account = ? ORDER BY id", account)
}

func (s Dicts) query(ctx context.Context, query string, args ...any) ([]dicts.Dict, error) {
	return scanAll(ctx, s.db, "read Dicts", func(rows *sql.Rows, d *dicts.Dict) error {
		var created, heard int64
		err := rows.Scan(&d.Account, &d.ID, &d.Environment, &d.Name, &created, &heard)
		d.Created, d.Heard = fromMicros(created), fromMicros(heard)
		return err
	}, query, args...)
}

// change runs do in a transaction, with the number of the Dict.
func (s Dicts) change(ctx context.Context, account, id, what string, do func(tx *sql.Tx, dict int64) error) error {
	return s.db.change(ctx, what, func(tx *sql.Tx) error {
		dict, err := s.number(ctx, tx, account, id)
		if err != nil {
			return err
		}
		return do(tx, dict)
	})
}

// querier is a pool of connections or a transaction.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// number returns the key of a Dict in the table of entries.
func (s Dicts) number(ctx context.Context, q querier, account, id string) (dict int64, err error) {
	err = q.QueryRowContext(ctx, "SELECT number FROM dicts WHERE account = ? AND id = ?", account, id).Scan(&dict)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, dicts.NotFound(id)
	}
	return dict, s.db.explain(err, "find a Dict")
}

// Delete implements dicts.Store.
func (s Dicts) Delete(ctx context.Context, account, id string) error {
	return s.change(ctx, account, id, "delete a Dict", func(tx *sql.Tx, dict int64) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM dict_entries WHERE dict = ?", dict)
		if err == nil {
			_, err = tx.ExecContext(ctx, "DELETE FROM dicts WHERE number = ?", dict)
		}
		return err
	})
}

// Hear implements dicts.Store.
func (s Dicts) Hear(ctx context.Context, account, id string, at time.Time) error {
	return s.change(ctx, account, id, "record the heartbeat of a Dict", func(tx *sql.Tx, dict int64) error {
		_, err := tx.ExecContext(ctx, "UPDATE dicts SET heard_at = ? WHERE number = ?", micros(at), dict)
		return err
	})
}

// Put implements dicts.Store.
func (s Dicts) Put(ctx context.Context, account, id string, entries []dicts.Entry,
	p dicts.Put) (wrote bool, err error) {
	err = s.change(ctx, account, id, "write the entries of a Dict", func(tx *sql.Tx, dict int64) error {
		grown := int64(0)
		for _, e := range entries {
			var size, used int64
			err := tx.QueryRowContext(ctx, "SELECT length(key) + length(value), used_at FROM dict_entries "+
				"WHERE dict = ? AND key = ?", dict, blob(e.Key)).Scan(&size, &used)
			if err != nil && !errors.Is(err, sql.ErrNoRows) {
				return err
			}
			if err == nil && p.OnlyMissing && used >= micros(p.Fresh) {
				continue
			}
			if _, err := tx.ExecContext(ctx,
				"INSERT INTO dict_entries (dict, key, value, used_at) VALUES (?, ?, ?, ?) "+
					"ON CONFLICT (dict, key) DO UPDATE SET value = excluded.value, used_at = excluded.used_at",
				dict, blob(e.Key), blob(e.Value), micros(p.At)); err != nil {
				return err
			}
			grown += e.Size() - size
			wrote = true
		}
		var bytes int64
		if err := tx.QueryRowContext(ctx, "UPDATE dicts SET bytes = bytes + ? WHERE number = ? RETURNING bytes", grown,
			dict).Scan(&bytes); err != nil {
			return err
		}
		if bytes > p.Most && grown > 0 {
			return dicts.Full(p.Most)
		}
		return nil
	})
	return wrote && err == nil, err
}

// blob returns a value that SQLite does not take for NULL.
func blob(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// Value implements dicts.Store.
func (s Dicts) Value(ctx context.Context, account, id string, key []byte) (value []byte, used time.Time, found bool,
	err error) {
	at, found, err := s.entry(ctx, account, id, key, "value", &value)
	return value, at, found, err
}

// Used implements dicts.Store.
func (s Dicts) Used(ctx context.Context, account, id string, key []byte) (used time.Time, found bool, err error) {
	var one int
	return s.entry(ctx, account, id, key, "1", &one)
}

// entry reads a column of an entry and its last use.
func (s Dicts) entry(ctx context.Context, account, id string, key []byte, column string, to any) (time.Time, bool,
	error) {
	dict, err := s.number(ctx, s.db.read, account, id)
	if err != nil {
		return time.Time{}, false, err
	}
	var used int64
	err = s.db.read.QueryRowContext(ctx, "SELECT "+column+", used_at FROM dict_entries WHERE dict = ? AND key = ?",
		dict,
		blob(key)).Scan(to, &used)
	if errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, false, nil
	}
	return fromMicros(used), err == nil, s.db.explain(err, "read an entry of a Dict")
}

// Touch implements dicts.Store.
func (s Dicts) Touch(ctx context.Context, account, id string, key []byte, at time.Time) error {
	return s.change(ctx, account, id, "record the use of an entry", func(tx *sql.Tx, dict int64) error {
		_, err := tx.ExecContext(ctx, "UPDATE dict_entries SET used_at = ? WHERE dict = ? AND key = ?", micros(at),
			dict,
			blob(key))
		return err
	})
}

// Remove implements dicts.Store.
func (s Dicts) Remove(ctx context.Context, account, id string, key []byte) (value []byte, used time.Time, found bool,
	err error) {
	err = s.change(ctx, account, id, "remove an entry of a Dict", func(tx *sql.Tx, dict int64) error {
		var at int64
		err := tx.QueryRowContext(ctx, "DELETE FROM dict_entries WHERE dict = ? AND key = ? RETURNING value, used_at",
			dict,
			blob(key)).Scan(&value, &at)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err == nil {
			_, err = tx.ExecContext(ctx, "UPDATE dicts SET bytes = bytes - ? WHERE number = ?", len(key)+len(value),
				dict)
		}
		used, found = fromMicros(at), true
		return err
	})
	return value, used, found && err == nil, err
}

// Keys implements dicts.Store.
func (s Dicts) Keys(ctx context.Context, account, id string, after []byte, limit int,
	fresh time.Time) ([][]byte, error) {
	dict, err := s.number(ctx, s.db.read, account, id)
	if err != nil {
		return nil, err
	}
	return scanAll(ctx, s.db, "read the keys of a Dict", func(rows *sql.Rows, key *[]byte) error {
		err := rows.Scan(key)
		*key = blob(*key)
		return err
	}, "SELECT key FROM dict_entries WHERE dict = ?1 AND (?2 IS NULL OR key > ?2) AND used_at >= ?3 "+
		"ORDER BY key LIMIT ?4", dict, after, micros(fresh), limit)
}

// Count implements dicts.Store.
func (s Dicts) Count(ctx context.Context, account, id string, most int, fresh time.Time) (n int, err error) {
	dict, err := s.number(ctx, s.db.read, account, id)
	if err != nil {
		return 0, err
	}
	err = s.db.read.QueryRowContext(ctx,
		"SELECT count(*) FROM (SELECT 1 FROM dict_entries WHERE dict = ? AND used_at >= ? "+
			"LIMIT ?)", dict, micros(fresh), most).Scan(&n)
	return n, s.db.explain(err, "count the entries of a Dict")
}

// Clear implements dicts.Store.
func (s Dicts) Clear(ctx context.Context, account, id string) error {
	return s.change(ctx, account, id, "clear a Dict", func(tx *sql.Tx, dict int64) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM dict_entries WHERE dict = ?", dict)
		if err == nil {
			_, err = tx.ExecContext(ctx, "UPDATE dicts SET bytes = 0 WHERE number = ?", dict)
		}
		return err
	})
}

// Expire implements dicts.Store.
func (s Dicts) Expire(ctx context.Context, fresh, heard time.Time) error {
	return s.db.change(ctx, "remove old Dicts", func(tx *sql.Tx) error {
		for _, statement := range []struct {
			query string
			until time.Time
		}{
			{"UPDATE dicts SET bytes = bytes - gone.size FROM (SELECT dict, sum(length(key) + length(value)) AS size " +
				"FROM dict_entries WHERE used_at < ? GROUP BY dict) AS gone WHERE number = gone.dict", fresh},
			{"DELETE FROM dict_entries WHERE used_at < ?", fresh},
			{"DELETE FROM dict_entries WHERE dict IN (SELECT number FROM dicts WHERE name = '' AND heard_at < ?)",
				heard},
			{"DELETE FROM dicts WHERE name = '' AND heard_at < ?", heard},
		} {
			if _, err := tx.ExecContext(ctx, statement.query, micros(statement.until)); err != nil {
				return err
			}
		}
		return nil
	})
}
