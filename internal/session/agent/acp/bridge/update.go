package bridge

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/internal/base/jsonrpc"
	"github.com/RelevanceAI/harvest/internal/session/agent"
)

// update is the update of a session/update notification.
type update struct {
	Kind      string          `json:"sessionUpdate"`
	MessageID string          `json:"messageId"`
	Content   json.RawMessage `json:"content"` // a block of a message, or a list of a tool call
	toolUpdate
	Entries []struct {
		Content string `json:"content"`
		Status  string `json:"status"`
	} `json:"entries"`
	Used int64 `json:"used"`
	Size int64 `json:"size"`
	Cost *struct {
		Amount float64 `json:"amount"`
	} `json:"cost"`
	Mode    string    `json:"currentModeId"`
	Options []option  `json:"configOptions"`
	Offered []offered `json:"availableCommands"`
	Meta    meta      `json:"_meta"`
}

// offered is a command in an available_commands_update.
type offered struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Input       struct {
		Hint string `json:"hint"`
	} `json:"input"`
}

// meta are the extensions of agents.
type meta struct {
	Claude struct {
		Tool string `json:"toolName"`
		Kind string `json:"kind"`
	} `json:"claudeCode"`
	Codex struct {
		Status struct {
			Type string `json:"type"`
		} `json:"threadStatus"`
		Error *struct {
			Message string `json:"message"`
			Details string `json:"additionalDetails"`
			Retry   bool   `json:"willRetry"`
		} `json:"error"`
	} `json:"codex"`
	Output      terminal `json:"terminal_output"`
	OutputDelta terminal `json:"terminal_output_delta"`
}

type terminal struct {
	Data string `json:"data"`
}

// update handles a session/update notification. Updates of unknown kinds become Other events.
func (s *session) update(params json.RawMessage) {
	var p struct {
		Session string          `json:"sessionId"`
		Update  json.RawMessage `json:"update"`
	}
	var u update
	if !jsonrpc.Decode(params, &p) || !jsonrpc.Decode(p.Update, &u) {
		s.other(params)
		return
	}
	if s.id != "" && p.Session != s.id {
		return // of a sub-agent or of a session that is being closed
	}
	if s.loading {
		switch u.Kind {
		case "user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update",
			"plan":
			if u.ToolCall != "" {
				s.ended[u.ToolCall] = true
			}
			s.replayed()
			return
		}
	}
	switch u.Kind {
	case "usage_update":
		s.usage(&u)
	case "config_option_update":
		for _, o := range u.Options {
			if o.Category == "mode" || o.ID == "mode" {
				s.changedMode(o.current())
			}
		}
	case "current_mode_update":
		s.changedMode(u.Mode)
	case "available_commands_update":
		offer(s, u.Offered)
	case "user_message_chunk":
	case "session_info_update":
		s.codex(&u)
	case "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan":
		s.work(&u, p.Update)
	default:
		s.other(p.Update)
	}
}

// work handles an update of the turn. Outside of a turn, only the end of a tool call and blank texts are expected.
func (s *session) work(u *update, raw json.RawMessage) {
	if s.turn == nil {
		var block struct{ Text string }
		jsonrpc.Decode(u.Content, &block)
		if !s.ended[u.ToolCall] && (u.ToolCall != "" || strings.TrimSpace(block.Text) != "") {
			s.other(raw)
		}
		return
	}
	switch u.Kind {
	case "agent_message_chunk":
		s.say(u, false)
	case "agent_thought_chunk":
		s.say(u, true)
	case "plan":
		var steps []agent.Step
		for _, e := range u.Entries {
			steps = append(steps, agent.Step{Text: e.Content, Status: e.Status})
		}
		s.event(agent.Event{Type: agent.Planned, Plan: steps})
	default:
		s.tool(u)
	}
}

func (s *session) usage(u *update) {
	if s.turn == nil {
		if u.Cost != nil {
			s.cost, s.costKnown = u.Cost.Amount, true
		}
		return
	}
	s.turn.context = &agent.Context{Used: u.Used, Size: u.Size}
	if u.Cost != nil {
		s.turn.cost = u.Cost.Amount
	}
}

// offer reports the agent's commands, unless they are those that were reported last.
func offer(s *session, all []offered) {
	var list []agent.Command
	for _, o := range all {
		list = append(list, agent.Command{Name: o.Name, Description: o.Description, Hint: o.Input.Hint})
	}
	if list = agent.Offer(list); !slices.Equal(list, s.commands) {
		s.commands = list
		s.event(agent.Event{Type: agent.Commands, Commands: list})
	}
}

// codex handles Codex's own report of the turn.
func (s *session) codex(u *update) {
	if s.turn == nil {
		return
	}
	if status := u.Meta.Codex.Status.Type; status != "" {
		s.turn.broken = status == "systemError"
	}
	if e := u.Meta.Codex.Error; e != nil {
		why := strings.TrimSuffix(strings.TrimSpace(e.Message+": "+e.Details), ":")
		if e.Retry {
			s.retrying(why)
			return
		}
		s.turn.trouble = why
	}
}
