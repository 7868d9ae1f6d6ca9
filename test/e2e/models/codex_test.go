// Package models tests the gateway to models with the programs of agents, on this machine.
package models

import (
	"bufio"
	"context"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/session/model"
	"github.com/RelevanceAI/harvest/internal/session/model/tunnel"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

// world is a gateway between a stub and the program of a sandbox.
type world struct {
	*model.Gateway
	stub    *modeltest.Stub
	url     string // for agents
	answers model.Answers

	mu    sync.Mutex
	spent []model.Usage // guarded by mu
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{stub: modeltest.New(t, host.ModelKey)}
	var err error
	w.Gateway, err = model.New(model.Options{Key: []byte("k"),
		Upstreams: map[model.Provider]string{model.OpenAI: w.stub.URL + "/v1", model.Gemini: w.stub.URL},
		Credential: func(_ context.Context, _ string, _ []string, p []model.Provider) (model.Credential, error) {
			return model.Credential{Kind: model.Default(p[0]), Value: host.ModelKey}, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	said, out := io.Pipe()
	var ended sync.WaitGroup
	t.Cleanup(func() { stop(); ended.Wait() })
	ended.Go(func() {
		tunnel.Main(ctx, []string{"-agents", "0", "-servers", "0"}, nil, out, io.Discard)
		_ = out.Close()
	})
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	agents, servers, _ := strings.Cut(strings.TrimSpace(line), " ")
	conn, err := net.Dial("tcp", servers)
	if err != nil {
		t.Fatal(err)
	}
	w.url = "http://" + agents
	ended.Go(func() {
		_ = tunnel.Serve(ctx, conn, w.Handler(model.Grant{ID: "ses_1", Answers: &w.answers, Spend: func(u model.Usage) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.spent = append(w.spent, u)
		}}))
	})
	return w
}

// smallServer returns the path of an MCP server in Python, whose tool shout answers with a word in capitals.
func smallServer(t *testing.T) string {
	t.Helper()
	testenv.RequireTool(t, "python3", "python3")
	path := filepath.Join(t.TempDir(), "small.py")
	testenv.WriteFile(t, path, []byte(`import json, sys
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m:
        continue
    r = {}
    if m["method"] == "initialize":
        r = {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}},
             "serverInfo": {"name": "small", "version": "1"}}
    elif m["method"] == "tools/list":
        r = {"tools": [{"name": "shout", "description": "Shout a word.", "inputSchema": {"type": "object",
             "properties": {"word": {"type": "string"}}, "required": ["word"]}}]}
    elif m["method"] == "tools/call":
        r = {"content": [{"type": "text", "text": m["params"]["arguments"]["word"].upper()}]}
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
`))
	return path
}

// TestCodex runs the real Codex: it answers, calls its shell and an MCP server, and ends with the reason if the model
// fails. It has a token of the gateway only, and falls back to plain HTTP if it wants a WebSocket.
//
// mission: F6
func TestCodex(t *testing.T) {
	t.Parallel()
	program := host.Codex(t)
	w := newWorld(t)
	w.stub.Script("hello", modeltest.Step{Say: "Hello from the model."})
	w.stub.Script("shell", modeltest.Step{Call: "Bash", Input: map[string]any{"command": "echo so-$((40 + 2))"}},
		modeltest.Step{Say: "Done."})
	w.stub.Script("mcp", modeltest.Step{Call: "mcp__small__shout", Input: map[string]any{"word": "hey"}},
		modeltest.Step{Say: "Done."})
	w.stub.Script("again", modeltest.Step{Say: "Hal", Cut: true, Times: 1})
	w.stub.Script("broke", modeltest.Step{Status: 400, Kind: "context_length_exceeded"})
	server := smallServer(t)
	run := func(name, prompt, socket string) string {
		t.Helper()
		home := t.TempDir()
		cmd := exec.CommandContext(t.Context(), program, "exec", "--skip-git-repo-check", "--sandbox",
			"danger-full-access", "-m", name, "-c", `model_provider="h"`, "-c",
			`model_providers.h={name="h",base_url="`+w.url+model.OpenAI.Path()+`",wire_api="responses",`+
				`env_key="HARVEST_MODEL_KEY",supports_websockets=`+socket+`}`, "-c",
			`mcp_servers.small={command="python3",args=["`+server+`"],default_tools_approval_mode="approve",`+
				`required=true}`, prompt)
		cmd.Dir = home
		cmd.Env = append(testenv.CleanEnv(), "HOME="+home, "CODEX_HOME="+filepath.Join(home, ".codex"),
			"HARVEST_MODEL_KEY="+w.Token("ses_1"))
		testenv.WriteFile(t, filepath.Join(home, ".codex", "config.toml"), nil)
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	for _, c := range []struct{ name, prompt, socket, want string }{
		{"gpt-6.2-sol", "[hello] you", "false", "Hello from the model."},
		{"gpt-6.2-sol", "[hello] you", "true", "Hello from the model."},
		{"gpt-6.2-sol", "[shell] go", "false", "so-42"},
		{"plain-model", "[shell] go", "false", "so-42"},
		{"gpt-6.2-sol", "[mcp] go", "false", "small/shout (completed)"},
		{"plain-model", "[mcp] go", "false", "small/shout (completed)"},
		{"plain-model", "[again] go", "false", "Hal"},
	} {
		if out := run(c.name, c.prompt, c.socket); !strings.Contains(out, c.want) {
			t.Errorf("%s %s: %s", c.name, c.prompt, out)
		}
		if f := w.answers.Take(); f != nil {
			t.Errorf("%s %s: %v", c.name, c.prompt, f)
		}
	}
	if out := run("plain-model", "[broke] go", "false"); !strings.Contains(out, "context window") {
		t.Errorf("a failure: %s", out)
	}
	if f := w.answers.Take(); f == nil || f.Type != "context_length_exceeded" {
		t.Errorf("a failure: %v", f)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, u := range w.spent {
		if u.InputTokens == 0 || u.OutputTokens == 0 || u.Model == "" {
			t.Errorf("used %+v", u)
		}
	}
	for _, r := range w.stub.Requests() {
		if r.Header.Get("Authorization") != "Bearer "+host.ModelKey || r.Status == 401 ||
			strings.Contains(string(r.Body), w.Token("ses_1")) {
			t.Errorf("%s: %v", r.Path, r.Header)
		}
	}
}
