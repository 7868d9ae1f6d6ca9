package editor

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/api"
)

// shown returns the updates for events, one a line. Each event is its type, a space, and its data.
func shown(t *testing.T, v *view, events ...string) string {
	t.Helper()
	var lines []string
	for _, text := range events {
		kind, data, _ := strings.Cut(text, " ")
		var e api.SessionEvent
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		lines = append(lines, encoded(t, v.event(kind, e, false))...)
	}
	return strings.Join(lines, "\n")
}

func encoded(t *testing.T, updates []update) (lines []string) {
	t.Helper()
	for _, u := range updates {
		text, err := json.Marshal(u)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(text))
	}
	return lines
}

// turn are the events of a turn.
var turn = []string{
	`message.sent {"message":{"id":"msg_a","prompt":"do it"}}`,
	`message.started {"id":"m","thinking":true}`,
	`message.delta {"id":"m","text":"I "}`,
	`message.delta {"id":"m","text":"think"}`,
	`message.completed {"id":"m","text":"I think","thinking":true}`,
	`tool.started {"id":"c","tool":"Bash","input":{"command":"ls"}}`,
	`tool.output {"id":"c","text":"a\n"}`,
	`tool.completed {"id":"c","tool":"Bash","text":"a\nb\n"}`,
	`tool.started {"id":"d","tool":"Edit","input":{"file_path":"/workspace/p/a.go","old_string":"x","new_string":"y"}}`,
	`tool.completed {"id":"d","tool":"Edit","text":"changed"}`,
	`file.changed {"id":"d","path":"/workspace/p/a.go"}`,
	`agent.plan {"plan":[{"text":"look","status":"completed"},{"text":"do"}]}`,
	`tool.started {"id":"e","tool":"Task","input":{"description":"explore"}}`,
	`message.completed {"id":"s","parent":"e","text":"of a sub-agent"}`,
	`message.completed {"id":"n","text":"Done."}`,
	`done {"message_id":"msg_a","usage":{"cost_usd":0.5},"context":{"used":10,"size":100}}`,
}

// TestTurn checks the updates of a turn, live and in a replay, where the pieces of a message are one.
func TestTurn(t *testing.T) {
	t.Parallel()
	place := paths{local: "/home/u/p", inside: "/workspace/p"}
	thought := func(text string) string {
		return `{"sessionUpdate":"agent_thought_chunk","messageId":"m","content":{"text":"` + text + `","type":"text"}}`
	}
	begin := []string{
		`{"sessionUpdate":"user_message_chunk","messageId":"msg_a","content":{"text":"do it","type":"text"}}`,
		`{"sessionUpdate":"session_info_update","title":"do it"}`}
	rest := []string{
		`{"sessionUpdate":"tool_call","toolCallId":"c","title":"ls","name":"Bash","kind":"execute",` +
			`"status":"in_progress","rawInput":{"command":"ls"}}`,
		`{"sessionUpdate":"tool_call_update","content":[{"content":{"text":"` + "```\\na\\nb\\n```" +
			`","type":"text"},"type":"content"}],"toolCallId":"c","status":"completed"}`,
		`{"sessionUpdate":"tool_call","content":[{"newText":"y","oldText":"x","path":"/home/u/p/a.go",` +
			`"type":"diff"}],"toolCallId":"d","title":"Edit /workspace/p/a.go","name":"Edit","kind":"edit",` +
			`"status":"in_progress",` +
			`"locations":[{"path":"/home/u/p/a.go"}],"rawInput":{"file_path":"/workspace/p/a.go","old_string":"x",` +
			`"new_string":"y"}}`,
		`{"sessionUpdate":"tool_call_update","content":[{"newText":"y","oldText":"x","path":"/home/u/p/a.go",` +
			`"type":"diff"}],"toolCallId":"d","status":"completed"}`,
		`{"sessionUpdate":"tool_call_update","toolCallId":"d","locations":[{"path":"/home/u/p/a.go"}]}`,
		`{"sessionUpdate":"plan","entries":[{"content":"look","priority":"medium","status":"completed"},` +
			`{"content":"do","priority":"medium","status":"pending"}]}`,
		`{"sessionUpdate":"tool_call","toolCallId":"e","title":"Task explore","name":"Task","kind":"think",` +
			`"status":"in_progress","rawInput":{"description":"explore"}}`,
		`{"sessionUpdate":"agent_message_chunk","messageId":"n","content":{"text":"Done.","type":"text"}}`,
		`{"sessionUpdate":"tool_call_update","toolCallId":"e","status":"failed"}`, // its end is missing
		`{"sessionUpdate":"usage_update","used":10,"size":100,"cost":{"amount":0.5,"currency":"USD"}}`,
	}
	for past, middle := range map[bool][]string{false: {thought("I "), thought("think")}, true: {thought("I think")}} {
		v := newView(place, false)
		v.past = past
		want := strings.Join(append(append(append([]string{}, begin...), middle...), rest...), "\n")
		if diff := cmp.Diff(want, shown(t, v, turn...)); diff != "" {
			t.Errorf("past %v: %s", past, diff)
		}
	}
}

// TestReplayInMidTurn checks that the parts of a turn that is not over follow when the replay ends.
func TestReplayInMidTurn(t *testing.T) {
	t.Parallel()
	v := newView(paths{}, false)
	v.past = true
	shown(t, v, turn[0], `message.delta {"id":"m","text":"I begin"}`, turn[5], turn[6])
	want := `{"sessionUpdate":"agent_message_chunk","messageId":"m","content":{"text":"I begin","type":"text"}}` +
		"\n" +
		`{"sessionUpdate":"tool_call_update","content":[{"content":{"text":"` + "```\\na\\n```" +
		`","type":"text"},"type":"content"}],"toolCallId":"c","status":"in_progress"}`
	if got := strings.Join(encoded(t, v.live()), "\n"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := shown(t, v, `message.completed {"id":"m","text":"I begin"}`); got != "" {
		t.Errorf("a text is repeated: %s", got)
	}
}

// TestPreparation checks that the editor sees the steps of the preparation only if a prompt waits for it.
func TestPreparation(t *testing.T) {
	t.Parallel()
	v := newView(paths{}, false)
	if got := shown(t, v, `session.stage {"stage":{"name":"sandbox","ms":12.3}}`); got != "" {
		t.Errorf("without a prompt: %s", got)
	}
	if got := strings.Join(encoded(t, v.expect(true)), ""); !strings.Contains(got, "sandbox: ready in 12 ms") ||
		!strings.Contains(got, `"status":"in_progress"`) {
		t.Errorf("%s", got)
	}
	got := shown(t, v, `session.queued {}`, turn[0], `session.stage {"stage":{"name":"late","ms":1}}`)
	if !strings.Contains(got, "the sandbox waits to start") || strings.Contains(got, "late") ||
		!strings.Contains(got, `"toolCallId":"harvest_start","status":"completed"`) {
		t.Errorf("%s", got)
	}
	v = newView(paths{}, false)
	v.expect(true)
	if got := shown(t, v, `session.ended {"status":"failed","reason":"no disk"}`); !strings.Contains(got,
		`"status":"failed"`) || !strings.Contains(got, "The session failed: no disk") {
		t.Errorf("%s", got)
	}
}

// TestNotices checks the notes of Harvest: as notices if the editor has them, else as thoughts, and not in a replay.
func TestNotices(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]string{
		`agent.notice {"text":"pi asks nobody"}`:              "pi asks nobody",
		`agent.silent {"text":"no word"}`:                     "no word",
		`session.notice {"text":"a secret is missing"}`:       "a secret is missing",
		`agent.retrying {"text":"attempt 1"}`:                 "attempt 1",
		`agent.overridden {"text":"a setting"}`:               "a setting",
		`agent.crashed {"reason":"SIGSEGV"}`:                  "SIGSEGV",
		`agent.output_lost {"reason":"1 MB"}`:                 "1 MB",
		`agent.continued {"reason":"a command ended"}`:        "a command ended",
		`mcp.failed {"id":"files","reason":"it ended"}`:       "it ended",
		`egress.denied {"denial":{"domain":"x.example"}}`:     "x.example",
		`repo.synced {"synced":{"error":"no route"}}`:         "no route",
		`git.panic {"git":{"reason":"r","need":"look"}}`:      "look",
		`session.recalled {"text":"ten messages"}`:            "ten messages",
		`session.ended {"status":"ended"}`:                    "has ended",
		`message.sent {"message":{"purpose":"pull_request"}}`: "pull request",
	} {
		for notices, form := range map[bool]string{true: `"sessionUpdate":"notice"`, false: `"agent_thought_chunk"`} {
			if got := shown(t, newView(paths{}, notices), kind); !strings.Contains(got, want) ||
				!strings.Contains(got, form) {
				t.Errorf("%s: %s", kind, got)
			}
		}
		v := newView(paths{}, true)
		v.past = true
		if got := shown(t, v, kind); got != "" {
			t.Errorf("%s in a replay: %s", kind, got)
		}
	}
	for _, kind := range []string{`agent.other {}`, `mcp.ready {"id":"a"}`, `git.committed {}`, `news {}`,
		`git.panic {}`, `session.stage {}`, `message.sent {}`} {
		if got := shown(t, newView(paths{}, true), kind); got != "" {
			t.Errorf("%s: %s", kind, got)
		}
	}
}

// TestToolText checks that output cannot leave its block, and how long output and unknown calls are shown.
func TestToolText(t *testing.T) {
	t.Parallel()
	v := newView(paths{}, false)
	got := shown(t, v, `tool.completed {"id":"c","tool":"Bash","text":"`+"```\\u001b[31m"+`","failed":true}`)
	if want := `{"sessionUpdate":"tool_call","content":[{"content":{"text":"` + "````\\n```[31m\\n````" +
		`","type":"text"},"type":"content"}],"toolCallId":"c","title":"Bash","name":"Bash","kind":"execute",` +
		`"status":"failed"}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	long := strings.Repeat("x", 2*maxOutput)
	got = shown(t, v, `tool.completed {"id":"d","tool":"Bash","text":"`+long+`"}`)
	if len(got) > maxOutput+1000 || !strings.Contains(got, "…x") {
		t.Errorf("%d bytes", len(got))
	}
	shown(t, v, turn[5], `tool.output {"id":"c","text":"`+long+`"}`)
	if got := encoded(t, v.flush()); len(got) != 1 || len(got[0]) > maxOutput+1000 {
		t.Errorf("%d updates", len(got))
	}
	if got := encoded(t, v.flush()); len(got) != 0 {
		t.Errorf("output is repeated: %s", got)
	}
	v.at = 1
	if got := shown(t, v, turn[5]); !strings.Contains(got, `"toolCallId":"c_2"`) {
		t.Errorf("a call of the second session: %s", got)
	}
}

// TestQuestioned checks that a question is about the tool call that the editor knows, if it is one.
func TestQuestioned(t *testing.T) {
	t.Parallel()
	v := newView(paths{}, false)
	shown(t, v, turn[5])
	for data, want := range map[string]string{
		`{"id":"q","tool":"Bash","input":{ "command": "ls" }}`: "c",
		`{"id":"q","tool":"Bash","input":{"command":"rm"}}`:    questionID + "q",
		`{"id":"q","tool":"ExitPlanMode"}`:                     questionID + "q",
	} {
		var e api.SessionEvent
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatal(err)
		}
		if got := v.questioned(e); got.ID != want || got.Title == "" {
			t.Errorf("%s: %+v", data, got)
		}
	}
}
