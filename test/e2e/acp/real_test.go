package acp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

// dir is the directory of a session without a repository.
const dir = "/workspace/work"

// real is a built-in agent, with the variables of a server whose agents use it: the address of the stub, and a key.
type real struct {
	name, base, path, key string
	models                [2]string
	inImage               bool // not installed
	forgets               bool // at times, it does not find its own record of a conversation
}

func (r real) prepare(t *testing.T, h *host.Host, stub *modeltest.Stub) []string {
	h.Env.Setenv("ANTHROPIC_API_KEY", "")
	h.Env.Setenv("ANTHROPIC_BASE_URL", "")
	h.Env.Setenv(r.base, stub.URL+r.path)
	h.Env.Setenv(r.key, host.ModelKey)
	args := []string{"agent", "--agent", r.name, "--model", r.models[0], "--repo", "none", "--memory", "4GiB", "-d"}
	if !r.inImage {
		args = append(args, "-e", "NPM_CONFIG_REGISTRY="+testenv.NPMRegistry(t))
	}
	return args
}

// call is a step of the model that runs a command. Codex's model has to ask for more than its own sandbox allows.
func (r real) call(command string) modeltest.Step {
	if r.name == "codex" {
		return modeltest.Step{Call: "exec_command", Input: map[string]any{"cmd": command,
			"sandbox_permissions": "require_escalated", "justification": "It writes a file."}}
	}
	return modeltest.Step{Call: "Bash", Input: map[string]any{"command": command, "description": "a command"}}
}

// The agents.
func TestRealOpenCode(t *testing.T) {
	testReal(t, real{name: "opencode-acp", base: "ANTHROPIC_BASE_URL", key: "ANTHROPIC_API_KEY",
		models: [2]string{"anthropic/claude-haiku-4-5", "anthropic/claude-opus-4-6"}, inImage: true})
}

func TestRealClaude(t *testing.T) {
	testReal(t, real{name: "claude-acp", base: "ANTHROPIC_BASE_URL", key: "ANTHROPIC_API_KEY",
		models: [2]string{"haiku", "opus"}})
}

func TestRealCodex(t *testing.T) {
	testReal(t, real{name: "codex", base: "OPENAI_BASE_URL", path: "/v1", key: "OPENAI_API_KEY",
		models: [2]string{"gpt-6.2-sol", "gpt-6.1-sol"}})
}

func TestRealGemini(t *testing.T) {
	testReal(t, real{name: "gemini", base: "GOOGLE_GEMINI_BASE_URL", key: "GEMINI_API_KEY",
		models: [2]string{"gemini-3.8-flash", "gemini-3.1-pro"}, forgets: true})
}

func TestRealQwen(t *testing.T) {
	testReal(t, real{name: "qwen", base: "OPENAI_BASE_URL", path: "/v1", key: "OPENAI_API_KEY",
		models: [2]string{"gpt-5.5", "gpt-6.2-sol"}})
}

func TestRealPi(t *testing.T) {
	testReal(t, real{name: "pi", base: "ANTHROPIC_BASE_URL", key: "ANTHROPIC_API_KEY",
		models: [2]string{"anthropic/claude-haiku-4-5", "anthropic/claude-opus-4-6"}})
}

// TestRealPiProviders checks that pi reaches the models of the other providers through the server, too.
//
// mission: E1, E2
func TestRealPiProviders(t *testing.T) {
	for _, a := range []real{
		{base: "OPENAI_BASE_URL", path: "/v1", key: "OPENAI_API_KEY", models: [2]string{"openai/gpt-5.5"}},
		{base: "OPENROUTER_BASE_URL", path: "/v1", key: "OPENROUTER_API_KEY",
			models: [2]string{"openrouter/openai/gpt-5.5"}},
		{base: "GOOGLE_GEMINI_BASE_URL", key: "GEMINI_API_KEY", models: [2]string{"google/gemini-3.1-pro-preview"}},
	} {
		t.Run(a.key, func(t *testing.T) {
			a.name = "pi"
			begin(t, a).first()
		})
	}
}

func TestRealCopilot(t *testing.T) {
	testReal(t, real{name: "copilot", base: "OPENAI_BASE_URL", path: "/v1", key: "OPENAI_API_KEY",
		models: [2]string{"gpt-5.5", "gpt-6.2-sol"}})
}

// facts are what a run has shown of an agent; docs/agents.md shows them.
type facts struct {
	Asks     bool   `json:"asks"`     // with --approval ask, a command waits for an answer
	Command  bool   `json:"command"`  // the question has the command
	Output   bool   `json:"output"`   // the output of a command is reported
	Usage    bool   `json:"usage"`    // of a turn, with cost
	Model    bool   `json:"model"`    // harvest set changes the model
	Cause    string `json:"cause"`    // of a turn whose model refuses the key
	Continue string `json:"continue"` // what --continue gives the model: "its record", or "the last messages"
	Crash    string `json:"crash"`    // what follows if it dies of a signal in a turn
	Restart  string `json:"restart"`  // what follows if the server dies while a question waits, or a command runs
	Stop     string `json:"stop"`     // what follows harvest stop while a command runs
}

// run is a session of a real agent.
type run struct {
	*testing.T
	h     *host.Host
	stub  *modeltest.Stub
	id    string
	after int64 // the last event that was read
	real
	facts
}

// testReal checks a session with a real agent: a command after a question that waits while the server is killed, a
// stop, a crash in the middle of a turn, a change of the model, a model that refuses the key, and one that continues
// the conversation.
//
// mission: E1, E2, E4, F6
func testReal(t *testing.T, a real) {
	r := begin(t, a)
	r.first()
	r.stopped()
	r.crashed()
	r.changed()
	r.broken()
	r.continued()
	if a.forgets {
		r.Continue = "its record, or the last messages"
	}
	r.record()
}

// begin starts the session, with its first turn.
func begin(t *testing.T, a real) *run {
	testenv.Long(t)
	stub := modeltest.New(t, host.ModelKey)
	look := a.call("echo walnut > a; cat a")
	look.Say = "I look around."
	stub.Script("first", look, modeltest.Step{Say: "It is written."})
	stub.Script("long", a.call(working), modeltest.Step{Say: "It is over."})
	stub.Script("crash", a.call(working), modeltest.Step{Say: "I went on."})
	stub.Script("other", modeltest.Step{Say: "I am another."})
	stub.Script("broken", modeltest.Step{Status: 401, Kind: "authentication_error"})
	stub.Script("last", modeltest.Step{Say: "Well."})
	r := &run{T: t, h: host.NewModel(t, stub), stub: stub, real: a}
	t.Cleanup(r.explain)
	r.h.Must(append(a.prepare(t, r.h, stub), "--approval", "ask", "[first] go")...)
	r.id = r.h.Session()
	return r
}

// explain shows what the agent asked the model, and what it said about itself, if the test has failed.
func (r *run) explain() {
	if !r.Failed() {
		return
	}
	for _, q := range r.stub.Requests() {
		at := bytes.LastIndex(q.Body, []byte("] go"))
		r.Logf("%s %d: %d bytes, the last prompt is at %d: %.80q", q.Path, q.Status, len(q.Body), at,
			q.Body[max(at-20, 0):])
	}
	for _, session := range strings.Fields(r.h.Must("sessions", "--all", "-o", "name")) {
		for line := range strings.Lines(r.h.Must("attach", session, "-o", "json")) {
			if strings.Contains(line, `"agent.notice"`) || strings.Contains(line, `"session.recalled"`) {
				r.Log(line)
			}
		}
	}
}

// done returns the end of the turn.
func (r *run) done() host.TurnEvent {
	r.Helper()
	done := r.h.Event(r.id, r.after, "done")
	r.after = done.ID
	return done
}

// next returns the next event that is wanted.
func (r *run) next(awaited string, wanted func(host.TurnEvent) bool) host.TurnEvent {
	r.Helper()
	e, err := r.h.NextWanted(client.Follow{Stream: r.id, After: r.after, Attended: true}, awaited, wanted)
	if err != nil {
		r.Fatalf("%v; %s", err, r.h.Log())
	}
	return e
}

// allow allows the command of the turn if the agent asks.
func (r *run) allow() {
	r.Helper()
	e := r.next("a question or the command", func(e host.TurnEvent) bool {
		return e.Type == "agent.asked" || e.Type == "tool.started" && !r.Asks || e.Type == "done"
	})
	if e.Type == "agent.asked" {
		r.h.Must("answer", r.id, e.Data.ID, "--allow")
	}
}

// first is the first turn. The server is killed while the agent's question waits.
func (r *run) first() {
	e := r.next("a question or the end", func(e host.TurnEvent) bool {
		return e.Type == "agent.asked" || e.Type == "done"
	})
	r.Asks = e.Type == "agent.asked"
	if r.Asks {
		r.Command = strings.Contains(string(e.Data.Input), "echo walnut")
		r.h.Kill()
		r.h.Must("answer", r.id, e.Data.ID, "--allow")
		r.Restart = "the answer reaches it"
	}
	done := r.done()
	if done.Data.Failed || done.Data.Text != "It is written." {
		r.Fatalf("done: %+v; %s", done.Data, r.h.Log())
	}
	r.Usage = done.Data.Usage != nil && done.Data.Usage.OutputTokens > 0 && done.Data.Usage.Cost > 0
	tool := r.h.Event(r.id, 0, "tool.completed").Data
	if tool.Failed {
		r.Errorf("tool: %+v", tool)
	}
	r.Output = strings.Contains(tool.Text, "walnut")
	r.h.Must("sandbox", "exec", r.h.Box(), "--", "grep", "-q", "walnut", dir+"/a")
	out := r.h.Must("sandbox", "exec", "--user", "root", r.h.Box(), "--", "sh", "-c",
		"cat /proc/[0-9]*/environ | grep -ac "+host.ModelKey+" || true")
	if strings.TrimSpace(out) != "0" {
		r.Errorf("%s processes of the sandbox have the key", out)
	}
}

// stopped is a turn that is stopped while its command runs.
func (r *run) stopped() {
	r.h.Must("send", "-d", r.id, "[long] go")
	r.allow()
	r.h.Must("sandbox", "exec", r.h.Box(), "--", "sh", "-c",
		"cd "+dir+"; until test -e working; do sleep 0.1; done")
	r.h.Must("stop", r.id)
	if done := r.done(); !done.Data.Interrupted {
		r.Errorf("stopped: %+v", done.Data)
	}
	r.Stop = "the turn ends"
	r.h.Must("sandbox", "exec", r.h.Box(), "--", "rm", "-f", dir+"/working")
}

// crashed is a turn in which the agent dies. The server is killed in it if the agent asks nothing.
func (r *run) crashed() {
	r.h.Must("send", "-d", r.id, "[crash] go")
	r.allow()
	r.h.Must("sandbox", "exec", r.h.Box(), "--", "sh", "-c", segv)
	crashed := r.h.Event(r.id, r.after, "agent.crashed")
	if !strings.Contains(crashed.Data.Reason, "SIG") {
		r.Errorf("crashed: %+v", crashed.Data)
	}
	r.after = crashed.ID
	r.allow() // the agent got the prompt again
	if !r.Asks {
		r.h.Kill()
		r.Restart = "the turn continues"
	}
	r.h.Must("sandbox", "exec", r.h.Box(), "--", "touch", dir+"/over")
	if done := r.done(); done.Data.Failed || !r.Asks && done.Data.Text != "I went on." {
		r.Errorf("after the crash: %+v", done.Data)
	}
	r.Crash = "it starts again, with the prompt"
}

// changed is a turn with another model.
func (r *run) changed() {
	before := len(r.stub.Requests())
	r.h.Must("set", r.id, "--model", r.models[1])
	r.h.Must("send", "-d", r.id, "[other] go")
	if done := r.done(); done.Data.Failed || done.Data.Text != "I am another." {
		r.Errorf("another model: %+v", done.Data)
	}
	_, wanted, _ := strings.Cut("/"+r.models[1], "/")
	wanted = wanted[strings.LastIndex(wanted, "/")+1:]
	r.Model = slices.ContainsFunc(r.stub.Requests()[before:], func(q modeltest.Request) bool {
		return strings.Contains(q.Path+string(q.Body), wanted) && bytes.Contains(q.Body, []byte("[other]"))
	})
}

// broken is a turn whose model refuses the key.
func (r *run) broken() {
	r.h.Must("send", "-d", r.id, "[broken] go")
	done := r.done()
	if !done.Data.Failed {
		r.Errorf("a model that refuses the key: %+v", done.Data)
	}
	r.Cause = done.Data.Cause
}

// continued is a session with the files and the conversation of the first.
func (r *run) continued() {
	r.h.Must("end", "--discard", r.id)
	before := len(r.stub.Requests())
	if out := r.h.Must("agent", "--continue", r.id, "[last] go"); !strings.Contains(out, "Well.") {
		r.Errorf("the session that continues: %s", out)
	}
	for _, q := range r.stub.Requests()[before:] {
		if bytes.Contains(q.Body, []byte("I look around.")) && bytes.Contains(q.Body, []byte("[last]")) {
			r.Continue = "its record"
			return
		}
	}
	if found := r.stub.Requests()[before:]; slices.ContainsFunc(found, func(q modeltest.Request) bool {
		return bytes.Contains(q.Body, []byte("It is written.")) && bytes.Contains(q.Body, []byte("[last]"))
	}) {
		r.Continue = "the last messages"
		return
	}
	r.Error("the model did not get the earlier conversation")
}

// record compares the facts with the recorded ones, or records them with HARVEST_TEST_UPDATE.
func (r *run) record() {
	if r.Failed() {
		return
	}
	path := filepath.Join("testdata", r.name+".json")
	text, err := json.MarshalIndent(r.facts, "", "\t")
	if err != nil {
		r.Fatal(err)
	}
	if os.Getenv("HARVEST_TEST_UPDATE") != "" {
		if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
			r.Fatal(err)
		}
		return
	}
	recorded, err := os.ReadFile(path)
	if err != nil {
		r.Fatal(err)
	}
	if diff := cmp.Diff(string(bytes.TrimSpace(recorded)), string(text)); diff != "" {
		r.Errorf("the agent behaves otherwise than docs/agents.md says; see it, and set HARVEST_TEST_UPDATE=1: %s",
			diff)
	}
}

// TestTable checks that the table of docs/agents.md shows the recorded facts.
func TestTable(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	yes := map[bool]string{true: "yes", false: "no"}
	table := "| agent | asks | shows the command | shows the output | usage of turns | changes the model | " +
		"key refused | `--continue` has |\n|---|---|---|---|---|---|---|---|\n"
	for _, file := range files {
		var f facts
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &f); err != nil {
			t.Fatal(err)
		}
		cause := "failed"
		if f.Cause != "" {
			cause = "`" + f.Cause + "`"
		}
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		table += fmt.Sprintf("| `%s` | %s | %s | %s | %s | %s | %s | %s |\n", name, yes[f.Asks],
			yes[f.Command], yes[f.Output], yes[f.Usage], yes[f.Model], cause, f.Continue)
	}
	const docs = "../../../docs/agents.md"
	text, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(text), "<!-- runs -->\n")
	old, tail, ends := strings.Cut(rest, "<!-- end -->")
	if !found || !ends {
		t.Fatal("docs/agents.md has no place for the table")
	}
	if os.Getenv("HARVEST_TEST_UPDATE") != "" {
		text := head + "<!-- runs -->\n" + table + "<!-- end -->" + tail
		if err := os.WriteFile(docs, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(table, old); diff != "" {
		t.Errorf("docs/agents.md: set HARVEST_TEST_UPDATE=1: %s", diff)
	}
}
