package app

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/acp"
	"github.com/RelevanceAI/harvest/internal/session/agent/claude"
	"github.com/RelevanceAI/harvest/internal/session/agent/opencode"
	"github.com/RelevanceAI/harvest/internal/session/agent/release"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted"
)

// builtIn are the agents of every server.
func builtIn() map[string]agent.Agent {
	all := map[string]agent.Agent{"claude": claude.Agent{}, "opencode": opencode.Agent{}, "scripted": scripted.Agent{}}
	for _, p := range profiles {
		all[p.ID] = acp.Agent{Profile: p}
	}
	return all
}

// agentsOf returns the agents by name: the built-in ones, and those of agents.custom.
func agentsOf(custom []string) map[string]agent.Agent {
	all, own := builtIn(), map[string]acp.Profile{}
	for _, text := range custom {
		where, value, _ := strings.Cut(text, "=")
		name, field, _ := strings.Cut(where, ".")
		p, known := own[name]
		if !known {
			p = commandProfile(name, "")
		}
		variable, isEnv := strings.CutPrefix(field, "env.")
		switch {
		case isEnv:
			before := p.Env
			p.Env = func(s agent.Setup) map[string]string {
				env := map[string]string{variable: value}
				if before != nil {
					maps.Copy(env, before(s))
				}
				return env
			}
		case field == "command":
			p.Args = commandProfile(name, value).Args
		case field == "install":
			p.Install = value
		}
		own[name] = p
	}
	for name, p := range own {
		all[name] = acp.Agent{Profile: p}
	}
	return all
}

// releasesOf returns the versions of agents that the configuration names.
func releasesOf(versions []string, agents map[string]agent.Agent) (map[string]string, error) {
	all := map[string]string{}
	for _, text := range versions {
		name, version, _ := strings.Cut(text, "=")
		program, ok := agents[name]
		if !ok {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "agents.versions: unknown agent %.40q", name),
				"use one of %s", strings.Join(slices.Sorted(maps.Keys(agents)), ", "))
		}
		if _, err := release.Of(name, program, version); err != nil {
			return nil, errors.Stage(err, "agents.versions")
		}
		all[name] = version
	}
	return all, nil
}

// commandAgent returns the agent of a command that a user names.
func commandAgent(command string) agent.Agent {
	p := commandProfile(command, command)
	return acp.Agent{Profile: p}
}

func commandProfile(name, command string) acp.Profile {
	return acp.Profile{ID: name, Args: []string{"/bin/sh", "-c", "exec " + command}}
}

// profiles are the built-in agents that speak ACP.
var profiles = []acp.Profile{
	{ID: "claude-acp", NPM: "@agentclientprotocol/claude-agent-acp@0.101.0", Args: []string{"claude-agent-acp"},
		Lock: "claude-acp", Access: claudeAccess,
		Env:    fixed("IS_SANDBOX", "1", "DISABLE_AUTOUPDATER", "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
		Record: claude.Agent{}.Kept()},
	{ID: "opencode-acp", NPM: opencode.Agent{}.Package() + "@", Args: []string{"opencode", "acp"},
		Access: openCodeAccess, Env: openCodeEnv,
		Record: opencode.Agent{}.Kept()},
	{ID: "codex", NPM: "@agentclientprotocol/codex-acp@2.6.0", Args: []string{"codex-acp"}, Lock: "codex",
		Access:    codexAccess,
		Providers: []agent.Provider{agent.OpenAI}, Env: fixed("NO_BROWSER", "1"),
		Record: `"${CODEX_HOME:-$HOME/.codex}"/sessions/*/*/*/rollout-*"$CONVERSATION"*`},
	{ID: "gemini", NPM: "@google/gemini-cli@0.61.0", Args: []string{"gemini", "--acp"}, Lock: "gemini",
		Access:    geminiAccess,
		Providers: []agent.Provider{agent.Gemini},
		// Otherwise it silently drops MCP servers in a directory that nobody has trusted.
		Env: fixed("GEMINI_CLI_TRUST_WORKSPACE", "true"), Record: `"$HOME"/.gemini/tmp/*/chats/*`},
	{ID: "qwen", NPM: "@qwen-code/qwen-code@0.24.4", Args: []string{"qwen", "--acp"}, Lock: "qwen", Access: qwenAccess,
		Providers: []agent.Provider{agent.OpenAI, agent.OpenRouter},
		Record:    `"$HOME"/.qwen/projects/*/chats/"$CONVERSATION"*`},
	{ID: "pi", Args: []string{"pi-acp"}, Lock: "pi", Access: piAccess,
		Providers: []agent.Provider{agent.Anthropic, agent.OpenAI, agent.OpenRouter, agent.Gemini},
		Record:    `"$HOME"/.pi/agent/sessions/*/*"$CONVERSATION"*`},
	{ID: "copilot", NPM: "@github/copilot@1.0.102", Args: []string{"copilot", "--acp", "--stdio"}, Lock: "copilot",
		Access:    copilotAccess,
		Providers: []agent.Provider{agent.OpenAI, agent.OpenRouter},
		Record:    `"$HOME"/.copilot/session-state/"$CONVERSATION"*`},
}

// fixed returns a Profile.Env with these variables.
func fixed(pairs ...string) func(agent.Setup) map[string]string {
	return func(agent.Setup) map[string]string {
		env := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			env[pairs[i]] = pairs[i+1]
		}
		return env
	}
}

func claudeAccess(a agent.Access, _ agent.Setup) map[string]string { return claude.Environment(a) }

func openCodeAccess(a agent.Access, s agent.Setup) map[string]string {
	return opencode.Environment(a, s.Model)
}

// modelToken is the variable of Codex's token for its model.
const modelToken = "HARVEST_MODEL_TOKEN"

// codexAccess makes codex-acp merge a provider into Codex's configuration. A file would be in the way of the user's.
func codexAccess(a agent.Access, _ agent.Setup) map[string]string {
	text, err := json.Marshal(map[string]any{"model_provider": "harvest", "model_providers": map[string]any{
		"harvest": map[string]any{"name": "Harvest", "base_url": a.URL, "wire_api": "responses", "env_key": modelToken,
			"supports_websockets": false}}})
	if err != nil { // unexpected: only strings
		return nil
	}
	return map[string]string{"CODEX_CONFIG": string(text), "MODEL_PROVIDER": "harvest", modelToken: a.Token}
}

func geminiAccess(a agent.Access, _ agent.Setup) map[string]string {
	return map[string]string{"GOOGLE_GEMINI_BASE_URL": a.URL, "GEMINI_API_KEY": a.Token}
}

func qwenAccess(a agent.Access, s agent.Setup) map[string]string {
	return map[string]string{"OPENAI_BASE_URL": a.URL, "OPENAI_API_KEY": a.Token, "OPENAI_MODEL": cmp.Or(s.Model,
		"gpt-5.5")}
}

func copilotAccess(a agent.Access, s agent.Setup) map[string]string {
	return map[string]string{"COPILOT_PROVIDER_BASE_URL": a.URL, "COPILOT_PROVIDER_TYPE": "openai",
		"COPILOT_PROVIDER_API_KEY": a.Token, "COPILOT_MODEL": cmp.Or(s.Model, "gpt-5.5")}
}

// piProviders are pi's names of providers, and the variables of their credentials.
var piProviders = map[agent.AccessKind][2]string{
	agent.AccessKey: {"anthropic", "ANTHROPIC_API_KEY"}, agent.AccessBearer: {"anthropic", "ANTHROPIC_AUTH_TOKEN"},
	agent.AccessOAuth: {"anthropic", "ANTHROPIC_OAUTH_TOKEN"}, agent.AccessOpenAI: {"openai", "OPENAI_API_KEY"},
	agent.AccessOpenRouter: {"openrouter", "OPENROUTER_API_KEY"}, agent.AccessGemini: {"google", "GEMINI_API_KEY"},
}

// piAccess names the address for Harvest's extension of pi: pi itself takes it only from a file, which is the user's.
func piAccess(a agent.Access, _ agent.Setup) map[string]string {
	p := piProviders[a.Kind]
	env := map[string]string{p[1]: a.Token}
	if a.URL != "" {
		env["HARVEST_MODEL_PROVIDER"], env["HARVEST_MODEL_URL"] = p[0], a.URL
	}
	if a.URL != "" && a.Kind == agent.AccessGemini {
		env["HARVEST_MODEL_URL"] += "/v1beta"
	}
	return env
}

// openCodeEnv makes OpenCode ask as the approval says: its modes do not.
func openCodeEnv(s agent.Setup) map[string]string {
	return map[string]string{"OPENCODE_PERMISSION": opencode.Permissions(s.Approval),
		"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
}
