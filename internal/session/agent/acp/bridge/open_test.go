package bridge

import (
	"cmp"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/jsonrpc"
	"github.com/RelevanceAI/harvest/internal/session/agent"
)

// TestOffersVersionOne checks that the session offers exactly version 1, no files and no terminal, and refuses any
// other version: for a larger number, agents speak a draft.
func TestOffersVersionOne(t *testing.T) {
	t.Parallel()
	p := newPlayer(t, options{})
	var params struct {
		ProtocolVersion    json.RawMessage
		ClientCapabilities json.RawMessage
	}
	if err := json.Unmarshal(p.sent[0].Params, &params); err != nil || string(params.ProtocolVersion) != "1" ||
		string(params.ClientCapabilities) != `{"fs":{"readTextFile":false,"writeTextFile":false},"terminal":false}` {
		t.Errorf("%s, %v", p.sent[0].Params, err)
	}
	for _, answer := range []string{`{"protocolVersion":2}`, `{"protocolVersion":"1"}`, `{}`, `[]`, `null`} {
		p := newPlayer(t, options{})
		p.reply("initialize", answer)
		if p.s.over == nil || !strings.Contains(p.s.over.Error(), "Harvest speaks 1") {
			t.Errorf("%s: %v", answer, p.s.over)
		}
	}
}

// TestMode checks that the session sets the mode for the approval, and says where it cannot.
func TestMode(t *testing.T) {
	t.Parallel()
	modes := func(ids ...string) string {
		var all []string
		for _, id := range ids {
			all = append(all, `{"id":"`+id+`"}`)
		}
		return `{"sessionId":"s","modes":{"currentModeId":"auto","availableModes":[` + strings.Join(all, ",") + `]}}`
	}
	selects := func(id string, values ...string) string {
		var all []string
		for _, v := range values {
			all = append(all, `{"value":"`+v+`"}`)
		}
		return `{"id":"` + id + `","category":"` + id + `","options":[` + strings.Join(all, ",") + `]}`
	}
	claude, codex := modes("default", "acceptEdits", "plan", "auto", "bypassPermissions"),
		`{"sessionId":"s","configOptions":[`+selects("mode", "read-only", "workspace-write", "agent",
			"agent-full-access")+`,`+selects("collaboration_mode", "default", "plan")+`]}`
	qwen := modes("plan", "default", "auto-edit", "auto", "yolo")
	url := "https://agentclientprotocol.com/protocol/session-modes"
	copilot := `{"sessionId":"s","configOptions":[` + selects("mode", url+"#agent", url+"#plan") + `,` +
		selects("allow_all", "on", "off") + `]}`
	for _, c := range []struct {
		agent, opened string
		approval      agent.Approval
		want, notice  string
	}{
		{"@agentclientprotocol/claude-agent-acp", claude, agent.ApproveAll, "bypassPermissions", ""},
		{"@agentclientprotocol/claude-agent-acp", claude, agent.ApproveEdits, "acceptEdits", ""},
		{"@agentclientprotocol/claude-agent-acp", claude, agent.ApproveNone, "default", ""},
		{"@agentclientprotocol/claude-agent-acp", claude, agent.ApprovePlan, "plan", ""},
		{"@agentclientprotocol/codex-acp", codex, agent.ApproveAll, "agent-full-access", ""},
		{"@agentclientprotocol/codex-acp", codex, agent.ApproveEdits, "workspace-write", ""},
		{"@agentclientprotocol/codex-acp", codex, agent.ApproveNone, "read-only", ""},
		{"@agentclientprotocol/codex-acp", codex, agent.ApprovePlan, "read-only plan", ""},
		{"qwen-code", qwen, agent.ApproveAll, "yolo", ""},
		{"qwen-code", qwen, agent.ApproveEdits, "auto-edit", ""},
		{"Copilot", copilot, agent.ApproveAll, url + "#agent on", ""},
		{"Copilot", copilot, agent.ApproveNone, url + "#agent off", ""},
		{"pi-acp", modes("off"), agent.ApproveNone, "", "never_asks"},
		{"pi-acp", modes("off"), agent.ApproveAll, "", ""},
		{"new", modes("turbo"), agent.ApproveNone, "", "mode_unknown"},
		{"new", `{"sessionId":"s"}`, agent.ApproveAll, "", ""},
		{"new", modes("ask"), agent.ApproveNone, "ask", ""},
	} {
		p := openAgent(t, options{approval: c.approval}, c.agent, c.opened)
		var got []string
		for _, m := range p.sent {
			var params struct{ ModeID, Value string }
			jsonrpc.Decode(m.Params, &params)
			if strings.HasPrefix(m.Method, "session/set_") {
				got = append(got, params.ModeID+params.Value)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s %q: set %q, want %q", c.agent, c.approval, got, c.want)
		}
		var reason string
		if notices := p.of(agent.Notice); len(notices) > 0 {
			reason = notices[0].Reason
		}
		if reason != c.notice || p.last().Type != agent.Ready {
			t.Errorf("%s %q: notice %q, want %q; %+v", c.agent, c.approval, reason, c.notice, p.events)
		}
	}
}

// TestModeRefused checks that a mode that the agent does not accept, or changes, is reported.
func TestModeRefused(t *testing.T) {
	t.Parallel()
	p := newPlayer(t, options{approval: agent.ApproveNone})
	p.reply("initialize", `{"protocolVersion":1}`)
	opened, _ := p.take("session/new")
	p.s.read(jsonrpc.Line{Text: []byte(`{"id":` + string(opened.ID) + `,"result":{"sessionId":"s","modes":{` +
		`"currentModeId":"x","availableModes":[{"id":"default"}]}}}`)})
	p.reply("session/set_mode", `{"code":-32603,"message":"no"}`)
	if notices := p.of(agent.Notice); len(notices) != 1 || notices[0].Reason != "mode" {
		t.Errorf("%+v", notices)
	}
	p = openAgent(t, options{approval: agent.ApproveNone}, "new",
		`{"sessionId":"s","modes":{"currentModeId":"x","availableModes":[{"id":"default"}]}}`)
	p.update(`{"sessionUpdate":"current_mode_update","currentModeId":"default"}`)
	p.update(`{"sessionUpdate":"current_mode_update","currentModeId":"yolo"}`)
	p.update(`{"sessionUpdate":"config_option_update","configOptions":[{"id":"mode","currentValue":"yolo"}]}`)
	if notices := p.of(agent.Notice); len(notices) != 1 || notices[0].Reason != "mode_changed" {
		t.Errorf("%+v", notices)
	}
}

// TestModel checks that the model is set in the way that the agent offers, and that a refusal is reported.
func TestModel(t *testing.T) {
	t.Parallel()
	for opened, want := range map[string]string{
		`{"sessionId":"s","configOptions":[{"id":"m","category":"model","currentValue":"a",` +
			`"options":[{"name":"group","options":[{"value":"big-1","name":"big"}]}]}]}`: `session/set_config_option ` +
			`{"configId":"m","sessionId":"s","value":"big-1"}`,
		`{"sessionId":"s","models":{"currentModelId":"a","availableModels":[{"modelId":"big-1",` +
			`"name":"big"}]}}`: `session/set_model {"modelId":"big-1","sessionId":"s"}`,
		`{"sessionId":"s","models":{"currentModelId":"big"}}`: "",
	} {
		p := openAgent(t, options{model: "big"}, "new", opened)
		got := ""
		for _, m := range p.sent {
			if strings.HasPrefix(m.Method, "session/set_") {
				got = m.Method + " " + string(m.Params)
			}
		}
		if got != want || !strings.HasPrefix(p.last().Model, "big") {
			t.Errorf("%s: %s, want %s; %+v", opened, got, want, p.last())
		}
	}
}

// TestLogin checks that missing credentials become a text that names the agent's own ways to log in.
func TestLogin(t *testing.T) {
	t.Parallel()
	const offers = `{"protocolVersion":1,"authMethods":[{"name":"Log in with X","description":"Run x login"},` +
		`{"name":"Key"}]}`
	const want = "log in: Log in with X (Run x login); or Key"
	p := newPlayer(t, options{})
	p.prompt("p")
	p.reply("initialize", offers)
	p.reply("session/new", `{"code":-32000,"message":"Authentication required"}`)
	p.s.ends(p.s.over, "a log")
	if done := p.last(); done.Reason != "auth_required" || done.Text != want {
		t.Errorf("%+v", done)
	}
	p = newPlayer(t, options{})
	p.reply("initialize", offers)
	p.reply("session/new", `{"sessionId":"s"}`)
	p.prompt("p")
	p.reply("session/prompt", `{"code":-32000,"message":"Authentication required"}`)
	if done := p.last(); done.Reason != "auth_required" || done.Text != want || p.s.over != nil {
		t.Errorf("%+v", done)
	}
}

// TestWatchdog checks that an agent that does not answer initialize or session/new is given up, and that a prompt that
// waits is told so.
func TestWatchdog(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"initialize", "session/new"} {
		p := newPlayer(t, options{})
		p.prompt("p")
		if method != "initialize" {
			p.reply("initialize", `{"protocolVersion":1}`)
		}
		p.wait(p.clock.Add(time.Hour))
		if errors.KindOf(p.s.over) != errors.Timeout || !strings.Contains(p.s.over.Error(), method) {
			t.Errorf("%s: %v", method, p.s.over)
			continue
		}
		p.s.ends(p.s.over, "its log")
		if done := p.last(); !done.Failed || !strings.Contains(done.Text, method) ||
			!strings.Contains(done.Text, "its log") {
			t.Errorf("%+v", done)
		}
	}
}

// TestContinue checks that the session is resumed where the agent can, else loaded; and that the bridge ends with
// ExitForgotten if the agent knows neither way, or not the conversation, or repeats nothing of it.
func TestContinue(t *testing.T) {
	t.Parallel()
	const resume, load = `"sessionCapabilities":{"resume":{}},`, `"loadSession":true,`
	for _, c := range []struct{ offers, answer, want string }{
		{resume + load, `{}`, ""},
		{load, `{}`, "it repeats nothing"},
		{"", "", "no way"},
		{load, `{"code":-32002,"message":"gone"}`, "gone"},
		{resume, `{"code":-32603,"message":"gone"}`, "gone"},
	} {
		p := newPlayer(t, options{session: "old"})
		p.reply("initialize", `{"protocolVersion":1,"agentCapabilities":{`+c.offers+`"x":1}}`)
		for _, method := range []string{"session/resume", "session/load"} {
			if m, ok := p.take(method); ok {
				if !strings.Contains(string(m.Params), `"old"`) {
					t.Errorf("%s", m.Params)
				}
				p.outbox = append(p.outbox, m)
				p.reply(method, c.answer)
			}
		}
		p.wait(p.clock.Add(time.Minute))
		if c.want == "" {
			if p.s.over != nil || p.last().Type != agent.Ready {
				t.Errorf("%+v: %v, %+v", c, p.s.over, p.events)
			}
			continue
		}
		notices := p.of(agent.Notice)
		if errors.ExitOf(p.s.over) != agent.ExitForgotten || len(notices) != 1 || notices[0].Reason != "not_resumed" ||
			!strings.Contains(notices[0].Text, c.want) {
			t.Errorf("%+v: %v, %+v", c, p.s.over, p.events)
		}
	}
}

// TestReplay checks that updates of a loaded session are no events until the agent is quiet, and that a prompt waits
// for that.
func TestReplay(t *testing.T) {
	t.Parallel()
	p := newPlayer(t, options{session: "s"})
	p.prompt("p")
	p.reply("initialize", `{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}`)
	p.reply("session/load", `{}`)
	for range 3 {
		p.wait(p.clock.Add(quietTime / 2))
		p.update(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"old"}}`)
		p.update(`{"sessionUpdate":"tool_call","toolCallId":"c","status":"completed"}`)
	}
	if len(p.events) > 0 || p.s.turn != nil {
		t.Errorf("%+v", p.events)
	}
	p.wait(p.clock.Add(quietTime))
	if len(p.events) != 1 || p.events[0].Type != agent.Ready || p.s.turn == nil {
		t.Errorf("%+v", p.events)
	}
	p.update(`{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"failed"}`)
	if len(p.events) != 1 {
		t.Errorf("an old call: %+v", p.events)
	}
}

// TestEffort checks that the effort of the model is set among those that the agent offers with that model, and that an
// agent without it says so.
func TestEffort(t *testing.T) {
	t.Parallel()
	efforts := func(values ...string) string {
		return `{"id":"effort","category":"thought_level","options":[{"value":"` + strings.Join(values,
			`"},{"value":"`) +
			`"}]}`
	}
	const model = `{"id":"m","category":"model","currentValue":"a","options":[{"value":"a"},{"value":"b"}]}`
	for _, c := range []struct{ model, opened, changed, set, notice string }{
		{"", `[` + efforts("low", "high") + `]`, "", "effort=high", ""},
		{"", `[` + efforts("low", "max") + `]`, "", "", "it offers low, max"},
		{"", `[]`, "", "", "it has no such option"},
		{"b", `[` + model + `]`, `[` + model + `,` + efforts("high") + `]`, "m=b effort=high", ""},
	} {
		p := newPlayer(t, options{model: c.model, effort: "high"})
		p.reply("initialize", `{"protocolVersion":1}`)
		answer := func(m jsonrpc.Message, options string) {
			p.s.read(jsonrpc.Line{Text: []byte(`{"id":` + string(m.ID) + `,"result":{"sessionId":"s","configOptions":` +
				options +
				`}}`)})
		}
		m, _ := p.take("session/new")
		answer(m, c.opened)
		var set []string
		for m, ok := p.take("session/set_config_option"); ok; m, ok = p.take("session/set_config_option") {
			answer(m, cmp.Or(c.changed, `[]`))
			var params struct{ ConfigID, Value string }
			jsonrpc.Decode(m.Params, &params)
			set = append(set, params.ConfigID+"="+params.Value)
		}
		if got := strings.Join(set, " "); got != c.set || p.last().Type != agent.Ready {
			t.Errorf("%+v: set %q, then %+v", c, got, p.last())
		}
		var text string
		for _, n := range p.of(agent.Notice) {
			text += n.Text
		}
		if (c.notice == "") != (text == "") || !strings.Contains(text, c.notice) {
			t.Errorf("%+v: notice %q", c, text)
		}
	}
}
