package session_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// showing is the scripted agent, with its options in the variable OPTIONS.
type showing struct{ scripted.Agent }

func (a showing) Command(s agent.Setup) engine.Command {
	cmd := a.Agent.Command(s)
	env := map[string]string{"OPTIONS": s.Effort + " " + string(s.Approval)}
	maps.Copy(env, cmd.Env)
	cmd.Env = env
	return cmd
}

const showOptions = `/run echo "$OPTIONS"`

// TestOptionsBetweenTurns checks that options which change in a turn hold from the next prompt, also after
// a restart of the server, that limits hold at once, and that the agent keeps its process otherwise.
//
// mission: E1, E3
func TestOptionsBetweenTurns(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{Agents: map[string]agent.Agent{"scripted": showing{}}})
	s := h.create(t, session.Request{Effort: "low", Prompt: showOptions})
	w := h.watch(s.ID)
	output := func() string { return strings.TrimSpace(w.until(t, string(agent.ToolCompleted)).data.Text) }
	change := func(c session.Change) records.Session {
		t.Helper()
		changed, err := session.Update(t.Context(), h.Manager, account, s.ID, c)
		if err != nil {
			t.Fatal(err)
		}
		return changed
	}
	wantEqual(t, "at first", output(), "low")
	w.status(t, records.Done)
	first := mustGet(t, h, s.ID).Process

	h.send(t, s.ID, "/run until test -e /tmp/go; do sleep 0.05; done\n"+showOptions)
	w.status(t, records.RunningTool)
	high, ask := "high", agent.ApproveNone
	h.send(t, s.ID, showOptions)
	changed := change(session.Change{Effort: &high, Approval: &ask, Limits: &records.Limits{Turns: 4}})
	if o := changed.NextOptions(); o.Effort != high || o.Approval != ask || changed.Effort != "low" ||
		changed.Limits.Turns != 4 {
		t.Errorf("changed: %+v", changed)
	}
	e := w.until(t, records.EventChanged).data.Changed
	if e == nil || e.Effort != high || e.Approval != ask || e.Limits.Turns != 4 {
		t.Errorf("event: %+v", e)
	}
	change(session.Change{Effort: &high}) // nothing new: no event
	if _, err := h.fleet.Exec(t.Context(), account, mustGet(t, h, s.ID).SandboxID,
		fleet.ExecRequest{Args: []string{"touch", "/tmp/go"}}); err != nil {
		t.Fatal(err)
	}
	output()
	wantEqual(t, "in the same turn", output(), "low")
	if n := strings.Count(w.String(), records.EventChanged+" "); n != 1 {
		t.Errorf("%d events, want 1:\n%s", n, w)
	}
	wantEqual(t, "in the next turn", output(), "high ask")
	w.status(t, records.Done)
	second := mustGet(t, h, s.ID)
	if second.Process == first || second.Next != nil || second.Effort != high {
		t.Errorf("after the change: %+v", second)
	}

	low := "low"
	change(session.Change{Effort: &low})
	if now := change(session.Change{Effort: &high}); now.Next != nil {
		t.Errorf("changed and changed back: %+v", now.Next)
	}
	none := agent.ApproveAll
	change(session.Change{Approval: &none})
	h.close(t)
	h.open(t)
	h.send(t, s.ID, showOptions)
	wantEqual(t, "after a restart", output(), "high")
	w.status(t, records.Done)
	if _, _, err := h.Send(t.Context(), account, s.ID, "/say no"); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("beyond the changed limit: %v", err)
	}
	change(session.Change{Limits: &records.Limits{}})
	h.send(t, s.ID, "/say yes")
	w.status(t, records.Done)
}

// TestBadOptions checks that options that no agent can have, and changes of a session that has ended, are refused.
func TestBadOptions(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{})
	unknown, flag, line, long := agent.Approval("yes"), "--x", "a\nb", strings.Repeat("x", 300)
	for _, c := range []session.Change{{Approval: &unknown}, {Model: &flag}, {Effort: &line}, {Model: &long},
		{Limits: &records.Limits{USD: -1}}} {
		if _, err := session.Update(t.Context(), h.Manager, account, s.ID,
			c); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if got := mustGet(t, h, s.ID); got.Next != nil || got.Limits != (records.Limits{}) {
		t.Errorf("after bad changes: %+v", got)
	}
	for _, req := range []session.Request{{Approval: unknown}, {Model: flag}, {Effort: line}} {
		if _, err := h.Create(t.Context(), account, req); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%+v: %v", req, err)
		}
	}
	if err := h.End(t.Context(), account, s.ID); err != nil {
		t.Fatal(err)
	}
	good := "high"
	_, err := session.Update(t.Context(), h.Manager, account, s.ID, session.Change{Effort: &good})
	if errors.KindOf(err) != errors.Gone {
		t.Errorf("after the end: %v", err)
	}
}
