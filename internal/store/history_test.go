package store

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// TestHistory checks that each session's history is a separate database without data of other sessions.
// mission: E4
func TestHistory(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "db"))
	s := db.Sessions()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var all []*event.Event
	for _, id := range []string{"ses_1", "ses_2"} {
		err := errors.Join(
			s.PutSession(t.Context(), records.Session{ID: id, Account: "acme", Agent: "claude",
				Repo: "https://example.org/a/b", Status: records.Done, Turns: 2, Usage: agent.Usage{Cost: 0.5},
				Created: at, Active: at}),
			s.PutMessage(t.Context(), records.Message{ID: "msg_1" + id, Session: id, Prompt: "do it",
				Reply: "done " + id, State: records.Completed, Created: at, Ended: at,
				Usage: agent.Usage{InputTokens: 7, Cost: 0.25}}),
			s.PutMessage(t.Context(), records.Message{ID: "msg_2" + id, Session: id, Prompt: "more",
				State: records.Queued, Created: at}))
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range []struct{ typ, data string }{
			{"tool.started", `{"id":"t1","tool":"Bash","input":{"command":"ls"},"message_id":"msg_1"}`},
			{"tool.completed", `{"id":"t1","tool":"Bash","failed":true}`},
			{"tool.started", `{"id":"t2","tool":"Write"}`}, {"file.changed", `{"path":"a.txt","created":true}`},
			{"file.changed", `{"path":"a.txt"}`}, {"message.delta", `{"text":"x"}`},
		} {
			all = append(all, &event.Event{Stream: id, ID: int64(i + 1), Type: e.typ,
				Time: at.Add(time.Duration(i) * time.Second), Data: json.RawMessage(e.data)})
		}
	}
	if err := db.Events().Append(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	data, err := s.History(t.Context(), "ses_1")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	copied, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	for query, want := range map[string]string{
		"SELECT id || ' ' || agent || ' ' || repo || ' ' || status || ' ' || turns || ' ' || cost_usd || ' ' || created_at FROM session":                                              "ses_1 claude https://example.org/a/b done 2 0.5 2026-01-02T03:04:05Z",
		"SELECT role || ' ' || content || ' ' || state || ' ' || coalesce(input_tokens, '-') || ' ' || coalesce(cost_usd, '-') FROM messages ORDER BY seq":                            "user do it completed - -|assistant done ses_1 completed 7 0.25|user more queued - -",
		"SELECT id || ' ' || tool || ' ' || coalesce(input, '-') || ' ' || coalesce(failed, '-') || ' ' || started_at || ' ' || coalesce(ended_at, '-') FROM tool_calls ORDER BY seq": `t1 Bash {"command":"ls"} 1 2026-01-02T03:04:05.000Z 2026-01-02T03:04:06.000Z|t2 Write - - 2026-01-02T03:04:07.000Z -`,
		"SELECT path || ' ' || created || ' ' || changes || ' ' || changed_at FROM files":                                                                                             "a.txt 1 2 2026-01-02T03:04:09.000Z",
	} {
		rows, err := copied.QueryContext(t.Context(), query)
		if err != nil {
			t.Errorf("%s: %v", query, err)
			continue
		}
		var got []string
		for rows.Next() {
			var text sql.NullString
			if err := rows.Scan(&text); err != nil {
				t.Error(err)
			}
			got = append(got, text.String)
		}
		if rows.Close(); strings.Join(got, "|") != want {
			t.Errorf("%s:\n%s\nwant\n%s", query, fmt.Sprint(strings.Join(got, "|")), want)
		}
	}
	if _, err := s.History(t.Context(), "ses_9"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("a session that is not there: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(db.path), ".history-*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := db.write.Exec("INSERT INTO events VALUES ('ses_1', 99, 'tool.started', 0, 'no JSON')"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.History(t.Context(), "ses_1"); err == nil {
		t.Error("an event that is no JSON went unnoticed")
	}
}
