package server_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// mcpHeaders are the headers of a client of the Model Context Protocol.
var mcpHeaders = []string{"Content-Type", api.TypeJSON, "Accept", "application/json, text/event-stream"}

// tool returns the response to a call of a tool.
func (w *world) tool(name, arguments string, header ...string) (*http.Response, string) {
	w.t.Helper()
	return w.do("POST", api.MCP, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+name+
		`","arguments":`+arguments+`}}`, append(header, mcpHeaders...)...)
}

// TestToolsHaveTheRightsOfTheKey checks that tools over HTTP see what their key sees, and may do what it may do.
func TestToolsHaveTheRightsOfTheKey(t *testing.T) {
	t.Parallel()
	w := start(t)
	tagged := `{"name":"mine","tags":{"mcp":"environment","mcp.directory":"/tmp"}}`
	w.want(201, "POST", "/v1/sandboxes", tagged)
	mine := w.as(account.Request{})
	for _, c := range []struct {
		as              *world
		tool, in, want  string
		absent, refused string
	}{
		{as: mine, tool: "environment_list", in: "{}", want: "mine: running"},
		{as: w, tool: "environment_list", in: "{}", want: "mine: running"}, // over the Unix socket
		{as: w.as(account.Request{Role: account.Admin, Account: "acme"}), tool: "environment_list", in: "{}",
			want: "There are no environments", absent: "mine"},
		{as: w.as(account.Request{Scopes: []account.Scope{account.Read}}), tool: "environment_list", in: "{}",
			want: "mine: running"},
		{as: w.as(account.Request{Scopes: []account.Scope{account.Read}}), tool: "environment_remove",
			in: `{"environment":"mine","discard":true}`, want: `"isError":true`},
		{as: mine, tool: "environment_remove", in: `{"environment":"mine","discard":true}`, want: "Removed"},
	} {
		resp, body := c.as.tool(c.tool, c.in)
		if resp.StatusCode != 200 || !strings.Contains(body, c.want) || c.absent != "" && strings.Contains(body,
			c.absent) {
			t.Errorf("%s %s: %s %s", c.tool, c.in, resp.Status, body)
		}
	}
	if log := w.audit.String(); strings.Count(log, `"DELETE"`) != 2 || !strings.Contains(log, `"address":"127.0.0.1"`) {
		t.Errorf("the audit log lacks requests of tools: %s", log)
	}
}

// TestToolsNeedAKey checks requests that must not reach the tools.
func TestToolsNeedAKey(t *testing.T) {
	t.Parallel()
	w := start(t)
	if resp, _ := w.stranger().tool("environment_list", "{}"); resp.StatusCode != 401 {
		t.Errorf("without a key: %s", resp.Status)
	}
	if resp, _ := w.stranger().tool("environment_list", "{}", "Authorization", "Bearer hv_"+
		strings.Repeat("a", 52)); resp.StatusCode != 401 {
		t.Errorf("with a wrong key: %s", resp.Status)
	}
	member := w.as(account.Request{})
	member.want(405, "GET", api.MCP, "")
	if resp, _ := w.as(account.Request{Scopes: []account.Scope{account.Exec}}).tool("environment_list",
		"{}"); resp.StatusCode != 403 {
		t.Errorf("with a key for commands only: %s", resp.Status)
	}
	if resp, _ := member.do("POST", api.MCP, "{", mcpHeaders...); resp.StatusCode != 400 {
		t.Errorf("no JSON: %s", resp.Status)
	}
	_, link, err := w.ring.Create(t.Context(), account.Local(), account.Request{Name: "browser"})
	if err != nil {
		t.Fatal(err)
	}
	if resp, _ := w.stranger().tool("environment_list", "{}", "Cookie", "harvest="+link.Reveal(), "Sec-Fetch-Site",
		"same-origin"); resp.StatusCode != 401 {
		t.Errorf("with a cookie: %s", resp.Status)
	}
	testenv.Eventually(t, "no request is left", func() bool { return w.server.Idle() > 0 })
}

// TestToolsHaveNoSessions checks that clients of tools survive a restart of the server. Clients that were given the ID
// of a session do not: findings/mcp-clients-session-after-restart.sh.
func TestToolsHaveNoSessions(t *testing.T) {
	t.Parallel()
	w := start(t)
	resp, body := w.do("POST", api.MCP, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{
		"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`, mcpHeaders...)
	if id := resp.Header.Get("Mcp-Session-Id"); resp.StatusCode != 200 || id != "" {
		t.Errorf("%s, session %q: %s", resp.Status, id, body)
	}
	// The ID of a server that kept sessions.
	resp, body = w.tool("environment_list", "{}", "Mcp-Session-Id", "former", "Mcp-Protocol-Version", "2025-06-18")
	if resp.StatusCode != 200 || !strings.Contains(body, "There are no environments") {
		t.Errorf("%s: %s", resp.Status, body)
	}
}
