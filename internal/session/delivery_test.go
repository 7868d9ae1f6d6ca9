package session_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted"
	"github.com/RelevanceAI/harvest/internal/session/credentials"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// restartWith stops the server, changes a session's record to the state that a server leaves if it is killed halfway,
// and starts the next server.
func (h *house) restartWith(t *testing.T, id string, f func(s *records.Session)) {
	t.Helper()
	h.close(t)
	s, err := h.sessions.Session(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	f(&s)
	if err := h.sessions.PutSession(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	h.open(t)
}

// TestQueuedPromptAfterRestart checks that the next server sends a prompt that was queued while the agent waited for
// its first one, although nothing else happens in the session.
//
// mission: E4
func TestQueuedPromptAfterRestart(t *testing.T) {
	t.Parallel()
	h := newSpareHouse(t, session.Options{Spares: 1})
	s := h.create(t, session.Request{GitSecret: credentials.None})
	w := h.watch(s.ID)
	w.until(t, records.EventStarted)
	const id = "msg_queued"
	h.restartWith(t, s.ID, func(*records.Session) {
		m := records.Message{ID: id, Session: s.ID, Prompt: "/say hello", State: records.Queued, Created: time.Now()}
		if err := h.sessions.PutMessage(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	})
	if done := w.until(t, "done"); done.data.Failed || done.data.Message.ID != id {
		t.Errorf("%+v", done.data)
	}
}

// TestPromptLostWithServer checks that the next server sends a prompt that was recorded and did not reach the agent. A
// prompt that the agent received is not sent twice.
//
// mission: E4
func TestPromptLostWithServer(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{Bundle: repository(t), Prompt: "the first"})
	w := h.watch(s.ID)
	w.until(t, "done")
	w.status(t, records.Done)
	lost := func(id, prompt string, d records.Delivery) {
		t.Helper()
		h.restartWith(t, s.ID, func(s *records.Session) {
			last := s.Deliveries[len(s.Deliveries)-1]
			end := last.At + int64(last.Size)
			d.Message, d.At = id, end+d.At
			if d.Process == "" {
				d.Process = s.Process
			}
			s.Status, s.Deliveries = records.Thinking, []records.Delivery{d}
			m := records.Message{ID: id, Session: s.ID, Prompt: prompt, State: records.Running, Created: time.Now(),
				Started: time.Now()}
			if err := h.sessions.PutMessage(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		})
		if done := w.until(t, "done"); done.data.Failed || done.data.Message.ID != id {
			t.Errorf("%s: %+v", prompt, done.data)
		}
		w.status(t, records.Done)
	}
	lost("msg_lost", "lost as a whole", records.Delivery{Size: 60})
	lost("msg_other", "written to another process", records.Delivery{At: -60, Size: 60, Process: "gone"})
	h.send(t, s.ID, "/run sleep 2\nreceived by the agent")
	w.until(t, string(agent.ToolStarted))
	h.restartWith(t, s.ID, func(*records.Session) {})
	w.until(t, "done")
	w.status(t, records.Done)
	got := h.wrote(t, s.ID)
	for _, prompt := range []string{"the first", "lost as a whole", "written to another process",
		"received by the agent"} {
		if n := strings.Count(got, "- "+prompt) + strings.Count(got, "\n+"+prompt); n != 1 {
			t.Errorf("the agent received %q %d times:\n%s", prompt, n, got)
		}
	}
}

// TestAnswerAndStopLostWithServer checks that the next server delivers an answer that was recorded and did not reach
// the agent, and stops a turn that was being stopped.
//
// mission: E4
func TestAnswerAndStopLostWithServer(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{StopGrace: time.Minute})
	s := h.create(t, session.Request{})
	defer h.Attend(t.Context(), account, s.ID)()
	h.send(t, s.ID, "/ask May I? | yes")
	w := h.watch(s.ID)
	question := w.until(t, string(agent.Asked)).data.ID
	w.status(t, records.Waiting)
	text, err := json.Marshal(scripted.Request{Op: "answer", ID: question,
		Answer: &agent.Answer{Allow: true, Answers: map[string]string{"May I?": "yes"}}})
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, '\n')
	h.restartWith(t, s.ID, func(s *records.Session) {
		last := s.Deliveries[len(s.Deliveries)-1]
		s.Status, s.Answered = records.Thinking, []string{question}
		s.Deliveries = append(s.Deliveries, records.Delivery{Message: last.Message, Process: s.Process,
			At: last.At + int64(last.Size), Size: len(text), Text: text})
	})
	if done := w.until(t, "done"); done.data.Failed {
		t.Errorf("after the answer: %+v", done.data)
	}
	w.status(t, records.Done)

	h.send(t, s.ID, "/run sleep 600")
	w.until(t, string(agent.ToolStarted))
	h.restartWith(t, s.ID, func(s *records.Session) { s.Stopping = "you stopped it" })
	if done := w.until(t, "done"); !done.data.Interrupted || done.data.Message.State != records.Stopped {
		t.Errorf("after the stop: %+v", done.data)
	}
}
