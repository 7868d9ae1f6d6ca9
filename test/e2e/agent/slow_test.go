package agent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/mcp"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

// TestPromptWaitsForSlowServer checks that the real Claude gets its first prompt only when all four servers of the
// agent image are ready, also if one of them starts ten seconds late.
//
// mission: E1, E5
func TestPromptWaitsForSlowServer(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	stub := modeltest.New(t, host.ModelKey)
	stub.Script("hello", modeltest.Step{Say: "Hello."})
	h := host.NewAgent(t)
	h.Env.Setenv("ANTHROPIC_BASE_URL", stub.URL)
	h.Env.Setenv("ANTHROPIC_API_KEY", host.ModelKey)
	servers := mcp.Servers()
	memory := servers[slices.IndexFunc(servers, func(s mcp.Server) bool { return s.Name == "memory" })]
	// sh runs the server, its $0 and $@, later.
	config, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"memory": map[string]any{"command": "sh",
		"args": append([]string{"-c", `sleep 10; exec "$0" "$@"`}, memory.Command...), "env": memory.Env}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "servers.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	out, stderr, code := h.In(h.Project(), "agent", "--agent", "claude", "--memory", "4GiB", "--mcp-config", file,
		"-e", "ENABLE_TOOL_SEARCH=false", "-o", "json", "[hello] there")
	if code != 0 {
		t.Fatalf("exit code %d: %s\n%.20000s\n%s", code, stderr, out, h.Log())
	}
	var order []string
	for _, e := range turnEvents(t, out) {
		switch e.Type {
		case "mcp.ready":
			order = append(order, e.Data.ID)
		case "mcp.failed", "message.sent":
			order = append(order, e.Type+e.Data.Reason)
		}
	}
	if len(order) != 5 || order[4] != "message.sent" || order[3] != "memory" {
		t.Errorf("servers and prompt came as %q", order)
	}
	if missing := missingTools(stub, "[hello]", "mcp__memory__", "mcp__filesystem__", "mcp__playwright__",
		"mcp__devtools__"); len(missing) > 0 {
		t.Errorf("the first request with the prompt has no tools %v", missing)
	}
	h.Must("end", "--discard", h.Session())
}
