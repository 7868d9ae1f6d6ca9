package agent

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

// TestPlansOfClaude checks that a plan of the real Claude waits for a person only if the session requires it, and is
// shown there.
//
// mission: E1
func TestPlansOfClaude(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	stub := modeltest.New(t, host.ModelKey)
	exit := modeltest.Step{Call: "ExitPlanMode", Input: map[string]any{"plan": "1. touch it"}}
	touch := modeltest.Step{Call: "Bash", Input: map[string]any{"command": "touch it", "description": "touch"}}
	stub.Script("enter", modeltest.Step{Call: "EnterPlanMode", Input: map[string]any{}}, exit, touch,
		modeltest.Step{Say: "Done."})
	stub.Script("exit", exit, modeltest.Step{Say: "Done."})
	h := host.NewCLI(t, stub)
	start := func(prompt string, flags ...string) string {
		h.Must(append([]string{"agent", "--agent", "claude", "--repo", "none", "-e", "ENABLE_TOOL_SEARCH=false", "-d",
			prompt}, flags...)...)
		return h.Session()
	}
	id := start("[enter] plan mode and do it")
	if done := h.Event(id, 0, "done").Data; done.Failed || done.Text != "Done." {
		t.Errorf("where nothing is asked: %+v", done)
	}
	if out := h.Must("sandbox", "exec", h.Box(), "--", "ls", "/workspace/work"); out != "it" {
		t.Errorf("files: %q", out)
	}
	h.Must("end", "--discard", id)

	id = start("[exit] plan mode", "--approval", "plan")
	asked := h.Event(id, 0, "agent.asked").Data
	if asked.Tool != "ExitPlanMode" || asked.Text != "1. touch it" {
		t.Errorf("asked: %+v", asked)
	}
	if _, said, code := h.Run("answer", id, "other", "--allow"); code == 0 ||
		!strings.Contains(said, "does not wait for an answer") {
		t.Errorf("an answer to another question: %d, %s", code, said)
	}
	h.Must("answer", id, asked.ID, "--allow")
	if done := h.Event(id, 0, "done").Data; done.Failed || done.Text != "Done." {
		t.Errorf("where the plan was allowed: %+v", done)
	}
}

// TestQuestionsWithoutPerson checks that a question of the real programs does not wait where no person follows the
// session, and that the model receives the reason.
//
// mission: E1
func TestQuestionsWithoutPerson(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	stub := modeltest.New(t, host.ModelKey)
	stub.Script("ask", modeltest.Step{Call: "AskUserQuestion", Input: colours}, modeltest.Step{Say: "I took red."})
	h := host.NewCLI(t, stub)
	for _, name := range []string{"claude", "opencode"} {
		before := len(stub.Requests())
		out, stderr, code := h.Run("agent", "--agent", name, "--repo", "none", "-e", "ENABLE_TOOL_SEARCH=false", "-o",
			"json", "[ask] for a colour")
		if code != 0 {
			t.Fatalf("%s: exit code %d: %s\n%s\n%s", name, code, stderr, out, h.Log())
		}
		events := turnEvents(t, out)
		if answered := last(t, events, "agent.withdrawn"); !strings.HasPrefix(answered.Text,
			"denied: No person is there to answer.") {
			t.Errorf("%s: %+v", name, answered)
		}
		if done := last(t, events, "done"); done.Failed || done.Text != "I took red." {
			t.Errorf("%s: %+v", name, done)
		}
		received := false
		for _, r := range stub.Requests()[before:] {
			received = received || strings.Contains(string(r.Body), "No person is there to answer.")
		}
		if !received {
			t.Errorf("%s: the model did not receive the reason", name)
		}
	}
}

// TestLongWaitsOfOpenCode checks that a turn of OpenCode ends instead of waiting for an hour when the model's API asks
// for that.
//
// mission: E2
func TestLongWaitsOfOpenCode(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	stub := modeltest.New(t, host.ModelKey)
	stub.Script("later", modeltest.Step{Status: 429, Kind: "rate_limit_error", After: "3600"})
	stub.Script("hello", modeltest.Step{Say: "Hello."})
	h := host.NewCLI(t, stub)
	h.Must("agent", "--agent", "opencode", "--repo", "none", "-d", "[later] go")
	id := h.Session()
	done := h.Event(id, 0, "done")
	if !done.Data.Failed || done.Data.Interrupted || !strings.Contains(done.Data.Text, "asked again only after 1h") {
		t.Errorf("%+v", done.Data)
	}
	if !find(h, id, 0, done.ID, "agent.retrying") {
		t.Error("the retry is in no event")
	}
	h.Must("send", "-d", id, "[hello] again")
	if next := h.Event(id, done.ID, "done").Data; next.Failed || next.Text != "Hello." {
		t.Errorf("the next turn: %+v", next)
	}
}
