package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/secret"
)

// Secrets stores secrets, which are sealed by the caller.
type Secrets struct{ db *DB }

var _ secret.Store = Secrets{}

// Secrets returns the store of sealed secrets.
func (db *DB) Secrets() Secrets { return Secrets{db} }

// Put implements secret.Store.
func (s Secrets) Put(ctx context.Context, records ...secret.Record) error {
	tx, err := s.db.write.BeginTx(ctx, nil)
	if err != nil {
		return s.db.explain(err, "write secrets")
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	for _, r := range records {
		keys, err := json.Marshal(r.Keys)
		if err != nil {
			return errors.Wrapf(err, "encode the keys of the secret %s", r.Name)
		}
		_, err = tx.ExecContext(ctx,
			`INSERT INTO secrets (account, name, keys, sealed, created_at, updated_at, used_at) VALUES (?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (account, name) DO UPDATE SET keys = excluded.keys, sealed = excluded.sealed,
				created_at = excluded.created_at, updated_at = excluded.updated_at, used_at = excluded.used_at`,
			r.Account, r.Name, string(keys), r.Sealed, micros(r.Created), micros(r.Updated), micros(r.Used))
		if err != nil {
			return s.db.explain(err, "write the secret "+r.Name)
		}
	}
	return s.db.explainNil(tx.Commit(), "write secrets")
}

// Get implements secret.Store.
func (s Secrets) Get(ctx context.Context, account, name string) (secret.Record, error) {
	found, err := s.query(ctx, "WHERE account = ? AND name = ?", account, name)
	if err != nil {
		return secret.Record{}, err
	}
	if len(found) == 0 {
		return secret.Record{}, secret.NotFound(name)
	}
	return found[0], nil
}

// List implements secret.Store.
func (s Secrets) List(ctx context.Context, account string) ([]secret.Record, error) {
	if account == "" {
		return s.query(ctx, "ORDER BY account, name")
	}
	return s.query(ctx, "WHERE account = ? ORDER BY name", account)
}

// Delete implements secret.Store.
func (s Secrets) Delete(ctx context.Context, account, name string) error {
	result, err := s.db.write.ExecContext(ctx, "DELETE FROM secrets WHERE account = ? AND name = ?", account, name)
	if err != nil {
		return s.db.explain(err, "delete the secret "+name)
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(errors.Wrapf(err, "count the deleted secrets"), secret.NotFound(name))
	}
	return nil
}

// Used implements secret.Store.
func (s Secrets) Used(ctx context.Context, account, name string, at time.Time) error {
	_, err := s.db.write.ExecContext(ctx, "UPDATE secrets SET used_at = ? WHERE account = ? AND name = ?", micros(at),
		account, name)
	return s.db.explainNil(err, "note the use of the secret "+name)
}

// PutLoans implements secret.Store.
func (s Secrets) PutLoans(ctx context.Context, loans ...secret.Loan) error {
	tx, err := s.db.write.BeginTx(ctx, nil)
	if err != nil {
		return s.db.explain(err, "record the loans of secrets")
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	for _, l := range loans {
		if _, err := tx.ExecContext(ctx,
			"INSERT OR REPLACE INTO secret_loans (borrower, account, sealed) VALUES (?, ?, ?)", l.Borrower, l.Account,
			l.Sealed); err != nil {
			return s.db.explain(err, "record the secrets of "+l.Borrower)
		}
	}
	return s.db.explainNil(tx.Commit(), "record the loans of secrets")
}

// Loans implements secret.Store.
func (s Secrets) Loans(ctx context.Context) ([]secret.Loan, error) {
	rows, err := s.db.read.QueryContext(ctx, "SELECT borrower, account, sealed FROM secret_loans ORDER BY borrower")
	if err != nil {
		return nil, s.db.explain(err, "read the loans of secrets")
	}
	defer rows.Close()
	var found []secret.Loan
	for rows.Next() {
		var l secret.Loan
		if err := rows.Scan(&l.Borrower, &l.Account, &l.Sealed); err != nil {
			return nil, s.db.explain(err, "read the loans of secrets")
		}
		found = append(found, l)
	}
	return found, s.db.explainNil(rows.Err(), "read the loans of secrets")
}

// DeleteLoans implements secret.Store.
func (s Secrets) DeleteLoans(ctx context.Context, borrowers ...string) error {
	for _, b := range borrowers {
		if _, err := s.db.write.ExecContext(ctx, "DELETE FROM secret_loans WHERE borrower = ?", b); err != nil {
			return s.db.explain(err, "note that "+b+" has given secrets back")
		}
	}
	return nil
}

func (s Secrets) query(ctx context.Context, clause string, args ...any) ([]secret.Record, error) {
	rows, err := s.db.read.QueryContext(ctx,
		"SELECT account, name, keys, sealed, created_at, updated_at, used_at FROM secrets "+clause, args...)
	if err != nil {
		return nil, s.db.explain(err, "read secrets")
	}
	defer rows.Close()
	var found []secret.Record
	for rows.Next() {
		var r secret.Record
		var keys []byte
		var created, updated, used int64
		if err := rows.Scan(&r.Account, &r.Name, &keys, &r.Sealed, &created, &updated, &used); err != nil {
			return nil, s.db.explain(err, "read a secret")
		}
		if err := json.Unmarshal(keys, &r.Keys); err != nil {
			return nil, damaged(errors.Wrapf(err, "decode the keys of the secret %s", r.Name), s.db.path)
		}
		r.Created, r.Updated, r.Used = fromMicros(created), fromMicros(updated), fromMicros(used)
		found = append(found, r)
	}
	return found, s.db.explainNil(rows.Err(), "read secrets")
}

// micros returns t in Unix microseconds, or 0 for the zero time.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func fromMicros(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMicro(n).UTC()
}

// explainNil is explain for an error that may be nil.
func (db *DB) explainNil(err error, what string) error {
	if err == nil {
		return nil
	}
	return db.explain(err, what)
}
