// Package acp tests agents that speak the Agent Client Protocol: the real programs in sandboxes, with stubs as models.
package acp

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

// working is a command of a tool that runs until the end of the test.
const working = "touch working; until test -e over; do sleep 0.1; done"

// segv kills the agent with SIGSEGV once its tool works.
const segv = `until test -e /workspace/work/working; do sleep 0.1; done
rm /workspace/work/working
found=1
for p in /proc/[0-9]*; do
	if [ "$(cat $p/comm 2>/dev/null)" = "$0" ]; then kill -SEGV $(basename $p); found=0; fi
done
exit $found`

// call is a step of the model that runs a command.
func call(command string) modeltest.Step {
	return modeltest.Step{Call: "Bash", Input: map[string]any{"command": command, "description": "a command"}}
}

// TestRealAgents checks a session with a real agent: a tool after a question that waits while the server restarts, a
// stop, a crash in the middle of a turn, a model that fails, and a session that continues the conversation.
//
// mission: E1, E2, E4
func TestRealAgents(t *testing.T) {
	testenv.Long(t)
	for _, name := range []string{"opencode-acp"} {
		t.Run(name, func(t *testing.T) {
			stub := modeltest.New(t, host.ModelKey)
			stub.Script("first", modeltest.Step{Say: "I look around.", Call: "Bash", Input: map[string]any{
				"command": "echo walnut > a; cat a", "description": "write"}},
				modeltest.Step{Say: "It is written."})
			stub.Script("long", call(working), modeltest.Step{Say: "It is over."})
			stub.Script("crash", call(working), modeltest.Step{Say: "I went on."})
			stub.Script("broken", modeltest.Step{Status: 401, Kind: "authentication_error"})
			stub.Script("last", modeltest.Step{Say: "Well."})
			testAgent(t, name, "opencode", stub)
		})
	}
}

func testAgent(t *testing.T, name, program string, stub *modeltest.Stub) {
	h := host.NewCLI(t, stub)
	h.Must("agent", "--agent", name, "--repo", "none", "--approval", "ask", "-d", "[first] go")
	id := h.Session()
	asked := h.Event(id, 0, "agent.asked")
	if !strings.Contains(string(asked.Data.Input), "echo walnut") {
		t.Errorf("asked: %+v", asked.Data)
	}
	h.Kill()
	h.Must("answer", id, asked.Data.ID, "--allow")
	done := h.Event(id, 0, "done")
	if done.Data.Failed || done.Data.Text != "It is written." || done.Data.Usage == nil ||
		done.Data.Usage.OutputTokens == 0 {
		t.Errorf("done: %+v; %s", done.Data, h.Log())
	}
	if tool := h.Event(id, 0, "tool.completed").Data; tool.Failed || !strings.Contains(tool.Text, "walnut") {
		t.Errorf("tool: %+v", tool)
	}

	h.Must("send", "-d", id, "[long] go")
	asked = h.Event(id, done.ID, "agent.asked")
	h.Must("answer", id, asked.Data.ID, "--allow")
	h.Must("sandbox", "exec", h.Box(), "--", "sh", "-c", "until test -e /workspace/work/working; do sleep 0.1; done")
	h.Must("stop", id)
	done = h.Event(id, done.ID, "done")
	if !done.Data.Interrupted {
		t.Errorf("stopped: %+v", done.Data)
	}

	h.Must("send", "-d", id, "[crash] go")
	asked = h.Event(id, done.ID, "agent.asked")
	h.Must("sandbox", "exec", h.Box(), "--", "rm", "-f", "/workspace/work/working")
	h.Must("answer", id, asked.Data.ID, "--allow")
	h.Must("sandbox", "exec", h.Box(), "--", "sh", "-c", segv, program)
	crashed := h.Event(id, done.ID, "agent.crashed")
	if !strings.Contains(crashed.Data.Reason, "SIG") {
		t.Errorf("crashed: %+v", crashed.Data)
	}
	asked = h.Event(id, crashed.ID, "agent.asked") // the agent got the prompt again
	h.Must("answer", id, asked.Data.ID, "--allow")
	h.Must("sandbox", "exec", h.Box(), "--", "touch", "/workspace/work/over")
	if done = h.Event(id, done.ID, "done"); done.Data.Failed {
		t.Errorf("after the crash: %+v", done.Data)
	}

	h.Must("send", "-d", id, "[broken] go")
	if done = h.Event(id, done.ID, "done"); !done.Data.Failed || done.Data.Cause != "key_refused" {
		t.Errorf("a model that refuses the key: %+v", done.Data)
	}

	h.Must("end", "--discard", id)
	before := len(stub.Requests())
	if out := h.Must("agent", "--continue", id, "[last] go"); !strings.Contains(out, "Well.") {
		t.Errorf("the session that continues: %s", out)
	}
	if !slices.ContainsFunc(stub.Requests()[before:], func(r modeltest.Request) bool {
		return bytes.Contains(r.Body, []byte("I look around.")) && bytes.Contains(r.Body, []byte("[last]"))
	}) {
		t.Error("the model did not get the earlier conversation")
	}
}

// installed are agents that are installed into the sandbox, with the variables of a server whose agents use them: the
// address of the stub, and a key.
var installed = map[string]struct{ base, path, key, model string }{
	"claude-acp": {"ANTHROPIC_BASE_URL", "", "ANTHROPIC_API_KEY", ""},
	"codex":      {"OPENAI_BASE_URL", "/v1", "OPENAI_API_KEY", "gpt-6.2-sol"},
	"qwen":       {"OPENAI_BASE_URL", "/v1", "OPENAI_API_KEY", "gpt-5.5"},
	"gemini":     {"GOOGLE_GEMINI_BASE_URL", "", "GEMINI_API_KEY", "gemini-3.8-flash"},
}

// TestInstalledAgent checks that a built-in agent that the image lacks is installed from the npm registry before its
// first turn, and works through the gateway: the server counts what it costs, and the sandbox does not have the key.
//
// mission: E1, F6
func TestInstalledAgent(t *testing.T) {
	testenv.Long(t)
	registry := testenv.NPMRegistry(t)
	for name, with := range installed {
		t.Run(name, func(t *testing.T) {
			stub := modeltest.New(t, host.ModelKey)
			stub.Script("first", call("echo walnut > a; cat a"), modeltest.Step{Say: "It is written."})
			h := host.NewModel(t, stub)
			h.Env.Setenv("ANTHROPIC_API_KEY", "")
			h.Env.Setenv(with.base, stub.URL+with.path)
			h.Env.Setenv(with.key, host.ModelKey)
			h.Must("agent", "--agent", name, "--model", with.model, "--repo", "none", "--memory", "4GiB", "-e",
				"NPM_CONFIG_REGISTRY="+registry, "-d", "[first] go")
			id := h.Session()
			if notice := h.Event(id, 0, "agent.notice").Data; notice.Reason != "installing" {
				t.Errorf("notice: %+v", notice)
			}
			done := h.Event(id, 0, "done").Data
			if done.Failed || done.Text != "It is written." || done.Usage == nil || done.Usage.Cost <= 0 {
				t.Fatalf("done: %+v; %s", done, h.Log())
			}
			if tool := h.Event(id, 0, "tool.completed").Data; tool.Failed || !strings.Contains(tool.Text, "walnut") {
				t.Errorf("tool: %+v", tool)
			}
			out := h.Must("sandbox", "exec", "--user", "root", h.Box(), "--", "sh", "-c",
				"cat /proc/[0-9]*/environ | grep -ac "+host.ModelKey+" || true")
			if strings.TrimSpace(out) != "0" {
				t.Errorf("%s processes of the sandbox have the key", out)
			}
			h.Must("end", "--discard", id)
		})
	}
}

// TestLocksInstall checks that npm accepts each lock: some packages name others that no registry has.
func TestLocksInstall(t *testing.T) {
	testenv.Long(t)
	registry, npm := testenv.NPMRegistry(t), testenv.RequireTool(t, "npm", "npm")
	const locks = "../../../internal/session/agent/acp/bridge/locks"
	names, err := os.ReadDir(locks)
	if err != nil || len(names) == 0 {
		t.Fatal(err)
	}
	for _, name := range names {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(locks, name.Name()))); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), npm, "ci", "--dry-run", "--ignore-scripts", "--no-audit", "--no-fund",
			"--registry", registry)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", name.Name(), err, out)
		}
	}
}
