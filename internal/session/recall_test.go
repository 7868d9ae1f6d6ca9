package session_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/snapshots"
)

// keeping is the scripted agent with a file for its conversation.
type keeping struct{ scripted.Agent }

func (keeping) Kept() string { return `"$CLAUDE_CONFIG_DIR"/*/"$CONVERSATION".kept` }

// wrote returns the session's diff, which has the prompts that the agent has written, once its turns are over.
func (h *house) wrote(t *testing.T, id string) string {
	t.Helper()
	diff, err := h.Diff(t.Context(), account, id, "")
	if err != nil {
		t.Fatal(err)
	}
	return string(diff)
}

// TestRecordGone checks that an agent that has lost its own record of the conversation receives the last messages, and
// that an agent with its record does not.
// mission: E4
func TestRecordGone(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{Agents: map[string]agent.Agent{"scripted": keeping{}}})
	s := h.create(t, session.Request{Bundle: repository(t),
		Prompt: "/run mkdir -p $CLAUDE_CONFIG_DIR/x && touch $CLAUDE_CONFIG_DIR/x/scripted-1.kept"})
	w := h.watch(s.ID)
	w.until(t, "done")
	h.send(t, s.ID, "/say the word is heron\n/exit 1")
	w.until(t, "done")
	h.send(t, s.ID, "with its record")
	w.until(t, "done")
	if strings.Contains(w.String(), records.EventRecalled) || strings.Contains(h.wrote(t, s.ID), "heron") {
		t.Errorf("what the agent knows was told again:\n%s", w)
	}
	h.send(t, s.ID, "/run rm $CLAUDE_CONFIG_DIR/x/scripted-1.kept\n/exit 1")
	w.until(t, "done")
	long := strings.Repeat("long ", 3000)
	h.send(t, s.ID, "without it: "+strings.TrimSpace(long))
	told := w.until(t, records.EventRecalled)
	w.until(t, "done")
	if !strings.Contains(told.data.Text, "got the last 7 messages") { // of four turns, one of which had no text
		t.Errorf("%q", told.data.Text)
	}
	if got := h.wrote(t, s.ID); !strings.Contains(got, "> /say the word is heron") ||
		!strings.Contains(got, "> with its record") {
		t.Errorf("%s", got)
	}
	h.send(t, s.ID, "/exit 1")
	w.until(t, "done")
	h.send(t, s.ID, "once more")
	told = w.until(t, records.EventRecalled)
	w.until(t, "done")
	if !strings.Contains(told.data.Text, "got the last 10 messages") {
		t.Errorf("%q", told.data.Text)
	}
	if got := h.wrote(t, s.ID); !strings.Contains(got, "> without it: long") || !strings.Contains(got, "…\n") ||
		strings.Contains(got, strings.Repeat("long ", 9000)) {
		t.Errorf("%d bytes", len(got))
	} else if n := strings.Count(got,
		"\n+  > /run mkdir -p"); n != 1 { // the last ten messages do not include the first
		t.Errorf("the first message was sent %d times", n)
	}
}

// TestContinue checks that a session can continue an ended session: its files, its repository and the end of its
// conversation.
// mission: E4, A10
func TestContinue(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{History: func(context.Context, string) ([]byte,
		error) {
		return []byte("what is recorded"), nil
	}})
	s := h.create(t, session.Request{Repo: "https://example.org/owner/project.git", Bundle: repository(t),
		Prompt: "remember the heron", Approval: agent.ApproveEdits, Sandbox: spec.Request{CPU: 1}})
	w := h.watch(s.ID)
	w.status(t, records.Done)
	refused := func(want errors.Kind, in string, req session.Request) {
		t.Helper()
		if _, err := h.Create(t.Context(), in, req); errors.KindOf(err) != want {
			t.Errorf("%+v: %v, want %v", req, err, want)
		}
	}
	refused(errors.Conflict, account, session.Request{Continues: s.ID})
	if err := h.End(t.Context(), account, s.ID); err != nil {
		t.Fatal(err)
	}
	refused(errors.NotFound, "other", session.Request{Continues: s.ID})
	refused(errors.NotFound, account, session.Request{Continues: "ses_none"})
	refused(errors.Invalid, account, session.Request{Continues: s.ID, Repo: "https://example.org/owner/other.git"})
	refused(errors.Invalid, account, session.Request{Continues: s.ID, Sandbox: spec.Request{CPU: 2}})
	first := mustGet(t, h, s.ID)

	next := h.create(t, session.Request{Continues: s.ID,
		Prompt: "go on\n/run cat SCRIPTED-AGENT.md; git log --format=%s"})
	if next.Continues != s.ID || next.Approval != agent.ApproveEdits || next.Sandbox.CPU != 1 || next.Dir != s.Dir ||
		next.Repo != s.Repo || next.Title == "" || next.Title != first.Title {
		t.Errorf("%+v", next)
	}
	w = h.watch(next.ID)
	w.until(t, records.EventRecalled)
	w.status(t, records.Done)
	if now := mustGet(t, h, next.ID); now.Base != first.Base || now.SandboxID == first.SandboxID {
		t.Errorf("%+v", now)
	}
	if got := h.wrote(t, next.ID); !strings.Contains(got, "+- remember the heron") ||
		!strings.Contains(got, "> remember the heron") || !strings.Contains(got, "go on") {
		t.Errorf("%s", got)
	}
	if err := h.End(t.Context(), account, next.ID); err != nil {
		t.Fatal(err)
	}
	h.Manager.Close() // waits for background writes
	for _, id := range []string{s.ID, next.ID} {
		name := filepath.Join(h.volumes.Path("harvest-agent-state"), "sessions", id+".db")
		if data, err := os.ReadFile(name); err != nil || string(data) != "what is recorded" {
			t.Errorf("%q, %v", data, err)
		}
	}
	if m, err := session.Open(t.Context(), session.Options{Fleet: h.fleet, Journal: h.journal, Store: h.sessions,
		Agents: map[string]agent.Agent{"scripted": scripted.Agent{}}}); err != nil {
		t.Error(err)
	} else {
		h.Manager = m
	}
	box, err := h.fleet.Get(t.Context(), account, mustGet(t, h, next.ID).SandboxID)
	if err != nil {
		t.Fatal(err)
	}
	box.SnapshotID = ""
	if err := h.boxes.Put(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	refused(errors.Gone, account, session.Request{Continues: next.ID})
}

// TestContinueWithRecord checks that a session that continues another one uses a copy of the agent's own record of the
// conversation. The agent receives messages only if there is no record.
// mission: E4
func TestContinueWithRecord(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{Agents: map[string]agent.Agent{"scripted": keeping{}}})
	s := h.create(t, session.Request{Bundle: repository(t),
		Prompt: "/run mkdir -p $CLAUDE_CONFIG_DIR/x && echo one >$CLAUDE_CONFIG_DIR/x/scripted-1.kept\nremember the " +
			"heron"})
	h.watch(s.ID).status(t, records.Done)
	if err := h.End(t.Context(), account, s.ID); err != nil {
		t.Fatal(err)
	}
	next := h.create(t, session.Request{Continues: s.ID,
		Prompt: "go on\n/run echo two >>$CLAUDE_CONFIG_DIR/x/scripted-1.kept"})
	w := h.watch(next.ID)
	w.status(t, records.Done)
	if strings.Contains(w.String(), records.EventRecalled) || mustGet(t, h, next.ID).Conversation != "scripted-1" {
		t.Errorf("the agent's own record was not used:\n%s", w)
	}
	kept := func(id string) string {
		text, err := os.ReadFile(filepath.Join(h.volumes.Path("harvest-agent-state"), "sessions", id, "claude", "x",
			"scripted-1.kept"))
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	if kept(s.ID) != "one\n" || kept(next.ID) != "one\ntwo\n" {
		t.Errorf("%q and %q", kept(s.ID), kept(next.ID))
	}
	if err := errors.Join(h.End(t.Context(), account, next.ID),
		os.RemoveAll(filepath.Join(h.volumes.Path("harvest-agent-state"), "sessions", next.ID))); err != nil {
		t.Fatal(err)
	}
	last := h.create(t, session.Request{Continues: next.ID, Prompt: "once more"})
	w = h.watch(last.ID)
	w.until(t, records.EventRecalled)
	w.status(t, records.Done)
}

// TestFilesOfEndedSessionsAreCollected checks that the files of a session are removed once its end is long ago, and not
// while a session that continues it needs them.
func TestFilesOfEndedSessionsAreCollected(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	collector := snapshots.Collector{Fleet: h.fleet, Images: h.engine.Images(), Store: h.sessions}
	collect := func(before time.Time, want int) {
		t.Helper()
		if n, err := collector.Collect(t.Context(), before); n != want || err != nil {
			t.Errorf("removed %d snapshots, %v; want %d", n, err, want)
		}
	}
	s := h.create(t, session.Request{Bundle: repository(t), Prompt: "remember the heron"})
	h.watch(s.ID).status(t, records.Done)
	collect(time.Now().Add(time.Hour), 0)
	if err := h.End(t.Context(), account, s.ID); err != nil {
		t.Fatal(err)
	}
	collect(mustGet(t, h, s.ID).Ended.Add(-time.Second), 0)
	next := h.create(t, session.Request{Continues: s.ID, Prompt: "go on"})
	h.watch(next.ID).status(t, records.Done)
	collect(time.Now().Add(time.Hour), 0)
	if err := h.End(t.Context(), account, next.ID); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{s.ID, next.ID} {
		if got := h.wrote(t, id); !strings.Contains(got, "+- remember the heron") {
			t.Errorf("%s before its files are collected: %s", id, got)
		}
	}
	collect(time.Now().Add(time.Hour), 2)
	for _, id := range []string{s.ID, next.ID} {
		if _, err := h.Diff(t.Context(), account, id, ""); errors.KindOf(err) != errors.Gone {
			t.Errorf("%s: %v, want Gone", id, err)
		}
	}
	if _, err := h.Create(t.Context(), account, session.Request{Continues: s.ID}); errors.KindOf(err) != errors.Gone {
		t.Errorf("continued without files: %v, want Gone", err)
	}
	collect(time.Now().Add(time.Hour), 0)
}

// forgetful is the scripted agent without any record of conversations.
type forgetful struct{ scripted.Agent }

func (a forgetful) Command(s agent.Setup) engine.Command {
	if s.Conversation != "" {
		return engine.Command{Args: []string{"sh", "-c", "exit " + strconv.Itoa(agent.ExitForgotten)}, Dir: s.Dir}
	}
	return a.Agent.Command(s)
}

// TestConversationForgotten checks that an agent which cannot continue its conversation is started again without it,
// and gets the last messages with the prompt.
//
// mission: E2
func TestConversationForgotten(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{Agents: map[string]agent.Agent{"scripted": forgetful{}}})
	s := h.create(t, session.Request{Prompt: "/say walnut"})
	w := h.watch(s.ID)
	w.status(t, records.Done)
	h.send(t, s.ID, "/exit 0")
	w.status(t, records.Failed)
	h.send(t, s.ID, "/say again")
	if e := w.until(t, records.EventRecalled); !strings.Contains(e.data.Text, "last") {
		t.Errorf("%+v", e.data)
	}
	if done := w.until(t, "done"); done.data.Failed {
		t.Errorf("%+v\n%s", done.data, w)
	}
	all := strings.Join(w.said(), "|")
	for _, part := range []string{"walnut|", "> /say walnut", "|again"} {
		if !strings.Contains(all, part) {
			t.Errorf("said: %q", all)
		}
	}
	if n := strings.Count(w.String(), records.EventCrashed); n > 0 {
		t.Errorf("%d crashes:\n%s", n, w)
	}
}
