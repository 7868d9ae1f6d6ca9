package session_test

import (
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// TestIdleLimitEndsNoTurn checks that the idle limit of a session's sandbox counts only between turns, while the
// agent's process waits for the next prompt. The limit does not end a turn, not even after a restart of the server. The
// next prompt continues with the files in a new sandbox.
//
// mission: A5, E4
func TestIdleLimitEndsNoTurn(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := newHouse(t, session.Options{})
	limited := spec.Request{Image: "base", IdleTimeoutSeconds: 2}
	s := h.create(t, session.Request{Sandbox: limited,
		Prompt: "/run echo kept >kept; while [ ! -e /tmp/go ]; do sleep 0.05; done"})
	w := h.watch(s.ID)
	w.status(t, records.RunningTool)
	ended := func(id string) bool {
		sb, err := h.fleet.Get(t.Context(), account, id)
		if err != nil {
			t.Fatal(err)
		}
		return sb.Status.Ended() && sb.End == record.EndIdle
	}
	box := mustGet(t, h, s.ID).SandboxID
	// The last round begins when the new server surely follows the session.
	for _, when := range []string{"during a turn", "after a restart", "long after a restart"} {
		other, err := h.fleet.Create(t.Context(), account, limited) // it shows that the limit has passed
		if err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, "an idle sandbox ends", func() bool { return ended(other.ID) })
		if ended(box) {
			t.Fatalf("%s the sandbox has ended as idle", when)
		}
		if when == "during a turn" {
			h.close(t)
			h.open(t)
		}
	}
	h.sh(t, s.ID, "touch /tmp/go")
	if done := w.until(t, "done"); done.data.Failed {
		t.Errorf("the turn: %+v", done.data)
	}
	testenv.Eventually(t, "the sandbox ends after the turn", func() bool { return ended(box) })
	h.send(t, s.ID, "/run while [ ! -e /tmp/go-on ]; do sleep 0.05; done")
	w.status(t, records.RunningTool)
	now := mustGet(t, h, s.ID)
	if text := h.sh(t, s.ID, "cat "+now.Dir+"/kept; touch /tmp/go-on"); text != "kept" || now.SandboxID == box {
		t.Errorf("the next turn is in sandbox %s, which has the file with %q", now.SandboxID, text)
	}
	w.until(t, "done")
}

// TestBackgroundTasksKeepSandbox checks that a sandbox is not idle while the agent reports a background task between
// turns, also after a restart of the server, up to a limit, and that it is idle afterwards.
//
// mission: A5, E1
func TestBackgroundTasksKeepSandbox(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	limited := spec.Request{Image: "base", IdleTimeoutSeconds: 2}
	ended := func(h *house, id string) bool {
		sb, err := h.fleet.Get(t.Context(), account, id)
		if err != nil {
			t.Fatal(err)
		}
		return sb.Status.Ended() && sb.End == record.EndIdle
	}
	for _, limit := range []time.Duration{time.Hour, time.Second} {
		h := newHouse(t, session.Options{Agents: map[string]agent.Agent{"scripted": likeClaude{}},
			BackgroundLimit: limit})
		s := h.create(t, session.Request{Sandbox: limited, Prompt: "task"})
		w := h.watch(s.ID)
		w.status(t, records.Done)
		box := mustGet(t, h, s.ID).SandboxID
		for _, when := range []string{"while a background task runs", "after a restart", "long after a restart"} {
			if limit != time.Hour {
				break
			}
			if when == "after a restart" {
				h.close(t)
				h.open(t)
			}
			other, err := h.fleet.Create(t.Context(), account, limited) // it shows that the limit has passed
			if err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, "an idle sandbox ends", func() bool { return ended(h, other.ID) })
			if ended(h, box) {
				t.Fatalf("the sandbox has ended as idle %s", when)
			}
		}
		if limit == time.Hour {
			h.sh(t, s.ID, "touch /tmp/over")
		}
		testenv.Eventually(t, "the sandbox ends as idle", func() bool { return ended(h, box) })
	}
}
