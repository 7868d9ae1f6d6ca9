package session

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/agent"
	"github.com/RelevanceAI/harvest/agent/scripted"
	"github.com/RelevanceAI/harvest/event"
	"github.com/RelevanceAI/harvest/session/pipe"
)

// TestDiagram checks that the diagram in the docs shows exactly the existing transitions.
func TestDiagram(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/sessions.md")
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
	got := fit(Event{Event: agent.Event{Text: long, Raw: quoted, Input: quoted}})
	if len(got.Text) > maxText+100 || !strings.HasSuffix(got.Text, "left out]") || !json.Valid(got.Raw) ||
		len(got.Raw) > 100 || !json.Valid(got.Input) || len(got.Input) > 100 {
		t.Errorf("%d, %s, %s", len(got.Text), got.Raw, got.Input)
	}
	short := Event{Event: agent.Event{Text: "a", Raw: quoted[:0]}, Message: &Message{Prompt: "p"}}
	if diff := cmp.Diff(short, fit(short)); diff != "" {
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
			Questions: []agent.Question{{Text: x}, {Header: y}}, MCP: []agent.MCP{{Error: x}}},
			Message: &Message{Prompt: y, Reply: x}}
		if _, err := event.Encode(fit(e)); err != nil {
			t.Fatal(err)
		}
		if e.Message.Prompt != y || e.Text != x {
			t.Fatal("the message has changed")
		}
	})
}

// recordOnly keeps the newest record of a session.
type recordOnly struct {
	Store
	last Session
}

func (s *recordOnly) PutSession(_ context.Context, record Session) error {
	s.last = record
	return nil
}

// TestDeliverAgain checks that the part of a delivery that the agent received is not written again, and that the rest
// is.
//
// mission: 7.9
func TestDeliverAgain(t *testing.T) {
	const turn, prompt = "msg_1", "go on"
	whole := string(scripted.Agent{}.Open(agent.Setup{}).Prompt(turn+"..p", prompt))
	for _, c := range []struct {
		name     string
		received int64 // by the process, of all input
		d        Delivery
		want     string
	}{
		{"nothing", 100, Delivery{Message: turn, Process: "p", At: 100, Size: len(whole)}, whole},
		{"less than was there before", 90, Delivery{Message: turn, Process: "p", At: 100, Size: len(whole)}, whole},
		{"a part", 105, Delivery{Message: turn, Process: "p", At: 100, Size: len(whole)}, whole[5:]},
		{"all", 100 + int64(len(whole)), Delivery{Message: turn, Process: "p", At: 100, Size: len(whole)}, ""},
		{"by another process", 500, Delivery{Message: turn, Process: "old", At: 100, Size: len(whole)}, whole},
		{"of another turn", 100, Delivery{Message: "msg_0", Process: "p", At: 100, Size: len(whole)}, ""},
		{"of an answer", 103, Delivery{Message: turn, Process: "p", At: 100, Size: 7, Text: []byte("answer\n")},
			"wer\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := &recordOnly{}
			r := newRunner(&Manager{opts: Options{Store: store}, ctx: t.Context()},
				Session{ID: "ses_1", Process: "p", Conversation: "c", Deliveries: []Delivery{c.d}})
			r.agent, r.conv = &pipe.Process{In: pipe.NewInbox(), Received: c.received, Written: c.received,
				Counted: true}, scripted.Agent{}.Open(agent.Setup{})
			r.current, r.recheck, r.lost = &Message{ID: turn, Prompt: prompt}, true, []Delivery{c.d}
			r.redeliver(t.Context())
			r.agent.In.Close()
			if got, err := io.ReadAll(r.agent.In); err != nil || string(got) != c.want {
				t.Errorf("written: %q, %v, want %q", got, err, c.want)
			}
			if c.want == "" {
				return
			}
			now := store.last.Deliveries[0]
			if now.Process != "p" || now.At+int64(now.Size) != r.agent.Written {
				t.Errorf("recorded %+v, written %d", now, r.agent.Written)
			}
		})
	}
}
