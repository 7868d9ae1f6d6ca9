package opencode_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/mcp"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/agenttest"
	"github.com/RelevanceAI/harvest/internal/session/agent/opencode"
)

var decode = agenttest.Decode

// ready is the line with which the bridge begins a transcript's conversation.
func ready(t *testing.T, transcript []byte) []byte {
	t.Helper()
	for line := range bytes.Lines(transcript) {
		var e struct {
			Type       string
			Properties struct{ SessionID string }
		}
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		if e.Type == "session.created" {
			return []byte(`{"type":"harvest.ready","session":"` + e.Properties.SessionID + `","version":"1.18.33"}`)
		}
	}
	t.Fatal("the transcript has no session")
	return nil
}

// TestTranscripts checks that transcripts of the real server become the events beside them.
//
// mission: E2
func TestTranscripts(t *testing.T) {
	t.Parallel()
	agenttest.Transcripts(t, func(t *testing.T, transcript []byte) []agent.Event {
		t.Helper()
		c := opencode.Agent{}.Open(agent.Setup{})
		events := c.Decode(ready(t, transcript))
		prompts := map[string]bool{}
		for line := range bytes.Lines(transcript) {
			var e struct {
				Properties struct{ Info struct{ ID, Role string } }
			}
			if err := json.Unmarshal(line, &e); err != nil {
				t.Fatal(err)
			}
			if info := e.Properties.Info; info.Role == "user" &&
				!prompts[info.ID] { // the driver of the server sent a prompt
				prompts[info.ID] = true
				c.Prompt(info.ID, "go")
			}
			events = append(events, c.Decode(line)...)
		}
		return events
	})
}

// open returns a conversation whose session is "s".
func open(t *testing.T) agent.Conversation {
	t.Helper()
	c := opencode.Agent{}.Open(agent.Setup{})
	got := decode(c, `{"type":"harvest.ready","session":"s","version":"1"}`)
	if diff := cmp.Diff([]agent.Event{{Type: agent.Ready, Conversation: "s", Version: "1"}}, got); diff != "" {
		t.Fatal(diff)
	}
	return c
}

const (
	working = `{"type":"session.status","properties":{"sessionID":"s","status":{"type":"busy"}}}`
	resting = `{"type":"session.idle","properties":{"sessionID":"s"}}`
)

// TestAgain checks that a turn's end that the server sends late or twice does not end the next turn. Output from before
// a restart of the server is decoded without the prompts, turn by turn, and the end of the last turn is recognised.
//
// mission: E2, E4
func TestAgain(t *testing.T) {
	t.Parallel()
	c := opencode.Agent{}.Open(agent.Setup{Conversation: "s", Again: true})
	busy, idle := `{"type":"session.status","properties":{"sessionID":"s","status":{"type":"busy"}}}`,
		`{"type":"session.idle","properties":{"sessionID":"s"}}`
	got := decode(c, busy, busy, idle, idle, busy, idle)
	if len(got) != 2 || got[0].Type != agent.Done || got[1].Type != agent.Done {
		t.Errorf("%+v", got)
	}
	c.Prompt("p", "go")
	if got := decode(c, idle, busy, idle, busy, idle); len(got) != 1 {
		t.Errorf("after a prompt: %+v", got)
	}
}

func TestDoneOnce(t *testing.T) {
	t.Parallel()
	c := open(t)
	if got := decode(c, resting); len(got) != 0 {
		t.Errorf("an end without a turn: %+v", got)
	}
	for range 2 {
		c.Prompt("p", "go")
		if got := decode(c, resting); len(got) != 0 {
			t.Errorf("the end of an earlier turn: %+v", got)
		}
		got := decode(c, working, resting, resting)
		if diff := cmp.Diff([]agent.Event{{Type: agent.Done, Reason: "completed", Usage: &agent.Usage{}}},
			got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lines []string
		want  agent.Event
	}{
		"aborted": {[]string{working,
			`{"type":"session.error","properties":{"sessionID":"s","error":{"name":"MessageAbortedError"}}}`, resting},
			agent.Event{Failed: true, Interrupted: true, Reason: "MessageAbortedError"}},
		"API error": {[]string{working, `{"type":"session.error","properties":{"sessionID":"s",` +
			`"error":{"name":"APIError","data":{"message":"401"}}}}`, resting},
			agent.Event{Failed: true, Text: "401", Reason: "APIError"}},
		"without a text": {[]string{working, `{"type":"message.updated","properties":{"sessionID":"s",` +
			`"info":{"role":"assistant","error":{"name":"ContextOverflowError"}}}}`, resting},
			agent.Event{Failed: true, Text: "ContextOverflowError", Reason: "ContextOverflowError"}},
		"the bridge": {[]string{`{"type":"harvest.error","message":"status 500"}`},
			agent.Event{Failed: true, Text: "status 500", Reason: "request_failed"}},
	} {
		conv := open(t)
		conv.Prompt("p", "go")
		c.want.Type, c.want.Usage = agent.Done, &agent.Usage{}
		if diff := cmp.Diff([]agent.Event{c.want}, decode(conv, c.lines...)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if got := decode(open(t), `{"type":"harvest.error","message":"x"}`); len(got) != 1 || got[0].Type != agent.Other {
		t.Errorf("a failure without a turn: %+v", got)
	}
}

// TestSubAgent checks that events of a sub-agent name the call that runs it, and do not end the turn.
func TestSubAgent(t *testing.T) {
	t.Parallel()
	c := open(t)
	c.Prompt("p", "go")
	got := decode(c, working,
		`{"type":"message.part.updated","properties":{"sessionID":"s","part":{"id":"1","type":"tool","tool":"task",`+
			`"callID":"call","state":{"status":"running","input":{},"metadata":{"sessionId":"child"}}}}}`,
		`{"type":"session.status","properties":{"sessionID":"child","status":{"type":"busy"}}}`,
		`{"type":"message.part.updated","properties":{"sessionID":"child","part":{"id":"2","type":"reasoning",`+
			`"text":""}}}`,
		`{"type":"message.part.delta","properties":{"sessionID":"child","partID":"2","field":"text","delta":"hm"}}`,
		`{"type":"session.idle","properties":{"sessionID":"child"}}`,
		`{"type":"file.edited","properties":{"file":"/w/a"}}`,
		`{"type":"message.part.updated","properties":{"sessionID":"s","part":{"id":"1","type":"tool","tool":"task",`+
			`"callID":"call","state":{"status":"completed","output":"done"}}}}`,
		`{"type":"file.edited","properties":{"file":"/w/b"}}`)
	want := []agent.Event{
		{Type: agent.ToolStarted, ID: "call", Tool: "task", Input: json.RawMessage("{}")},
		{Type: agent.MessageStarted, ID: "2", Parent: "call", Thinking: true},
		{Type: agent.MessageDelta, ID: "2", Parent: "call", Text: "hm"},
		{Type: agent.ToolCompleted, ID: "call", Tool: "task", Text: "done"},
		{Type: agent.FileChanged, ID: "call", Path: "/w/a"},
		{Type: agent.FileChanged, Path: "/w/b"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestInterruptedCall checks that a tool call that an interrupt ends is reported as ended after the turn, once, and
// that a file which it changed is still reported.
func TestInterruptedCall(t *testing.T) {
	t.Parallel()
	c := open(t)
	c.Prompt("p", "go")
	call := func(status string) string {
		return `{"type":"message.part.updated","properties":{"sessionID":"s","part":{"id":"1","type":"tool",` +
			`"tool":"bash","callID":"call","state":{"status":"` + status + `"}}}}`
	}
	got := decode(c, working, call("running"), `{"type":"file.edited","properties":{"file":"/w/a"}}`, resting,
		`{"type":"file.edited","properties":{"file":"/w/b"}}`, call("error"))
	want := []agent.Event{
		{Type: agent.ToolStarted, ID: "call", Tool: "bash"},
		{Type: agent.FileChanged, ID: "call", Path: "/w/a"},
		{Type: agent.Done, Reason: "completed", Usage: &agent.Usage{}},
		{Type: agent.FileChanged, Path: "/w/b"},
		{Type: agent.ToolCompleted, ID: "call", Tool: "bash", Failed: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	c.Prompt("q", "go")
	if got := decode(c, working, call("running"), call("completed")); len(got) != 0 {
		t.Errorf("the call ended again, in the next turn: %+v", got)
	}
}

// TestTurnEndsWhenTheModelFails checks that a turn that the bridge aborts because the model's API fails has failed with
// the reason, and does not count as interrupted by a person.
//
// mission: E2
func TestTurnEndsWhenTheModelFails(t *testing.T) {
	t.Parallel()
	conv := open(t)
	tired := `{"type":"harvest.tired","message":"the model's API failed 10 times"}`
	if got := decode(conv, tired); len(got) != 1 || got[0].Type != agent.Other {
		t.Errorf("without a turn: %+v", got)
	}
	conv.Prompt("p", "go")
	got := decode(conv, `{"type":"session.status","properties":{"sessionID":"s","status":{"type":"busy"}}}`, tired,
		`{"type":"session.error","properties":{"sessionID":"s","error":{"name":"MessageAbortedError"}}}`,
		`{"type":"session.idle","properties":{"sessionID":"s"}}`)
	if len(got) != 1 || got[0].Type != agent.Done || !got[0].Failed || got[0].Interrupted ||
		got[0].Reason != agent.GaveUp || got[0].Text != "the model's API failed 10 times" {
		t.Errorf("%+v", got)
	}
}

func TestAnswer(t *testing.T) {
	t.Parallel()
	ask := `{"type":"permission.asked","properties":{"id":"per","sessionID":"s","permission":"bash",` +
		`"metadata":{"command":"ls"}}}`
	for _, c := range []struct {
		answer agent.Answer
		want   string
	}{
		{agent.Answer{Allow: true}, `{"op":"reply","id":"per","reply":"once"}`},
		{agent.Answer{Allow: true, Always: true}, `{"op":"reply","id":"per","reply":"always"}`},
		{agent.Answer{Message: "no"}, `{"op":"reply","id":"per","text":"no","reply":"reject"}`},
	} {
		conv := open(t)
		if got := decode(conv, ask); len(got) != 1 || got[0].Type != agent.Asked || got[0].Tool != "bash" ||
			string(got[0].Input) != `{"command":"ls"}` {
			t.Fatalf("%+v", got)
		}
		line, err := conv.Answer("per", c.answer)
		if err != nil || string(line) != c.want+"\n" {
			t.Errorf("%s, %v", line, err)
		}
		if _, err := conv.Answer("per", c.answer); errors.KindOf(err) != errors.NotFound {
			t.Errorf("a second answer: %v", err)
		}
		if got := decode(conv, `{"type":"permission.replied","properties":{"requestID":"per"}}`); len(got) != 0 {
			t.Errorf("%+v", got)
		}
	}
	conv := open(t)
	got := decode(conv, ask, `{"type":"permission.replied","properties":{"requestID":"per"}}`)
	if len(got) != 2 || got[1].Type != agent.Withdrawn || got[1].ID != "per" {
		t.Errorf("%+v", got)
	}
}

// TestQuestions checks that the model's questions reach the person, and the answers the model.
//
// mission: E2
func TestQuestions(t *testing.T) {
	t.Parallel()
	ask := `{"type":"question.asked","properties":{"id":"que","sessionID":"s","questions":[{"question":"Which?",` +
		`"header":"H","options":[{"label":"red","description":"warm"}]},` +
		`{"question":"What else?","header":"H","multiple":true,"options":[]}],"tool":{"messageID":"m","callID":"c"}}}`
	want := []agent.Event{{Type: agent.Asked, ID: "que", Tool: "question", Questions: []agent.Question{
		{Text: "Which?", Header: "H", Options: []agent.Option{{Label: "red", Description: "warm"}}},
		{Text: "What else?", Header: "H", Multiple: true, Options: []agent.Option{}}}}}
	for _, c := range []struct {
		answer agent.Answer
		want   string
	}{
		{agent.Answer{Allow: true, Answers: map[string]string{"Which?": "red, a bit", "What else?": "a, b"}},
			`{"op":"answer","id":"que","answers":[["red, a bit"],["a","b"]]}`},
		{agent.Answer{Allow: true, Always: true, Answers: map[string]string{"Which?": "red"}},
			`{"op":"answer","id":"que","answers":[["red"],[]]}`},
		{agent.Answer{Message: "later"}, `{"op":"answer","id":"que","answers":[["later"],["later"]]}`},
		{agent.Answer{}, `{"op":"dismiss","id":"que"}`},
	} {
		conv := open(t)
		if diff := cmp.Diff(want, decode(conv, ask)); diff != "" {
			t.Error(diff)
		}
		line, err := conv.Answer("que", c.answer)
		if err != nil || string(line) != c.want+"\n" {
			t.Errorf("%s, %v", line, err)
		}
		if got := decode(conv,
			`{"type":"question.replied","properties":{"requestID":"que","answers":[["red"]]}}`); len(got) != 0 {
			t.Errorf("%+v", got)
		}
		if _, err := conv.Answer("que", c.answer); errors.KindOf(err) != errors.NotFound {
			t.Errorf("a second answer: %v", err)
		}
	}
	conv := open(t)
	if got := decode(conv, ask, `{"type":"question.rejected","properties":{"requestID":"que"}}`); len(got) != 2 ||
		got[1].Type != agent.Withdrawn {
		t.Errorf("%+v", got)
	}
}

func TestOther(t *testing.T) {
	t.Parallel()
	for _, line := range []string{`{"type":"new"}`,
		`{"type":"message.part.updated","properties":{"part":{"type":"new"}}}`, `{"type":7}`} {
		if got := decode(open(t), line); len(got) != 1 || got[0].Type != agent.Other || string(got[0].Raw) != line {
			t.Errorf("%s: %+v", line, got)
		}
	}
	if got := decode(open(t), "", "\n", `{"type":"server.heartbeat"}`,
		`{"type":"message.part.delta","properties":{"partID":"unknown","delta":"x"}}`); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestCommand(t *testing.T) {
	t.Parallel()
	a := opencode.Agent{}
	cmd := a.Command(agent.Setup{Dir: "/w", Conversation: "s", Model: "p/m", System: "Be brief.",
		Env: map[string]string{"K": "v"}, Approval: agent.ApproveNone})
	if diff := cmp.Diff([]string{"harvest-opencode", "-dir", "/w", "-session", "s", "-model", "p/m", "-system",
		"Be brief."}, cmd.Args); diff != "" {
		t.Error(diff)
	}
	if a.Name() != "opencode" || cmd.Dir != "/w" || cmd.Env["K"] != "v" ||
		!strings.Contains(cmd.Env["OPENCODE_PERMISSION"], `"*":"ask"`) {
		t.Errorf("%+v", cmd)
	}
	for _, approval := range []agent.Approval{agent.ApproveAll, agent.ApproveEdits, agent.ApproveNone,
		agent.ApprovePlan} {
		if !json.Valid([]byte(a.Command(agent.Setup{Approval: approval}).Env["OPENCODE_PERMISSION"])) {
			t.Errorf("%q: the permissions are no JSON", approval)
		}
	}
	c := a.Open(agent.Setup{})
	if begin := c.Begin(); begin != nil {
		t.Errorf("%s", begin)
	}
	if got := string(c.Prompt("p", "a\nb")); got != `{"op":"prompt","id":"p","text":"a\nb"}`+"\n" {
		t.Error(got)
	}
	if got := string(c.Interrupt()); got != `{"op":"abort"}`+"\n" {
		t.Error(got)
	}
}

// TestGuard checks that the configuration that overrides a repository's files has address and key.
// mission: E2
func TestGuard(t *testing.T) {
	t.Parallel()
	a := opencode.Agent{}
	config := a.Command(agent.Setup{Access: &agent.Access{Kind: agent.AccessKey, URL: "http://gw",
		Token: "t"}}).Env["OPENCODE_CONFIG_CONTENT"]
	if want := `{"disabled_providers":[],"enabled_providers":["anthropic"],"provider":{"anthropic":{` +
		`"npm":"@ai-sdk/anthropic","options":{"apiKey":"t","baseURL":"http://gw/v1"}}}}`; config != want {
		t.Errorf("%s, want %s", config, want)
	}
	if len(a.Guarded()) > 0 || a.Guard(nil) != nil || len(a.SettingsFiles()) == 0 {
		t.Error("there is a file")
	}
	for text, want := range map[string]string{
		`{"provider":{"anthropic":{"options":{"baseURL":"http://evil","apiKey":"x"}},` +
			`"own":{"options":{"baseURL":"http://own"}}}}`: "anthropic.apiKey anthropic.baseURL provider.own",
		`{"model":"m"}`: "", "// c\n{}": "", `{"model":"anthropic/claude","small_model":"amazon-bedrock/m"}`: "",
		`{"model":"evil/m","small_model":"evil/s","enabled_providers":["evil"],` +
			`"disabled_providers":["anthropic"]}`: "disabled_providers enabled_providers model small_model",
		`{"agent":{"build":{"model":"evil/m"},"ours":{"model":"anthropic/m"}},` +
			`"mode":{"plan":{"model":"evil/m"}}}`: "agent.build.model mode.plan.model",
		`{"provider":{"anthropic":{"npm":"./evil.js"},` +
			`"amazon-bedrock":{"npm":"@ai-sdk/amazon-bedrock"}}}`: "anthropic.npm",
	} {
		if got := strings.Join(a.Redirects([]byte(text)), " "); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	agenttest.Fuzz(f, func() agent.Conversation {
		c := opencode.Agent{}.Open(agent.Setup{})
		c.Prompt("p", "go")
		return c
	})
}

// mission: E2
func TestAccess(t *testing.T) {
	t.Parallel()
	for kind, want := range map[agent.AccessKind][]string{
		agent.AccessKey: {"ANTHROPIC_API_KEY",
			`"enabled_providers":["anthropic"],"provider":{"anthropic":{"npm":"@ai-sdk/anthropic",` +
				`"options":{"apiKey":"t","baseURL":"http://gateway/v1"}}}}`, ""},
		agent.AccessBedrock: {"AWS_BEARER_TOKEN_BEDROCK",
			`"enabled_providers":["amazon-bedrock"],"provider":{"amazon-bedrock":{"npm":"@ai-sdk/amazon-bedrock",` +
				`"options":{"baseURL":"http://gateway"}}}}`, "eu-west-1"},
	} {
		env := opencode.Agent{}.Command(agent.Setup{MCPConfig: "/tmp/x.json",
			Access: &agent.Access{Kind: kind, URL: "http://gateway", Token: "t", Region: "eu-west-1"}}).Env
		if env[want[0]] != "t" || !strings.HasSuffix(env["OPENCODE_CONFIG_CONTENT"], want[1]) ||
			env["AWS_REGION"] != want[2] ||
			env["OPENCODE_CONFIG"] != "/tmp/x.json" {
			t.Errorf("%s: %v", kind, env)
		}
	}
	env := opencode.Agent{}.Command(agent.Setup{Access: &agent.Access{Kind: agent.AccessKey, Token: "t"},
		Model: "own/m"}).Env
	if !strings.Contains(env["OPENCODE_CONFIG_CONTENT"], `"enabled_providers":["anthropic","own"]`) {
		t.Errorf("the provider of the user's model is not enabled: %v", env)
	}
	if !strings.Contains(env["OPENCODE_CONFIG_CONTENT"], `"baseURL":"https://api.anthropic.com/v1"`) ||
		env["ANTHROPIC_API_KEY"] != "t" { // a project's file gets no key
		t.Errorf("direct: %v", env)
	}
}

// mission: E5
func TestMCPStatus(t *testing.T) {
	t.Parallel()
	c := opencode.Agent{}.Open(agent.Setup{})
	asker, ok := c.(agent.MCPAsker)
	if !ok || string(asker.AskMCP()) != "{\"op\":\"mcp\"}\n" {
		t.Fatal("it is not asked")
	}
	if got := string(asker.RestartMCP("a")); got != `{"op":"restart","id":"a"}`+"\n" {
		t.Errorf("a restart is %s", got)
	}
	for line, want := range map[string]agent.Event{
		`{"type":"harvest.mcp_restarted","server":"a"}`: {Type: agent.MCPRestarted, ID: "a"},
		`{"type":"harvest.mcp_restarted","server":"a","message":"no"}`: {Type: agent.MCPRestarted, ID: "a",
			Failed: true, Text: "no"},
	} {
		if diff := cmp.Diff([]agent.Event{want}, c.Decode([]byte(line))); diff != "" {
			t.Error(diff)
		}
	}
	got := c.Decode([]byte(`{"type":"harvest.mcp","mcp":[{"name":"a","status":"failed","error":"no"}]}`))
	if len(got) != 1 || got[0].Type != agent.MCPStatus || len(got[0].MCP) != 1 ||
		got[0].MCP[0] != (agent.MCP{Name: "a", Status: "failed", Error: "no"}) {
		t.Errorf("%+v", got)
	}
	config, err := opencode.Agent{}.MCPConfig([]mcp.Server{{Name: "a", Command: []string{"x", "y"}}},
		agent.MCPLimits{Timeout: 2 * time.Minute})
	if err != nil || !strings.Contains(string(config), `"type": "local"`) ||
		!strings.Contains(string(config), `"timeout": 120000`) {
		t.Errorf("%s, %v", config, err)
	}
}
