package store

import (
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/session"
	"github.com/RelevanceAI/harvest/store/storetest"
)

func TestSessionsConformance(t *testing.T) {
	t.Parallel()
	storetest.RunSessions(t, func(t *testing.T) session.Store { return open(t, filepath.Join(t.TempDir(), "db")).Sessions() })
}

func TestSessionsErrors(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "db"))
	for _, statement := range []string{`INSERT INTO sessions VALUES ('ses_1', 'acme', 1, '{"turns":"many"}')`, "INSERT INTO messages VALUES ('msg_1', 'ses_1', 'no JSON')"} {
		if _, err := db.write.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	s := db.Sessions()
	_, err := s.Session(t.Context(), "ses_1")
	check(t, errors.Message(err), "damaged")
	_, err = s.Messages(t.Context(), "ses_1")
	check(t, errors.Message(err), "damaged")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	_, get := s.Session(t.Context(), "ses_1")
	_, list := s.Sessions(t.Context(), "", false, "", 0)
	_, messages := s.Messages(t.Context(), "ses_1")
	for what, err := range map[string]error{
		"PutSession": s.PutSession(t.Context(), session.Session{}), "Session": get, "Sessions": list,
		"PutMessage": s.PutMessage(t.Context(), session.Message{}), "Messages": messages,
	} {
		if err == nil {
			t.Errorf("%s on a closed database succeeded", what)
		}
	}
}
