package agent

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

// TestServersOfTheAgentImage checks that the real Claude, in the agent image, calls each of the four built-in MCP
// servers, and that its memories are in the repository's memory.
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
		want  string // part of the answer
	}{
		{"mcp__memory__create_entities", map[string]any{"entities": []any{map[string]any{"name": "walnut",
			"entityType": "tree", "observations": []string{"it is tall"}}}}, "walnut"},
		{"mcp__memory__search_nodes", map[string]any{"query": "walnut"}, "it is tall"},
		{"mcp__filesystem__write_file", map[string]any{"path": "/workspace/project/note.txt",
			"content": "written by a server\n"}, "note.txt"},
		{"mcp__filesystem__read_text_file", map[string]any{"path": "/workspace/project/note.txt"},
			"written by a server"},
		// Claude Code offers the server its roots, which have to include the directories beside the repository.
		{"mcp__filesystem__write_file", map[string]any{"path": "/workspace/beside.txt", "content": "beside\n"},
			"beside.txt"},
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
	const key = "canary-7d1f40c2a9e35b68"
	h.Env.Setenv("GEMINI_API_KEY", key)
	h.Must("secret", "set", "research", "GEMINI_API_KEY") // which the session is not given
	h.Env.Setenv("GEMINI_API_KEY", "")
	dir := h.Project()
	host.RunGit(t, dir, "remote", "add", "origin", "https://github.com/owner/project")
	out, stderr, code := h.In(dir, "agent", "--agent", "claude", "--memory", "4GiB", "-e", "ENABLE_TOOL_SEARCH=false",
		"-o", "json", "[four] call them")
	if code != 0 {
		t.Fatalf("exit code %d: %s\n%.20000s\n%s", code, stderr, out, h.Log())
	}
	events := turnEvents(t, out)
	ready, called := map[string]bool{}, 0
	for _, e := range events {
		switch e.Type {
		case "message.sent":
			if len(ready) != 5 {
				t.Errorf("the prompt was sent when %v were ready", ready)
			}
		case "mcp.ready":
			ready[e.Data.ID] = true
		case "mcp.failed":
			t.Errorf("%s: %s", e.Data.ID, e.Data.Reason)
		case "tool.completed":
			if called < len(calls) {
				if c := calls[called]; e.Data.Failed || e.Data.Tool != c.tool ||
					!strings.Contains(e.Data.Text, c.want) {
					t.Errorf("%s: %s failed %t, %.1000s", c.tool, e.Data.Tool, e.Data.Failed, e.Data.Text)
				}
			}
			called++
		}
	}
	if called != len(calls) || !ready["memory"] || !ready["filesystem"] || !ready["playwright"] || !ready["devtools"] ||
		!ready["gemini"] {
		t.Errorf("%d calls, servers %v", called, ready)
	}
	if done := last(t, events, "done"); done.Failed || done.Text != "All four have answered." {
		t.Errorf("done: %+v", done)
	}
	if missing := missingTools(stub, "[four]", "mcp__memory__", "mcp__filesystem__", "mcp__playwright__",
		"mcp__devtools__"); len(missing) > 0 {
		t.Errorf("the first request with the prompt has no tools %v", missing)
	}
	held := h.Must("sandbox", "exec", "--user", "root", h.Box(), "--", "sh", "-c",
		"cat /dev/shm/harvest-mcp/gemini; grep -rl "+key[:12]+" /dev/shm /tmp /workspace || echo none")
	if !strings.Contains(held, "GEMINI_API_KEY=") || strings.Contains(held, key) ||
		!strings.HasSuffix(strings.TrimSpace(held), "none") {
		t.Errorf("the server has %s", held)
	}
	h.Has(t, "+written by a server", "diff", h.Session())
	h.Has(t, "it is tall", "memory", "get", "owner/project")
	h.Must("end", "--discard", h.Session())
}

// missingTools returns the prefixes without a tool in the first request with a prompt.
func missingTools(stub *modeltest.Stub, prompt string, prefixes ...string) (missing []string) {
	for _, r := range stub.Requests() {
		if !bytes.Contains(r.Body, []byte(prompt)) || !bytes.Contains(r.Body, []byte(`"tools":[{`)) {
			continue
		}
		for _, p := range prefixes {
			if !bytes.Contains(r.Body, []byte(`"name":"`+p)) {
				missing = append(missing, p)
			}
		}
		return missing
	}
	return prefixes
}

// TestClaudeContinuesByItself checks that a turn that the real Claude begins by itself when a background command ends
// is a turn of the session, that the idle limit does not end the sandbox before, and that the next prompt gets its own
// answer.
//
// mission: E1
func TestClaudeContinuesByItself(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	stub := modeltest.New(t, host.ModelKey)
	stub.Script("background",
		modeltest.Step{Call: "Bash", Input: map[string]any{"command": "sleep 12; echo over", "description": "wait",
			"run_in_background": true}},
		modeltest.Step{Say: "It runs."})
	stub.Script(modeltest.Notified, modeltest.Step{Say: "It is over."})
	stub.Script("next", modeltest.Step{Say: "The answer."})
	h := host.NewModel(t, stub)
	h.Env.Setenv("ANTHROPIC_API_KEY", host.ModelKey)
	dir := h.Project()
	out, stderr, code := h.In(dir, "agent", "--agent", "claude", "--idle-timeout", "5s", "-o", "json",
		"[background] go")
	if code != 0 {
		t.Fatalf("exit code %d: %s\n%s\n%s", code, stderr, out, h.Log())
	}
	own := endOfOwnTurn(h, h.Session())
	if own.Message.State != "completed" || own.Message.Reply != "It is over." ||
		!strings.Contains(own.Message.Prompt, "wait") {
		t.Errorf("the turn of its own: %+v", own.Message)
	}
	events := turnEvents(t, h.Must("send", h.Session(), "-o", "json", "[next] go"))
	if done := last(t, events, "done"); done.Text != "The answer." || done.Message.Own {
		t.Errorf("done: %+v", done)
	}
}

// endOfOwnTurn returns the end of the first turn that the agent began by itself.
func endOfOwnTurn(h *host.Host, id string) api.SessionEvent {
	h.T.Helper()
	found, err := h.NextWanted(client.Follow{Stream: id}, "the end of a turn that the agent began",
		func(e host.TurnEvent) bool { return e.Type == "done" && e.Data.Message != nil && e.Data.Message.Own })
	if err != nil {
		h.T.Fatalf("%v\n%s", err, h.Log())
	}
	return found.Data
}

// TestLargeFilesOfSessions checks that large files are fetched on request, and are pointers otherwise.
//
// mission: E3
func TestLargeFilesOfSessions(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := host.NewAgent(t)
	g := host.NewGit(t, "")
	content := strings.Repeat("large ", 100_000)
	pointer := g.Pointer(content)
	g.Commit("large", map[string]string{".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n",
		"data.bin": pointer})
	for _, c := range []struct {
		flags []string
		want  string
	}{{nil, pointer}, {[]string{"--lfs"}, fmt.Sprint(len(content), "\n")}} {
		script := "cat data.bin"
		if c.flags != nil {
			script = "wc -c <data.bin; git status --porcelain"
		}
		args := append([]string{"agent", "--agent", "scripted", "--image", "agent", "--repo", g.URL("large"), "-d",
			"/run " + script}, g.Network()...)
		h.Must(append(args, c.flags...)...)
		id := h.Session()
		if got := h.Event(id, 0, "tool.completed").Data; got.Text != c.want || got.Failed {
			t.Errorf("%q: %+v", c.flags, got)
		}
		h.Must("end", "--discard", id)
	}
}
