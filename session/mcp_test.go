package session

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/agent"
	"github.com/RelevanceAI/harvest/agent/scripted"
	"github.com/RelevanceAI/harvest/mcp"
)

// Each server is told once; those that are not ready in time are told as failed, and the gate opens.
//
// mission: E5
func TestGate(t *testing.T) {
	t.Parallel()
	r := &runner{m: &Manager{opts: Options{MCPWait: time.Hour}}}
	told := func(servers ...agent.MCP) (text string) {
		for _, d := range r.mcpStatus(servers) {
			text += fmt.Sprintf("%s %s %s; ", d.Type, d.Data.ID, d.Data.Reason)
		}
		return text
	}
	if got := told(agent.MCP{Name: "a", Status: "connected"}); got != "" || !r.gateDue().IsZero() {
		t.Errorf("without a gate: %s", got)
	}
	r.gate = &gate{until: time.Now().Add(time.Hour), told: map[string]bool{}}
	if due := r.gateDue(); !due.After(r.gate.until) {
		t.Errorf("while an answer is under way: %s", due)
	}
	all := []agent.MCP{{Name: "a", Status: "connected"}, {Name: "b", Status: "pending"}, {Name: "c", Status: "failed", Error: "it died"}, {Name: "d", Status: "needs_auth"}}
	if got := told(all...); got != "mcp.ready a ; mcp.failed c it died; mcp.failed d needs_auth; " || r.gate == nil || !r.gateDue().Before(r.gate.until) {
		t.Errorf("first: %s", got)
	}
	r.gate.until = time.Now().Add(-time.Second)
	if got := told(all...); got != "mcp.failed b it was not ready after 1h0m0s; " || r.gate != nil {
		t.Errorf("too late: %s", got)
	}
	r.gate = &gate{until: time.Now().Add(time.Hour), told: map[string]bool{}}
	if got := told(all[0]); got != "mcp.ready a ; " || r.gate != nil {
		t.Errorf("all there: %s", got)
	}
	r.gate = &gate{until: time.Now().Add(-time.Hour), told: map[string]bool{}} // and no answer
	r.conv = scripted.Agent{}.Open(agent.Setup{})
	r.watchGate(time.Now())
	if r.gate == nil || !r.gate.open || !r.gateDue().IsZero() {
		t.Errorf("an agent that does not answer: %+v", r.gate)
	}
}

func TestFilesOf(t *testing.T) {
	t.Parallel()
	got := filesOf(mcp.Server{Command: []string{"/opt/node", "/opt/server.js", "/workspace"}})
	if strings.Join(got, " ") != "/opt/node /opt/server.js" {
		t.Errorf("%q", got)
	}
}

// What a terminal adds to lines is taken away; what is no event is told; the end comes last.
//
// mission: 4.10
func TestOnce(t *testing.T) {
	t.Parallel()
	var got []string
	o := &once{conv: scripted.Agent{}.Open(agent.Setup{}), tell: func(e agent.Event) {
		got = append(got, fmt.Sprintf("%s %s%.60s", e.Type, e.Text, e.Raw))
	}}
	for _, piece := range []string{
		"\x1b[?25l{\"type\":\"message.delta\",\"te", "xt\":\"hi\"}\r\n\x1b]0;title\x07\r\n", "warning: \x1b[31mold\x1b[0m\r\n",
		`{"type":"done","reason":"completed"}` + "\r\n", strings.Repeat("x", maxLine+10) + "\n", "the rest\x1b[?25h",
	} {
		if n, err := o.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	o.end()
	want := "message.delta hi|agent.other \"warning: old\"|agent.other \"a line that is too long\"|agent.other \"the rest\"|done completed"
	if text := strings.Join(got, "|"); text != want {
		t.Errorf("%s, want %s", text, want)
	}
}
