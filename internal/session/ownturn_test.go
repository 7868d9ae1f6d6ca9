package session_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/claude"
	"github.com/RelevanceAI/harvest/internal/session/git"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// likeClaude is an agent whose program prints the same lines as Claude Code when it begins turns by itself and while
// its MCP servers start.
type likeClaude struct{ claude.Agent }

// Modelless reports that it uses no model.
func (likeClaude) Modelless() bool { return true }

const likeClaudeProgram = `
import json, os, subprocess, sys, time

def say(**line):
    line["session_id"] = "c1"
    print(json.dumps(line), flush=True)

def lifecycle(state): say(type="command_lifecycle", command_uuid=uuid, state=state)
def init(): say(type="system", subtype="init")
def result(text, tokens=5, **more):
    used = {"m": {"inputTokens": tokens}}
    say(type="result", subtype="success", result=text, model_usage_since_last_result=used, **more)
def commit(subject):
    subprocess.run(["git", "commit", "-q", "--allow-empty", "-m", subject], check=True, stdout=sys.stderr)
def own():
    say(type="system", subtype="task_notification", summary="the build ended")
    init()

statuses = [
    [{"name": "quick", "status": "connected"}, {"name": "slow", "status": "pending"}],
    [{"name": "quick", "status": "connected"}, {"name": "slow", "status": "pending"}],
    [{"name": "quick", "status": "connected"}, {"name": "slow", "status": "connected"}],
]
if "slow start" in sys.argv[1]: time.sleep(6)
asked, running, prompted, restarted = 0, False, False, False
for text in sys.stdin:
    line = json.loads(text)
    if line["type"] == "control_request":
        response = {}
        if line["request"]["subtype"] == "mcp_status":
            response = {"mcpServers": [dict(s) for s in statuses[min(asked, 2)]]}
            if "broken" in sys.argv[1] and asked >= 2:
                response["mcpServers"][1].update(status="failed", error="it died")
            if "late" in sys.argv[1] and not prompted: response["mcpServers"][1]["status"] = "pending"
            if restarted: response["mcpServers"][1] = {"name": "slow", "status": "connected"}
            asked += 1
            if asked == 1 and "die early" in sys.argv[1]: sys.exit(3)
        if line["request"]["subtype"] == "mcp_reconnect":
            restarted = line["request"]["serverName"] == "slow" and "broken for ever" not in sys.argv[1]
            if not restarted:
                say(type="control_response", response={"subtype": "error", "request_id": line["request_id"], "error": "no"})
                continue
        say(type="control_response", response={"subtype": "success", "request_id": line["request_id"], "response": response})
        if line["request"]["subtype"] == "interrupt" and running: # without a turn, an interrupt has no result
            running = False
            result("", terminal_reason="aborted_streaming", is_error=True)
        continue
    uuid, prompt, prompted = line["uuid"], line["message"]["content"], True
    lifecycle("queued")
    if prompt.startswith("race"): # the turn of its own began before the prompt was there
        own()
        if "die" in prompt and len(sys.argv[2]) == 0: sys.exit(3)
        result("by itself", 7)
    if prompt.startswith("join"):
        own()
    lifecycle("started")
    if not prompt.startswith("join"):
        init()
    if "commit" in prompt: commit("asked for")
    if "slow start" in sys.argv[1]: time.sleep(1) # time in which a limit that has passed ends the turn
    result("answer to " + prompt + ", asked " + str(asked))
    lifecycle("completed")
    if prompt == "task": # a background command of the turn runs on
        say(type="system", subtype="background_tasks_changed", tasks=[{"task_id": "b1"}])
        while not os.path.exists("/tmp/over"): time.sleep(0.05)
        say(type="system", subtype="background_tasks_changed", tasks=[])
    if prompt.startswith("background"):
        while "commit" in prompt and not os.path.exists("/tmp/go"): time.sleep(0.05)
        own()
        if "forever" in prompt:
            running = True
            continue
        if "commit" in prompt: commit("by itself")
        result("by itself", 7)
`

// Command implements agent.Agent.
func (likeClaude) Command(s agent.Setup) engine.Command {
	return engine.Command{Args: []string{"python3", "-c", likeClaudeProgram, s.Model, s.Conversation},
		Dir: s.Dir, Env: s.Env}
}

// turns describes the events of turns.
func (w *watcher) turns() string {
	var all []string
	for _, e := range w.all {
		switch e.typ {
		case records.EventMCPReady, records.EventMCPFailed, records.EventMCPRestarting:
			all = append(all, e.typ+" "+e.data.ID)
		case records.EventSent:
			all = append(all, "sent "+e.data.Message.Prompt)
		case records.EventOwnTurn:
			all = append(all, "own: "+e.data.Reason)
		case string(agent.Done):
			m := e.data.Message
			if m == nil {
				all = append(all, "an end without a turn: "+e.data.Text)
				continue
			}
			reply, _, _ := strings.Cut(m.Reply, "\n")
			all = append(all, strings.TrimSpace(fmt.Sprintf("%s: %s %s", m.Prompt, m.State, reply)))
		}
	}
	return strings.Join(all, "\n")
}

// No prompt reaches the agent before each MCP server is ready.
//
// mission: E5
func TestPromptWaitsForServers(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{Agents: map[string]agent.Agent{"scripted": likeClaude{}}})
	s := h.create(t,
		session.Request{MCP: []byte(`{"mcpServers":{"quick":{"command":"true"},"slow":{"command":"true"}}}`),
			Limits: records.Limits{Seconds: 3600}})
	w := h.watch(s.ID)
	w.status(t, records.Ready)
	h.turn(t, w, "hello")
	w.status(t, records.Done)
	want := "mcp.ready quick\nmcp.ready slow\nsent hello\nhello: completed answer to hello, asked 3"
	if got := w.turns(); got != want {
		t.Errorf("the turns are:\n%s\nwant:\n%s", got, want)
	}
	dies := h.create(t, session.Request{Model: "die early", MCP: []byte(`{"mcpServers":{"quick":{"command":"true"}}}`)})
	w = h.watch(dies.ID)
	w.status(t, records.Ready)
	if done := h.turn(t, w, "hello"); !done.data.Failed || !strings.Contains(done.data.Text, "code 3") {
		t.Errorf("an agent that ends before its prompt: %+v", done.data)
	}
}

// TestPromptOrder checks that the first prompt follows the report of each server: that it is ready, that it has failed,
// or that it was not ready in time. A server that is ready later is reported again. The time begins with the agent's
// first line, and the limit of a turn's time with its prompt.
//
// mission: E5
func TestPromptOrder(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{Agents: map[string]agent.Agent{"scripted": likeClaude{}},
		MCPWait: 5 * time.Second})
	for _, test := range []struct {
		model string
		want  []string
	}{
		{"broken", []string{"mcp.ready quick: ", "mcp.failed slow: it died", "sent"}},
		{"late", []string{"mcp.ready quick: ", "mcp.failed slow: it was not ready after 5s", "sent",
			"mcp.ready slow: "}},
		// The start takes longer than MCPWait.
		{"slow start", []string{"mcp.ready quick: ", "mcp.ready slow: ", "sent"}},
	} {
		t.Run(test.model, func(t *testing.T) {
			t.Parallel()
			s := h.create(t, session.Request{Model: test.model, Prompt: "hello", Limits: records.Limits{Seconds: 4},
				MCP: []byte(`{"mcpServers":{"quick":{"command":"true"},"slow":{"command":"true"}}}`)})
			w := h.watch(s.ID)
			var got []string
			for completed := false; !completed || len(got) < len(test.want); {
				switch e := w.next(t, fmt.Sprintf("%q and the end of the turn; so far %q", test.want, got)); e.typ {
				case records.EventMCPReady, records.EventMCPFailed:
					got = append(got, e.typ+" "+e.data.ID+": "+e.data.Reason)
				case records.EventSent:
					got = append(got, "sent")
				case string(agent.Done):
					completed = true
					if e.data.Failed {
						t.Fatalf("the turn failed: %+v", e.data)
					}
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("the events are %q, want %q", got, test.want)
			}
		})
	}
}

// TestOwnTurns checks that a turn that the agent begins by itself has its own record, state and costs and can be
// stopped, and that its result is never the answer to a prompt.
//
// mission: E1
func TestOwnTurns(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{Agents: map[string]agent.Agent{"scripted": likeClaude{}}, StopGrace: time.Minute})
	for _, test := range []struct {
		name, want string
		own, all   int64 // tokens of the turn that the agent began, and of all turns
	}{
		{"background",
			"sent background\nbackground: completed answer to background, asked 0\nown: the build ended\nthe build " +
				"ended: completed by itself", 7, 12},
		{"race",
			"sent race\nown: the build ended\nthe build ended: completed by itself\nrace: completed answer to race, " +
				"asked 0", 7, 12},
		{"join",
			"sent join\nown: the build ended\nthe build ended: completed\njoin: completed answer to join, asked 0", 0,
			5},
		{"race die",
			"sent race die\nown: the build ended\nthe build ended: failed the agent's process ended with code 3 and " +
				"without a result\n" +
				"race die: completed answer to This continues an earlier conversation, of which you have no record. " +
				"It ended with these messages, the oldest first:",
			0, 5},
	} {
		s := h.create(t, session.Request{})
		w := h.watch(s.ID)
		w.status(t, records.Ready)
		h.send(t, w.id, test.name)
		for range strings.Count(test.want, ": completed") + strings.Count(test.want, ": failed") {
			w.until(t, string(agent.Done))
		}
		if got := w.turns(); got != test.want {
			t.Errorf("%s: the turns are:\n%s\nwant:\n%s", test.name, got, test.want)
		}
		messages, err := h.Messages(t.Context(), account, s.ID)
		own := slices.IndexFunc(messages, func(m records.Message) bool { return m.Own })
		if err != nil || own < 0 || messages[own].Ended.IsZero() || messages[own].Usage.InputTokens != test.own {
			t.Errorf("%s: %v, %+v", test.name, err, messages)
		}
		if got := mustGet(t, h, s.ID).Usage.InputTokens; got != test.all {
			t.Errorf("%s: the turns used %d tokens, want %d", test.name, got, test.all)
		}
		if err := h.End(t.Context(), account, s.ID); err != nil {
			t.Error(err)
		}
	}
	s := h.create(t, session.Request{Limits: records.Limits{Turns: 3}})
	w := h.watch(s.ID)
	w.status(t, records.Ready)
	h.turn(t, w, "background forever")
	own := w.until(t, records.EventOwnTurn)
	if err := h.Stop(t.Context(), account, s.ID); err != nil {
		t.Error(err)
	}
	if done := w.until(t, string(agent.Done)); done.data.MessageID != own.data.Message.ID || !done.data.Interrupted {
		t.Errorf("stopped: %+v", done.data)
	}
	h.turn(t, w, "background")
	if done := w.until(t, string(agent.Done)); !done.data.Message.Own ||
		!strings.Contains(done.data.Reason, "limit of 3 turns") {
		t.Errorf("beyond the limit: %+v", done.data)
	}
	if got, err := h.Get(t.Context(), account, s.ID); err != nil || got.Turns != 4 || got.Usage.InputTokens == 0 {
		t.Errorf("%v, %+v", err, got)
	}
}

// TestOwnTurnReportsCommits checks that a commit of a turn that the agent begins by itself is reported, also if the
// session had no turn under this server before.
//
// mission: E1, E10
func TestOwnTurnReportsCommits(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{Agents: map[string]agent.Agent{"scripted": likeClaude{}}})
	s := h.create(t, session.Request{Bundle: repository(t), Prompt: "background commit",
		Author: workspace.Author{Name: "Ada", Email: "ada@example.org"}})
	w := h.watch(s.ID)
	for _, want := range []string{"asked for", "by itself"} {
		if got := w.until(t, git.Committed).data.Git.Subject; got != want {
			t.Errorf("reported %q, want %q", got, want)
		}
		if want == "asked for" {
			h.close(t)
			h.open(t)
			h.sh(t, s.ID, "touch /tmp/go") // the agent begins its own turn
		}
	}
}
