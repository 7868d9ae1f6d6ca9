package session_test

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// TestServersStartAgain checks that an MCP server that failed is started again after the turn, and that the next prompt
// waits for it. A server that fails again delays no later prompt, and starts again on request.
//
// mission: E5
func TestServersStartAgain(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{Agents: map[string]agent.Agent{"scripted": likeClaude{}}})
	const first = "mcp.ready quick\nmcp.failed slow\nsent one\none: completed answer to one, asked 3\n" +
		"mcp.restarting slow\n"
	for model, want := range map[string]string{
		"broken": first + "mcp.ready slow\nsent two\ntwo: completed answer to two,",
		"broken for ever": first + "mcp.failed slow\nsent two\ntwo: completed answer to two, asked 4\n" +
			"mcp.restarting slow\nmcp.failed slow\nsent three\nthree: completed answer to three,",
	} {
		t.Run(model, func(t *testing.T) {
			t.Parallel()
			s := h.create(t, session.Request{Model: model,
				MCP: []byte(`{"mcpServers":{"quick":{"command":"true"},"slow":{"command":"true"}}}`)})
			w := h.watch(s.ID)
			w.status(t, records.Ready)
			for _, prompt := range []string{"one", "two", "three"} {
				h.turn(t, w, prompt)
			}
			if got := w.turns(); !strings.HasPrefix(got, want) {
				t.Errorf("the turns are:\n%s\nwant:\n%s", got, want)
			}
			ctx := t.Context()
			servers, err := h.MCPServers(ctx, s.Account, s.ID)
			if err != nil || len(servers) != 2 || servers[0] != (agent.MCP{Name: "quick", Status: "connected"}) {
				t.Errorf("servers: %v, %v", servers, err)
			}
			if err := h.RestartMCP(ctx, s.Account, s.ID, "other"); errors.KindOf(err) != errors.NotFound {
				t.Errorf("an unknown server starts again: %v", err)
			}
			if err := h.RestartMCP(ctx, s.Account, s.ID, "slow"); err != nil {
				t.Fatal(err)
			}
			for e := w.next(t, "the restart"); e.typ != records.EventMCPRestarting; e = w.next(t, "the restart") {
			}
			for e := w.next(t, "its end"); e.typ != records.EventMCPReady && e.typ != records.EventMCPFailed; {
				e = w.next(t, "its end")
			}
		})
	}
	idle := h.create(t, session.Request{})
	h.watch(idle.ID).status(t, records.Ready)
	if err := h.RestartMCP(t.Context(), idle.Account, idle.ID, "slow"); errors.KindOf(err) != errors.Conflict {
		t.Errorf("without an agent: %v", err)
	}
}
