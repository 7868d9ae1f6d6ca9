package agents

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
)

// TestTurnView checks that the agent's text cannot control the terminal, and that a turn is readable.
func TestTurnView(t *testing.T) {
	t.Parallel()
	var out, stderr bytes.Buffer
	c := commands{cli.New("harvest", strings.NewReader(""), &out, &stderr, nil)}
	v := newTurnView(c, "text", "ses_1", "")
	for _, e := range []struct{ kind, data string }{
		{"session.queued", `{}`},
		{"session.stage", `{"stage":{"name":"sandbox","ms":12.3}}`},
		{"message.sent", `{"message":{"prompt":"do\nit"}}`},
		{"message.started", `{"id":"t","thinking":true}`},
		{"message.delta", `{"id":"t","text":"secret thoughts\nin two lines"}`},
		{"message.completed", `{"id":"t","text":"secret thoughts\nin two lines","thinking":true}`},
		{"message.started", `{"id":"a"}`},
		{"message.delta", `{"id":"a","text":"I \u001b]52;c;x\u0007look"}`},
		{"message.delta", `{"id":"a","text":"."}`},
		{"message.completed", `{"id":"a","text":"I look."}`},
		{"tool.started", `{"id":"c","tool":"Bash","input":{"description":"d","command":"ls\n-la\u009b"}}`},
		{"tool.completed", `{"id":"c","tool":"Bash","failed":true,"text":"exit 1\nmore"}`},
		{"tool.started", `{"id":"d","tool":"Odd","input":{"n":1}}`},
		{"tool.started", `{"id":"e","tool":"None"}`},
		{"file.changed", `{"path":"/w/a"}`},
		{"agent.retrying", `{"text":"attempt 1"}`},
		{"agent.overridden", `{"text":"opencode.json sets model: not used"}`},
		{"agent.notice", `{"text":"pi asks nobody","reason":"never_asks"}`},
		{"session.notice", `{"text":"a secret is missing","reason":"secret"}`},
		{"session.output", `{"id":"postCreateCommand","text":"one\n\u001b[2Jtwo\n"}`},
		{"agent.silent", `{"text":"no word of pi for 30s"}`},
		{"agent.plan", `{"plan":[{"text":"look","status":"completed"},{"text":"do","status":"pending"}]}`},
		{"egress.denied", `{"denial":{"protocol":"tcp","domain":"x.example","port":443,"reason":"no rule allows it"}}`},
		{"agent.asked",
			`{"id":"q","tool":"AskUserQuestion","questions":[{"text":"Which?","options":[{"label":"red",` +
				`"description":"warm"}]}]}`},
		{"agent.withdrawn", `{"id":"q","text":"Which? red"}`},
		{"agent.asked", `{"id":"r","tool":"ExitPlanMode","input":{},"text":"1. look\n2. do it\n"}`},
		{"agent.withdrawn", `{"id":"r"}`},
		{"message.completed", `{"id":"b","text":"Done."}`},
		{"done", `{"usage":{"input_tokens":1000,"cache_read_tokens":234,"output_tokens":5,"cost_usd":0.01}}`},
	} {
		if _, err := v.event(api.Event{Type: e.kind, Data: json.RawMessage(e.data)}); err != nil {
			t.Fatal(err)
		}
	}
	v.close()
	if want := "I ]52;c;xlook.\nDone.\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	if want := "the sandbox waits to start\nsandbox ready in 12 ms\n> do\n> it\n(thinking) secret thoughts\n" +
		"(thinking) in two lines\n▸ Bash ls\n  failed: exit 1\n▸ Odd n: 1\n▸ None \n  changed /w/a\n" +
		"the model's API: attempt 1\nharvest: opencode.json sets model: not used\n" +
		"harvest: pi asks nobody\nharvest: a secret is missing\npostCreateCommand: one\npostCreateCommand: [2Jtwo\n" +
		"no word of pi for 30s\nplan: ✓ look; do\n" +
		"harvest: the network policy refused x.example port 443: no rule allows it\n? AskUserQuestion \n  Which?\n" +
		"   - red  warm\n  answered: Which? red\n? ExitPlanMode \n  1. look\n  2. do it\n" +
		"1234 tokens in, 5 out, $0.0100\n"; stderr.String() != want {
		t.Errorf("%q, want %q", stderr.String(), want)
	}
	if _, err := v.event(api.Event{Type: "done",
		Data: json.RawMessage("7")}); errors.KindOf(err) != errors.Unavailable {
		t.Errorf("%v", err)
	}
}

// TestReplyAlone checks that standard output gets the reply to the prompt and no other text of the agent: not that of
// sub-agents, of turns that the agent begins by itself, of Harvest's own prompts, and of other prompts.
//
// mission: E3
func TestReplyAlone(t *testing.T) {
	t.Parallel()
	events := []struct{ kind, data string }{
		{"message.started", `{"id":"z","message_id":"msg_0"}`},
		{"message.delta", `{"id":"z","message_id":"msg_0","text":"of the earlier prompt"}`},
		{"message.completed", `{"id":"z","message_id":"msg_0","text":"of the earlier prompt"}`},
		{"message.sent", `{"message_id":"msg_1","message":{"id":"msg_1","prompt":"do it"}}`},
		{"message.completed", `{"id":"s","message_id":"msg_1","parent":"t","text":"of a sub-agent"}`},
		{"message.delta", `{"id":"a","message_id":"msg_1","text":"the "}`},
		{"message.delta", `{"id":"p","message_id":"msg_1","parent":"t","text":"in the "}`},
		{"message.completed", `{"id":"p","message_id":"msg_1","parent":"t","text":"in the background"}`},
		{"message.delta", `{"id":"a","message_id":"msg_1","text":"reply"}`},
		{"message.completed", `{"id":"a","message_id":"msg_1","text":"the reply"}`},
		{"done", `{"message_id":"msg_1","text":"the reply"}`},
		{"agent.continued", `{"message_id":"own_1","reason":"a command ended","message":{"id":"own_1","own":true}}`},
		{"message.started", `{"id":"o","message_id":"own_1"}`},
		{"message.delta", `{"id":"o","message_id":"own_1","text":"of its own"}`},
		{"message.completed", `{"id":"o","message_id":"own_1","text":"of its own"}`},
		{"done", `{"message_id":"own_1","text":"of its own"}`},
		{"message.sent", `{"message_id":"msg_2","message":{"id":"msg_2","purpose":"pull_request","prompt":"x"}}`},
		{"message.completed", `{"id":"u","message_id":"msg_2","text":"of Harvest's prompt"}`},
		{"done", `{"message_id":"msg_2","text":"of Harvest's prompt"}`},
		{"done", `{"message_id":"msg_3","text":"taken up within another turn"}`},
		{"done", `{"message_id":"msg_4","failed":true,"text":"a failure"}`},
	}
	for prompt, want := range map[string]string{
		"":      "of the earlier prompt\nthe reply\ntaken up within another turn\n",
		"msg_1": "the reply\n",
		"msg_3": "taken up within another turn\n",
	} {
		var out, stderr bytes.Buffer
		c := commands{cli.New("harvest", strings.NewReader(""), &out, &stderr, nil)}
		v := newTurnView(c, "text", "ses_1", prompt)
		for _, e := range events {
			if _, err := v.event(api.Event{Type: e.kind, Data: json.RawMessage(e.data)}); err != nil {
				t.Fatal(err)
			}
		}
		v.close()
		if out.String() != want {
			t.Errorf("prompt %q: %q, want %q", prompt, out.String(), want)
		}
		for _, aside := range []string{"(sub-agent) of a sub-agent", "(sub-agent) in the background",
			"of its own", "of Harvest's prompt"} {
			if !strings.Contains(stderr.String(), aside+"\n") {
				t.Errorf("prompt %q: %q lacks %q", prompt, stderr.String(), aside)
			}
		}
	}
}

// TestTurnResult checks that a retry is not recommended after a permanent failure, and that leaving does not end a
// turn.
// mission: E3
func TestTurnResult(t *testing.T) {
	t.Parallel()
	c := commands{cli.New("harvest", strings.NewReader(""), &bytes.Buffer{}, &bytes.Buffer{}, nil)}
	for cause, want := range map[string]struct {
		kind   errors.Kind
		remedy string
	}{
		"no_credit":       {errors.Denied, "credit"},
		"key_refused":     {errors.Denied, "harvest secret"},
		"unknown_model":   {errors.Invalid, "--model"},
		"prompt_too_long": {errors.Invalid, "--continue"},
		"cost_limit":      {errors.Denied, "--max-usd"},
		"unknown_price":   {errors.Denied, "model.prices"},
		"":                {errors.Unavailable, "harvest send ses_1"},
		"of a new server": {errors.Unavailable, "harvest send ses_1"},
	} {
		err := c.turnResult("ses_1", api.SessionEvent{Failed: true, Text: "it did not work", Cause: cause})
		if errors.KindOf(err) != want.kind || !strings.Contains(errors.RemedyOf(err), want.remedy) ||
			!strings.Contains(err.Error(), "it did not work") {
			t.Errorf("%s: %v, %v, %q", cause, errors.KindOf(err), err, errors.RemedyOf(err))
		}
	}
	if err := c.turnResult("ses_1", api.SessionEvent{Failed: true, Interrupted: true,
		Reason: "x"}); errors.KindOf(err) != errors.Canceled ||
		!strings.Contains(errors.RemedyOf(err), "harvest send ses_1") {
		t.Errorf("%v, %q", err, errors.RemedyOf(err))
	}
	if err := left("ses_1"); errors.KindOf(err) != errors.Canceled || !strings.Contains(err.Error(), "continues") ||
		!strings.Contains(errors.RemedyOf(err), "harvest attach ses_1") {
		t.Errorf("%v, %q", err, errors.RemedyOf(err))
	}
}

func TestGitText(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]struct {
		kind string
		e    api.GitEvent
	}{
		"pushed b":            {"git.pushed", api.GitEvent{Branch: "b"}},
		"committed s":         {"git.committed", api.GitEvent{Subject: "s\nmore"}},
		"not synchronised: r": {"git.synced", api.GitEvent{Failed: true, Reason: "r"}},
		"synchronised with origin/main: 2 commits": {"git.synced",
			api.GitEvent{Onto: "main", Commits: 2}},
		"the agent pressed the panic button: r; a person must n": {"git.panic",
			api.GitEvent{Reason: "r", Need: "n\x1b"}},
	} {
		if got := gitText(c.kind, c.e); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
