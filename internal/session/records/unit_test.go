package records

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/session/agent"
)

// TestDiagram checks that the diagram in the docs shows exactly the existing transitions.
func TestDiagram(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/sessions.md")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^    ([a-z_]+) --> ([a-z_]+)$`).FindAllStringSubmatch(string(text), -1) {
		got[m[1]+" "+m[2]] = true
	}
	want := map[string]bool{}
	for from, all := range next {
		for _, to := range all {
			want[fmt.Sprintf("%s %s", from, to)] = true
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestFit(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ü", maxText)
	quoted, err := json.Marshal(long)
	if err != nil {
		t.Fatal(err)
	}
	got := Fit(Event{Event: agent.Event{Text: long, Raw: quoted, Input: quoted}})
	if len(got.Text) > maxText+100 || !strings.HasSuffix(got.Text, "left out]") || !json.Valid(got.Raw) ||
		len(got.Raw) > 100 || !json.Valid(got.Input) || len(got.Input) > 100 {
		t.Errorf("%d, %s, %s", len(got.Text), got.Raw, got.Input)
	}
	short := Event{Event: agent.Event{Text: "a", Raw: quoted[:0]}, Message: &Message{Prompt: "p"}}
	if diff := cmp.Diff(short, Fit(short)); diff != "" {
		t.Error(diff)
	}
}

// FuzzFit checks that the event of any output or message can be stored, and that the message itself is unchanged.
func FuzzFit(f *testing.F) {
	f.Add("\x1b", maxText, "p", MaxPrompt)
	f.Add("<", maxText, "\x00", MaxPrompt)
	f.Add("ü\xff", 3, "\u2028", 16<<20)
	f.Fuzz(func(t *testing.T, a string, n int, b string, m int) {
		repeat := func(s string, n int) string { return strings.Repeat(s, min(max(0, n), 16<<20)/max(1, len(s))) }
		x, y := repeat(a, n), repeat(b, m)
		e := Event{Event: agent.Event{Text: x, ID: x, Tool: y, Path: x, Reason: y,
			Questions: []agent.Question{{Text: x}, {Header: y}}, MCP: []agent.MCP{{Error: x}},
			Commands: []agent.Command{{Name: y, Description: x}}},
			Message: &Message{Prompt: y, Reply: x}}
		if _, err := event.Encode(Fit(e)); err != nil {
			t.Fatal(err)
		}
		if e.Message.Prompt != y || e.Text != x {
			t.Fatal("the message has changed")
		}
	})
}
