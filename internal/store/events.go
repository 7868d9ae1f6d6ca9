package store

import (
	"context"
	"database/sql"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
)

// Events stores events.
type Events struct{ db *DB }

var _ event.Store = Events{}

// Events returns the store of events.
func (db *DB) Events() Events { return Events{db} }

// Queries of Append for each event, and for each stream.
const (
	insertEvent = "INSERT INTO events (stream, id, type, at, data) VALUES (?, ?, ?, ?, ?)"
	lastOf      = "SELECT last FROM streams WHERE stream = ?"
	setLast     = "INSERT INTO streams (stream, last) VALUES (?, ?) ON CONFLICT (stream) DO UPDATE SET last = " +
		"excluded.last"
)

// Append implements event.Store.
func (s Events) Append(ctx context.Context, events []*event.Event) error {
	var known [3]*sql.Stmt
	for i, query := range []string{insertEvent, lastOf, setLast} {
		var err error
		if known[i], err = s.db.statement(ctx, s.db.write, query); err != nil {
			return s.db.explain(err, "write events")
		}
	}
	tx, err := s.db.write.BeginTx(ctx, nil)
	if err != nil {
		return s.db.explain(err, "write events")
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	insert, find, mark := tx.StmtContext(ctx, known[0]), tx.StmtContext(ctx, known[1]), tx.StmtContext(ctx, known[2])
	next := map[string]int64{}
	for _, e := range events {
		if _, known := next[e.Stream]; !known {
			if next[e.Stream], err = lastEvent(find.QueryRowContext(ctx, e.Stream)); err != nil {
				return s.db.explain(err, "find the last event of "+e.Stream)
			}
		}
		next[e.Stream]++
		if e.ID != next[e.Stream] {
			return errors.Errorf("the event %d of %s cannot follow %d", e.ID, e.Stream, next[e.Stream]-1)
		}
		if _, err := insert.ExecContext(ctx, e.Stream, e.ID, e.Type, micros(e.Time), string(e.Data)); err != nil {
			return s.db.explain(err, "write an event of "+e.Stream)
		}
	}
	for stream, id := range next {
		if _, err := mark.ExecContext(ctx, stream, id); err != nil {
			return s.db.explain(err, "write the last event of "+stream)
		}
	}
	return s.db.explain(tx.Commit(), "write events")
}

func lastEvent(row *sql.Row) (int64, error) {
	var last int64
	err := row.Scan(&last)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return last, err
}

// Read implements event.Store.
func (s Events) Read(ctx context.Context, stream string, after int64, limit int) ([]*event.Event, error) {
	return scanAll(ctx, s.db, "read events of "+stream, func(rows *sql.Rows, to **event.Event) error {
		e, at := &event.Event{Stream: stream}, int64(0)
		err := rows.Scan(&e.ID, &e.Type, &at, (*[]byte)(&e.Data))
		e.Time = fromMicros(at)
		*to = e
		return err
	}, "SELECT id, type, at, data FROM events WHERE stream = ? AND id > ? ORDER BY id LIMIT ?", stream, after, limit)
}

// Last implements event.Store.
func (s Events) Last(ctx context.Context, stream string) (int64, error) {
	last, err := lastEvent(s.db.read.QueryRowContext(ctx, lastOf, stream))
	return last, s.db.explain(err, "find the last event of "+stream)
}

// pruneChunk is the number of events to remove at once, so that other writers do not wait long.
const pruneChunk = 5000

// Prune implements event.Store.
func (s Events) Prune(ctx context.Context, stream string, before time.Time) (int, error) {
	total := 0
	for {
		where, args := "at < ?", []any{micros(before)}
		if stream != "" {
			where, args = "at < ? AND stream = ?", append(args, stream)
		}
		result, err := s.db.write.ExecContext(ctx,
			"DELETE FROM events WHERE (stream, id) IN (SELECT stream, id FROM events WHERE "+where+" LIMIT ?)",
			append(args, pruneChunk)...)
		if err != nil {
			return total, s.db.explain(err, "remove old events")
		}
		n, err := result.RowsAffected()
		total += int(n)
		if err != nil || n < pruneChunk {
			return total, errors.Wrapf(err, "count the removed events")
		}
	}
}
