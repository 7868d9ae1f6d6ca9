package acp_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/mcp"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/acp"
)

func TestCommand(t *testing.T) {
	t.Parallel()
	a := acp.Agent{Profile: acp.Profile{ID: "x", Args: []string{"x-acp", "--stdio"},
		Env:    func(agent.Setup) map[string]string { return map[string]string{"A": "1", "B": "1", "C": "1"} },
		Access: func(a agent.Access, _ agent.Setup) map[string]string { return map[string]string{"B": a.Token} }}}
	cmd := a.Command(agent.Setup{Dir: "/w", Conversation: "s", Model: "m", System: "Be brief.", MCPConfig: "/tmp/f",
		Approval: agent.ApproveNone, Access: &agent.Access{Token: "2"}, Env: map[string]string{"C": "3"}})
	if diff := cmp.Diff([]string{"harvest-acp", "-name", "x", "-dir", "/w", "-session", "s", "-model", "m", "-system",
		"Be brief.", "-approval", "ask", "-mcp", "/tmp/f", "--", "x-acp", "--stdio"}, cmd.Args); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"A": "1", "B": "2", "C": "3"}, cmd.Env); diff != "" {
		t.Error(diff)
	}
	if !cmd.Own || cmd.Dir != "/w" || a.Name() != "x" || a.Modelless() {
		t.Errorf("%+v", cmd)
	}
	cmd = acp.Agent{Profile: acp.Profile{ID: "y", Args: []string{"y"}}}.Command(agent.Setup{Dir: "/w",
		Access: &agent.Access{Token: "2"}})
	if strings.Join(cmd.Args, " ") != "harvest-acp -name y -dir /w -- y" || len(cmd.Env) > 0 {
		t.Errorf("%+v", cmd)
	}
}

func TestConversation(t *testing.T) {
	t.Parallel()
	c := acp.Agent{}.Open(agent.Setup{})
	if c.Begin() != nil {
		t.Error("there is a first input")
	}
	asker, ok := c.(agent.MCPAsker)
	if !ok {
		t.Fatal("it cannot be asked for MCP servers")
	}
	for got, want := range map[string]string{
		string(c.Prompt("p", "a\nb")):      `{"op":"prompt","id":"p","text":"a\nb"}`,
		string(c.Interrupt()):              `{"op":"interrupt"}`,
		string(asker.AskMCP()):             `{"op":"mcp"}`,
		string(asker.RestartMCP("server")): `{"op":"restart","id":"server"}`,
	} {
		if got != want+"\n" {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for line, want := range map[string][]agent.Event{
		"":        nil,
		"noise":   {{Type: agent.Other, Raw: json.RawMessage(`"noise"`)}},
		`{"x":1}`: {{Type: agent.Other, Raw: json.RawMessage(`{"x":1}`)}},
		`{"type":"done","text":"ok","unproven":true}`: {{Type: agent.Done, Text: "ok", Unproven: true}},
		`{"type":"agent.withdrawn","id":"none"}`:      nil,
	} {
		if diff := cmp.Diff(want, c.Decode([]byte(line))); diff != "" {
			t.Errorf("%s: %s", line, diff)
		}
	}
	if got := c.Decode([]byte(`{"type":"agent.asked","id":"q","tool":"Bash"}`)); len(got) != 1 {
		t.Errorf("%+v", got)
	}
	line, err := c.Answer("q", agent.Answer{Allow: true})
	if err != nil || string(line) != `{"op":"answer","id":"q","answer":{"allow":true}}`+"\n" {
		t.Errorf("%s, %v", line, err)
	}
	if _, err := c.Answer("q", agent.Answer{}); errors.KindOf(err) != errors.NotFound {
		t.Errorf("a second answer: %v", err)
	}
	_ = c.Decode([]byte(`{"type":"agent.asked","id":"q"}`))
	_ = c.Decode([]byte(`{"type":"done"}`))
	if _, err := c.Answer("q", agent.Answer{}); errors.KindOf(err) != errors.NotFound {
		t.Errorf("an answer after the turn: %v", err)
	}
}

// TestMCPConfig checks that the bridge can read the file of MCP servers.
func TestMCPConfig(t *testing.T) {
	t.Parallel()
	servers := []mcp.Server{{Name: "a", Command: []string{"x", "${Y}"}, Env: map[string]string{"K": "${V}"}},
		{Name: "b", URL: "https://example.com/mcp", Headers: map[string]string{"Authorization": "Bearer ${V}"}}}
	text, err := acp.Agent{}.MCPConfig(servers, agent.MCPLimits{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := mcp.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(servers, got); diff != "" {
		t.Error(diff)
	}
}
