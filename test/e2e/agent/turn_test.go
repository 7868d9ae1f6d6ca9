package agent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

// realKey names the variable with a key of Anthropic's API. If it is set, the tests of turns also run against that API.
const realKey = "HARVEST_TEST_ANTHROPIC_API_KEY"

// turnEvents are the events of `-o json`.
func turnEvents(t *testing.T, text string) (events []host.TurnEvent) {
	t.Helper()
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<26)
	for lines.Scan() {
		var e host.TurnEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		events = append(events, e)
	}
	return events
}

// last returns the newest event of a type.
func last(t *testing.T, events []host.TurnEvent, typ string) api.SessionEvent {
	t.Helper()
	for _, e := range slices.Backward(events) {
		if e.Type == typ {
			return e.Data
		}
	}
	t.Fatalf("there is no event %s", typ)
	return api.SessionEvent{}
}

// The model reads the words. The stub reads the part in brackets.
const (
	firstPrompt = "[first] In this order, one tool call each: run `cat README.md`; write the file new.txt with the " +
		"one line `written by the agent`; " +
		"in it, edit the word `agent` into `model`; call the tool hello of the MCP server good; ask the user with " +
		"your tool for questions: `Which colour?`, with the options red and blue; " +
		"run `git add -A && git commit -qm 'add new.txt'`. Then say in one sentence what you have done."
	secondPrompt = "[second] What is the name of the file that you have made? Run no tool and answer with the name " +
		"only."
)

// colours is a question to the user.
var colours = map[string]any{"questions": []any{map[string]any{"question": "Which colour?", "header": "Colour",
	"options": []any{map[string]any{"label": "red", "description": "warm"},
		map[string]any{"label": "blue", "description": "cold"}}}}}

func scriptTurns(stub *modeltest.Stub) {
	const file = "/workspace/project/new.txt"
	stub.Script("first",
		modeltest.Step{Say: "I look around.", Call: "Bash", Input: map[string]any{"command": "cat README.md",
			"description": "look"}},
		modeltest.Step{Call: "Write", Input: map[string]any{"file_path": file, "content": "written by the agent\n"}},
		modeltest.Step{Call: "Edit", Input: map[string]any{"file_path": file, "old_string": "agent",
			"new_string": "model"}},
		modeltest.Step{Call: "mcp__good__hello", Input: map[string]any{}},
		modeltest.Step{Call: "AskUserQuestion", Input: colours},
		modeltest.Step{Call: "Bash", Input: map[string]any{"command": "git add -A && git commit -qm 'add new.txt'",
			"description": "commit"}},
		modeltest.Step{Say: "I have added new.txt."})
	stub.Script("second", modeltest.Step{Say: "new.txt"})
	stub.Script("third", modeltest.Step{Say: "It was new.txt."})
}

// TestRealAgents checks that the real programs change a file of a repository, and that all results arrive: events,
// cost, diff, branch. The conversation continues in another sandbox when the first is gone. Neither sandbox contains
// the model's key.
//
// mission: E1, E2, E3, E4, E7, 8.6
func TestRealAgents(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"claude", "opencode"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stub := modeltest.New(t, host.ModelKey)
			scriptTurns(stub)
			testRealAgent(t, name, stub, host.ModelKey)
		})
		t.Run(name+" asks a real model", func(t *testing.T) {
			t.Parallel()
			key := os.Getenv(realKey)
			if key == "" {
				t.Skipf("set %s to have a real model asked, which costs some cents", realKey)
			}
			testRealAgent(t, name, nil, key)
		})
	}
}

func testRealAgent(t *testing.T, name string, stub *modeltest.Stub, key string) {
	h := host.NewModel(t, stub)
	h.Env.Setenv("ANTHROPIC_API_KEY", key)
	dir := h.Project()
	commit(h, dir, map[string]string{"server.py": mcpServer,
		".mcp.json": `{"mcpServers":{"good":{"command":"python3","args":["/workspace/project/server.py","ok"],` +
			`"env":{"WHO":"walnut"}}}}`})
	h.Must("sessions") // starts the server
	var answering sync.WaitGroup
	defer answering.Wait()
	answering.Go(func() { answerFirst(h, "blue") })
	out, stderr, code := h.In(dir, "agent", "--agent", name, "--network", "none", "--max-usd", "5", "-e",
		"ENABLE_TOOL_SEARCH=false", "-o", "json", firstPrompt)
	if code != 0 {
		t.Fatalf("exit code %d: %s\n%s\n%s", code, stderr, out, h.Log())
	}
	events := turnEvents(t, out)
	checkTurn(t, events)
	if patch := h.Must("diff", h.Session()); !strings.Contains(patch, "+written by the model") ||
		!strings.Contains(patch, "b/new.txt") {
		t.Errorf("the diff: %s", patch)
	}
	checkBranch(t, h, dir)
	token := checkNoKey(t, h, key)

	h.Must("sandbox", "rm", h.Box())
	checkTranscript(h)
	before := 0
	if stub != nil {
		before = len(stub.Requests())
	}
	out, stderr, code = h.In(dir, "send", "-o", "json", h.Session(), secondPrompt)
	if code != 0 {
		t.Fatalf("exit code %d: %s\n%s\n%s", code, stderr, out, h.Log())
	}
	done := last(t, turnEvents(t, out), "done")
	if !strings.Contains(done.Text, "new.txt") {
		t.Errorf("after the sandbox was gone: %+v", done)
	}
	var list []api.Session
	if err := json.Unmarshal([]byte(h.Must("sessions", "-o", "json")), &list); err != nil || len(list) != 1 ||
		list[0].Turns != 2 || done.Usage == nil {
		t.Fatalf("%v, %+v, %+v", err, list, done)
	}
	if got, want := list[0].Usage.Cost, last(t, events, "done").Usage.Cost+done.Usage.Cost; math.Abs(got-want) > 1e-9 {
		t.Errorf("the session has cost %g, its turns %g", got, want)
	}
	if again := checkNoKey(t, h, key); again != token {
		t.Errorf("the token was %q and is %q", token, again)
	}
	if out, _, _ := h.Run("sandbox", "exec", h.Box(), "--", "cat",
		"/workspace/project/new.txt"); out != "written by the model\n" {
		t.Errorf("the file in the new sandbox: %q", out)
	}
	for _, where := range append(host.InFiles(t, h.Data, key), host.InArguments(t, key)...) {
		t.Errorf("the key is in %s", where)
	}
	checkContinues(t, h, stub)
	if stub == nil {
		return
	}
	told := slices.ContainsFunc(stub.Requests(), func(r modeltest.Request) bool {
		return bytes.Contains(r.Body, []byte("hello from walnut")) && bytes.Contains(r.Body, []byte("Which colour?")) &&
			bytes.Contains(r.Body, []byte(`=\"blue\"`))
	})
	if !told {
		t.Error("the model was not told what the MCP server and the user have said")
	}
	remembered := slices.ContainsFunc(stub.Requests()[before:], func(r modeltest.Request) bool {
		return bytes.Contains(r.Body, []byte("I look around.")) && bytes.Contains(r.Body, []byte("# A project")) &&
			bytes.Contains(r.Body, []byte("[second]"))
	})
	if !remembered {
		t.Error("the model was not told what came before")
	}
	for _, r := range stub.Requests() {
		if strings.Contains(r.Header.Get("X-Api-Key")+r.Header.Get("Authorization"), token) {
			t.Error("the token of the session has left the server")
		}
	}
}

// checkContinues ends the session and continues it in another one, whose agent receives the conversation. The volume
// also has all of it, in a database.
func checkContinues(t *testing.T, h *host.Host, stub *modeltest.Stub) {
	t.Helper()
	id := h.Session()
	h.Must("end", "--discard", id)
	if got := h.Must("run", "--image", "base", "--network", "none", "-v", "harvest-agent-state:/data", "--",
		"python3", "-c",
		"import sqlite3, sys; [print(*row) for row in sqlite3.connect(sys.argv[1]).execute(\"SELECT role, "+
			"substr(content, 1, 8) FROM messages UNION ALL SELECT 'file', path FROM files\")]",
		"/data/sessions/"+id+".db"); !strings.Contains(got, "user [first]") ||
		!strings.Contains(got, "user [second]") || !strings.Contains(got, "file /workspace/project/new.txt") {
		t.Errorf("the history in the volume: %s", got)
	}
	before := 0
	if stub != nil {
		before = len(stub.Requests())
	}
	out := h.Must("agent", "--continue", id, "-o", "json",
		"[third] What was the name of the file that you had made? Run no tool and answer with the name only.")
	events := turnEvents(t, out)
	if done := last(t, events, "done"); !strings.Contains(done.Text, "new.txt") {
		t.Errorf("the session that goes on: %+v", done)
	}
	if slices.ContainsFunc(events, func(e host.TurnEvent) bool { return e.Type == "session.recalled" }) {
		t.Error("the agent's own record of the conversation was not used")
	}
	if stub != nil && !slices.ContainsFunc(stub.Requests()[before:], func(r modeltest.Request) bool {
		return bytes.Contains(r.Body, []byte("I look around.")) && bytes.Contains(r.Body, []byte("# A project")) &&
			bytes.Contains(r.Body, []byte("[third]"))
	}) {
		t.Error("the model did not get the conversation of the session before, with the results of its tools")
	}
	if got := h.Must("sandbox", "exec", h.Box(), "--", "cat",
		"/workspace/project/new.txt"); got != "written by the model" {
		t.Errorf("the file in the session that goes on: %q", got)
	}
}

// checkTurn looks at the events of the first turn.
func checkTurn(t *testing.T, events []host.TurnEvent) {
	t.Helper()
	for i, e := range events {
		if e.ID != int64(i+1) {
			t.Fatalf("event %d is the %d.", e.ID, i+1)
		}
	}
	tools := map[string]int{}
	text := false
	for _, e := range events {
		switch e.Type {
		case "tool.completed":
			tools[strings.ToLower(e.Data.Tool)]++
			if e.Data.Failed {
				t.Errorf("a tool failed: %+v", e.Data)
			}
		case "message.delta":
			text = text || e.Data.Text != ""
		case "agent.other":
			t.Logf("not understood: %.300v", e)
		}
	}
	hello := tools["mcp__good__hello"] + tools["good_hello"]
	if tools["bash"] < 2 || tools["write"] < 1 || tools["edit"] < 1 || hello < 1 || !text {
		t.Errorf("tools: %v, streamed text: %t", tools, text)
	}
	if changed := last(t, events, "file.changed"); changed.Path != "/workspace/project/new.txt" {
		t.Errorf("changed: %+v", changed)
	}
	done := last(t, events, "done")
	if done.Failed || done.Text == "" || done.Usage == nil || done.Usage.Cost <= 0 ||
		done.Usage.InputTokens+done.Usage.CacheReadTokens+done.Usage.CacheWriteTokens == 0 ||
		done.Usage.OutputTokens == 0 {
		t.Errorf("done: %+v, %+v", done, done.Usage)
	}
}

// answerFirst answers the first question of the first session.
func answerFirst(h *host.Host, answer string) {
	id := ""
	testenv.Eventually(h.T, "a session", func() bool {
		out, _, _ := h.Run("sessions", "-o", "name")
		id = strings.TrimSpace(out)
		return id != ""
	})
	asked, err := h.NextEvent(id, 0, "agent.asked")
	if err != nil || len(asked.Data.Questions) != 1 {
		h.T.Errorf("asked: %+v, %v", asked, err)
		return
	}
	if _, said, code := h.Run("answer", id, asked.Data.ID, "--answer",
		asked.Data.Questions[0].Text+"="+answer); code != 0 {
		h.T.Errorf("answer: %s", said)
	}
}

// checkTranscript looks for the agent's own record of the conversation in the volume, from another sandbox.
func checkTranscript(h *host.Host) {
	h.T.Helper()
	out := h.Must("run", "--image", "base", "--network", "none", "-v", "harvest-agent-state:/data", "--", "grep",
		"-rlaF", "written by the agent", "/data/sessions/"+h.Session())
	if !strings.Contains(out, ".jsonl") && !strings.Contains(out, "/opencode.db") {
		h.T.Errorf("the conversation is in %q", out)
	}
}

// commit commits files in a repository.
func commit(h *host.Host, dir string, files map[string]string) {
	h.T.Helper()
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			h.T.Fatal(err)
		}
	}
	for _, args := range [][]string{{"add", "-A"}, {"-c", "user.name=T", "-c", "user.email=t@example.org", "commit",
		"-q", "-m", "more"}} {
		host.RunGit(h.T, dir, args...)
	}
}

// checkBranch checks the branch that comes back to the local repository.
func checkBranch(t *testing.T, h *host.Host, dir string) {
	t.Helper()
	branch, stderr, code := h.In(dir, "checkout", h.Session())
	if code != 0 {
		t.Fatalf("checkout: %s", stderr)
	}
	if got := host.RunGit(t, dir, "log", "-1", "--format=%an <%ae> %s",
		strings.TrimSpace(branch)); got != "Harvest Agent (Harvest) <agent@harvest.invalid> add new.txt" {
		t.Errorf("the commit: %q", got)
	}
	if _, err := os.Stat(dir + "/new.txt"); err == nil {
		t.Error("the work tree was touched")
	}
}

// lookForKey prints the session's token, and then each place that contains the text from its standard input:
// environments and arguments of processes, and files.
const lookForKey = `
import glob, os, sys
key = sys.stdin.read().strip().encode()
tokens, found = set(), []
for name in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
    try: text = open(name, "rb").read()
    except OSError: continue
    if key in text: found.append(name)
    for v in text.split(b"\0"):
        name, _, value = v.partition(b"=")
        if name in (b"ANTHROPIC_API_KEY", b"CLAUDE_CODE_OAUTH_TOKEN", b"AWS_BEARER_TOKEN_BEDROCK"): tokens.add(value.decode())
print("token", *tokens)
for top in ["/home", "/root", "/tmp", "/mnt", "/run", "/workspace", "/etc", "/var", "/dev/shm"]:
    for dir, _, files in os.walk(top):
        for name in files:
            path = os.path.join(dir, name)
            try:
                if os.path.isfile(path) and key in open(path, "rb").read(): found.append(path)
            except OSError: pass
print(*found, sep="\n", end="")
`

// checkNoKey looks for the key in everything of the sandbox that its users can read, and returns the session's token.
func checkNoKey(t *testing.T, h *host.Host, key string) (token string) {
	t.Helper()
	for _, user := range []string{"agent", "root"} {
		cmd := h.Command(t.Context(), "sandbox", "exec", "-i", "--user", user, h.Box(), "--", "python3",
			"-c", lookForKey)
		cmd.Stdin = strings.NewReader(key)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		first, found, _ := strings.Cut(string(out), "\n")
		if found != "" {
			t.Errorf("%s finds the key in: %s", user, found)
		}
		if user == "agent" {
			token = strings.TrimPrefix(first, "token ")
		}
	}
	if !strings.HasPrefix(token, "hvm_") {
		t.Errorf("the token is %q", token)
	}
	return token
}

// mcpServer is an MCP server that follows its argument before it answers.
const mcpServer = `
import json, os, sys
how = sys.argv[1]
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m: continue
    r = {"capabilities": {"tools": {}}, "protocolVersion": "2025-06-18", "serverInfo": {"name": "t", "version": "1"}}
    if m["method"] == "tools/list":
        r = {"tools": [{"name": n, "description": n, "inputSchema": {"type": "object", "properties": {}}} for n in ("hello", "large", "die")]}
    if m["method"] == "tools/call":
        name = m["params"]["name"]
        if name == "die": os._exit(3)
        r = {"content": [{"type": "text", "text": "x" * (int(os.environ["LARGE"]) << 20) if name == "large" else "hello from " + os.environ["WHO"]}]}
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
`

// TestServersOfRealAgents checks that a session has the repository's MCP servers and its own, and that a broken server
// is reported and blocks nothing.
//
// mission: E5
func TestServersOfRealAgents(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	// MiB of a large answer. OpenCode's work grows with the square of its length: 100 MiB take it minutes.
	for name, large := range map[string]string{"claude": "100", "opencode": "25"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stub := modeltest.New(t, host.ModelKey)
			stub.Script("mcp",
				modeltest.Step{Call: "mcp__good__hello", Input: map[string]any{}},
				modeltest.Step{Call: "mcp__good__large", Input: map[string]any{}},
				modeltest.Step{Call: "mcp__good__die", Input: map[string]any{}},
				modeltest.Step{Say: "All were called."})
			h := host.NewCLI(t, stub)
			dir := h.Project()
			commit(h, dir, map[string]string{
				"server.py": mcpServer,
				".mcp.json": `{"mcpServers":{"good":{"command":"python3","args":["/workspace/project/server.py",` +
					`"ok"],"env":{"WHO":"${GREETED}","LARGE":"` + large + `"}}}}`,
			})
			own := filepath.Join(t.TempDir(), "own.json")
			if err := os.WriteFile(own,
				[]byte(`{"mcpServers":{"silent":{"command":"sleep","args":["1000"]},"dies":{"command":"false"}}}`),
				0o600); err != nil {
				t.Fatal(err)
			}
			out, stderr, code := h.In(dir, "agent", "--agent", name, "--memory", "3GiB", "--mcp-config", own, "-e",
				"GREETED=walnut", "-e", "ENABLE_TOOL_SEARCH=false", "-o", "json", "[mcp] call them")
			if code != 0 {
				t.Fatalf("exit code %d: %s\n%.20000s\n%s", code, stderr, out, h.Log())
			}
			events := turnEvents(t, out)
			state, results := map[string]string{}, []api.SessionEvent{}
			for _, e := range events {
				switch e.Type {
				case "mcp.ready", "mcp.failed":
					state[e.Data.ID] = e.Type + " " + e.Data.Reason
				case "tool.completed":
					results = append(results, e.Data)
				}
			}
			if state["good"] != "mcp.ready " || !strings.HasPrefix(state["silent"], "mcp.failed") ||
				!strings.HasPrefix(state["dies"], "mcp.failed ") || len(state["dies"]) < 13 {
				t.Errorf("the servers: %q", state)
			}
			if len(results) != 3 || results[0].Text != "hello from walnut" || results[0].Failed ||
				len(results[1].Text) > 1<<20 || !results[2].Failed {
				for _, r := range results {
					t.Errorf("result: %s failed %t, %.200s", r.Tool, r.Failed, r.Text)
				}
			}
			if done := last(t, events, "done"); done.Text != "All were called." {
				t.Errorf("done: %+v", done)
			}
		})
	}
}

// find reports whether a session has an event of a type between two others.
func find(h *host.Host, id string, after, before int64, typ string) (found bool) {
	h.T.Helper()
	awaited := fmt.Sprintf("an event %s, or event %d", typ, before)
	_, err := h.NextWanted(client.Follow{Stream: id, After: after}, awaited, func(e host.TurnEvent) bool {
		found = e.Type == typ
		return found || e.ID >= before
	})
	if err != nil {
		h.T.Fatal(err)
	}
	return found
}

// TestRealAgentsAskBefore checks that tools wait for a person if the session requires it, and that an always-allowed
// tool does not ask again, also after a restart of the server.
//
// mission: E1, E2
func TestRealAgentsAskBefore(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	for _, name := range []string{"claude", "opencode"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stub := modeltest.New(t, host.ModelKey)
			stub.Script("two",
				modeltest.Step{Call: "Bash",
					Input: map[string]any{"command": "touch one; until [ -e /tmp/go ]; do sleep 0.1; done",
						"description": "make"}},
				modeltest.Step{Call: "Bash", Input: map[string]any{"command": "touch two", "description": "make"}},
				modeltest.Step{Say: "Done."})
			h := host.NewCLI(t, stub)
			h.Must("agent", "--agent", name, "--repo", "none", "--approval", "ask", "-d", "[two] make files")
			id := h.Session()
			asked := h.Event(id, 0, "agent.asked")
			if !strings.EqualFold(asked.Data.Tool, "bash") {
				t.Errorf("asked: %+v", asked.Data)
			}
			h.Must("answer", id, asked.Data.ID, "--allow", "--always")
			testenv.Eventually(t, "the tool runs", func() bool {
				out, _, code := h.Run("sandbox", "exec", h.Box(), "--", "ls", "/workspace/work")
				return code == 0 && strings.Contains(out, "one")
			})
			h.Must("down") // the next server keeps the permission
			h.Must("sandbox", "exec", h.Box(), "--", "touch", "/tmp/go")
			done := h.Event(id, 0, "done")
			if done.Data.Failed || done.Data.Text != "Done." {
				t.Errorf("done: %+v", done.Data)
			}
			if out := h.Must("sandbox", "exec", h.Box(), "--", "ls", "/workspace/work"); out != "one\ntwo" {
				t.Errorf("files: %q", out)
			}
		})
	}
}
