package bridge

import (
	"strings"

	"github.com/RelevanceAI/harvest/internal/session/agent"
)

// quirks are the deviations of an agent, as observed with the versions in testdata.
type quirks struct {
	// usage says what the usage in the answer to a prompt counts.
	usage counted
	// unmarked means that the model's texts have message IDs, and that a text without one is the program's own.
	unmarked bool
	// own are prefixes of the program's own texts. They are not words of the model.
	own []string
	// failed is the prefix of the program's report that the model has failed; retry is that of one that it tries again.
	failed, retry string
	// never means that the agent asks nobody.
	never bool
	// modes are the agent's choices for each approval; nil for the usual ones.
	modes map[agent.Approval][]choice
}

// counted is the period of an agent's usage.
type counted int

const (
	perTurn counted = iota
	perSession
)

// choice is a value of an option: the first of values that the agent offers. option is "" for the mode.
type choice struct {
	option string
	values []string
}

// usual are the modes of agents without modes in quirks.
var usual = map[agent.Approval][]string{
	agent.ApproveAll:   {"bypassPermissions", "yolo", "agent-full-access", "full-access", "full", "autopilot"},
	agent.ApproveEdits: {"acceptEdits", "autoEdit", "auto-edit", "auto_edit"},
	agent.ApproveNone:  {"default", "ask", "manual", "read-only"},
	agent.ApprovePlan:  {"plan", "read-only"},
}

func mode(values ...string) []choice { return []choice{{values: values}} }

// known are the quirks by the name that an agent gives in its answer to initialize.
var known = map[string]quirks{
	"@agentclientprotocol/codex-acp": {unmarked: true, modes: map[agent.Approval][]choice{
		agent.ApproveAll: mode("agent-full-access"), agent.ApproveEdits: mode("workspace-write"),
		agent.ApproveNone: mode("read-only"),
		agent.ApprovePlan: {{values: []string{"read-only"}}, {option: "collaboration_mode", values: []string{"plan"}}},
	}},
	"Copilot": {usage: perSession, own: []string{"Info: ", "Warning: ", "Error: "}, failed: "Error: ",
		modes: map[agent.Approval][]choice{
			agent.ApproveAll:   {{values: []string{"agent"}}, {option: "allow_all", values: []string{"on"}}},
			agent.ApproveEdits: {{values: []string{"agent"}}, {option: "allow_all", values: []string{"off"}}},
			agent.ApproveNone:  {{values: []string{"agent"}}, {option: "allow_all", values: []string{"off"}}},
			agent.ApprovePlan:  {{values: []string{"plan"}}, {option: "allow_all", values: []string{"off"}}},
		}},
	// OpenCode asks as OPENCODE_PERMISSION says, which its profile sets.
	"OpenCode": {modes: map[agent.Approval][]choice{
		agent.ApproveAll: mode("build"), agent.ApproveEdits: mode("build"), agent.ApproveNone: mode("build"),
		agent.ApprovePlan: mode("plan"),
	}},
	"pi-acp": {never: true, own: []string{"Retrying", "Queued message"}, retry: "Retrying",
		modes: map[agent.Approval][]choice{agent.ApproveAll: {}, agent.ApproveEdits: {}, agent.ApproveNone: {},
			agent.ApprovePlan: {}}}, // its modes are efforts of thinking
}

func quirksOf(name string) quirks { return known[name] }

// ownWords reports whether a text is the program's own.
func (q quirks) ownWords(u *update, text string) bool {
	if q.unmarked && u.MessageID == "" || u.Meta.Claude.Kind == "informational" {
		return true
	}
	for _, prefix := range q.own {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return false
}
