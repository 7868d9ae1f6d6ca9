package store

import (
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/store/storetest"
)

func TestSessionsConformance(t *testing.T) {
	t.Parallel()
	storetest.RunSessions(t, func(t *testing.T) records.Store {
		return open(t,
			filepath.Join(t.TempDir(), "db")).Sessions()
	})
}

// A session that was a spare, its prompt and its sandbox are stored together or not at all.
func TestTakeSessionIsOneTransaction(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "db"))
	s := db.Sessions()
	spare := records.Session{ID: "ses_1", Account: "acme", Spare: true}
	waiting := record.Sandbox{ID: "sbx_1", Account: record.SpareAccount, Owner: "acme", Status: record.Running}
	named := record.Sandbox{ID: "sbx_2", Account: "acme", Name: "taken", Status: record.Running}
	if err := errors.Join(s.PutSession(t.Context(), spare), db.Sandboxes().Put(t.Context(), waiting),
		db.Sandboxes().Put(t.Context(), named)); err != nil {
		t.Fatal(err)
	}
	spare.Spare = false
	box := waiting
	box.Account, box.Owner, box.Name = "acme", "", "taken" // the last statement fails
	m := records.Message{ID: "msg_1", Session: "ses_1"}
	if err := s.TakeSession(t.Context(), spare, []records.Message{m}, box); errors.KindOf(err) != errors.Conflict {
		t.Fatal(err)
	}
	got, err := s.Session(t.Context(), "ses_1")
	messages, listErr := s.Messages(t.Context(), "ses_1")
	if err := errors.Join(err, listErr); err != nil || !got.Spare || len(messages) != 0 {
		t.Errorf("after a failure: %+v, %d messages, %v", got, len(messages), err)
	}
	box.Name = ""
	if err := s.TakeSession(t.Context(), spare, []records.Message{m}, box); err != nil {
		t.Fatal(err)
	}
	got, err = s.Session(t.Context(), "ses_1")
	taken, boxErr := db.Sandboxes().Get(t.Context(), "sbx_1")
	if err := errors.Join(err, boxErr); err != nil || got.Spare || taken.Account != "acme" || taken.Owner != "" {
		t.Errorf("taken: %+v, %+v, %v", got, taken, err)
	}
}

func TestSessionsErrors(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "db"))
	for _, statement := range []string{`INSERT INTO sessions (id, account, live, record, place) VALUES ('ses_1', ` +
		`'acme', 1, '{"turns":"many"}', 'ses_1')`, "INSERT INTO messages VALUES ('msg_1', 'ses_1', 'no JSON')"} {
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
		"PutSession": s.PutSession(t.Context(), records.Session{}), "Session": get, "Sessions": list,
		"TakeSession": s.TakeSession(t.Context(), records.Session{}, nil, record.Sandbox{}),
		"DropSession": s.DropSession(t.Context(), ""),
		"PutMessage":  s.PutMessage(t.Context(), records.Message{}), "Messages": messages,
	} {
		if err == nil {
			t.Errorf("%s on a closed database succeeded", what)
		}
	}
}
