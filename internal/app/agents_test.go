package app

import (
	"slices"
	"strings"
	"testing"

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
