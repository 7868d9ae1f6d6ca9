package store

import (
	"context"
	"database/sql"

	"github.com/RelevanceAI/harvest/internal/store/records"
)

// Records stores the records of Modal's protocol.
type Records struct{ db *DB }

var _ records.Store = Records{}

// Records returns the store of the records of Modal's protocol.
func (db *DB) Records() Records { return Records{db} }

// Put implements records.Store.
func (s Records) Put(ctx context.Context, all ...records.Record) error {
	return s.db.change(ctx, "write records of Modal's protocol", func(tx *sql.Tx) error {
		for _, r := range all {
			if _, err := tx.ExecContext(ctx, "INSERT INTO modal_records (kind, account, id, number, data) "+
				"VALUES (?, ?, ?, ?, ?) ON CONFLICT (kind, account, id, number) DO UPDATE SET data = excluded.data",
				string(r.Kind), r.Account, r.ID.ID, r.Number, blob(r.Data)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Get implements records.Store.
func (s Records) Get(ctx context.Context, kind records.Kind, id records.ID) ([]records.Record, error) {
	return s.query(ctx, kind, "WHERE kind = ? AND account = ? AND id = ? ORDER BY number", string(kind), id.Account,
		id.ID)
}

// List implements records.Store.
func (s Records) List(ctx context.Context, kind records.Kind) ([]records.Record, error) {
	return s.query(ctx, kind, "WHERE kind = ? ORDER BY account, id, number", string(kind))
}

func (s Records) query(ctx context.Context, kind records.Kind, where string, args ...any) ([]records.Record, error) {
	return scanAll(ctx, s.db, "read records of Modal's protocol", func(rows *sql.Rows, r *records.Record) error {
		r.Kind = kind
		return rows.Scan(&r.Account, &r.ID.ID, &r.Number, &r.Data)
	}, "SELECT account, id, number, data FROM modal_records "+where, args...)
}

// IDs implements records.Store.
func (s Records) IDs(ctx context.Context, kind records.Kind) ([]records.ID, error) {
	return scanAll(ctx, s.db, "read the IDs of Modal's protocol", func(rows *sql.Rows, id *records.ID) error {
		return rows.Scan(&id.Account, &id.ID)
	}, "SELECT DISTINCT account, id FROM modal_records WHERE kind = ? ORDER BY account, id", string(kind))
}

// Delete implements records.Store.
func (s Records) Delete(ctx context.Context, kind records.Kind, id records.ID, numbers ...int64) error {
	const of = "DELETE FROM modal_records WHERE kind = ? AND account = ? AND id = ?"
	return s.db.change(ctx, "delete records of Modal's protocol", func(tx *sql.Tx) error {
		if len(numbers) == 0 {
			_, err := tx.ExecContext(ctx, of, string(kind), id.Account, id.ID)
			return err
		}
		for _, n := range numbers {
			if _, err := tx.ExecContext(ctx, of+" AND number = ?", string(kind), id.Account, id.ID, n); err != nil {
				return err
			}
		}
		return nil
	})
}
