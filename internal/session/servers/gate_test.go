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
	if got := report(agent.Notice); got != "" || !gate.until.IsZero() {
		t.Errorf("while the agent is installed: %s, until %s", got, gate.until)
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

// TestServersAreStartedAgain checks that servers that failed are started again after a turn and before the next one,
// that the gate is closed meanwhile and while servers are late for the first time, and that it gives up on servers that
// fail again and again.
//
// mission: E5
func TestServersAreStartedAgain(t *testing.T) {
	t.Parallel()
	a, b, c := agent.MCP{Name: "a", Status: "connected"}, agent.MCP{Name: "b", Status: "failed", Error: "it died"},
		agent.MCP{Name: "c", Status: "needs-auth"}
	gate := NewGate(time.Hour, time.Minute)
	hear := func(e agent.Event) string {
		var text []string
		for _, r := range gate.Hear(e) {
			switch {
			case r.Opened:
				text = append(text, "open")
			case r.Failed:
				text = append(text, "failed "+r.Server+" "+r.Reason)
			default:
				text = append(text, "ready "+r.Server)
			}
		}
		return strings.Join(text, "; ")
	}
	status := func(all ...agent.MCP) string { return hear(agent.Event{Type: agent.MCPStatus, MCP: all}) }
	between := func(want string) {
		t.Helper()
		restart, ask := gate.Between()
		if got := strings.Join(restart, " "); got != want || !ask || gate.Closed() != (want != "") {
			t.Errorf("between two turns %q start again, want %q; ask %t, closed %t", got, want, ask, gate.Closed())
		}
	}
	check := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	check(status(a, b, c), "ready a; failed b it died; failed c needs-auth; open")
	if restart, ask := gate.Between(); len(restart) > 0 || ask {
		t.Errorf("before the first prompt: %q, %t", restart, ask)
	}
	gate.Sent()
	between("b")
	check(status(a, b, c), "") // an earlier answer
	if got := gate.Servers(); len(got) != 3 || got[1] != (agent.MCP{Name: "b", Status: "pending"}) {
		t.Errorf("while a server starts again: %v", got)
	}
	check(hear(agent.Event{Type: agent.MCPRestarted, ID: "b", Failed: true, Text: "no"}), "failed b no")
	if !gate.Closed() || gate.Due().After(time.Now()) {
		t.Error("the agent is not queried after a restart")
	}
	check(status(a, b, c), "open")
	gate.Sent()
	between("b")
	check(hear(agent.Event{Type: agent.MCPRestarted, ID: "b"}), "")
	b.Status, b.Error = "connected", ""
	check(status(a, b, c), "ready b; open")

	b.Status = "failed" // it dies later, and does not start again
	for i := range maxTries {
		gate.Sent()
		check(hear(agent.Event{Type: agent.Ready, MCP: []agent.MCP{a, b, c}}),
			map[bool]string{true: "failed b failed"}[i == 0])
		between("b")
		check(hear(agent.Event{Type: agent.MCPRestarted, ID: "b", Failed: true, Text: "no"}), "failed b no")
		check(status(a, b, c), "open")
	}
	gate.Sent()
	between("")
	if !gate.Restart("b", false) || !gate.Closed() || gate.Restart("d", false) {
		t.Error("on request, only known servers start again")
	}
	gate.Hear(agent.Event{Type: agent.MCPRestarted, ID: "b"})
	b.Status = "connected"
	check(status(a, b, c), "ready b; open")
	if !gate.Restart("b", true) || gate.Closed() {
		t.Error("the gate closes during a turn")
	}
}

// TestPromptWaitsOnceMoreForLateServers checks that the second prompt waits for a server that was late, and the third
// one does not.
//
// mission: E5
func TestPromptWaitsOnceMoreForLateServers(t *testing.T) {
	t.Parallel()
	late := agent.Event{Type: agent.MCPStatus, MCP: []agent.MCP{{Name: "a", Status: "pending"}}}
	gate := NewGate(time.Hour, time.Minute)
	for turn, closed := range []bool{true, true, false} {
		if turn > 0 {
			gate.Sent()
			gate.Between()
		}
		gate.Hear(late)
		if gate.Closed() != closed {
			t.Errorf("prompt %d: closed %t", turn+1, gate.Closed())
		}
		gate.until = time.Now().Add(-time.Second)
		gate.Hear(late)
		if gate.Closed() {
			t.Errorf("prompt %d waits longer than the limit", turn+1)
		}
	}
}

// TestSlowFailuresAreNotRepeated checks that a server whose restart took as long as prompts wait is not started again:
// the agent reads nothing meanwhile.
//
// mission: E5
func TestSlowFailuresAreNotRepeated(t *testing.T) {
	t.Parallel()
	failed := agent.Event{Type: agent.MCPStatus, MCP: []agent.MCP{{Name: "a", Status: "failed"}}}
	gate := NewGate(time.Nanosecond, time.Minute)
	gate.Hear(failed)
	for _, want := range []int{1, 0} {
		gate.Sent()
		if restart, _ := gate.Between(); len(restart) != want {
			t.Errorf("%q start again, want %d", restart, want)
		}
		gate.Hear(agent.Event{Type: agent.MCPRestarted, ID: "a", Failed: true, Text: "Request timed out"})
		gate.Hear(failed)
	}
}

func TestFilesOf(t *testing.T) {
	t.Parallel()
	got := filesOf(mcp.Server{Command: []string{"/opt/node", "/opt/server.js", "/workspace"}})
	if strings.Join(got, " ") != "/opt/node /opt/server.js" {
		t.Errorf("%q", got)
	}
}
