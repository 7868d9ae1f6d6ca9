package session_test

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// TestDeniedConnectionsReachSession checks that a connection that the network policy refuses is an event of the
// session, once for each destination in a turn, also after a restart of the server, and that the agent's next prompt
// begins with a note.
//
// mission: A6, E4
func TestDeniedConnectionsReachSession(t *testing.T) {
	t.Parallel()
	h := newRudeHouse(t, session.Options{})
	s := h.create(t, session.Request{Prompt: "hello", Sandbox: spec.Request{Network: spec.Network{Mode: "allow",
		Allow: []string{"only.example"}}}})
	w := h.watch(s.ID)
	w.until(t, "done")
	w.status(t, records.Done)
	look := func(name string) { h.sh(t, s.ID, "getent hosts "+name+" || true") }
	denied := func(name string) {
		t.Helper()
		look(name)
		if e := w.until(t, string(record.EventDenied)); e.data.Denial == nil || e.data.Denial.Domain != name ||
			e.data.Denial.Reason == "" {
			t.Fatalf("%+v, want the denial of %s", e.data.Denial, name)
		}
	}
	denied("a.example")
	look("a.example") // the same destination: no further event
	denied("b.example")
	h.send(t, s.ID, "/compact") // the agent would not recognize it after a note
	if done := w.until(t, "done"); done.data.Text != "did /compact" || done.data.Message.Note != "" {
		t.Errorf("a command: %+v", done.data)
	}
	w.status(t, records.Done)
	m := h.send(t, s.ID, "go on")
	done := w.until(t, "done")
	if note := done.data.Message.Note; !strings.HasPrefix(done.data.Text, "did "+note[:16]) ||
		!strings.Contains(note, "a.example, b.example.") || done.data.Message.ID != m.ID {
		t.Errorf("text %q, note %q", done.data.Text, note)
	}
	w.status(t, records.Done)
	h.send(t, s.ID, "again")
	if done := w.until(t, "done"); done.data.Text != "did again" || done.data.Message.Note != "" {
		t.Errorf("the note came again: %+v", done.data)
	}
	w.status(t, records.Done)
	h.close(t)
	h.open(t)
	denied("c.example")
}
