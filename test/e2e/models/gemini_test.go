package models

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/session/model"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

// TestGeminiCLI runs the real Gemini CLI: it answers, calls its shell and an MCP server, and ends with the reason if
// the model fails.
//
// mission: F6
func TestGeminiCLI(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	program := host.Gemini(t)
	w := newWorld(t)
	w.stub.Script("hello", modeltest.Step{Say: "Hello from the model."})
	command := map[string]any{"command": "expr 40 + 2 >out", "description": "write a file"} // it refuses $()
	w.stub.Script("shell", modeltest.Step{Call: "Bash", Input: command}, modeltest.Step{Say: "Done."})
	w.stub.Script("mcp", modeltest.Step{Call: "mcp__small__shout", Input: map[string]any{"word": "hey"}},
		modeltest.Step{Say: "It shouted."})
	w.stub.Script("broke", modeltest.Step{Status: 403, Kind: "PERMISSION_DENIED"})
	home := t.TempDir()
	testenv.WriteFile(t, filepath.Join(home, ".gemini", "settings.json"),
		[]byte(`{"security":{"auth":{"selectedType":"gemini-api-key"}},"privacy":{"usageStatisticsEnabled":false},`+
			`"general":{"enableAutoUpdate":false,"enableAutoUpdateNotification":false},`+
			`"mcpServers":{"small":{"command":"python3","args":["`+smallServer(t)+`"]}}}`))
	run := func(prompt string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program, "--approval-mode", "yolo", "-m", "gemini-3.8-flash", "-p",
			prompt)
		cmd.Dir = home
		cmd.Env = append(testenv.CleanEnv(), "HOME="+home, "GEMINI_CLI_TRUST_WORKSPACE=true",
			"GOOGLE_GEMINI_BASE_URL="+w.url+model.Gemini.Path(), "GEMINI_API_KEY="+w.Token("ses_1"))
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	for prompt, want := range map[string]string{"[hello] you": "Hello from the model.", "[shell] go": "Done.",
		"[mcp] go": "It shouted."} {
		if out := run(prompt); !strings.Contains(out, want) {
			t.Errorf("%s: %s", prompt, out)
		}
		if f := w.answers.Take(); f != nil {
			t.Errorf("%s: %v", prompt, f)
		}
	}
	if text, err := os.ReadFile(filepath.Join(home, "out")); string(text) != "42\n" {
		t.Errorf("the command wrote %q, %v", text, err)
	}
	if out := run("[broke] go"); !strings.Contains(out, "set to fail") {
		t.Errorf("a failure: %s", out)
	}
	if f := w.answers.Take(); f == nil || f.Type != "PERMISSION_DENIED" {
		t.Errorf("a failure: %v", f)
	}
	shouted := false
	for _, r := range w.stub.Requests() {
		shouted = shouted || strings.Contains(string(r.Body), "HEY")
		if r.Header.Get("X-Goog-Api-Key") != host.ModelKey ||
			strings.Contains(r.Query+string(r.Body), w.Token("ses_1")) {
			t.Errorf("%s: %v", r.Path, r.Header)
		}
	}
	if !shouted {
		t.Error("the MCP server was not called")
	}
}
