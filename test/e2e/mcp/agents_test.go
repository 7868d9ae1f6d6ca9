package mcp

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

// work is the script of a model that uses the tools, in the environment of this name.
func work(stub *modeltest.Stub, name string) {
	stub.Script("work",
		modeltest.Step{Say: "I create an environment.", Call: "mcp__harvest__environment_create",
			Input: args{"name": name}},
		modeltest.Step{Call: "mcp__harvest__run", Input: args{"environment": name,
			"command":     "cat notes.txt; expr 40 + 2",
			"explanation": "look"}},
		modeltest.Step{Call: "mcp__harvest__write", Input: args{"environment": name, "path": "made.txt",
			"content": "by an agent\n", "explanation": "Make a file with tools"}},
		modeltest.Step{Call: "mcp__harvest__hand_back", Input: args{"environment": name}},
		modeltest.Step{Say: "The work is on a branch."})
}

// worked checks that an agent has done the work: the model got the results, and the repository has the branch.
func worked(t *testing.T, stub *modeltest.Stub, dir, name, said string) {
	t.Helper()
	var bodies strings.Builder
	for _, r := range stub.Requests() {
		bodies.Write(r.Body)
	}
	for _, text := range []string{"working directory /workspace/project", "walnut", "exit code 0", "committed ",
		"The branch harvest/" + name} {
		if !strings.Contains(bodies.String(), text) {
			t.Errorf("%q did not reach the model. The agent: %.8000s", text, said)
			return
		}
	}
	if text := git(t, dir, "show", "harvest/"+name+":made.txt"); text != "by an agent\n" {
		t.Errorf("made.txt: %q", text)
	}
	if log := git(t, dir, "log", "-1", "--format=%s", "harvest/"+name); log != "Make a file with tools\n" {
		t.Errorf("log: %q", log)
	}
}

// setting returns the program harvest, and the environment in which agents start it.
func setting(t *testing.T, h *host.Host) (program string, env map[string]string) {
	t.Helper()
	cmd := h.Command(t.Context())
	env = map[string]string{}
	for _, pair := range cmd.Env {
		key, value, _ := strings.Cut(pair, "=")
		env[key] = value
	}
	return cmd.Path, env
}

// TestAgents has real agents work with the tools: Claude Code over stdio and over HTTP, Codex and OpenCode over stdio.
func TestAgents(t *testing.T) {
	testenv.Long(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	url := h.Up()
	key := h.Must("key", "create", "tools", "--quiet")
	program, env := setting(t, h)
	t.Run("claude", func(t *testing.T) {
		claude(t, h, "c1", map[string]any{"type": "stdio", "command": program, "args": []string{"mcp"}, "env": env})
	})
	t.Run("claude http", func(t *testing.T) {
		claudeHTTP(t, h, url, key)
	})
	t.Run("codex", func(t *testing.T) { codex(t, h, program, env) })
	t.Run("opencode", func(t *testing.T) { openCode(t, h, program, env) })
}

// runClaude runs Claude Code with an MCP server, and returns its output.
func runClaude(t *testing.T, stub *modeltest.Stub, dir string, server map[string]any) string {
	t.Helper()
	home := t.TempDir()
	config, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"harvest": server}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(home, "mcp.json")
	testenv.WriteFile(t, file, config)
	cmd := exec.CommandContext(t.Context(), host.ClaudeCode(t), "-p", "[work] go", "--mcp-config", file,
		"--strict-mcp-config", "--allowedTools", "mcp__harvest", "--output-format", "stream-json", "--verbose")
	cmd.Dir = dir
	cmd.Env = append(testenv.CleanEnv(), "PWD="+dir, "HOME="+home, "ANTHROPIC_BASE_URL="+stub.URL,
		"ANTHROPIC_API_KEY="+host.ModelKey,
		"ENABLE_TOOL_SEARCH=false", "DISABLE_AUTOUPDATER=1",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("claude: %v", err)
	}
	return string(out)
}

func claude(t *testing.T, h *host.Host, name string, server map[string]any) {
	t.Helper()
	stub := modeltest.New(t, host.ModelKey)
	work(stub, name)
	dir := project(t, h)
	said := runClaude(t, stub, dir, server)
	worked(t, stub, dir, name, said)
	if !strings.Contains(said, "The work is on a branch.") {
		t.Errorf("claude: %.8000s", said)
	}
}

// claudeHTTP has Claude Code continue an environment over HTTP.
func claudeHTTP(t *testing.T, h *host.Host, url, key string) {
	t.Helper()
	stub := modeltest.New(t, host.ModelKey)
	stub.Script("work",
		modeltest.Step{Call: "mcp__harvest__environment_create", Input: args{"name": "remote"}},
		modeltest.Step{Call: "mcp__harvest__run", Input: args{"environment": "remote",
			"command":     "echo over-$((40 + 2))",
			"explanation": "look"}},
		modeltest.Step{Say: "Done."})
	said := runClaude(t, stub, project(t, h), map[string]any{"type": "http", "url": url + "/mcp",
		"headers": map[string]string{"Authorization": "Bearer " + key}})
	if !strings.Contains(said, "over-42") || !strings.Contains(said, "Done.") {
		t.Errorf("claude: %.8000s", said)
	}
}

func codex(t *testing.T, h *host.Host, program string, env map[string]string) {
	t.Helper()
	stub := modeltest.New(t, host.ModelKey)
	work(stub, "c2")
	dir, home := project(t, h), t.TempDir()
	var pairs []string
	for name, value := range env {
		pair, err := json.Marshal(value) // a string of TOML, too
		if err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, name+"="+string(pair))
	}
	cmd := exec.CommandContext(t.Context(), host.Codex(t), "exec", "--sandbox", "danger-full-access", "-m",
		"plain-model",
		"-c", `model_provider="h"`, "-c",
		`model_providers.h={name="h",base_url="`+stub.URL+`/v1",wire_api="responses",`+
			`env_key="HARVEST_MODEL_KEY",supports_websockets=false}`, "-c",
		`mcp_servers.harvest={command="`+program+`",args=["mcp"],env={`+strings.Join(pairs, ",")+`},`+
			`default_tools_approval_mode="approve",required=true,startup_timeout_sec=120}`, "[work] go")
	cmd.Dir = dir
	cmd.Env = append(testenv.CleanEnv(), "PWD="+dir, "HOME="+home, "CODEX_HOME="+filepath.Join(home, ".codex"),
		"HARVEST_MODEL_KEY="+host.ModelKey)
	testenv.WriteFile(t, filepath.Join(home, ".codex", "config.toml"), nil)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("codex: %v", err)
	}
	worked(t, stub, dir, "c2", string(out))
}

func openCode(t *testing.T, h *host.Host, program string, env map[string]string) {
	t.Helper()
	stub := modeltest.New(t, host.ModelKey)
	work(stub, "c3")
	dir, home := project(t, h), t.TempDir()
	config, err := json.Marshal(map[string]any{
		"provider": map[string]any{"h": map[string]any{"npm": "@ai-sdk/openai-compatible",
			"models":  map[string]any{"m": map[string]any{}},
			"options": map[string]any{"baseURL": stub.URL + "/v1", "apiKey": host.ModelKey}}},
		"mcp": map[string]any{"harvest": map[string]any{"type": "local", "command": []string{program, "mcp"},
			"environment": env, "enabled": true, "timeout": 120000}}})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), host.OpenCode(t), "run", "--format", "json", "-m", "h/m", "[work] go")
	cmd.Dir = dir
	cmd.Env = append(testenv.CleanEnv(), "PWD="+dir, "HOME="+home, "OPENCODE_CONFIG_CONTENT="+string(config),
		"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("opencode: %v", err)
	}
	worked(t, stub, dir, "c3", string(out))
}
