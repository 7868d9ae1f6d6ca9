package session

import (
	"context"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// unlisted has no sessions of an earlier Manager.
type unlisted struct{ records.Store }

func (unlisted) Sessions(context.Context, string, bool, string, int) ([]records.Session, error) {
	return nil, nil
}

// TestCreateDuringClose creates a session while the Manager is closed, and afterwards.
func TestCreateDuringClose(t *testing.T) {
	t.Parallel()
	eng, err := fake.Open(t.TempDir(), fake.Options{})
	if err != nil {
		t.Fatal(err)
	}
	db := testdb.Open(t)
	boxes, err := fleet.Open(t.Context(), fleet.Options{Engine: eng, Store: db.Sandboxes()})
	if err != nil {
		t.Fatal(err)
	}
	if err := boxes.Close(t.Context()); err != nil { // sessions cannot create sandboxes
		t.Fatal(err)
	}
	journal := event.Open(t.Context(), event.Options{Store: db.Events()})
	opts := Options{Fleet: boxes, Journal: journal, Store: unlisted{db.Sessions()}, Default: "scripted",
		Agents: map[string]agent.Agent{"scripted": scripted.Agent{}}}
	testenv.CloseWhileUsed(t, func() (use, end func()) {
		m, err := Open(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		return func() { _, _ = m.Create(t.Context(), "acme", Request{Agent: "scripted"}) }, m.Close
	})
	if err := eng.Close(); err != nil {
		t.Error(err)
	}
}
