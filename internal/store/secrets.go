package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/grant"
	"github.com/RelevanceAI/harvest/internal/base/secret"
)

// Secrets stores secrets, which are sealed by the caller.
type Secrets struct{ db *DB }

var _ secret.Store = Secrets{}

// Secrets returns the store of sealed secrets.
func (db *DB) Secrets() Secrets { return Secrets{db} }

// Put implements secret.Store.
func (s Secrets) Put(ctx context.Context, records ...secret.Record) error {
	return s.db.change(ctx, "write secrets", func(tx *sql.Tx) error {
		for _, r := range records {
			keys, err := json.Marshal(r.Keys)
			if err != nil {
				return errors.Wrapf(err, "encode the keys of the secret %s", r.Name)
			}
			bound, placeholders, err := encodeBinding(r)
			if err != nil {
				return errors.Wrapf(err, "encode the binding of the secret %s", r.Name)
			}
			login, err := encodeLogin(r.Login)
			if err != nil {
				return err
			}
			if _, err = tx.ExecContext(ctx,
				`INSERT INTO secrets
					(account, name, keys, sealed, created_at, updated_at, used_at, binding, placeholders, login)
				VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
				ON CONFLICT (account, name) DO UPDATE SET keys = excluded.keys, sealed = excluded.sealed,
					created_at = excluded.created_at, updated_at = excluded.updated_at, used_at = excluded.used_at,
					binding = excluded.binding, placeholders = excluded.placeholders, login = excluded.login`,
				r.Account, r.Name, string(keys), r.Sealed, micros(r.Created), micros(r.Updated),
				micros(r.Used), bound, placeholders, login); err != nil {
				return errors.Wrapf(err, "write the secret %s", r.Name)
			}
		}
		return nil
	})
}

// encodeBinding returns the binding and the placeholders of a secret as JSON, each "" if there is none.
func encodeBinding(r secret.Record) (bound, placeholders string, err error) {
	encode := func(v any, there bool) string {
		if !there {
			return ""
		}
		b, failed := json.Marshal(v)
		err = errors.Join(err, failed)
		return string(b)
	}
	bound = encode(r.Binding, r.Binding != nil)
	placeholders = encode(r.Placeholders, len(r.Placeholders) > 0)
	return bound, placeholders, err
}

// decodeBinding is the reverse of encodeBinding.
func decodeBinding(r *secret.Record, bound, placeholders []byte) error {
	decode := func(text []byte, to any) error {
		if len(text) == 0 {
			return nil
		}
		return json.Unmarshal(text, to)
	}
	return errors.Join(decode(bound, &r.Binding), decode(placeholders, &r.Placeholders))
}

// encodeLogin returns the state of a login as JSON, or "" for a secret that is not one.
func encodeLogin(s *grant.State) (string, error) {
	if s == nil {
		return "", nil
	}
	text, err := json.Marshal(s)
	return string(text), errors.Wrapf(err, "encode the state of a login")
}

// Swap implements secret.Store.
func (s Secrets) Swap(ctx context.Context, old, changed secret.Record) (bool, error) {
	before, err := encodeLogin(old.Login)
	if err != nil {
		return false, err
	}
	after, err := encodeLogin(changed.Login)
	if err != nil {
		return false, err
	}
	result, err := s.db.write.ExecContext(ctx,
		"UPDATE secrets SET sealed = ?, login = ? WHERE account = ? AND name = ? AND login = ? AND login != ''",
		changed.Sealed, after, old.Account, old.Name, before)
	if err != nil {
		return false, s.db.explain(err, "write the login "+old.Name)
	}
	n, err := result.RowsAffected()
	return n > 0, s.db.explain(err, "write the login "+old.Name)
}

// Get implements secret.Store.
func (s Secrets) Get(ctx context.Context, account, name string) (secret.Record, error) {
	found, err := s.query(ctx, "WHERE account = ? AND name = ?", account, name)
	return only(found, err, secret.NotFound(name))
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
	return s.db.explain(mustChange(ctx, s.db.write, secret.NotFound(name),
		"DELETE FROM secrets WHERE account = ? AND name = ?", account, name), "delete the secret "+name)
}

// Used implements secret.Store.
func (s Secrets) Used(ctx context.Context, account, name string, at time.Time) error {
	_, err := s.db.write.ExecContext(ctx, "UPDATE secrets SET used_at = ? WHERE account = ? AND name = ?", micros(at),
		account, name)
	return s.db.explain(err, "note the use of the secret "+name)
}

// PutLoans implements secret.Store.
func (s Secrets) PutLoans(ctx context.Context, loans ...secret.Loan) error {
	return s.db.change(ctx, "record the loans of secrets", func(tx *sql.Tx) error {
		for _, l := range loans {
			if _, err := tx.ExecContext(ctx,
				"INSERT OR REPLACE INTO secret_loans (borrower, account, sealed) VALUES (?, ?, ?)", l.Borrower,
				l.Account, l.Sealed); err != nil {
				return errors.Wrapf(err, "record the secrets of %s", l.Borrower)
			}
		}
		return nil
	})
}

// Loans implements secret.Store.
func (s Secrets) Loans(ctx context.Context) ([]secret.Loan, error) {
	return scanAll(ctx, s.db, "read the loans of secrets", func(rows *sql.Rows, l *secret.Loan) error {
		return rows.Scan(&l.Borrower, &l.Account, &l.Sealed)
	}, "SELECT borrower, account, sealed FROM secret_loans ORDER BY borrower")
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
	return scanAll(ctx, s.db, "read secrets", func(rows *sql.Rows, r *secret.Record) error {
		var keys, bound, placeholders, login []byte
		var created, updated, used int64
		if err := rows.Scan(&r.Account, &r.Name, &keys, &r.Sealed, &created, &updated, &used, &bound,
			&placeholders, &login); err != nil {
			return err
		}
		r.Created, r.Updated, r.Used = fromMicros(created), fromMicros(updated), fromMicros(used)
		err := errors.Join(json.Unmarshal(keys, &r.Keys), decodeBinding(r, bound, placeholders))
		if len(login) > 0 {
			err = errors.Join(err, json.Unmarshal(login, &r.Login))
		}
		if err != nil {
			return damaged(errors.Wrapf(err, "decode the keys, the binding or the login of the secret %s", r.Name),
				s.db.path)
		}
		return nil
	}, `SELECT account, name, keys, sealed, created_at, updated_at, used_at, binding, placeholders, login
		FROM secrets `+clause, args...)
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
