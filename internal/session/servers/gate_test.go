package servers

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/mcp"
	"github.com/RelevanceAI/harvest/internal/session/agent"
)

// TestGate checks that each change of a server is reported once. Servers that are not ready in time are reported as
// failed, and again when they are ready. The gate opens as soon as no server is pending, or after its timeout.
//
// mission: E5
func TestGate(t *testing.T) {
	t.Parallel()
	var gate *Gate
	report := func(typ agent.Type, servers ...agent.MCP) (text string) {
		for _, r := range gate.Hear(agent.Event{Type: typ, MCP: servers}) {
			switch {
			case r.Opened:
				text += "open; "
			case r.Failed:
				text += fmt.Sprintf("failed %s %s; ", r.Server, r.Reason)
			default:
				text += fmt.Sprintf("ready %s; ", r.Server)
			}
		}
		return text
	}
	all := []agent.MCP{{Name: "a", Status: "connected"}, {Name: "b", Status: "pending"},
		{Name: "c", Status: "failed", Error: "it died"}, {Name: "d", Status: "needs_auth"}}
	if got := report(agent.MCPStatus, all...); got != "" || !gate.Due().IsZero() || gate.Closed() {
		t.Errorf("without a gate: %s", got)
	}
	newGate := func() { gate = NewGate(time.Hour, time.Minute) }
	newGate()
	if due := gate.Due(); !due.Equal(gate.began.Add(time.Minute)) || !gate.Closed() {
		t.Errorf("before the agent's first line: due at %s", due)
	}
	if got := report(agent.Ready, all[0]); got != "" || gate.until.IsZero() || !gate.Due().After(gate.until) {
		t.Errorf("while an answer is under way: %s", got)
	}
	if got := report(agent.MCPStatus, all...); got != "ready a; failed c it died; failed d needs_auth; " ||
		!gate.Closed() || !gate.Due().Before(gate.until) {
		t.Errorf("first: %s", got)
	}
	gate.until = time.Now().Add(-time.Second)
	if got := report(agent.MCPStatus,
		all...); got != "failed b it was not ready after 1h0m0s; open; " || gate.Closed() ||
		gate.Due().IsZero() {
		t.Errorf("too late: %s", got)
	}
	all[1].Status = "connected"
	if got := report(agent.Ready, all...); got != "ready b; " || !gate.Due().IsZero() {
		t.Errorf("later: %s", got)
	}
	newGate()
	if got := report(agent.MCPStatus, all[0]); got != "ready a; open; " || gate.Closed() {
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
