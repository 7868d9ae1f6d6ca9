package store

import (
	"context"
	"os"
	"path/filepath"

	"github.com/RelevanceAI/harvest/client/errors"
)

// history creates and fills the tables of a session's history. The parameter is the session ID.
// Times are ISO 8601 in UTC.
var history = []string{
	`CREATE TABLE out.session (id TEXT PRIMARY KEY, title TEXT, agent TEXT, model TEXT, repo TEXT, branch TEXT, ` +
		`base_commit TEXT, status TEXT, turns INTEGER, cost_usd REAL, created_at TEXT, active_at TEXT)`,
	`CREATE TABLE out.messages (seq INTEGER PRIMARY KEY, message_id TEXT, role TEXT, content TEXT, state TEXT, at ` +
		`TEXT, input_tokens INTEGER, output_tokens INTEGER, cost_usd REAL)`,
	`CREATE TABLE out.tool_calls (seq INTEGER PRIMARY KEY, message_id TEXT, id TEXT, tool TEXT, input TEXT, failed ` +
		`INTEGER, started_at TEXT, ended_at TEXT)`,
	`CREATE TABLE out.files (path TEXT PRIMARY KEY, created INTEGER, changes INTEGER, changed_at TEXT)`,
	`INSERT INTO out.session SELECT id, record->>'title', record->>'agent', record->>'model', record->>'repo', record->>'branch', record->>'base', record->>'status', record->>'turns',
		record->>'$.usage.cost_usd', record->>'created_at', record->>'active_at' FROM main.sessions WHERE id = ?1`,
	`INSERT INTO out.messages (message_id, role, content, state, at, input_tokens, output_tokens, cost_usd)
		SELECT id, role, content, state, at, input, output, cost FROM (
			SELECT id, 0 AS n, iif(record->>'purpose' <> '', 'harvest', 'user') AS role, record->>'prompt' AS content, record->>'state' AS state, record->>'created_at' AS at, NULL AS input, NULL AS output, NULL AS cost
				FROM main.messages WHERE session = ?1
			UNION ALL SELECT id, 1, 'assistant', record->>'reply', record->>'state', record->>'ended_at', record->>'$.usage.input_tokens', record->>'$.usage.output_tokens', record->>'$.usage.cost_usd'
				FROM main.messages WHERE session = ?1 AND record->>'reply' <> '')
		ORDER BY id, n`,
	`INSERT INTO out.tool_calls (message_id, id, tool, input, started_at)
		SELECT data->>'message_id', data->>'id', data->>'tool', data->>'input', strftime('%Y-%m-%dT%H:%M:%fZ', at / 1e6, 'unixepoch')
		FROM main.events WHERE stream = ?1 AND type = 'tool.started' ORDER BY events.id`,
	`CREATE INDEX out.tool_calls_id ON tool_calls (id)`,
	`UPDATE out.tool_calls SET failed = coalesce(e.data->>'failed', 0), ended_at = strftime('%Y-%m-%dT%H:%M:%fZ', e.at / 1e6, 'unixepoch')
		FROM main.events AS e WHERE e.stream = ?1 AND e.type = 'tool.completed' AND e.data->>'id' = tool_calls.id`,
	`INSERT INTO out.files SELECT data->>'path', max(coalesce(data->>'created', 0)), count(*), strftime('%Y-%m-%dT%H:%M:%fZ', max(at) / 1e6, 'unixepoch')
		FROM main.events WHERE stream = ?1 AND type = 'file.changed' AND data->>'path' <> '' GROUP BY data->>'path'`,
}

// History returns the records of a session as a separate SQLite database, for the volume of its
// agent. The tables are session, messages, tool_calls and files. It returns NotFound if the session
// does not exist.
func (s Sessions) History(ctx context.Context, id string) ([]byte, error) {
	if _, err := s.Session(ctx, id); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(filepath.Dir(s.db.path), ".history-")
	if err != nil {
		return nil, fileError(err, s.db.path)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "session.db")
	if err := s.writeHistory(ctx, id, path); err != nil {
		return nil, s.db.explain(err, "write the history of "+id)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fileError(err, path)
	}
	return data, nil
}

func (s Sessions) writeHistory(ctx context.Context, id, path string) error {
	own, err := connect(s.db.path, 1)
	if err != nil {
		return err
	}
	defer own.Close()
	conn, err := own.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "ATTACH ? AS out", path); err != nil {
		return err
	}
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	for _, statement := range history {
		if _, err := tx.ExecContext(ctx, statement, id); err != nil {
			return errors.Wrapf(err, "%.40s", statement)
		}
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, "DETACH out")
	return err
}
