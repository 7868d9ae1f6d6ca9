package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/usage"
)

// Sandboxes stores the records of sandboxes.
type Sandboxes struct{ db *DB }

var _ record.Store = Sandboxes{}

// Sandboxes returns the store of sandboxes.
func (db *DB) Sandboxes() Sandboxes { return Sandboxes{db} }

// sandboxRecord is a Sandbox with the fields hidden from clients.
type sandboxRecord struct {
	record.Sandbox
	Handle   engine.Handle    `json:"handle"`
	Commands []record.Command `json:"commands,omitempty"`
	Denied   uint64           `json:"denied,omitempty"`
	Withheld []string         `json:"withheld,omitempty"`

	Suspension record.Suspension `json:"suspension,omitzero"`
}

// Put implements record.Store.
func (s Sandboxes) Put(ctx context.Context, sb record.Sandbox) error {
	return s.put(ctx, s.db.write, sb)
}

func (s Sandboxes) put(ctx context.Context, on executor, sb record.Sandbox) error {
	data, err := json.Marshal(sandboxRecord{sb, sb.Handle, sb.Commands, sb.Denied, sb.Withheld, sb.Suspension})
	if err != nil {
		return errors.Wrapf(err, "encode the record of %s", sb.ID)
	}
	live, ended := 1, int64(0)
	if sb.Status.Ended() {
		live, ended = 0, sb.Ended.UnixMilli()
	}
	_, err = on.ExecContext(ctx,
		`INSERT INTO sandboxes (id, account, name, status, live, ended_at, data) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET account = excluded.account, name = excluded.name, status = excluded.status,
			live = excluded.live, ended_at = excluded.ended_at, data = excluded.data`,
		sb.ID, sb.Account, sb.Name, string(sb.Status), live, ended, string(data))
	if taken(err) {
		return record.NameTaken(sb.Name)
	}
	return s.db.explain(err, "write the record of "+sb.ID)
}

// Get implements record.Store.
func (s Sandboxes) Get(ctx context.Context, id string) (record.Sandbox, error) {
	found, err := s.query(ctx, "WHERE id = ?", id)
	return only(found, err, errors.Newf(errors.NotFound, "there is no sandbox %.80q", id))
}

// List implements record.Store.
func (s Sandboxes) List(ctx context.Context, account string, filter record.Filter) ([]record.Sandbox, error) {
	var where []string
	var args []any
	add := func(clause string, values ...any) {
		where = append(where, clause)
		args = append(args, values...)
	}
	if account != "" {
		add("account = ?", account)
	}
	switch {
	case len(filter.Statuses) > 0:
		marks := strings.TrimSuffix(strings.Repeat("?,", len(filter.Statuses)), ",")
		values := make([]any, len(filter.Statuses))
		for i, status := range filter.Statuses {
			values[i] = string(status)
		}
		add("status IN ("+marks+")", values...)
	case !filter.All:
		add("live = 1")
	}
	if filter.Name != "" {
		add("name = ?", filter.Name)
	}
	if filter.Before != "" {
		add("id < ?", filter.Before)
	}
	if len(filter.Tags) > 0 { // one clause for any number of tags
		tags, err := json.Marshal(filter.Tags)
		if err != nil {
			return nil, errors.Wrapf(err, "encode tags")
		}
		add("NOT EXISTS (SELECT 1 FROM json_each(?) AS want WHERE NOT EXISTS (SELECT 1 FROM json_each(data, "+
			"'$.tags') AS has WHERE has.key = want.key AND has.value = want.value))", string(tags))
	}
	clause := ""
	if len(where) > 0 {
		clause = "WHERE " + strings.Join(where, " AND ")
	}
	clause += " ORDER BY id DESC"
	if filter.Limit > 0 {
		clause += " LIMIT ?"
		args = append(args, filter.Limit)
	}
	return s.query(ctx, clause, args...)
}

// Find implements record.Store.
func (s Sandboxes) Find(ctx context.Context, account, prefix string, limit int) ([]record.Sandbox, error) {
	// U+10FFFF sorts after all characters of an ID.
	return s.query(ctx, "WHERE account = ? AND id >= ? AND id < ? ORDER BY id DESC LIMIT ?", account, prefix,
		prefix+"\U0010ffff", limit)
}

// Delete implements record.Store.
func (s Sandboxes) Delete(ctx context.Context, endedBefore time.Time) (int, error) {
	result, err := s.db.write.ExecContext(ctx, "DELETE FROM sandboxes WHERE live = 0 AND ended_at < ?",
		endedBefore.UnixMilli())
	if err != nil {
		return 0, s.db.explain(err, "delete old records of sandboxes")
	}
	n, err := result.RowsAffected()
	return int(n), errors.Wrapf(err, "count the deleted records")
}

// PutUsage implements record.Store.
func (s Sandboxes) PutUsage(ctx context.Context, id string, u usage.Usage) error {
	data, err := json.Marshal(u)
	if err != nil {
		return errors.Wrapf(err, "encode the usage of %s", id)
	}
	_, err = s.db.write.ExecContext(ctx,
		"INSERT INTO usage (id, data) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET data = excluded.data",
		id, string(data))
	return s.db.explain(err, "write the usage of "+id)
}

// Usage implements record.Store.
func (s Sandboxes) Usage(ctx context.Context, id string) (u usage.Usage, err error) {
	var data string
	err = s.db.read.QueryRowContext(ctx, "SELECT data FROM usage WHERE id = ?", id).Scan(&data)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return u, nil
	case err != nil:
		return u, s.db.explain(err, "read the usage of "+id)
	}
	if err := json.Unmarshal([]byte(data), &u); err != nil {
		return u, damaged(errors.Wrapf(err, "decode the usage of %s", id), s.db.path)
	}
	return u, nil
}

// Totals implements record.Store.
func (s Sandboxes) Totals(ctx context.Context, account string) (t record.Totals, err error) {
	known, err := s.db.statement(ctx, s.db.read, "SELECT sandboxes, seconds, cost FROM totals WHERE account = ?")
	if err == nil {
		err = known.QueryRowContext(ctx, account).Scan(&t.Sandboxes, &t.Seconds, &t.Cost)
	}
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return record.Totals{}, s.db.explain(err, "read the usage of an account's sandboxes")
	}
	return t, nil
}

// query returns the records that clause selects.
func (s Sandboxes) query(ctx context.Context, clause string, args ...any) ([]record.Sandbox, error) {
	return scanAll(ctx, s.db, "read the records of sandboxes", func(rows *sql.Rows, sb *record.Sandbox) error {
		var data sql.RawBytes
		if err := rows.Scan(&data); err != nil {
			return err
		}
		var r sandboxRecord
		if err := json.Unmarshal(data, &r); err != nil {
			return damaged(err, s.db.path)
		}
		*sb = r.Sandbox
		sb.Handle, sb.Commands, sb.Denied, sb.Withheld = r.Handle, r.Commands, r.Denied, r.Withheld
		sb.Suspension = r.Suspension
		return nil
	}, "SELECT data FROM sandboxes "+clause, args...)
}
