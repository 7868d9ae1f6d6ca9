package bridge

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/jsonrpc"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/acp"
)

// reply answers the session's next request with a method.
func (p *player) reply(method, result string) {
	p.t.Helper()
	m, ok := p.take(method)
	if !ok {
		p.t.Fatalf("no request %s, but %+v", method, p.outbox)
	}
	field := "result"
	if strings.HasPrefix(result, `{"code"`) {
		field = "error"
	}
	p.feed(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"%s":%s}`, m.ID, field, result))
}

// open opens a session "s" with an agent.
func openAgent(t *testing.T, o options, info, opened string) *player {
	t.Helper()
	p := newPlayer(t, o)
	p.reply("initialize", `{"protocolVersion":1,"agentInfo":{"name":"`+info+`","version":"1"}}`)
	p.reply("session/new", opened)
	return p
}

func openPlain(t *testing.T) *player {
	t.Helper()
	return openAgent(t, options{}, "some", `{"sessionId":"s"}`)
}

// update is an update of the session "s".
func (p *player) update(text string) {
	p.feed(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":` + text + `}}`)
}

func (p *player) prompt(id string) { p.s.handle(acp.Request{Op: "prompt", ID: id, Text: "go"}) }

// last returns the last event.
func (p *player) last() agent.Event {
	p.t.Helper()
	if len(p.events) == 0 {
		p.t.Fatal("no events")
	}
	return p.events[len(p.events)-1]
}

// of returns the events of a type.
func (p *player) of(kind agent.Type) (all []agent.Event) {
	for _, e := range p.events {
		if e.Type == kind {
			all = append(all, e)
		}
	}
	return all
}

// ask lets the agent ask for permission with some options, and returns the ID of the question.
func (p *player) ask(request string, kinds ...string) string {
	p.t.Helper()
	var options []string
	for i, kind := range kinds {
		options = append(options, fmt.Sprintf(`{"optionId":"o%d","kind":"%s"}`, i, kind))
	}
	p.feed(`{"jsonrpc":"2.0","id":` + request + `,"method":"session/request_permission","params":{"sessionId":"s",` +
		`"toolCall":{"toolCallId":"c` + request + `","kind":"execute","title":"ls"},"options":[` +
		strings.Join(options, ",") + `]}}`)
	asked := p.of(agent.Asked)
	if len(asked) == 0 {
		p.t.Fatalf("no question: %+v", p.events)
	}
	return asked[len(asked)-1].ID
}

// TestOptionOfKind checks that an answer is the first option of its kind, and never an option that was not offered.
func TestOptionOfKind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kinds  []string
		answer agent.Answer
		want   string
	}{
		{[]string{"allow_always", "allow_once", "allow_once", "reject_once"}, agent.Answer{Allow: true}, "o1"},
		{[]string{"allow_always", "allow_once", "reject_once"}, agent.Answer{Allow: true, Always: true}, "o0"},
		{[]string{"allow_once", "reject_always", "reject_once"}, agent.Answer{}, "o2"},
		{[]string{"allow_once", "reject_always"}, agent.Answer{}, "o1"},
		{[]string{"allow_once"}, agent.Answer{Allow: true, Always: true}, "o0"},
		{[]string{"allow_once"}, agent.Answer{}, "cancelled"},
		{[]string{"new_kind"}, agent.Answer{Allow: true}, "cancelled"},
		{nil, agent.Answer{Allow: true}, "cancelled"},
	} {
		p := openPlain(t)
		p.prompt("p")
		id := p.ask("7", c.kinds...)
		p.s.handle(acp.Request{Op: "answer", ID: id, Answer: &c.answer})
		sent := p.sent[len(p.sent)-1]
		if string(sent.ID) != "7" || !strings.Contains(string(sent.Result), `"`+c.want+`"`) {
			t.Errorf("%v %+v: %s", c.kinds, c.answer, sent.Result)
		}
		before := len(p.sent)
		p.s.handle(acp.Request{Op: "answer", ID: id, Answer: &c.answer})
		if len(p.sent) != before {
			t.Errorf("a second answer was sent")
		}
	}
}

// TestEditsNeedNoAnswer checks that a session that approves edits answers questions about them itself.
func TestEditsNeedNoAnswer(t *testing.T) {
	t.Parallel()
	p := openAgent(t, options{approval: agent.ApproveEdits}, "new", `{"sessionId":"s"}`)
	p.prompt("p")
	p.feed(`{"id":1,"method":"session/request_permission","params":{"sessionId":"s","toolCall":{"toolCallId":"c",` +
		`"kind":"edit","locations":[{"path":"/w/a"}]},"options":[{"optionId":"yes","kind":"allow_once"}]}}`)
	if sent := p.sent[len(p.sent)-1]; !strings.Contains(string(sent.Result), `"yes"`) || len(p.of(agent.Asked)) > 0 {
		t.Errorf("%s, %+v", sent.Result, p.events)
	}
}

// TestUnknownRequests checks that each unknown request is answered at once, and that the turn goes on.
func TestUnknownRequests(t *testing.T) {
	t.Parallel()
	p := openPlain(t)
	p.prompt("p")
	for _, method := range []string{"craft/drainMidTurnQueue", "fs/read_text_file", "terminal/create",
		"elicitation/create", "x"} {
		p.feed(`{"jsonrpc":"2.0","id":"` + method + `","method":"` + method + `","params":{}}`)
		sent := p.sent[len(p.sent)-1]
		if f, failed := sent.Failed(); !failed || f.Number() != "-32601" || string(sent.ID) != `"`+method+`"` {
			t.Errorf("%s: %+v", method, sent)
		}
	}
	p.feed(`{"jsonrpc":"2.0","method":"_auth/status_update","params":{}}`)
	if p.s.turn == nil || len(p.of(agent.Done)) > 0 {
		t.Errorf("%+v", p.events)
	}
}

// TestOnePromptAtATime checks that a second prompt waits for the end of the first.
func TestOnePromptAtATime(t *testing.T) {
	t.Parallel()
	p := newPlayer(t, options{})
	p.prompt("early")
	p.prompt("second")
	p.reply("initialize", `{"protocolVersion":1}`)
	p.reply("session/new", `{"sessionId":"s"}`)
	count := func() (n int) {
		for _, m := range p.sent {
			if m.Method == "session/prompt" {
				n++
			}
		}
		return n
	}
	if count() != 1 {
		t.Fatalf("%d prompts", count())
	}
	p.reply("session/prompt", `{"stopReason":"end_turn"}`)
	if count() != 2 {
		t.Errorf("%d prompts after the end of the first", count())
	}
}

// TestCancel checks that a cancel answers the open questions with "cancelled" before it, and that the turn ends as
// interrupted with its tools closed, whatever the reason of the answer is.
func TestCancel(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{`{"stopReason":"cancelled"}`, `{"stopReason":"end_turn"}`,
		`{"code":-32603,"message":"aborted"}`} {
		p := openPlain(t)
		p.prompt("p")
		p.ask("1", "allow_once")
		p.ask("2", "allow_once")
		p.s.handle(acp.Request{Op: "interrupt"})
		p.s.handle(acp.Request{Op: "interrupt"})
		var order []string
		for _, m := range p.sent[len(p.sent)-3:] {
			order = append(order, string(m.ID)+m.Method+string(m.Result))
		}
		if diff := cmp.Diff([]string{`1{"outcome":{"outcome":"cancelled"}}`, `2{"outcome":{"outcome":"cancelled"}}`,
			"session/cancel"}, order); diff != "" {
			t.Error(diff)
		}
		p.feed(`{"id":3,"method":"session/request_permission","params":{"toolCall":{"toolCallId":"late"}}}`)
		if sent := p.sent[len(p.sent)-1]; !strings.Contains(string(sent.Result), "cancelled") {
			t.Errorf("a late question: %+v", sent)
		}
		p.reply("session/prompt", answer)
		done := p.last()
		if done.Type != agent.Done || !done.Interrupted || len(p.of(agent.Withdrawn)) != 2 {
			t.Errorf("%s: %+v", answer, p.events)
		}
		if closed := p.of(agent.ToolCompleted); len(closed) != 2 || !closed[0].Failed || !closed[0].Interrupted {
			t.Errorf("%+v", closed)
		}
		p.wait(p.clock.Add(time.Hour))
		if p.s.over != nil {
			t.Error(p.s.over)
		}
	}
}

// TestCancelWithoutAnswer checks that a cancelled prompt that the agent never answers ends with the process.
func TestCancelWithoutAnswer(t *testing.T) {
	t.Parallel()
	p := openPlain(t)
	p.prompt("p")
	p.s.handle(acp.Request{Op: "interrupt"})
	p.wait(p.clock.Add(cancelTime))
	if p.s.over == nil || len(p.of(agent.Done)) > 0 {
		t.Errorf("%v, %+v", p.s.over, p.events) // the process lives
	}
	p.s.ends(p.s.over, "")
	if done := p.last(); done.Type != agent.Done || !done.Interrupted {
		t.Errorf("%+v", done)
	}
}

// TestCancelBeforePrompt checks that a prompt that has not been sent can be cancelled.
func TestCancelBeforePrompt(t *testing.T) {
	t.Parallel()
	p := newPlayer(t, options{})
	p.prompt("p")
	p.s.handle(acp.Request{Op: "interrupt"})
	if done := p.last(); done.Type != agent.Done || !done.Interrupted || len(p.s.queue) > 0 {
		t.Errorf("%+v", done)
	}
}

// TestWithdrawn checks that a question that the agent withdraws is answered and closed.
func TestWithdrawn(t *testing.T) {
	t.Parallel()
	p := openPlain(t)
	p.prompt("p")
	id := p.ask("4", "allow_once")
	p.feed(`{"method":"$/cancel_request","params":{"requestId":9}}`)
	p.feed(`{"method":"$/cancel_request","params":{"requestId":4}}`)
	if e := p.last(); e.Type != agent.Withdrawn || e.ID != id || len(p.s.questions) > 0 {
		t.Errorf("%+v", e)
	}
}

// TestEndOfTurn checks that only a turn in which the model succeeded counts as done.
func TestEndOfTurn(t *testing.T) {
	t.Parallel()
	const said = `{"sessionUpdate":"agent_message_chunk","messageId":"m","content":{"type":"text","text":"hi"}}`
	text := func(s string) string {
		return `{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"` + s + `"}}`
	}
	status := func(s string) string {
		return `{"sessionUpdate":"session_info_update","_meta":{"codex":{"threadStatus":{"type":"` + s + `"}}}}`
	}
	const end = `{"stopReason":"end_turn"}`
	for name, c := range map[string]struct {
		agent   string
		updates []string
		answer  string
		want    agent.Event
	}{
		"a text": {"new", []string{said}, end, agent.Event{Reason: "end_turn", Text: "hi"}},
		"a tool": {"new", []string{`{"sessionUpdate":"tool_call","toolCallId":"c","status":"completed"}`}, end,
			agent.Event{Reason: "end_turn"}},
		"nothing":      {"new", nil, end, agent.Event{Failed: true, Reason: "empty_turn"}},
		"a blank text": {"new", []string{text(`\n`)}, end, agent.Event{Failed: true, Reason: "empty_turn"}},
		"pi retries": {"pi-acp", []string{text("Retrying (attempt 1)…"), text("Retrying (attempt 2)…")}, end,
			agent.Event{Failed: true, Reason: "empty_turn", Text: "Retrying (attempt 2)…"}},
		"codex breaks": {"@agentclientprotocol/codex-acp", []string{said, status("systemError"), text("too busy")}, end,
			agent.Event{Failed: true, Reason: "model_failed", Text: "too busy"}},
		"codex recovers": {"@agentclientprotocol/codex-acp", []string{status("systemError"), status("active"), said},
			end, agent.Event{Reason: "end_turn", Text: "hi"}},
		"codex warns": {"@agentclientprotocol/codex-acp", []string{text("Warning: old")}, end,
			agent.Event{Failed: true, Reason: "empty_turn"}},
		"copilot fails": {"Copilot", []string{said, text("Error: Authentication failed")}, end,
			agent.Event{Failed: true, Reason: "model_failed", Text: "Authentication failed"}},
		"copilot recovers": {"Copilot", []string{text("Error: x"), text("Info: again"), said}, end,
			agent.Event{Reason: "end_turn", Text: "hi"}},
		"copilot informs": {"Copilot", []string{text("Info: x")}, end, agent.Event{Failed: true, Reason: "empty_turn"}},
		"claude informs": {"new", []string{`{"sessionUpdate":"agent_message_chunk","content":{"type":"text",` +
			`"text":"b"},"_meta":{"claudeCode":{"kind":"informational"}}}`}, end,
			agent.Event{Failed: true, Reason: "empty_turn"}},
		"no reason": {"new", []string{said}, `{}`, agent.Event{Failed: true, Reason: "no_reason"}},
		"refusal":   {"new", []string{said}, `{"stopReason":"refusal"}`, agent.Event{Failed: true, Reason: "refusal"}},
		"max tokens": {"new", []string{said}, `{"stopReason":"max_tokens"}`,
			agent.Event{Failed: true, Reason: "max_tokens"}},
		"status 401": {"new", nil, `{"code":401,"message":"bad key"}`,
			agent.Event{Failed: true, Reason: "request_failed", Text: "401 bad key"}},
		"error": {"new", nil, `{"code":-32603,"message":"Internal error","data":{"details":"disk full"}}`,
			agent.Event{Failed: true, Reason: "request_failed", Text: "Internal error: disk full"}},
		"odd error": {"new", nil, `{"code":"E1","message":7}`,
			agent.Event{Failed: true, Reason: "request_failed", Text: "E1 error E1"}},
		"cancelled by itself": {"new", []string{said}, `{"stopReason":"cancelled"}`,
			agent.Event{Failed: true, Interrupted: true, Reason: "cancelled", Text: "hi"}},
	} {
		p := openAgent(t, options{}, c.agent, `{"sessionId":"s"}`)
		p.prompt("p")
		for _, u := range c.updates {
			p.update(u)
		}
		p.reply("session/prompt", c.answer)
		got := p.last()
		if c.want.Text == "" {
			got.Text = ""
		}
		c.want.Type, c.want.Usage, c.want.Unproven = agent.Done, &agent.Usage{}, !c.want.Failed
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestStartupText checks that the text about itself that pi sends in the first turn is not taken for the model's.
func TestStartupText(t *testing.T) {
	t.Parallel()
	p := openAgent(t, options{}, "pi-acp", `{"sessionId":"s","_meta":{"piAcp":{"startupInfo":"pi v1\n---\n"}}}`)
	p.prompt("p")
	p.update(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"pi v1\n---\n"}}`)
	p.reply("session/prompt", `{"stopReason":"end_turn"}`)
	if done := p.last(); done.Reason != "empty_turn" || len(p.of(agent.MessageStarted)) > 0 {
		t.Errorf("%+v", p.events)
	}
}

// TestRejected checks that a turn that ends because a person refused a tool is reported as such.
func TestRejected(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{`{"stopReason":"end_turn"}`, `{"stopReason":"cancelled"}`} {
		p := openPlain(t)
		p.prompt("p")
		id := p.ask("1", "allow_once", "reject_once")
		p.s.handle(acp.Request{Op: "answer", ID: id, Answer: &agent.Answer{}})
		p.reply("session/prompt", answer)
		if done := p.last(); done.Reason != "rejected" || !done.Interrupted {
			t.Errorf("%s: %+v", answer, done)
		}
		if tools := p.of(agent.ToolCompleted); len(tools) != 1 || !tools[0].Denied {
			t.Errorf("%+v", tools)
		}
	}
}

// TestSilence checks that silence is reported ever more rarely, and not while a person has to answer.
func TestSilence(t *testing.T) {
	t.Parallel()
	p := openPlain(t)
	p.wait(p.clock.Add(time.Hour))
	p.prompt("p")
	p.wait(p.clock.Add(100 * time.Second))
	if got := p.of(agent.Silent); len(got) != 2 || !strings.Contains(got[0].Text, "30s") ||
		!strings.Contains(got[1].Text, "1m30s") {
		t.Errorf("%+v", got)
	}
	p.feed(`{"method":"any"}`)
	p.wait(p.clock.Add(29 * time.Second))
	id := p.ask("1", "allow_once")
	p.wait(p.clock.Add(10 * time.Hour))
	if got := p.of(agent.Silent); len(got) != 2 {
		t.Errorf("%+v", got)
	}
	p.s.handle(acp.Request{Op: "answer", ID: id, Answer: &agent.Answer{Allow: true}})
	p.wait(p.clock.Add(31 * time.Second))
	if got := p.of(agent.Silent); len(got) != 3 {
		t.Errorf("%+v", got)
	}
}

// TestLines checks that a line that is malformed, too long or unexpected has no effect on others.
func TestLines(t *testing.T) {
	t.Parallel()
	p := openPlain(t)
	p.prompt("p")
	for _, line := range []string{"noise", "{", "[]", `"x"`, "7", "null", `{"id":null,"error":{"code":-32700}}`,
		`{"method":7}`} {
		p.feed(line)
		if e := p.last(); e.Type != agent.Other {
			t.Errorf("%s: %+v", line, e)
		}
	}
	before := len(p.events)
	for _, line := range []string{`{"id":99,"result":{}}`, `{"id":"0","result":{}}`, `{"id":{},"error":7}`,
		`{"method":"session/update","params":{"sessionId":"other","update":{"sessionUpdate":"new"}}}`,
		`{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"user_message_chunk"}}}`} {
		p.feed(line)
	}
	if len(p.events) != before {
		t.Errorf("%+v", p.events[before:])
	}
	p.update(`{"sessionUpdate":"a_new_one"}`)
	p.feed(`{"method":"session/update","params":7}`)
	if len(p.events) != before+2 {
		t.Errorf("%+v", p.events[before:])
	}
	p.s.read(jsonrpc.Line{Cut: true})
	if e := p.last(); e.Type != agent.Notice || e.Reason != "line_lost" {
		t.Errorf("%+v", e)
	}
	p.update(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"hi"},"messageId":7}`)
	p.reply("session/prompt", `{"stopReason":"end_turn"}`)
	if done := p.last(); done.Failed || done.Text != "hi" {
		t.Errorf("%+v", done)
	}
}

// TestMessages checks that pieces are joined by their message ID, and that a thought or a tool ends a message.
func TestMessages(t *testing.T) {
	t.Parallel()
	p := openPlain(t)
	p.prompt("p")
	for _, u := range []string{
		`{"sessionUpdate":"agent_message_chunk","messageId":"a","content":{"type":"text","text":"1"}}`,
		`{"sessionUpdate":"agent_message_chunk","messageId":"a","content":{"type":"text","text":"2"}}`,
		`{"sessionUpdate":"agent_message_chunk","messageId":"b","content":{"type":"text","text":"3"}}`,
		`{"sessionUpdate":"agent_thought_chunk","messageId":"b","content":{"type":"text","text":"4"}}`,
		`{"sessionUpdate":"tool_call","toolCallId":"c","status":"completed"}`,
		`{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"5"}}`,
		`{"sessionUpdate":"agent_thought_chunk","content":{"type":"image","data":"x"}}`,
	} {
		p.update(u)
	}
	p.reply("session/prompt", `{"stopReason":"end_turn"}`)
	var got []string
	for _, m := range p.of(agent.MessageCompleted) {
		got = append(got, fmt.Sprint(m.Text, m.Thinking))
	}
	if diff := cmp.Diff([]string{"12false", "3false", "4true", "5true"}, got); diff != "" {
		t.Error(diff)
	}
	if done := p.last(); done.Text != "3" {
		t.Errorf("%+v", done)
	}
}

// TestFilesAndPlan checks that diffs of a call that succeeds become changed files, and a plan its steps.
func TestFilesAndPlan(t *testing.T) {
	t.Parallel()
	p := openPlain(t)
	p.prompt("p")
	p.update(`{"sessionUpdate":"tool_call","toolCallId":"c","kind":"edit","title":"Write","rawInput":{"path":"/w/a"},` +
		`"locations":[{"path":"/w/a"}],"content":[{"type":"diff","path":"/w/a","newText":"x"},` +
		`{"type":"diff","path":"/w/b","oldText":"x","newText":"y"}]}`)
	p.update(`{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed"}`)
	p.update(`{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed"}`)
	p.update(`{"sessionUpdate":"plan","entries":[{"content":"look","status":"completed","priority":"high"}]}`)
	want := []agent.Event{
		{Type: agent.ToolStarted, ID: "c", Tool: "edit", Input: json.RawMessage(`{"path":"/w/a"}`)},
		{Type: agent.ToolCompleted, ID: "c", Tool: "edit"},
		{Type: agent.FileChanged, ID: "c", Path: "/w/a", Created: true},
		{Type: agent.FileChanged, ID: "c", Path: "/w/b"},
		{Type: agent.Planned, Plan: []agent.Step{{Text: "look", Status: "completed"}}},
	}
	if diff := cmp.Diff(want, p.events[1:]); diff != "" {
		t.Error(diff)
	}
}

// TestDescriptionIsNoOutput checks that content of a call that does not run yet is not taken for output.
func TestDescriptionIsNoOutput(t *testing.T) {
	t.Parallel()
	p := openPlain(t)
	p.prompt("p")
	content := func(text string) string {
		return `"content":[{"type":"content","content":{"type":"text","text":"` + text + `"}}]}`
	}
	p.update(`{"sessionUpdate":"tool_call","toolCallId":"c","kind":"execute","status":"in_progress",` +
		content("where"))
	p.update(`{"sessionUpdate":"tool_call_update","toolCallId":"c","title":"ls","rawInput":{"command":"ls"},` +
		content("why"))
	p.update(`{"sessionUpdate":"tool_call_update","toolCallId":"c",` + content("a"))
	p.update(`{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"in_progress",` + content("ab"))
	p.update(`{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed",` + content("abc"))
	var got []string
	for _, e := range p.of(agent.ToolOutput) {
		got = append(got, e.Text)
	}
	if done := p.last(); strings.Join(got, "|") != "a|b" || done.Text != "abc" {
		t.Errorf("%q, %+v", got, done)
	}
}

// TestInstructions checks that instructions precede the first prompt of a new conversation, once.
func TestInstructions(t *testing.T) {
	t.Parallel()
	for session, want := range map[string]int{"": 1, "old": 0} {
		p := newPlayer(t, options{system: "Be brief.", session: session})
		p.reply("initialize", `{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"resume":{}}}}`)
		p.reply(map[bool]string{true: "session/new", false: "session/resume"}[session == ""], `{"sessionId":"s"}`)
		got := 0
		for range 2 {
			p.prompt("p")
			got += strings.Count(string(p.sent[len(p.sent)-1].Params), "Be brief.")
			p.reply("session/prompt", `{"stopReason":"cancelled"}`)
		}
		if got != want {
			t.Errorf("session %q: %d times, want %d", session, got, want)
		}
	}
}

// TestCommands checks that the agent's commands are reported when they change, and that a first prompt with a command
// does not begin with the instructions: the agent would not recognize it.
func TestCommands(t *testing.T) {
	t.Parallel()
	p := openAgent(t, options{system: "Be brief."}, "new", `{"sessionId":"s"}`)
	const list = `{"sessionUpdate":"available_commands_update","availableCommands":[{"name":"compact","description":` +
		`"Shorten.","input":{"hint":"how"}},{"name":"/plan","input":null}]}`
	p.update(list)
	say := func(text string) { p.s.handle(acp.Request{Op: "prompt", ID: text, Text: text}) }
	say("/compact now")
	p.update(list)
	for i, brief := range []bool{false, true, false} {
		if i > 0 {
			say("do /compact")
		}
		if text := string(p.sent[len(p.sent)-1].Params); strings.Contains(text, "Be brief.") != brief {
			t.Errorf("prompt %d: %s", i, text)
		}
		p.reply("session/prompt", `{"stopReason":"cancelled"}`)
	}
	p.update(`{"sessionUpdate":"available_commands_update","availableCommands":[]}`)
	want := []agent.Event{{Type: agent.Commands, Commands: []agent.Command{{Name: "compact", Description: "Shorten.",
		Hint: "how"}, {Name: "plan"}}}, {Type: agent.Commands}}
	if diff := cmp.Diff(want, p.of(agent.Commands)); diff != "" {
		t.Error(diff)
	}
}

// TestDirectory checks that a directory that does not exist is an error: most agents start in it all the same.
func TestDirectory(t *testing.T) {
	t.Parallel()
	p := newPlayer(t, options{dir: "/nonexistent/dir"})
	if errors.KindOf(p.s.over) != errors.Invalid || len(p.sent) > 0 {
		t.Errorf("%v, %+v", p.s.over, p.sent)
	}
}

// TestUsage checks that usage that counts the session is not added up, and that the cost of the session is split into
// turns.
func TestUsage(t *testing.T) {
	t.Parallel()
	const first, second = `{"stopReason":"end_turn","usage":{"inputTokens":9,"outputTokens":3,"thoughtTokens":1}}`,
		`{"stopReason":"end_turn","usage":{"inputTokens":27,"outputTokens":9,"thoughtTokens":2,"cachedReadTokens":5}}`
	for name, want := range map[string][]agent.Usage{
		"Copilot": {{InputTokens: 9, OutputTokens: 4, Cost: 0.5}, {InputTokens: 18, OutputTokens: 7, CacheReadTokens: 5,
			Cost: 0.25}},
		"new": {{InputTokens: 9, OutputTokens: 4, Cost: 0.5}, {InputTokens: 27, OutputTokens: 11, CacheReadTokens: 5,
			Cost: 0.25}},
	} {
		p := openAgent(t, options{}, name, `{"sessionId":"s"}`)
		var got []agent.Usage
		for i, answer := range []string{first, second} {
			p.prompt(fmt.Sprint(i))
			p.update(fmt.Sprintf(`{"sessionUpdate":"usage_update","used":5,"size":10,"cost":{"amount":%g}}`,
				0.5+0.25*float64(i)))
			p.reply("session/prompt", answer)
			got = append(got, *p.last().Usage)
			if c := p.last().Context; c == nil || *c != (agent.Context{Used: 5, Size: 10}) {
				t.Errorf("%+v", c)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// FuzzSession checks that no line of an agent stops the bridge, and that all its events can be printed.
func FuzzSession(f *testing.F) {
	f.Add([]byte(`{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"tool_call",` +
		`"toolCallId":"c","rawInput":{"command":7},"content":[{"type":"diff"}],"rawOutput":{"result":` +
		`{"content":[7]}}}}}`))
	f.Add([]byte(`{"id":1,"method":"session/request_permission","params":{"options":[{}],"toolCall":{` +
		`"toolCallId":"c"}}}` + "\n" + `{"id":2,"result":{"stopReason":"end_turn","usage":null}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p := openAgent(t, options{dir: "/"}, "some", `{"sessionId":"s"}`)
		p.prompt("p")
		jsonrpc.ReadLines(strings.NewReader(string(text)), 1<<20, func(in jsonrpc.Line) { p.s.read(in) })
		p.s.handle(acp.Request{Op: "interrupt"})
		p.wait(p.clock.Add(time.Hour))
		for _, e := range p.events {
			if e.Type == "" {
				t.Fatalf("an event without a type: %+v", e)
			}
		}
	})
}
