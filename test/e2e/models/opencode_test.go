package models

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/session/model"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

// TestChatOfOpenCode runs the real OpenCode with Chat Completions: it answers, calls its shell, and the usage is known.
//
// mission: F6
func TestChatOfOpenCode(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	program := host.OpenCode(t)
	w := newWorld(t)
	w.stub.Script("shell", modeltest.Step{Call: "Bash", Input: map[string]any{"command": "expr 40 + 2",
		"description": "add"}}, modeltest.Step{Say: "That was it."})
	home := t.TempDir()
	config, err := json.Marshal(map[string]any{"provider": map[string]any{"h": map[string]any{
		"npm": "@ai-sdk/openai-compatible", "models": map[string]any{"m": map[string]any{}},
		"options": map[string]any{"baseURL": w.url + model.OpenAI.Path(), "apiKey": w.Token("ses_1")}}}})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "run", "--format", "json", "-m", "h/m", "[shell] go")
	cmd.Dir = home
	cmd.Env = append(testenv.CleanEnv(), "HOME="+home, "OPENCODE_CONFIG_CONTENT="+string(config),
		"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "42") || !strings.Contains(string(out), "That was it.") {
		t.Errorf("%v: %s", err, out)
	}
	if f := w.answers.Take(); f != nil {
		t.Error(f)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.spent) < 2 {
		t.Errorf("used %+v", w.spent)
	}
	for _, u := range w.spent {
		if u.Model != "m" || u.OutputTokens != 50 || !u.Unpriced {
			t.Errorf("used %+v", u)
		}
	}
	for _, r := range w.stub.Requests() {
		if r.Header.Get("Authorization") != "Bearer "+host.ModelKey ||
			strings.Contains(string(r.Body), w.Token("ses_1")) {
			t.Errorf("%s: %v", r.Path, r.Header)
		}
	}
}
