package store

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/schedule"
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
	return s.db.change(ctx, "write the schedule "+job.Name, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx,
			"INSERT INTO schedules (account, name, data) VALUES (?, ?, ?) ON CONFLICT (account, name) DO UPDATE SET "+
				"data = excluded.data",
			job.Account, job.Name, string(data)); err != nil {
			return err
		}
		for _, run := range runs {
			if data, err = json.Marshal(run); err != nil {
				return errors.Wrapf(err, "encode a run")
			}
			open := run.Status == schedule.Running || !run.RetryAt.IsZero()
			if _, err := tx.ExecContext(ctx,
				"INSERT INTO runs (id, account, job, open, data) VALUES (?, ?, ?, ?, ?) "+
					"ON CONFLICT (id) DO UPDATE SET open = excluded.open, data = excluded.data",
				run.ID, run.Account, run.Job, open, string(data)); err != nil {
				return errors.Wrapf(err, "write a run")
			}
		}
		return nil
	})
}

// Jobs implements schedule.Store.
func (s Schedules) Jobs(ctx context.Context) ([]schedule.Job, error) {
	return decodeRows(ctx, s.db, "schedules", func(job *schedule.Job, account string) { job.Account = account },
		"SELECT account, data FROM schedules ORDER BY account, name")
}

// Delete implements schedule.Store.
func (s Schedules) Delete(ctx context.Context, account, name string) error {
	return s.db.change(ctx, "delete the schedule "+name, func(tx *sql.Tx) error {
		if err := mustChange(ctx, tx, schedule.NotFound(name), "DELETE FROM schedules WHERE account = ? AND name = ?",
			account, name); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "DELETE FROM runs WHERE account = ? AND job = ?", account, name)
		return err
	})
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
	return s.db.explain(err, "shorten the history of the schedule "+job)
}
