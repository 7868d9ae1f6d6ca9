package agent

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

// TestRealAgentsInContainers checks that the real agents work in containers: a turn with a command, its changes, and
// another turn after the server was killed.
func TestRealAgentsInContainers(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	stub := modeltest.New(t, host.ModelKey)
	stub.Script("work", modeltest.Step{Call: "Bash", Input: map[string]any{
		"command": "cat /proc/version >version && git status --short", "description": "look"}},
		modeltest.Step{Say: "Done."})
	stub.Script("again", modeltest.Step{Say: "Still here."})
	h := host.NewCLI(t, stub)
	h.Env.Setenv("HARVEST_ISOLATION_ALLOWED", "gvisor,container")
	project := h.Project()
	if _, said, code := h.In(project, "agent", "--agent", "claude", "--isolation", "container", "-e",
		"ENABLE_TOOL_SEARCH=false", "-d", "[work] look around"); code != 0 {
		t.Fatalf("start: exit code %d\n%s", code, said)
	}
	id := h.Session()
	done := h.Event(id, 0, "done")
	if done.Data.Failed || done.Data.Text != "Done." {
		t.Errorf("the turn: %+v", done.Data)
	}
	if sb := h.Sandbox(h.Box()); !strings.HasPrefix(sb.Isolation, "container") {
		t.Errorf("the sandbox of the session has the isolation %q", sb.Isolation)
	}
	if diff := h.Must("diff", id); !strings.Contains(diff, "Linux version") || strings.Contains(diff, "gvisor") {
		t.Errorf("the changes are %s", diff)
	}
	h.Kill()
	h.Must("send", "-d", id, "[again] are you there?")
	if next := h.Event(id, done.ID, "done").Data; next.Failed || next.Text != "Still here." {
		t.Errorf("the turn after the server was killed: %+v", next)
	}
}
