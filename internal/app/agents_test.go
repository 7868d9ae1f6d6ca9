package app

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/agenttest"
)

// TestConformance checks that all built-in agents, and a command, keep the contract of agents.
func TestConformance(t *testing.T) {
	t.Parallel()
	all := builtIn()
	all["command"] = commandAgent("goose acp")
	for name, a := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			agenttest.Conformance(t, a)
		})
	}
}

// TestAgents checks that all agents have a command, and that those of the configuration have theirs.
func TestAgents(t *testing.T) {
	t.Parallel()
	all := agentsOf([]string{"kimi.command=kimi --acp", "kimi.install=npm install -g kimi", "kimi.env.A=1=2",
		"kimi.env.B=", "codex.command=my-codex"})
	for _, name := range []string{"claude", "opencode", "scripted", "claude-acp", "opencode-acp", "codex", "gemini",
		"qwen", "pi", "copilot", "kimi"} {
		a := all[name]
		if a == nil || a.Name() != name {
			t.Errorf("%s: %+v", name, a)
			continue
		}
		cmd := a.Command(agent.Setup{Dir: "/w", Access: &agent.Access{Kind: agent.AccessKey, Token: "t"}})
		if len(cmd.Args) == 0 {
			t.Errorf("%s has no command", name)
		}
	}
	cmd := all["kimi"].Command(agent.Setup{Dir: "/w"})
	if got := strings.Join(cmd.Args, "|"); got != "harvest-acp|-name|kimi|-dir|/w|-install|"+
		"npm install -g kimi|--|/bin/sh|-c|exec kimi --acp" || cmd.Env["A"] != "1=2" || len(cmd.Env) != 2 {
		t.Errorf("%s, %v", got, cmd.Env)
	}
	if args := all["codex"].Command(agent.Setup{}).Args; !slices.Contains(args, "exec my-codex") {
		t.Errorf("%v", args)
	}
	cmd = commandAgent("x --acp 'a b'").Command(agent.Setup{Dir: "/w"})
	if got := cmd.Args[len(cmd.Args)-1]; got != "exec x --acp 'a b'" {
		t.Error(got)
	}
	env := all["opencode-acp"].Command(agent.Setup{Approval: agent.ApproveNone,
		Access: &agent.Access{Kind: agent.AccessKey, Token: "t"}}).Env
	if !strings.Contains(env["OPENCODE_PERMISSION"], `"*":"ask"`) || env["ANTHROPIC_API_KEY"] != "t" {
		t.Errorf("%v", env)
	}
	if env := all["claude-acp"].Command(agent.Setup{Access: &agent.Access{Kind: agent.AccessKey, Token: "t",
		URL: "http://gateway"}}).Env; env["ANTHROPIC_BASE_URL"] != "http://gateway" {
		t.Errorf("%v", env)
	}
}

// TestPi checks that pi gets its provider's own variable, and the address for the extension unless pi knows it.
func TestPi(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		access agent.Access
		want   map[string]string
	}{
		{agent.Access{Kind: agent.AccessKey, URL: "http://g"}, map[string]string{"ANTHROPIC_API_KEY": "t",
			"HARVEST_MODEL_PROVIDER": "anthropic", "HARVEST_MODEL_URL": "http://g"}},
		{agent.Access{Kind: agent.AccessBearer}, map[string]string{"ANTHROPIC_AUTH_TOKEN": "t"}},
		{agent.Access{Kind: agent.AccessOpenAI, URL: "http://g/v1"}, map[string]string{"OPENAI_API_KEY": "t",
			"HARVEST_MODEL_PROVIDER": "openai", "HARVEST_MODEL_URL": "http://g/v1"}},
		{agent.Access{Kind: agent.AccessOpenRouter, URL: "http://g/v1"}, map[string]string{"OPENROUTER_API_KEY": "t",
			"HARVEST_MODEL_PROVIDER": "openrouter", "HARVEST_MODEL_URL": "http://g/v1"}},
		{agent.Access{Kind: agent.AccessGemini, URL: "http://g"}, map[string]string{"GEMINI_API_KEY": "t",
			"HARVEST_MODEL_PROVIDER": "google", "HARVEST_MODEL_URL": "http://g/v1beta"}},
		{agent.Access{Kind: agent.AccessGemini}, map[string]string{"GEMINI_API_KEY": "t"}},
	} {
		c.access.Token = "t"
		got := builtIn()["pi"].Command(agent.Setup{Access: &c.access}).Env
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%+v: %s", c.access, diff)
		}
	}
}

// TestLocks checks that a profile names the package and the version that its lock installs.
func TestLocks(t *testing.T) {
	t.Parallel()
	for _, p := range profiles {
		if p.Lock == "" {
			continue
		}
		text, err := os.ReadFile("../session/agent/acp/bridge/locks/" + p.Lock + "/package.json")
		if err != nil {
			t.Fatal(err)
		}
		var file struct{ Dependencies map[string]string }
		if err := json.Unmarshal(text, &file); err != nil {
			t.Fatal(err)
		}
		name, version, _ := lastCut(p.NPM, "@")
		if p.NPM != "" && file.Dependencies[name] != version {
			t.Errorf("%s: the profile has %s, the lock %v", p.ID, p.NPM, file.Dependencies)
		}
	}
}

// TestReleases checks the versions of agents in the configuration.
func TestReleases(t *testing.T) {
	t.Parallel()
	agents := agentsOf([]string{"kimi.command=kimi"})
	got, err := releasesOf([]string{"claude=2.1.331", "codex=2.5.0", "opencode-acp=1.18.32"}, agents)
	if err != nil || len(got) != 3 || got["codex"] != "2.5.0" {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"other=1.2.3", "claude=latest", "kimi=1.2.3", "pi=0.0.34", "scripted=1.0.0"} {
		if _, err := releasesOf([]string{bad}, agents); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
