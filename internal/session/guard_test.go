package session_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/claude"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted"
	"github.com/RelevanceAI/harvest/internal/session/model"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// settled is an agent that reads the same settings as Claude Code. It answers each prompt with the content of the
// settings file that takes precedence over the repository's.
type settled struct {
	scripted.Agent
	like claude.Agent
}

const settledProgram = `
import json, sys
for line in sys.stdin:
    print(json.dumps({"type": "done", "text": open(sys.argv[1]).read(), "reason": "completed"}), flush=True)
`

// Modelless reports that it uses a model.
func (settled) Modelless() bool { return false }

// Command implements agent.Agent.
func (s settled) Command(setup agent.Setup) engine.Command {
	return engine.Command{Args: []string{"python3", "-c", settledProgram, setup.Settings}, Dir: setup.Dir,
		Env: s.like.Command(setup).Env}
}

// Guarded implements agent.Guard.
func (s settled) Guarded() []string { return s.like.Guarded() }

// Guard implements agent.Guard.
func (s settled) Guard(env map[string]string) []byte { return s.like.Guard(env) }

// SettingsFiles implements agent.Guard.
func (s settled) SettingsFiles() []string { return s.like.SettingsFiles() }

// Redirects implements agent.Guard.
func (s settled) Redirects(text []byte) []string { return s.like.Redirects(text) }

// TestSettingsOfRepositoryAreOverridden checks that the session's way to the model takes precedence over the settings
// of its repository, and that an event names the settings of each file that are not used: those at the top level and
// those of the directory in which the agent works.
//
// mission: E1
func TestSettingsOfRepositoryAreOverridden(t *testing.T) {
	t.Parallel()
	const upstream = "http://127.0.0.1:9/ours"
	gateway, err := model.New(model.Options{
		Upstreams: map[model.Provider]string{model.Anthropic: upstream}, Key: []byte("k"),
		Credential: func(context.Context, string, []string, []model.Provider) (model.Credential, error) {
			return model.Credential{Kind: model.APIKey, Value: "sk-ant-ours"}, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	h := newHouse(t, session.Options{Agents: map[string]agent.Agent{"scripted": settled{}}, Models: gateway,
		DirectModels: true})
	s := h.create(t, session.Request{Bundle: repository(t), Name: "project", Subdir: "sub"})
	w := h.watch(s.ID)
	w.status(t, records.Ready)
	h.sh(t, s.ID, `mkdir -p .claude sub/.claude
echo '{"env":{"ANTHROPIC_BASE_URL":"http://other","FOO":"1"},"apiKeyHelper":"echo x"}' >.claude/settings.json
echo '{"env":{"FOO":"1"},"model":"m"}' >.claude/settings.local.json
echo '{"env":{"ANTHROPIC_AUTH_TOKEN":"x"}}' >sub/.claude/settings.local.json`)
	done := h.turn(t, w, "go")
	var settings struct {
		Env    map[string]string
		Helper *string `json:"apiKeyHelper"`
	}
	if err := json.Unmarshal([]byte(done.data.Text), &settings); err != nil || settings.Helper == nil ||
		*settings.Helper != "" || settings.Env["ANTHROPIC_BASE_URL"] != upstream {
		t.Errorf("the agent's own settings are %s: %v", done.data.Text, err)
	}
	if token, ok := settings.Env["ANTHROPIC_AUTH_TOKEN"]; !ok || token != "" {
		t.Errorf("the agent's own settings leave the token of the repository: %s", done.data.Text)
	}
	var told []string
	for _, e := range w.all {
		if e.typ == string(agent.Overridden) {
			file, _, _ := strings.Cut(e.data.Text, ":")
			told = append(told, file)
		}
	}
	want := []string{"/workspace/project/.claude/settings.json sets ANTHROPIC_BASE_URL, apiKeyHelper",
		"/workspace/project/sub/.claude/settings.local.json sets ANTHROPIC_AUTH_TOKEN"}
	if !slices.Equal(told, want) {
		t.Errorf("overridden: %q, want %q", told, want)
	}
}
