package store

import (
	"context"
	"encoding/json"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/sandbox"
	"github.com/RelevanceAI/harvest/session"
)

// Sessions stores the records of sessions and their messages.
type Sessions struct{ db *DB }

var _ session.Store = Sessions{}

// Sessions returns the store of sessions.
func (db *DB) Sessions() Sessions { return Sessions{db} }

// storedSession is a session with the fields hidden from clients.
type storedSession struct {
	session.Session
	Process    string             `json:"process,omitempty"`
	Deliveries []session.Delivery `json:"deliveries,omitempty"`
	Stopping   string             `json:"stopping,omitempty"`
	Sandbox    sandbox.Request    `json:"sandbox_request"`
}

// PutSession implements session.Store.
func (s Sessions) PutSession(ctx context.Context, record session.Session) error {
	text, err := json.Marshal(storedSession{record, record.Process, record.Deliveries, record.Stopping, record.Sandbox})
	if err != nil {
		return errors.Wrapf(err, "encode session %s", record.ID)
	}
	_, err = s.db.write.ExecContext(ctx, `INSERT INTO sessions (id, account, live, record) VALUES (?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET live = excluded.live, record = excluded.record`,
		record.ID, record.Account, record.Ended.IsZero(), string(text))
	return s.db.explainNil(err, "write session "+record.ID)
}

// Session implements session.Store.
func (s Sessions) Session(ctx context.Context, id string) (session.Session, error) {
	found, err := s.query(ctx, "SELECT account, record FROM sessions WHERE id = ?", id)
	if err != nil {
		return session.Session{}, err
	}
	if len(found) == 0 {
		return session.Session{}, session.NotFound(id)
	}
	return found[0], nil
}

// Sessions implements session.Store.
func (s Sessions) Sessions(ctx context.Context, account string, live bool, before string, limit int) ([]session.Session, error) {
	if limit <= 0 {
		limit = -1
	}
	return s.query(ctx, `SELECT account, record FROM sessions WHERE (?1 = '' OR account = ?1) AND (NOT ?2 OR live) AND (?3 = '' OR id < ?3) ORDER BY id DESC LIMIT ?4`,
		account, live, before, limit)
}

func (s Sessions) query(ctx context.Context, query string, args ...any) ([]session.Session, error) {
	stored, err := decodeRows(ctx, s.db, "sessions", func(r *storedSession, account string) { r.Account = account }, query, args...)
	list := make([]session.Session, 0, len(stored))
	for _, r := range stored {
		r.Session.Process, r.Session.Sandbox, r.Session.Deliveries, r.Session.Stopping = r.Process, r.Sandbox, r.Deliveries, r.Stopping
		list = append(list, r.Session)
	}
	return list, err
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
func (s Sessions) Totals(ctx context.Context, account string) (t session.Totals, err error) {
	known, err := s.db.statement(ctx, s.db.read, totals)
	if err == nil {
		u := &t.Usage
		err = known.QueryRowContext(ctx, account).Scan(&t.Sessions, &t.Turns, &u.InputTokens, &u.OutputTokens, &u.CacheReadTokens, &u.CacheWriteTokens, &u.Cost)
	}
	return t, s.db.explainNil(err, "read what the sessions of an account have used")
}

// PutMessage implements session.Store.
func (s Sessions) PutMessage(ctx context.Context, m session.Message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return errors.Wrapf(err, "encode message %s", m.ID)
	}
	_, err = s.db.write.ExecContext(ctx, `INSERT INTO messages (id, session, record) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET record = excluded.record`,
		m.ID, m.Session, string(text))
	return s.db.explainNil(err, "write message "+m.ID)
}

// Messages implements session.Store.
func (s Sessions) Messages(ctx context.Context, id string) ([]session.Message, error) {
	return decodeRows(ctx, s.db, "messages", func(m *session.Message, of string) { m.Session = of }, "SELECT session, record FROM messages WHERE session = ? ORDER BY id", id)
}
