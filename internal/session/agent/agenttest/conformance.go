package agenttest

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/mcp"
	"github.com/RelevanceAI/harvest/internal/session/agent"
)

// Conformance checks the parts of the contract that every agent has in common.
func Conformance(t *testing.T, a agent.Agent) {
	t.Helper()
	if a.Name() == "" {
		t.Error("it has no name")
	}
	setup := agent.Setup{Dir: "/work", Conversation: "conversation-1", Env: map[string]string{"HARVEST_TEST": "v"}}
	for _, approval := range []agent.Approval{agent.ApproveAll, agent.ApproveEdits, agent.ApproveNone,
		agent.ApprovePlan} {
		setup.Approval = approval
		cmd := a.Command(setup)
		if len(cmd.Args) == 0 || cmd.Dir != setup.Dir || cmd.Env["HARVEST_TEST"] != "v" ||
			!slices.Contains(cmd.Args, setup.Conversation) {
			t.Errorf("approval %q: %+v", approval, cmd)
		}
	}
	c := a.Open(setup)
	inputs := map[string][]byte{"begin": c.Begin(), "prompt": c.Prompt("p", "a\nb\x00\u2028\xff"),
		"interrupt": c.Interrupt()}
	if asker, ok := c.(agent.MCPAsker); ok {
		inputs["MCP"], inputs["restart"] = asker.AskMCP(), asker.RestartMCP("a\nb")
	}
	for name, input := range inputs {
		if input != nil && (bytes.Count(input, []byte("\n")) != 1 || !json.Valid(input)) {
			t.Errorf("%s is not one line of JSON: %q", name, input)
		}
	}
	if _, err := c.Answer("unknown", agent.Answer{Allow: true}); errors.KindOf(err) != errors.NotFound {
		t.Errorf("an answer to an unknown question: %v", err)
	}
	checkOther(t, c)
	checkConfig(t, a)
}

// checkOther checks that a line that nobody understands becomes an event with the line, and a blank one none.
func checkOther(t *testing.T, c agent.Conversation) {
	t.Helper()
	for _, line := range []string{"", " \n"} {
		if got := c.Decode([]byte(line)); len(got) > 0 {
			t.Errorf("%q: %+v", line, got)
		}
	}
	for _, line := range []string{"noise\n", "{\n", "[]\n", "\xff\n", `{"unknown":1}` + "\n"} {
		got := c.Decode([]byte(line))
		if len(got) != 1 || got[0].Type != agent.Other || !json.Valid(got[0].Raw) {
			t.Errorf("%q: %+v", line, got)
		}
	}
}

// checkConfig checks that the configuration of MCP servers has the servers, and that an invalid one is refused.
func checkConfig(t *testing.T, a agent.Agent) {
	t.Helper()
	configurer, ok := a.(agent.MCPConfigurer)
	if !ok {
		return
	}
	text, err := configurer.MCPConfig([]mcp.Server{{Name: "walnut", Command: []string{"x"}}}, agent.MCPLimits{})
	if err != nil || !bytes.Contains(text, []byte("walnut")) {
		t.Errorf("%s, %v", text, err)
	}
	if _, err := configurer.MCPConfig([]mcp.Server{{Name: "a b"}}, agent.MCPLimits{}); err == nil {
		t.Error("a server without a command is not refused")
	}
}
