package claude_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/mcp"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/agenttest"
	"github.com/RelevanceAI/harvest/internal/session/agent/claude"
)

// TestTranscripts checks that transcripts of the real program become the events beside them.
//
// mission: E1
func TestTranscripts(t *testing.T) {
	t.Parallel()
	agenttest.Transcripts(t, func(_ *testing.T, transcript []byte) (events []agent.Event) {
		c := claude.Agent{}.Open(agent.Setup{})
		for line := range bytes.Lines(transcript) {
			for _, e := range c.Decode(line) {
				if e.Type == agent.Other && len(e.Raw) > 120 {
					e.Raw = json.RawMessage(`"…"`) // TestOther checks that it is kept unchanged
				}
				events = append(events, e)
			}
		}
		return events
	})
}

// TestOther checks that lines that are not understood are kept as printed, also if they are not JSON.
// mission: E1
func TestOther(t *testing.T) {
	t.Parallel()
	c := claude.Agent{}.Open(agent.Setup{})
	for line, want := range map[string]string{
		`{"type":"new","x":[1, 2]}`:               `{"type":"new","x":[1, 2]}`,
		`{"type":"assistant"}`:                    `{"type":"assistant"}`,
		`{"type":"user","message":{"content":7}}`: `{"type":"user","message":{"content":7}}`,
		`{"type":"stream_event"}`:                 `{"type":"stream_event"}`,
		`{"type":"system","subtype":"new"}`:       `{"type":"system","subtype":"new"}`,
		`{"type":"control_request"}`:              `{"type":"control_request"}`,
		`plain text`:                              `"plain text"`,
		"not UTF-8 \xff":                          `"not UTF-8 \ufffd"`,
	} {
		got := agenttest.Decode(c, line)
		if len(got) != 1 || got[0].Type != agent.Other || string(got[0].Raw) != want {
			t.Errorf("%s: %+v", line, got)
		}
	}
	for _, line := range []string{"", "  \r\n", `{"type":"system","subtype":"status","status":"requesting"}`,
		`{"type":"control_cancel_request","request_id":"x"}`} {
		if got := agenttest.Decode(c, line); len(got) != 0 {
			t.Errorf("%q: %+v", line, got)
		}
	}
}

// TestQuestionsOfSubAgents checks that a question has the parent of the tool call that it is about: the request itself
// does not have it.
func TestQuestionsOfSubAgents(t *testing.T) {
	t.Parallel()
	conv := claude.Agent{}.Open(agent.Setup{})
	ask := func(id, call string) agent.Event {
		t.Helper()
		got := agenttest.Decode(conv, `{"type":"control_request","request_id":"`+id+`","request":{"subtype":`+
			`"can_use_tool","tool_name":"Bash","input":{},"tool_use_id":"`+call+`"}}`)
		if len(got) != 1 || got[0].Type != agent.Asked {
			t.Fatalf("%+v", got)
		}
		return got[0]
	}
	for parent, call := range map[string]string{`"toolu_agent"`: "toolu_sub", `null`: "toolu_own"} {
		agenttest.Decode(conv, `{"type":"assistant","parent_tool_use_id":`+parent+`,"message":{"id":"m","content":[`+
			`{"type":"tool_use","id":"`+call+`","name":"Bash","input":{}}]}}`)
	}
	if sub, own := ask("r1", "toolu_sub"), ask("r2", "toolu_own"); sub.Parent != "toolu_agent" || own.Parent != "" {
		t.Errorf("of the sub-agent %q, of the agent %q", sub.Parent, own.Parent)
	}
}

// A question waits for one answer; the answer carries the tool's own input back.
func TestAnswer(t *testing.T) {
	t.Parallel()
	ask := `{"type":"control_request","request_id":"r","request":{"subtype":"can_use_tool","tool_name":"Bash",` +
		`"input":{"command":"ls"}}}`
	for name, c := range map[string]struct {
		answer agent.Answer
		want   string
	}{
		"yes":       {agent.Answer{Allow: true}, `{"behavior":"allow","updatedInput":{"command":"ls"}}`},
		"no":        {agent.Answer{}, `{"behavior":"deny","message":"The user said no."}`},
		"no, since": {agent.Answer{Message: "too risky"}, `{"behavior":"deny","message":"too risky"}`},
		"answers": {agent.Answer{Allow: true, Answers: map[string]string{"Q?": "A"}},
			`{"behavior":"allow","updatedInput":{"answers":{"Q?":"A"},"command":"ls"}}`},
	} {
		conv := claude.Agent{}.Open(agent.Setup{})
		if got := agenttest.Decode(conv, ask); len(got) != 1 || got[0].Type != agent.Asked || got[0].Tool != "Bash" {
			t.Fatalf("%+v", got)
		}
		line, err := conv.Answer("r", c.answer)
		want := `{"response":{"request_id":"r","response":` + c.want +
			`,"subtype":"success"},"type":"control_response"}` + "\n"
		if err != nil || string(line) != want {
			t.Errorf("%s: %s, %v", name, line, err)
		}
		if _, err := conv.Answer("r", c.answer); errors.KindOf(err) != errors.NotFound {
			t.Errorf("%s: a second answer: %v", name, err)
		}
	}
	conv := claude.Agent{}.Open(agent.Setup{})
	agenttest.Decode(conv, strings.Replace(ask, `{"command":"ls"}`, `[1]`, 1))
	if line, err := conv.Answer("r", agent.Answer{Allow: true, Answers: map[string]string{"a": "b"}}); err != nil ||
		!bytes.Contains(line, []byte(`"updatedInput":[1]`)) {
		t.Errorf("%s, %v", line, err)
	}
	agenttest.Decode(conv, ask)
	got := agenttest.Decode(conv, `{"type":"control_cancel_request","request_id":"r"}`)
	if len(got) != 1 || got[0].Type != agent.Withdrawn || got[0].ID != "r" {
		t.Errorf("%+v", got)
	}
}

// The question whether a plan is good has the plan, which the program's own request does not.
//
// mission: E1
func TestPlanIsShown(t *testing.T) {
	t.Parallel()
	call := func(tool, input string) string {
		return `{"type":"assistant","message":{"id":"m","content":[{"type":"tool_use","id":"t","name":"` + tool +
			`","input":` + input + `}]}}`
	}
	ask := `{"type":"control_request","request_id":"r","request":{"subtype":"can_use_tool",` +
		`"tool_name":"ExitPlanMode","input":{},"tool_use_id":"t"}}`
	for name, c := range map[string]struct {
		lines []string
		want  string
	}{
		"given": {[]string{call("ExitPlanMode", `{"plan":"1. do it"}`)}, "1. do it"},
		"none":  {[]string{call("ExitPlanMode", `{}`)}, ""},
		"odd": {[]string{call("ExitPlanMode", `[1]`), call("Write", `{"file_path":"/w/plan.md","content":"x"}`)},
			""},
		"written": {[]string{call("Write", `{"file_path":"/c/plans/a.md","content":"1. a a"}`),
			call("ExitPlanMode", `{}`)}, "1. a a"},
		"edited": {[]string{call("Write", `{"file_path":"/c/plans/a.md","content":"1. a a a"}`),
			call("Edit", `{"file_path":"/c/plans/a.md","old_string":"a","new_string":"b"}`),
			call("Edit", `{"file_path":"/c/plans/a.md","old_string":"a","new_string":"c","replace_all":true}`)},
			"1. b c c"},
		"of an earlier turn": {[]string{call("ExitPlanMode", `{"plan":"old"}`),
			`{"type":"result","subtype":"success"}`}, ""},
	} {
		got := agenttest.Decode(claude.Agent{}.Open(agent.Setup{}), append(c.lines, ask)...)
		if last := got[len(got)-1]; last.Type != agent.Asked || last.Tool != "ExitPlanMode" || last.Text != c.want {
			t.Errorf("%s: %+v", name, last)
		}
	}
}

// TestDone checks that is_error alone decides whether an end is a failure, whatever the subtype is, and that an
// interruption is reported.
func TestDone(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]agent.Event{
		`{"type":"result","subtype":"success","is_error":true,"result":"API Error"}`:                                     {Text: "API Error", Failed: true, Reason: "success"},
		`{"type":"result","subtype":"error_max_turns","is_error":true,"errors":["a","b"],"terminal_reason":"max_turns"}`: {Text: "a\nb", Failed: true, Reason: "max_turns"},
		`{"type":"result","subtype":"error_during_execution","is_error":true,"terminal_reason":"aborted_tools"}`:         {Failed: true, Interrupted: true, Reason: "aborted_tools"},
		`{"type":"result","subtype":"success","result":"ok","total_cost_usd":9,"model_usage_since_last_result":{"a":{"inputTokens":1,"outputTokens":2,"costUSD":0.5},"b":{"cacheReadInputTokens":3,"cacheCreationInputTokens":4,"costUSD":0.25}}}`: {
			Text: "ok", Reason: "success", Usage: &agent.Usage{InputTokens: 1, OutputTokens: 2, CacheReadTokens: 3,
				CacheWriteTokens: 4, Cost: 0.75}},
	} {
		want.Type = agent.Done
		if want.Usage == nil {
			want.Usage = &agent.Usage{}
		}
		got := agenttest.Decode(claude.Agent{}.Open(agent.Setup{}), line)
		if diff := cmp.Diff([]agent.Event{want}, got); diff != "" {
			t.Error(diff)
		}
	}
}

// TestMessageIDs checks that the blocks of one message have different ids, and so have those of messages that stream at
// the same time.
func TestMessageIDs(t *testing.T) {
	t.Parallel()
	c := claude.Agent{}.Open(agent.Setup{})
	got := agenttest.Decode(c,
		`{"type":"stream_event","event":{"type":"message_start","message":{"id":"m"}}}`,
		`{"type":"stream_event","parent_tool_use_id":"call","event":{"type":"message_start","message":{"id":"sub"}}}`,
		`{"type":"stream_event","event":{"type":"content_block_start","index":0,"content_block":{"type":"thinking"}}}`,
		`{"type":"stream_event","parent_tool_use_id":"call","event":{"type":"content_block_start","index":0,`+
			`"content_block":{"type":"text"}}}`,
		`{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta",`+
			`"thinking":"hm"}}}`,
		`{"type":"stream_event","parent_tool_use_id":"call","event":{"type":"content_block_delta","index":0,`+
			`"delta":{"type":"text_delta","text":"hi"}}}`,
		`{"type":"assistant","message":{"id":"m","content":[{"type":"thinking","thinking":"hm"}]}}`,
		`{"type":"assistant","message":{"id":"m","content":[{"type":"text","text":"so"}]}}`,
		`{"type":"stream_event","event":{"type":"message_stop"}}`)
	want := []agent.Event{
		{Type: agent.MessageStarted, ID: "m.0", Thinking: true},
		{Type: agent.MessageStarted, ID: "sub.0", Parent: "call"},
		{Type: agent.MessageDelta, ID: "m.0", Text: "hm"},
		{Type: agent.MessageDelta, ID: "sub.0", Parent: "call", Text: "hi"},
		{Type: agent.MessageCompleted, ID: "m.0", Text: "hm", Thinking: true},
		{Type: agent.MessageStarted, ID: "m.1"},
		{Type: agent.MessageCompleted, ID: "m.1", Text: "so"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCommand(t *testing.T) {
	t.Parallel()
	a := claude.Agent{}
	cmd := a.Command(agent.Setup{Dir: "/workspace/r", Conversation: "c1", Model: "m1",
		Env:      map[string]string{"ANTHROPIC_BASE_URL": "http://gw", "IS_SANDBOX": "0"},
		Approval: agent.ApproveNone, MCPConfig: "/app/mcp.json", System: "Be brief."})
	line := strings.Join(cmd.Args, " ")
	for _, want := range []string{"--permission-mode default", "--resume c1", "--model m1",
		"--mcp-config /app/mcp.json --strict-mcp-config", "--append-system-prompt Be brief."} {
		if !strings.Contains(line, want) {
			t.Errorf("%q lacks %q", line, want)
		}
	}
	if cmd.Dir != "/workspace/r" || cmd.Env["ANTHROPIC_BASE_URL"] != "http://gw" || cmd.Env["IS_SANDBOX"] != "0" ||
		a.Name() != "claude" {
		t.Errorf("%+v", cmd)
	}
	plain := a.Command(agent.Setup{})
	if !slices.Contains(plain.Args, "bypassPermissions") || slices.Contains(plain.Args, "--resume") ||
		plain.Env["IS_SANDBOX"] != "1" {
		t.Errorf("%+v", plain)
	}
	c := a.Open(agent.Setup{})
	for got, want := range map[string]string{
		string(c.Begin()): `{"request":{"subtype":"initialize"},"request_id":"harvest-1",` +
			`"type":"control_request"}` + "\n",
		string(c.Prompt("u1", "do\nit \x00")): `{"type":"user","uuid":"u1","message":{"role":"user",` +
			`"content":"do\nit \u0000"}}` + "\n",
		string(c.Interrupt()): `{"request":{"subtype":"interrupt"},"request_id":"harvest-2","type":"control_request"}` +
			"\n",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// Settings of a repository neither redirect the model nor give other credentials, and which ones do not is known.
// mission: E1
func TestGuard(t *testing.T) {
	t.Parallel()
	a := claude.Agent{}
	var settings struct {
		Env    map[string]string
		Helper *string `json:"apiKeyHelper"`
	}
	env := map[string]string{}
	for _, name := range a.Guarded() {
		env[name] = ""
	}
	env["ANTHROPIC_BASE_URL"] = "http://127.0.0.1:1"
	if err := json.Unmarshal(a.Guard(env), &settings); err != nil || settings.Helper == nil || *settings.Helper != "" ||
		!cmp.Equal(settings.Env, env) {
		t.Errorf("%+v, %v", settings, err)
	}
	ways := []string{"ANTHROPIC_CUSTOM_HEADERS", "CLAUDE_CODE_USE_VERTEX", "ANTHROPIC_VERTEX_BASE_URL",
		"CLAUDE_CODE_USE_FOUNDRY", "ANTHROPIC_FOUNDRY_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy",
		"https_proxy", "no_proxy"}
	others := a.Command(agent.Setup{}).Env
	for _, kind := range []agent.AccessKind{agent.AccessKey, agent.AccessBearer, agent.AccessOAuth,
		agent.AccessBedrock} {
		for name := range a.Command(agent.Setup{Access: &agent.Access{Kind: kind, URL: "u", Token: "t",
			Region: "r"}}).Env {
			if _, other := others[name]; !other {
				ways = append(ways, name)
			}
		}
	}
	for _, name := range ways {
		if _, ok := env[name]; !ok {
			t.Errorf("a file of the repository may set %s", name)
		}
	}
	if files := a.SettingsFiles(); !slices.Equal(files, []string{".claude/settings.json",
		".claude/settings.local.json"}) {
		t.Errorf("%v", files)
	}
	if args := a.Command(agent.Setup{Settings: "/s.json"}).Args; !strings.Contains(strings.Join(args, " "),
		"--settings /s.json") {
		t.Errorf("%q", args)
	}
	for text, want := range map[string]string{
		`{"env":{"FOO":"1","http_proxy":"x","ANTHROPIC_BASE_URL":"http://evil"},"apiKeyHelper":"echo x"}`: "ANTHROPIC_BASE_URL apiKeyHelper http_proxy",
		`{"env":{"FOO":"1"},"model":"m"}`: "", `{"env":[1]}`: "", `{`: "", "": "",
	} {
		if got := strings.Join(a.Redirects([]byte(text)), " "); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	agenttest.Fuzz(f, func() agent.Conversation { return claude.Agent{}.Open(agent.Setup{}) },
		"{\"type\":\"stream_event\",\"event\":{\"type\":\"content_block_start\",\"index\":-1,"+
			"\"content_block\":{\"type\":\"text\"}}}\n{\"type\":\"result\"}")
}

// TestAccess checks that the way to the model depends on the kind of credential.
//
// mission: E1, 4.8
func TestAccess(t *testing.T) {
	t.Parallel()
	for kind, want := range map[agent.AccessKind]map[string]string{
		agent.AccessKey:    {"ANTHROPIC_API_KEY": "t", "ANTHROPIC_BASE_URL": "http://gateway"},
		agent.AccessBearer: {"ANTHROPIC_AUTH_TOKEN": "t", "ANTHROPIC_BASE_URL": "http://gateway"},
		agent.AccessOAuth:  {"CLAUDE_CODE_OAUTH_TOKEN": "t", "ANTHROPIC_BASE_URL": "http://gateway"},
		agent.AccessBedrock: {"AWS_BEARER_TOKEN_BEDROCK": "t", "ANTHROPIC_BEDROCK_BASE_URL": "http://gateway",
			"CLAUDE_CODE_USE_BEDROCK": "1", "AWS_REGION": "eu-west-1"},
	} {
		cmd := claude.Agent{}.Command(agent.Setup{Access: &agent.Access{Kind: kind, URL: "http://gateway", Token: "t",
			Region: "eu-west-1"}})
		for _, own := range []string{"IS_SANDBOX", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER"} {
			delete(cmd.Env, own)
		}
		if diff := cmp.Diff(want, cmd.Env); diff != "" {
			t.Errorf("%s: %s", kind, diff)
		}
		if strings.Contains(strings.Join(cmd.Args, " "), "gateway") {
			t.Errorf("%s: %q", kind, cmd.Args)
		}
	}
	direct := claude.Agent{}.Command(agent.Setup{Access: &agent.Access{Kind: agent.AccessKey, Token: "t"}})
	if _, has := direct.Env["ANTHROPIC_BASE_URL"]; has || direct.Env["ANTHROPIC_API_KEY"] != "t" {
		t.Errorf("direct: %v", direct.Env)
	}
}

// TestBackgroundTasks checks that the agent's list of background tasks is counted, except for tasks that are no work in
// the sandbox.
// mission: E1
func TestBackgroundTasks(t *testing.T) {
	t.Parallel()
	got := agenttest.Decode(claude.Agent{}.Open(agent.Setup{}),
		`{"type":"system","subtype":"background_tasks_changed","tasks":[{"task_id":"a"},`+
			`{"task_id":"b","ambient":true},{"task_id":"c","off_host":true},{"task_id":"d"}]}`,
		`{"type":"system","subtype":"background_tasks_changed","tasks":[]}`)
	want := []agent.Event{{Type: agent.Background, Tasks: 2}, {Type: agent.Background}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestMCPStatus(t *testing.T) {
	t.Parallel()
	c := claude.Agent{}.Open(agent.Setup{})
	asker, ok := c.(agent.MCPAsker)
	if !ok || !strings.Contains(string(asker.AskMCP()), `"subtype":"mcp_status"`) {
		t.Fatal("it is not asked")
	}
	got := agenttest.Decode(c,
		`{"type":"control_response","response":{"subtype":"success","request_id":"harvest-1",`+
			`"response":{"mcpServers":[{"name":"a","status":"failed","error":"Connection `+
			`closed","config":{}},{"name":"b","status":"pending"}]}}}`)
	want := []agent.Event{{Type: agent.MCPStatus,
		MCP: []agent.MCP{{Name: "a", Status: "failed", Error: "Connection closed"}, {Name: "b", Status: "pending"}}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, line := range []string{`{"type":"control_response","response":{"subtype":"success",` +
		`"response":{"commands":[]}}}`, `{"type":"command_lifecycle","state":"queued"}`} {
		if got := agenttest.Decode(c, line); len(got) != 0 {
			t.Errorf("%s: %+v", line, got)
		}
	}
	config, err := claude.Agent{}.MCPConfig([]mcp.Server{{Name: "a", Command: []string{"x", "y"}}},
		agent.MCPLimits{})
	if err != nil || !strings.Contains(string(config), `"command": "x"`) {
		t.Errorf("%s, %v", config, err)
	}
}

// TestMCPRestart checks the request that starts an MCP server again, and its answers, which another conversation may
// decode.
//
// mission: E5
func TestMCPRestart(t *testing.T) {
	t.Parallel()
	asker, ok := claude.Agent{}.Open(agent.Setup{}).(agent.MCPAsker)
	if !ok {
		t.Fatal("it cannot start servers again")
	}
	want := `{"request":{"serverName":"a-1_b","subtype":"mcp_reconnect"},"request_id":"harvest-restart-a-1_b",` +
		`"type":"control_request"}` + "\n"
	if got := string(asker.RestartMCP("a-1_b")); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	c := claude.Agent{}.Open(agent.Setup{})
	for line, want := range map[string]agent.Event{
		`{"type":"control_response","response":{"subtype":"success","request_id":"harvest-restart-a-1_b"}}`: {
			Type: agent.MCPRestarted, ID: "a-1_b"},
		`{"type":"control_response","response":{"subtype":"error","request_id":"harvest-restart-b",` +
			`"error":"Request timed out"}}`: {Type: agent.MCPRestarted, ID: "b", Failed: true,
			Text: "Request timed out"},
	} {
		if diff := cmp.Diff([]agent.Event{want}, agenttest.Decode(c, line)); diff != "" {
			t.Error(diff)
		}
	}
}

// TestMCPSetup checks that the program has Harvest's limits for the start of servers, and that its roots include the
// directories of all repositories.
//
// mission: E5
func TestMCPSetup(t *testing.T) {
	t.Parallel()
	cmd := claude.Agent{}.Command(agent.Setup{Dir: "/workspace/a/b", MCPConfig: "/tmp/x.json",
		MCPLimits: agent.MCPLimits{Timeout: 2 * time.Minute, AtOnce: 3}})
	if cmd.Env["MCP_TIMEOUT"] != "120000" || cmd.Env["MCP_SERVER_CONNECTION_BATCH_SIZE"] != "3" ||
		!strings.Contains(strings.Join(cmd.Args, " "), " --add-dir /workspace") {
		t.Errorf("%q with %v", cmd.Args, cmd.Env)
	}
	cmd = claude.Agent{}.Command(agent.Setup{Dir: "/workspace/a"})
	if _, ok := cmd.Env["MCP_TIMEOUT"]; ok || slices.Contains(cmd.Args, "--add-dir") {
		t.Errorf("without servers: %q with %v", cmd.Args, cmd.Env)
	}
}

// TestOwnTurns checks that a turn that the program begins by itself is distinguished from the answer to a prompt. A
// prompt in the middle of it is answered with it.
//
// mission: E1
func TestOwnTurns(t *testing.T) {
	t.Parallel()
	c := claude.Agent{}.Open(agent.Setup{})
	var got []string
	for _, line := range []string{
		`{"type":"system","subtype":"init"}`, `{"type":"result","subtype":"success","result":"before any report"}`,
		`{"type":"command_lifecycle","command_uuid":"msg_1","state":"queued"}`,
		`{"type":"command_lifecycle","command_uuid":"msg_1","state":"started"}`,
		`{"type":"system","subtype":"init"}`, `{"type":"result","subtype":"success","result":"one"}`,
		`{"type":"command_lifecycle","command_uuid":"msg_1","state":"completed"}`,
		`{"type":"system","subtype":"task_notification","summary":"it ended"}`, `{"type":"system","subtype":"init"}`,
		`{"type":"command_lifecycle","command_uuid":"msg_2","state":"queued"}`,
		`{"type":"result","subtype":"success","result":"own"}`,
		`{"type":"command_lifecycle","command_uuid":"msg_2","state":"started"}`,
		`{"type":"result","subtype":"success","result":"two"}`,
		`{"type":"system","subtype":"init"}`, `{"type":"command_lifecycle","command_uuid":"msg_3","state":"started"}`,
		`{"type":"result","subtype":"success","result":"both"}`,
	} {
		for _, e := range c.Decode([]byte(line)) {
			if e.Type == agent.Ready || e.Type == agent.Done {
				got = append(got, fmt.Sprintf("%s %t %s %v", e.Type, e.Own, e.Text, e.Prompts))
			}
		}
	}
	want := []string{
		"agent.ready false  []", "done false before any report []", "agent.ready false  []", "done false one [msg_1]",
		"agent.ready true it ended []", "done true own []", "done false two [msg_2]", "agent.ready true  []",
		"done false both [msg_3]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
