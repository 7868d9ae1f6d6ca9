package agent

import (
	"cmp"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

// TestFailedServersAreThereForTheNextPrompt checks that the real agents have an MCP server that died at its first
// start, and one that starts later than Claude Code's own limit of 30 s, when they get their second prompt.
//
// mission: E5
func TestFailedServersAreThereForTheNextPrompt(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	for _, name := range []string{"claude", "opencode"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tool := func(server string) string {
				if name == "claude" {
					return "mcp__" + server + "__hello"
				}
				return server + "_hello"
			}
			stub := modeltest.New(t, host.ModelKey)
			stub.Script("one", modeltest.Step{Say: "Without them."})
			stub.Script("two", modeltest.Step{Call: tool("flaky"), Input: map[string]any{}},
				modeltest.Step{Call: tool("late"), Input: map[string]any{}}, modeltest.Step{Say: "With them."})
			h := host.NewModel(t, stub)
			dir := h.Project()
			commit(h, dir, map[string]string{"server.py": mcpServer,
				".mcp.json": `{"mcpServers":{
					"flaky":{"command":"sh","args":["-c",
						"[ -e /tmp/once ] || { >/tmp/once; exit 1; }; exec python3 /workspace/project/server.py ok"],
						"env":{"WHO":"flaky"}},
					"late":{"command":"sh","args":["-c","sleep 45; exec python3 /workspace/project/server.py ok"],
						"env":{"WHO":"late"}}}}`})
			out, stderr, code := h.In(dir, "agent", "--agent", name, "--memory", "4GiB", "-e",
				"ENABLE_TOOL_SEARCH=false", "-o", "json", "[one] go")
			if code != 0 {
				t.Fatalf("exit code %d: %s\n%.20000s\n%s", code, stderr, out, h.Log())
			}
			if done := last(t, turnEvents(t, out), "done"); done.Text != "Without them." {
				t.Errorf("done: %+v", done)
			}
			var results []api.SessionEvent
			var servers []string
			for _, e := range turnEvents(t, h.Must("send", h.Session(), "-o", "json", "[two] go")) {
				switch e.Type {
				case "mcp.restarting", "mcp.ready", "mcp.failed":
					servers = append(servers, e.Type+" "+e.Data.ID+" "+e.Data.Reason)
				case "tool.completed":
					results = append(results, e.Data)
				}
			}
			if len(results) != 2 || results[0].Text != "hello from flaky" || results[1].Text != "hello from late" {
				t.Errorf("the results %+v; servers: %s", results, strings.Join(servers, ", "))
			}
			h.Must("end", "--discard", h.Session())
		})
	}
}

// TestServersOnBusyMachine checks that Claude Code has its four MCP servers at its second prompt at the latest, while
// eight programs keep the processors busy. HARVEST_TEST_SESSIONS is the number of sessions, one after the other.
//
// mission: E5
func TestServersOnBusyMachine(t *testing.T) {
	testenv.Long(t) // not parallel: the programs would delay the other tests
	sessions, err := strconv.Atoi(cmp.Or(os.Getenv("HARVEST_TEST_SESSIONS"), "1"))
	if err != nil {
		t.Fatal(err)
	}
	stub := modeltest.New(t, host.ModelKey)
	stub.Script("one", modeltest.Step{Say: "One."})
	stub.Script("two", modeltest.Step{Say: "Two."})
	h := host.NewModel(t, stub)
	dir := h.Project()
	h.Must("agent", "--agent", "claude", "--repo", dir, "[one] go") // the image is built before
	h.Must("end", "--discard", h.Session())
	for range 8 {
		busy := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
		if err := busy.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = busy.Process.Kill() // it has not ended by itself
			_ = busy.Wait()
		}()
	}
	for n := range sessions {
		h.Must("agent", "--agent", "claude", "--repo", dir, "-e", "ENABLE_TOOL_SEARCH=false", "[one] go")
		id, before := h.Session(), len(stub.Requests())
		events := h.Must("send", id, "-o", "json", "[two] go")
		var request string
		for _, r := range stub.Requests()[before:] {
			if body := string(r.Body); strings.Contains(body, "[two] go") && strings.Contains(body, `"name":"Bash"`) {
				request = body
			}
		}
		for _, server := range []string{"memory", "filesystem", "playwright", "devtools"} {
			if !strings.Contains(request, `"name":"mcp__`+server+"__") {
				t.Errorf("session %d: the second request has no tool of %s; the events: %.20000s", n, server, events)
			}
		}
		h.Must("end", "--discard", id)
	}
}
