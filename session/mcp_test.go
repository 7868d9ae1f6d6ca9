package session

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/agent"
	"github.com/RelevanceAI/harvest/agent/scripted"
	"github.com/RelevanceAI/harvest/mcp"
	"github.com/RelevanceAI/harvest/session/pipe"
)

// TestGate checks that each change of a server is reported once. Servers that are not ready in time are reported as
// failed, and again when they are ready. The gate opens as soon as no server is pending, or after its timeout.
//
// mission: E5
func TestGate(t *testing.T) {
	t.Parallel()
	r := &runner{m: &Manager{opts: Options{MCPWait: time.Hour, HangAfter: time.Minute}}}
	report := func(typ agent.Type, servers ...agent.MCP) (text string) {
		for _, d := range r.servers(agent.Event{Type: typ, MCP: servers}) {
			if d.Data.Stage != nil {
				d.Data.ID = d.Data.Stage.Name
			}
			text += fmt.Sprintf("%s %s %s; ", d.Type, d.Data.ID, d.Data.Reason)
		}
		return text
	}
	all := []agent.MCP{{Name: "a", Status: "connected"}, {Name: "b", Status: "pending"},
		{Name: "c", Status: "failed", Error: "it died"}, {Name: "d", Status: "needs_auth"}}
	if got := report(agent.MCPStatus, all...); got != "" || !r.gateDue().IsZero() || r.gate.closed() {
		t.Errorf("without a gate: %s", got)
	}
	newGate := func() { r.gate = &gate{began: time.Now(), pause: mcpAsk, reported: map[string]string{}} }
	newGate()
	if due := r.gateDue(); !due.Equal(r.gate.began.Add(time.Minute)) || !r.gate.closed() {
		t.Errorf("before the agent's first line: due at %s", due)
	}
	if got := report(agent.Ready, all[0]); got != "" || r.gate.until.IsZero() || !r.gateDue().After(r.gate.until) {
		t.Errorf("while an answer is under way: %s", got)
	}
	if got := report(agent.MCPStatus, all...); got != "mcp.ready a ; mcp.failed c it died; mcp.failed d needs_auth; " ||
		!r.gate.closed() || !r.gateDue().Before(r.gate.until) {
		t.Errorf("first: %s", got)
	}
	r.gate.until = time.Now().Add(-time.Second)
	if got := report(agent.MCPStatus,
		all...); got != "mcp.failed b it was not ready after 1h0m0s; session.stage mcp servers ; " || r.gate.closed() ||
		r.gateDue().IsZero() {
		t.Errorf("too late: %s", got)
	}
	all[1].Status = "connected"
	if got := report(agent.Ready, all...); got != "mcp.ready b ; " || !r.gateDue().IsZero() {
		t.Errorf("later: %s", got)
	}
	newGate()
	if got := report(agent.MCPStatus, all[0]); got != "mcp.ready a ; session.stage mcp servers ; " || r.gate.closed() {
		t.Errorf("all there: %s", got)
	}
}

func TestFilesOf(t *testing.T) {
	t.Parallel()
	got := filesOf(mcp.Server{Command: []string{"/opt/node", "/opt/server.js", "/workspace"}})
	if strings.Join(got, " ") != "/opt/node /opt/server.js" {
		t.Errorf("%q", got)
	}
}

// TestOnce checks that terminal sequences are removed from lines, lines that are not events are reported, and the end
// comes last.
//
// mission: 4.10
func TestOnce(t *testing.T) {
	t.Parallel()
	var got []string
	o := &once{conv: scripted.Agent{}.Open(agent.Setup{}), tell: func(e agent.Event) {
		got = append(got, fmt.Sprintf("%s %s%.60s", e.Type, e.Text, e.Raw))
	}}
	for _, piece := range []string{
		"\x1b[?25l{\"type\":\"message.delta\",\"te", "xt\":\"hi\"}\r\n\x1b]0;title\x07\r\n",
		"warning: \x1b[31mold\x1b[0m\r\n",
		`{"type":"done","reason":"completed"}` + "\r\n", strings.Repeat("x", pipe.MaxLine+10) + "\n",
		"the rest\x1b[?25h",
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
