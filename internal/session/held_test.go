package session_test

import (
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// states returns the prompts of a session with their states, oldest first.
func (h *house) states(t *testing.T, id string) string {
	t.Helper()
	messages, err := h.Messages(t.Context(), account, id)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range messages {
		all = append(all, m.Prompt[:min(len(m.Prompt), 10)]+" "+string(m.State))
	}
	return strings.Join(all, " | ")
}

// TestStopHoldsQueue checks that a stop that holds keeps the queued prompts: they are not sent, outlive a restart of
// the server, and can be cancelled and released, one or all.
//
// mission: E3
func TestStopHoldsQueue(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{Prompt: "/run sleep 600"})
	w := h.watch(s.ID)
	w.status(t, records.RunningTool)
	var queued []records.Message
	for _, text := range []string{"/say one", "/say two", "/say three", "/say four"} {
		queued = append(queued, h.send(t, s.ID, text))
	}
	if err := h.StopHolding(t.Context(), account, s.ID); err != nil {
		t.Fatal(err)
	}
	for _, m := range queued {
		if e := w.until(t, records.EventHeld); e.data.Message.ID != m.ID || e.data.Message.State != records.Held {
			t.Errorf("held: %+v, want %s", e.data.Message, m.ID)
		}
	}
	if e := w.until(t, string(agent.ToolCompleted)); !e.data.Failed || !e.data.Interrupted {
		t.Errorf("the command of the stopped turn: %+v", e.data)
	}
	w.until(t, "done")
	w.status(t, records.Done)
	if err := h.StopHolding(t.Context(), account, s.ID); errors.KindOf(err) != errors.Conflict {
		t.Errorf("without a turn and a queue: %v", err)
	}
	wantEqual(t, "after the stop", h.states(t, s.ID),
		"/run sleep stopped | /say one held | /say two held | /say three held | /say four held")

	h.close(t)
	h.open(t)
	if err := h.Cancel(t.Context(), account, s.ID, queued[1].ID); err != nil {
		t.Fatal(err)
	}
	h.send(t, s.ID, "/say new") // held prompts do not stop a new one
	w.until(t, "done")
	wantEqual(t, "after a new prompt", h.states(t, s.ID), "/run sleep stopped | /say one held | /say two cancelled | "+
		"/say three held | /say four held | /say new completed")
	if err := h.Release(t.Context(), account, s.ID, queued[2].ID); err != nil {
		t.Fatal(err)
	}
	if e := w.until(t, records.EventQueued); e.data.Message.ID != queued[2].ID || e.data.Position != 1 {
		t.Errorf("released: %+v", e.data)
	}
	w.until(t, "done")
	if err := h.Release(t.Context(), account, s.ID, queued[2].ID); errors.KindOf(err) != errors.NotFound {
		t.Errorf("released again: %v", err)
	}
	if err := h.Release(t.Context(), account, s.ID, ""); err != nil {
		t.Fatal(err)
	}
	w.until(t, "done")
	w.until(t, "done")
	if got := strings.Join(w.said(), "|"); got != "new|three|one|four" {
		t.Errorf("the agent said %q", got)
	}

	// A prompt can begin held. The end of the session cancels it.
	held, err := h.Hold(t.Context(), account, s.ID, "/say never")
	if err != nil || held.State != records.Held {
		t.Fatalf("%+v, %v", held, err)
	}
	if err := h.End(t.Context(), account, s.ID); err != nil {
		t.Fatal(err)
	}
	for e := w.until(t, records.EventCancelled); e.data.Message.ID != held.ID || e.data.Reason == ""; {
		e = w.until(t, records.EventCancelled)
	}
}

// TestQuestionHasDeadline checks that the event of a question says when the agent decides it itself, and that a restart
// of the server does not change that time.
//
// mission: E3
func TestQuestionHasDeadline(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{QuestionWait: time.Hour})
	s := h.create(t, session.Request{})
	w := h.watch(s.ID)
	w.status(t, records.Ready)
	defer h.Attend(t.Context(), account, s.ID)()
	h.send(t, s.ID, "/ask Which? | red || And? | blue")
	asked := w.until(t, string(agent.Asked))
	w.status(t, records.Waiting)
	opened := mustGet(t, h, s.ID).Asked[asked.data.ID]
	if opened.IsZero() || !asked.data.Deadline.Equal(opened.Add(time.Hour)) {
		t.Errorf("the deadline of a question of %s is %s", opened, asked.data.Deadline)
	}
	h.close(t)
	h.open(t)
	defer h.Attend(t.Context(), account, s.ID)()
	// The question is known once the agent's output has been read again.
	if err := h.Answer(t.Context(), account, s.ID, asked.data.ID, agent.Answer{Allow: true}); !errors.Is(err,
		errors.Invalid) {
		t.Fatalf("an empty answer: %v", err)
	}
	if again := mustGet(t, h, s.ID).Asked[asked.data.ID]; !again.Equal(opened) {
		t.Errorf("after a restart, the question is of %s, not %s", again, opened)
	}
	if err := h.Answer(t.Context(), account, s.ID, asked.data.ID, agent.Answer{Allow: true,
		Answers: map[string]string{"Which?": "red", "And?": "green"}}); err != nil {
		t.Fatal(err)
	}
	w.until(t, "done")
	wantEqual(t, "the agent", strings.Join(w.said(), "|"), "The answer is red, then green.")
	w.status(t, records.Done)
	if left := mustGet(t, h, s.ID).Asked; len(left) != 0 {
		t.Errorf("after the turn: %v", left)
	}
}
