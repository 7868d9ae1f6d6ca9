package repo

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

// TestDoors starts a session in a dev container with two features, has a real Claude Code look at it over MCP, and
// copies files in and out over SSH with rsync and sftp.
func TestDoors(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.RequireTool(t, "sftp", "openssh-client")
	testenv.RequireTool(t, "rsync", "rsync")
	h := host.NewAgent(t)
	g := host.NewGit(t, "")
	g.Commit("doors", devContainer())
	if said, code := g.Add(h, "doors"); code != 0 {
		t.Fatalf("exit code %d\n%s", code, said)
	}
	t.Cleanup(func() { removeCache(h) })
	args := append([]string{"agent", "--agent", "scripted", "--repo", g.URL("doors"), "-o", "text"}, g.Network()...)
	h.Must(append(args, "/write seen.txt walnut")...)
	session := h.Session()
	t.Cleanup(func() { h.Must("end", session, "--discard") })

	said := claudeLooks(t, h, session)
	if !strings.Contains(said, "walnut") || !strings.Contains(said, "I have seen it.") {
		t.Errorf("Claude Code: %.8000s", said)
	}

	home := t.TempDir()
	h.Env.Setenv("HOME", home)
	h.Must("ssh-config", "--install")
	config, remote := filepath.Join(home, ".ssh", "config"), session+".harvest"
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Env = append(append([]string(nil), h.Env.Vars...), "RSYNC_RSH=ssh -F "+config)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v\n%s\n%s", name, args, err, out, h.Log())
		}
		return string(out)
	}
	testenv.WriteFile(t, filepath.Join(home, "in", "file.txt"), []byte("from the machine\n"))
	run("rsync", "-a", filepath.Join(home, "in")+"/", remote+":/code/in/")
	run("rsync", "-a", remote+":/code/", filepath.Join(home, "out"))
	batch := filepath.Join(home, "batch")
	testenv.WriteFile(t, batch, []byte("get /etc/features "+filepath.Join(home, "features")+"\n"+
		"put "+batch+" /code/sent\n"))
	run("sftp", "-F", config, "-b", batch, remote)
	for path, want := range map[string]string{"out/seen.txt": "walnut", "out/in/file.txt": "from the machine\n",
		"features": "first dev\nsecond good day /opt/first\n"} {
		if text, err := os.ReadFile(filepath.Join(home, path)); err != nil || strings.TrimSpace(string(text)) !=
			strings.TrimSpace(want) {
			t.Errorf("%s has %q, %v", path, text, err)
		}
	}
	got := run("ssh", "-F", config, remote, "id -un; wc -l </code/sent; echo $FROM_REMOTE")
	if got != "dev\n2\ntwo\n" {
		t.Errorf("ssh prints %q", got)
	}
}

// claudeLooks has Claude Code wait for a session and look at its changes, with harvest mcp, and returns its output.
func claudeLooks(t *testing.T, h *host.Host, session string) string {
	t.Helper()
	stub := modeltest.New(t, host.ModelKey)
	look := map[string]any{"session": session}
	stub.Script("look",
		modeltest.Step{Call: "mcp__harvest__agent_wait", Input: look},
		modeltest.Step{Call: "mcp__harvest__diff", Input: look},
		modeltest.Step{Say: "I have seen it."})
	server := h.Command(t.Context())
	env := map[string]string{}
	for _, pair := range server.Env {
		key, value, _ := strings.Cut(pair, "=")
		env[key] = value
	}
	config, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"harvest": map[string]any{"type": "stdio",
		"command": server.Path, "args": []string{"mcp"}, "env": env}}})
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	file := filepath.Join(home, "mcp.json")
	testenv.WriteFile(t, file, config)
	cmd := exec.CommandContext(t.Context(), host.ClaudeCode(t), "-p", "[look] go", "--mcp-config", file,
		"--strict-mcp-config", "--allowedTools", "mcp__harvest", "--output-format", "stream-json", "--verbose")
	cmd.Dir = home
	cmd.Env = append(testenv.CleanEnv(), "PWD="+home, "HOME="+home, "ANTHROPIC_BASE_URL="+stub.URL,
		"ANTHROPIC_API_KEY="+host.ModelKey, "ENABLE_TOOL_SEARCH=false", "DISABLE_AUTOUPDATER=1",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("claude: %v", err)
	}
	return string(out)
}
