package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// Sessions stores the records of sessions and their messages.
type Sessions struct{ db *DB }

var _ records.Store = Sessions{}

// Sessions returns the store of sessions.
func (db *DB) Sessions() Sessions { return Sessions{db} }

// storedSession is a session with the fields hidden from clients.
type storedSession struct {
	records.Session
	Process    string             `json:"process,omitempty"`
	Deliveries []records.Delivery `json:"deliveries,omitempty"`
	Stopping   string             `json:"stopping,omitempty"`
	Sandbox    spec.Request       `json:"sandbox_request"`
}

// PutSession implements session.Store.
func (s Sessions) PutSession(ctx context.Context, record records.Session) error {
	return s.put(ctx, s.db.write, record)
}

// put writes a record. In the columns, a spare belongs to no account, so that no query for an account finds it.
func (s Sessions) put(ctx context.Context, on executor, record records.Session) error {
	text, err := json.Marshal(storedSession{record, record.Process, record.Deliveries, record.Stopping, record.Sandbox})
	if err != nil {
		return errors.Wrapf(err, "encode session %s", record.ID)
	}
	account := record.Account
	if record.Spare {
		account = ""
	}
	_, err = on.ExecContext(ctx, `INSERT INTO sessions (id, account, live, record, place) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET account = excluded.account, live = excluded.live, record = excluded.record, place = excluded.place`,
		record.ID, account, record.Ended.IsZero(), string(text), cmp.Or(record.Place, record.ID))
	return s.db.explain(err, "write session "+record.ID)
}

// TakeSession implements session.Store.
func (s Sessions) TakeSession(ctx context.Context, record records.Session, messages []records.Message,
	box record.Sandbox) error {
	return s.db.change(ctx, "take session "+record.ID, func(tx *sql.Tx) error {
		if err := s.put(ctx, tx, record); err != nil {
			return err
		}
		for _, m := range messages {
			if err := s.putMessage(ctx, tx, m); err != nil {
				return err
			}
		}
		return Sandboxes(s).put(ctx, tx, box)
	})
}

// DropSession implements session.Store.
func (s Sessions) DropSession(ctx context.Context, id string) error {
	for _, query := range []string{"DELETE FROM messages WHERE session = ?", "DELETE FROM sessions WHERE id = ?"} {
		if _, err := s.db.write.ExecContext(ctx, query, id); err != nil {
			return s.db.explain(err, "delete session "+id)
		}
	}
	return nil
}

// Session implements session.Store.
func (s Sessions) Session(ctx context.Context, id string) (records.Session, error) {
	found, err := s.query(ctx, "SELECT account, record FROM sessions WHERE id = ?", id)
	return only(found, err, records.NotFound(id))
}

// Sessions implements session.Store.
func (s Sessions) Sessions(ctx context.Context, account string, live bool, before string,
	limit int) ([]records.Session, error) {
	if limit <= 0 {
		limit = -1
	}
	return s.query(ctx, `SELECT account, record FROM sessions WHERE (?1 = '' OR account = ?1) AND (NOT ?2 OR live) AND (?3 = '' OR place < coalesce((SELECT place FROM sessions WHERE id = ?3), ?3))
		ORDER BY place DESC LIMIT ?4`,
		account, live, before, limit)
}

func (s Sessions) query(ctx context.Context, query string, args ...any) ([]records.Session, error) {
	stored, err := decodeRows(ctx, s.db, "sessions",
		func(r *storedSession, account string) { r.Account = cmp.Or(account, r.Account) }, query, args...)
	list := make([]records.Session, 0, len(stored))
	for _, r := range stored {
		r.Session.Process, r.Session.Sandbox, r.Session.Deliveries, r.Session.Stopping = r.Process, r.Sandbox,
			r.Deliveries, r.Stopping
		list = append(list, r.Session)
	}
	return list, err
}

// Mentioning implements session.Store. Lower case is Go's: SQLite knows only that of ASCII.
func (s Sessions) Mentioning(ctx context.Context, account, text string) (map[string]bool, error) {
	type message struct {
		session string
		found   bool
	}
	text = strings.ToLower(text)
	all, err := scanAll(ctx, s.db, "search in prompts", func(rows *sql.Rows, m *message) error {
		var prompt, reply string
		if err := rows.Scan(&m.session, &prompt, &reply); err != nil {
			return err
		}
		m.found = strings.Contains(strings.ToLower(prompt), text) || strings.Contains(strings.ToLower(reply), text)
		return nil
	}, `SELECT sessions.id, iif(json_valid(m.record), coalesce(m.record->>'$.prompt', ''), ''),
		iif(json_valid(m.record), coalesce(m.record->>'$.reply', ''), '')
		FROM sessions JOIN messages m ON m.session = sessions.id
		WHERE sessions.account = ?
			AND iif(json_valid(m.record), coalesce(m.record->>'$.purpose', ''), '-') = ''`, account)
	found := map[string]bool{}
	for _, m := range all {
		if m.found {
			found[m.session] = true
		}
	}
	return found, err
}

// totals uses exactly the expressions of the index sessions_totals, so that it reads only the
// index.
const totals = `SELECT coalesce(sum(json_valid(record)), 0),
	coalesce(sum(iif(json_valid(record), record->>'$.turns', NULL)), 0),
	coalesce(sum(iif(json_valid(record), record->>'$.usage.input_tokens', NULL)), 0),
	coalesce(sum(iif(json_valid(record), record->>'$.usage.output_tokens', NULL)), 0),
	coalesce(sum(iif(json_valid(record), record->>'$.usage.cache_read_tokens', NULL)), 0),
	coalesce(sum(iif(json_valid(record), record->>'$.usage.cache_write_tokens', NULL)), 0),
	coalesce(sum(iif(json_valid(record), record->>'$.usage.cost_usd', NULL)), 0.0)
	FROM sessions WHERE account = ?`

// Totals implements session.Store.
func (s Sessions) Totals(ctx context.Context, account string) (t records.Totals, err error) {
	known, err := s.db.statement(ctx, s.db.read, totals)
	if err == nil {
		u := &t.Usage
		err = known.QueryRowContext(ctx, account).Scan(&t.Sessions, &t.Turns, &u.InputTokens, &u.OutputTokens,
			&u.CacheReadTokens, &u.CacheWriteTokens, &u.Cost)
	}
	return t, s.db.explain(err, "read the usage of an account's sessions")
}

// PutMessage implements session.Store.
func (s Sessions) PutMessage(ctx context.Context, m records.Message) error {
	return s.putMessage(ctx, s.db.write, m)
}

func (s Sessions) putMessage(ctx context.Context, on executor, m records.Message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return errors.Wrapf(err, "encode message %s", m.ID)
	}
	_,
		err = on.ExecContext(ctx,
		`INSERT INTO messages (id, session, record) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET record = `+
			`excluded.record`,
		m.ID, m.Session, string(text))
	return s.db.explain(err, "write message "+m.ID)
}

// Messages implements session.Store.
func (s Sessions) Messages(ctx context.Context, id string) ([]records.Message, error) {
	return decodeRows(ctx, s.db, "messages", func(m *records.Message, of string) { m.Session = of },
		"SELECT session, record FROM messages WHERE session = ? ORDER BY id", id)
}
