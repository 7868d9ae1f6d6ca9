package store

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/schedule"
)

// Schedules stores scheduled jobs and their runs.
type Schedules struct{ db *DB }

var _ schedule.Store = Schedules{}

// Schedules returns the store of jobs and runs.
func (db *DB) Schedules() Schedules { return Schedules{db} }

// Put implements schedule.Store.
func (s Schedules) Put(ctx context.Context, job schedule.Job, runs ...schedule.Run) error {
	data, err := json.Marshal(job)
	if err != nil {
		return errors.Wrapf(err, "encode the schedule %s", job.Name)
	}
	tx, err := s.db.write.BeginTx(ctx, nil)
	if err != nil {
		return s.db.explain(err, "write a schedule")
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	if _, err := tx.ExecContext(ctx,
		"INSERT INTO schedules (account, name, data) VALUES (?, ?, ?) ON CONFLICT (account, name) DO UPDATE SET data "+
			"= excluded.data",
		job.Account, job.Name, string(data)); err != nil {
		return s.db.explain(err, "write the schedule "+job.Name)
	}
	for _, run := range runs {
		if data, err = json.Marshal(run); err != nil {
			return errors.Wrapf(err, "encode a run of the schedule %s", job.Name)
		}
		open := run.Status == schedule.Running || !run.RetryAt.IsZero()
		if _, err := tx.ExecContext(ctx,
			"INSERT INTO runs (id, account, job, open, data) VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "+
				"open = excluded.open, data = excluded.data",
			run.ID, run.Account, run.Job, open, string(data)); err != nil {
			return s.db.explain(err, "write a run of the schedule "+job.Name)
		}
	}
	return s.db.explainNil(tx.Commit(), "write a schedule")
}

// Jobs implements schedule.Store.
func (s Schedules) Jobs(ctx context.Context) ([]schedule.Job, error) {
	return decodeRows(ctx, s.db, "schedules", func(job *schedule.Job, account string) { job.Account = account },
		"SELECT account, data FROM schedules ORDER BY account, name")
}

// Delete implements schedule.Store.
func (s Schedules) Delete(ctx context.Context, account, name string) error {
	tx, err := s.db.write.BeginTx(ctx, nil)
	if err != nil {
		return s.db.explain(err, "delete a schedule")
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	result, err := tx.ExecContext(ctx, "DELETE FROM schedules WHERE account = ? AND name = ?", account, name)
	if err != nil {
		return s.db.explain(err, "delete the schedule "+name)
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(errors.Wrapf(err, "count the deleted schedules"), schedule.NotFound(name))
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM runs WHERE account = ? AND job = ?", account, name); err != nil {
		return s.db.explain(err, "delete the runs of the schedule "+name)
	}
	return s.db.explainNil(tx.Commit(), "delete a schedule")
}

// Runs implements schedule.Store.
func (s Schedules) Runs(ctx context.Context, account, job, before string, limit int) ([]schedule.Run, error) {
	if before == "" {
		before = "\U0010ffff" // sorts after all characters of an ID
	}
	return decodeRows(ctx, s.db, "runs of schedules", ownRun,
		"SELECT account, data FROM runs WHERE account = ? AND job = ? AND id < ? ORDER BY id DESC LIMIT ?", account,
		job, before, limit)
}

// Open implements schedule.Store.
func (s Schedules) Open(ctx context.Context) ([]schedule.Run, error) {
	return decodeRows(ctx, s.db, "runs of schedules", ownRun,
		"SELECT account, data FROM runs WHERE open = 1 ORDER BY id DESC")
}

func ownRun(run *schedule.Run, account string) { run.Account = account }

// Trim implements schedule.Store.
func (s Schedules) Trim(ctx context.Context, account, job string, keep int) error {
	_, err := s.db.write.ExecContext(ctx, "DELETE FROM runs WHERE account = ?1 AND job = ?2 AND id <= "+
		"(SELECT id FROM runs WHERE account = ?1 AND job = ?2 ORDER BY id DESC LIMIT 1 OFFSET ?3)", account, job, keep)
	return s.db.explainNil(err, "shorten the history of the schedule "+job)
}

// decodeRows decodes rows of an account and a JSON record. own sets the account in the record.
func decodeRows[T any](ctx context.Context, db *DB, what string, own func(*T, string), query string,
	args ...any) ([]T, error) {
	rows, err := db.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, db.explain(err, "read the "+what)
	}
	defer rows.Close()
	var found []T
	for rows.Next() {
		var record T
		var account string
		var data sql.RawBytes
		if err := rows.Scan(&account, &data); err != nil {
			return nil, db.explain(err, "read the "+what)
		}
		if err := json.Unmarshal(data, &record); err != nil {
			return nil, damaged(errors.Wrapf(err, "decode the %s", what), db.path)
		}
		own(&record, account)
		found = append(found, record)
	}
	return found, db.explainNil(rows.Err(), "read the "+what)
}
