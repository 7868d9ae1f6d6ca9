package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/e2e/host"
	"github.com/RelevanceAI/harvest/internal/testenv"
	"github.com/RelevanceAI/harvest/model/modeltest"
)

// The real Claude, in the agent image, calls each of the four MCP servers that are always there, and what it has remembered is in the
// repository's memory.
//
// mission: E5, C3
func TestServersOfTheAgentImage(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	stub := modeltest.New(t, host.ModelKey)
	const page = "data:text/html,<title>walnut</title><h1>a tall tree</h1>"
	calls := []struct {
		tool  string
		input map[string]any
		want  string // in what it says
	}{
		{"mcp__memory__create_entities", map[string]any{"entities": []any{map[string]any{"name": "walnut", "entityType": "tree", "observations": []string{"it is tall"}}}}, "walnut"},
		{"mcp__memory__search_nodes", map[string]any{"query": "walnut"}, "it is tall"},
		{"mcp__filesystem__write_file", map[string]any{"path": "/workspace/project/note.txt", "content": "written by a server\n"}, "note.txt"},
		{"mcp__filesystem__read_text_file", map[string]any{"path": "/workspace/project/note.txt"}, "written by a server"},
		{"mcp__playwright__browser_navigate", map[string]any{"url": page}, "walnut"},
		{"mcp__playwright__browser_snapshot", map[string]any{}, "a tall tree"},
		{"mcp__devtools__new_page", map[string]any{"url": page}, "walnut"},
	}
	steps := []modeltest.Step{}
	for _, c := range calls {
		steps = append(steps, modeltest.Step{Call: c.tool, Input: c.input})
	}
	stub.Script("four", append(steps, modeltest.Step{Say: "All four have answered."})...)
	h := host.NewAgent(t)
	h.Env.Setenv("ANTHROPIC_BASE_URL", stub.URL)
	h.Env.Setenv("ANTHROPIC_API_KEY", host.ModelKey)
	dir := h.Project()
	host.RunGit(t, dir, "remote", "add", "origin", "https://github.com/owner/project")
	out, stderr, code := h.In(dir, "agent", "--agent", "claude", "--memory", "4GiB", "-e", "ENABLE_TOOL_SEARCH=false", "-o", "json", "[four] call them")
	if code != 0 {
		t.Fatalf("exit code %d: %s\n%.20000s\n%s", code, stderr, out, h.Log())
	}
	events := turnEvents(t, out)
	ready, called := map[string]bool{}, 0
	for _, e := range events {
		switch e.Type {
		case "mcp.ready":
			ready[e.Data.ID] = true
		case "mcp.failed":
			t.Errorf("%s: %s", e.Data.ID, e.Data.Reason)
		case "tool.completed":
			if called < len(calls) {
				if c := calls[called]; e.Data.Failed || e.Data.Tool != c.tool || !strings.Contains(e.Data.Text, c.want) {
					t.Errorf("%s: %s failed %t, %.1000s", c.tool, e.Data.Tool, e.Data.Failed, e.Data.Text)
				}
			}
			called++
		}
	}
	if called != len(calls) || !ready["memory"] || !ready["filesystem"] || !ready["playwright"] || !ready["devtools"] {
		t.Errorf("%d calls, servers %v", called, ready)
	}
	if done := last(t, events, "done"); done.Failed || done.Text != "All four have answered." {
		t.Errorf("done: %+v", done)
	}
	h.Has(t, "+written by a server", "diff", h.Session())
	h.Has(t, "it is tall", "memory", "get", "owner/project")
	h.Must("end", h.Session())
}

// Large files are fetched when that is asked for, and are pointers otherwise.
//
// mission: E3
func TestLargeFilesOfSessions(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := host.NewAgent(t)
	g := host.NewGit(t, "")
	content := strings.Repeat("large ", 100_000)
	pointer := g.Pointer(content)
	g.Commit("large", map[string]string{".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n", "data.bin": pointer})
	for _, c := range []struct {
		flags []string
		want  string
	}{{nil, pointer}, {[]string{"--lfs"}, fmt.Sprint(len(content), "\n")}} {
		script := "cat data.bin"
		if c.flags != nil {
			script = "wc -c <data.bin; git status --porcelain"
		}
		args := append([]string{"agent", "--agent", "scripted", "--image", "agent", "--repo", g.URL("large"), "-d", "/run " + script}, g.Network()...)
		h.Must(append(args, c.flags...)...)
		id := h.Session()
		if got := h.Event(id, 0, "tool.completed").Data; got.Text != c.want || got.Failed {
			t.Errorf("%q: %+v", c.flags, got)
		}
		h.Must("end", id)
	}
}
