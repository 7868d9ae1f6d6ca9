package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
)

// What an agent says cannot command the terminal, and a turn reads well.
func TestTurnView(t *testing.T) {
	t.Parallel()
	var out, stderr bytes.Buffer
	c := newCLI("harvest", strings.NewReader(""), &out, &stderr, nil)
	v := newTurnView(c, "text")
	for _, e := range []struct{ kind, data string }{
		{"session.stage", `{"stage":{"name":"sandbox","ms":12.3}}`},
		{"message.sent", `{"message":{"prompt":"do\nit"}}`},
		{"message.completed", `{"id":"t","text":"secret thoughts","thinking":true}`},
		{"message.delta", `{"id":"a","text":"I \u001b]52;c;x\u0007look"}`},
		{"message.delta", `{"id":"a","text":"."}`},
		{"message.completed", `{"id":"a","text":"I look."}`},
		{"tool.started", `{"id":"c","tool":"Bash","input":{"description":"d","command":"ls\n-la\u009b"}}`},
		{"tool.completed", `{"id":"c","tool":"Bash","failed":true,"text":"exit 1\nmore"}`},
		{"tool.started", `{"id":"d","tool":"Odd","input":{"n":1}}`},
		{"tool.started", `{"id":"e","tool":"None"}`},
		{"file.changed", `{"path":"/w/a"}`},
		{"agent.retrying", `{"text":"attempt 1"}`},
		{"agent.asked", `{"id":"q","tool":"AskUserQuestion","questions":[{"text":"Which?","options":[{"label":"red","description":"warm"}]}]}`},
		{"message.completed", `{"id":"b","text":"Done."}`},
		{"done", `{"usage":{"input_tokens":1000,"cache_read_tokens":234,"output_tokens":5,"cost_usd":0.01}}`},
	} {
		if _, err := v.event(api.Event{Type: e.kind, Data: json.RawMessage(e.data)}); err != nil {
			t.Fatal(err)
		}
	}
	v.close()
	if want := "I ]52;c;xlook.\n▸ Bash ls\n  failed: exit 1\n▸ Odd {\"n\":1}\n▸ None \n  changed /w/a\n? AskUserQuestion \n  Which?\n   - red  warm\nDone.\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	if want := "sandbox ready in 12 ms\n> do\n> it\nthe model's API: attempt 1\n1234 tokens in, 5 out, $0.0100\n"; stderr.String() != want {
		t.Errorf("%q, want %q", stderr.String(), want)
	}
	if _, err := v.event(api.Event{Type: "done", Data: json.RawMessage("7")}); errors.KindOf(err) != errors.Unavailable {
		t.Errorf("%v", err)
	}
	if got := firstLine(strings.Repeat("ü", 200)); got != strings.Repeat("ü", shown)+"…" {
		t.Errorf("%q", got)
	}
}
