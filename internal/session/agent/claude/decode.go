package claude

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/session/agent"
)

func requestID(n int) string { return fmt.Sprintf("harvest-%d", n) }

// printed is a line that the program printed. Its type determines which fields are set.
type printed struct {
	Type      string `json:"type"`
	Subtype   string `json:"subtype"`
	SessionID string `json:"session_id"`
	Parent    string `json:"parent_tool_use_id"`

	Message       *message        `json:"message"`
	ToolUseResult json.RawMessage `json:"tool_use_result"`
	ResultMeta    []resultMeta    `json:"tool_result_meta"`
	Event         *streamed       `json:"event"`

	RequestID string          `json:"request_id"`
	Request   *controlRequest `json:"request"`

	Response struct {
		Subtype   string `json:"subtype"`
		RequestID string `json:"request_id"`
		Error     string `json:"error"`
		Response  struct {
			MCPServers []agent.MCP `json:"mcpServers"`
			Commands   []struct {
				Name        string `json:"name"`
				Description string `json:"description"`
				Hint        string `json:"argumentHint"`
			} `json:"commands"`
		} `json:"response"`
	} `json:"response"`

	Model      string      `json:"model"`
	Version    string      `json:"claude_code_version"`
	MCPServers []agent.MCP `json:"mcp_servers"`

	Attempt     int    `json:"attempt"`
	MaxRetries  int    `json:"max_retries"`
	Delay       int    `json:"retry_delay_ms"`
	ErrorStatus int    `json:"error_status"`
	Error       string `json:"error"`

	CommandUUID string `json:"command_uuid"`
	State       string `json:"state"`
	Summary     string `json:"summary"`

	Tasks []struct {
		Ambient bool `json:"ambient"`  // not work that anything waits for
		OffHost bool `json:"off_host"` // runs elsewhere
	} `json:"tasks"`

	ToolUseID   string `json:"tool_use_id"`
	Description string `json:"description"`

	IsError        bool                  `json:"is_error"`
	Result         string                `json:"result"`
	Errors         []string              `json:"errors"`
	TerminalReason string                `json:"terminal_reason"`
	ModelUsage     map[string]modelUsage `json:"model_usage_since_last_result"`
}

type message struct {
	ID      string  `json:"id"`
	Model   string  `json:"model"`
	Content content `json:"content"`
}

// content is a list of blocks, or a plain string, which becomes one block.
type content []block

func (c *content) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		var text string
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
		*c = content{{Type: "text", Text: text}}
		return nil
	}
	return json.Unmarshal(data, (*[]block)(c))
}

type block struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   content         `json:"content"`
	IsError   bool            `json:"is_error"`
	ToolName  string          `json:"tool_name"`
}

type resultMeta struct {
	ID       string `json:"id"`
	Decision struct {
		Decision string `json:"decision"`
	} `json:"permission_decision"`
}

// streamed is an event of the model's API (https://docs.claude.com/en/docs/build-with-claude/streaming).
type streamed struct {
	Type    string   `json:"type"`
	Index   int      `json:"index"`
	Message *message `json:"message"`
	Block   *block   `json:"content_block"`
	Delta   struct {
		Type     string `json:"type"`
		Text     string `json:"text"`
		Thinking string `json:"thinking"`
	} `json:"delta"`
}

type controlRequest struct {
	Subtype   string          `json:"subtype"`
	ToolName  string          `json:"tool_name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
}

type modelUsage struct {
	Input      int64   `json:"inputTokens"`
	Output     int64   `json:"outputTokens"`
	CacheRead  int64   `json:"cacheReadInputTokens"`
	CacheWrite int64   `json:"cacheCreationInputTokens"`
	Cost       float64 `json:"costUSD"`
}

// Decode implements agent.Conversation.
func (c *conversation) Decode(line []byte) []agent.Event {
	return agent.DecodeLine(line, func(p *printed) ([]agent.Event, string, bool) {
		events, ok := c.decode(p)
		return events, c.parent(p, events), ok
	})
}

// parent returns the tool call that runs the sub-agent of a line. The request for a decision lacks it: it is that of
// the tool call that the decision is about.
func (c *conversation) parent(p *printed, events []agent.Event) string {
	if p.Request != nil {
		return c.parents[p.Request.ToolUseID]
	}
	for _, e := range events {
		switch {
		case e.Type == agent.ToolStarted && p.Parent != "":
			c.parents[e.ID] = p.Parent
		case e.Type == agent.ToolCompleted:
			delete(c.parents, e.ID)
		}
	}
	return p.Parent
}

// decode returns false for an unrecognized line.
func (c *conversation) decode(p *printed) ([]agent.Event, bool) {
	switch p.Type {
	case "assistant":
		if p.Message == nil {
			return nil, false
		}
		return c.assistant(p.Message), true
	case "user":
		if p.Message == nil {
			return nil, false
		}
		return c.user(p), true
	case "stream_event":
		if p.Event == nil {
			return nil, false
		}
		return c.stream(p.Parent, p.Event), true
	case "system":
		return c.system(p)
	case "command_lifecycle":
		c.reports = true
		if p.State == "started" {
			c.prompts = append(c.prompts, p.CommandUUID)
		}
		return nil, true
	case "control_response":
		if name, ok := strings.CutPrefix(p.Response.RequestID, restart); ok {
			return []agent.Event{{Type: agent.MCPRestarted, ID: name, Failed: p.Response.Subtype == "error",
				Text: p.Response.Error}}, true
		}
		var commands []agent.Command
		for _, o := range p.Response.Response.Commands {
			commands = append(commands, agent.Command{Name: o.Name, Description: o.Description, Hint: o.Hint})
		}
		if commands = agent.Offer(commands); commands != nil { // the answer to initialize
			return []agent.Event{{Type: agent.Commands, Commands: commands}}, true
		}
		if p.Response.Response.MCPServers == nil {
			return nil, true // acknowledges a request from Harvest
		}
		return []agent.Event{{Type: agent.MCPStatus, MCP: p.Response.Response.MCPServers}}, true
	case "control_request":
		return c.ask(p)
	case "control_cancel_request":
		if _, open := c.asked[p.RequestID]; !open {
			return nil, true
		}
		delete(c.asked, p.RequestID)
		return []agent.Event{{Type: agent.Withdrawn, ID: p.RequestID}}, true
	case "result":
		return []agent.Event{c.result(p)}, true
	}
	return nil, false
}

// assistant handles a line with complete blocks of the model's message: usually one block, and the next line has the
// next one.
func (c *conversation) assistant(m *message) []agent.Event {
	var events []agent.Event
	for _, b := range m.Content {
		id := blockID(m.ID, c.blocks[m.ID])
		c.blocks[m.ID]++
		switch b.Type {
		case "text", "thinking":
			if !c.started[id] {
				events = append(events, agent.Event{Type: agent.MessageStarted, ID: id, Thinking: b.Type == "thinking"})
			}
			delete(c.started, id)
			text := b.Text + b.Thinking
			if m.Model == synthetic {
				text = withoutGateway(text)
			}
			events = append(events, agent.Event{Type: agent.MessageCompleted, ID: id, Text: text,
				Thinking: b.Type == "thinking"})
		case "tool_use":
			c.tools[b.ID] = b.Name
			c.planned(b.Name, b.Input)
			events = append(events, agent.Event{Type: agent.ToolStarted, ID: b.ID, Tool: b.Name, Input: b.Input})
		}
	}
	return events
}

// synthetic is the model of messages that the program itself writes, such as those of a failed request.
const synthetic = "<synthetic>"

// gatewayAdvice is the advice of the program about the address that it has for the model's API: that of Harvest's
// gateway, which users cannot check.
var gatewayAdvice = pattern.New(`check your inference gateway \([^()\s]*\)`)

func withoutGateway(text string) string {
	return gatewayAdvice().ReplaceAllString(text, "check the status page of the model's provider")
}

func blockID(message string, n int) string { return fmt.Sprintf("%s.%d", message, n) }

// stream handles a piece of the model's message while it streams. Messages of sub-agents are interleaved.
func (c *conversation) stream(parent string, s *streamed) []agent.Event {
	if s.Type == "message_start" && s.Message != nil {
		if c.current == nil {
			c.current = map[string]string{}
		}
		c.current[parent] = s.Message.ID
		return nil
	}
	id := blockID(c.current[parent], s.Index)
	switch {
	case s.Type == "content_block_start" && s.Block != nil && (s.Block.Type == "text" || s.Block.Type == "thinking"):
		c.started[id] = true
		return []agent.Event{{Type: agent.MessageStarted, ID: id, Thinking: s.Block.Type == "thinking"}}
	case s.Type == "content_block_delta" && s.Delta.Text+s.Delta.Thinking != "":
		return []agent.Event{{Type: agent.MessageDelta, ID: id, Text: s.Delta.Text + s.Delta.Thinking}}
	case s.Type == "message_stop":
		delete(c.current, parent)
	}
	return nil
}

// user handles tool results, which the model's API represents as messages of the user. Other messages are the prompts
// themselves.
func (c *conversation) user(p *printed) []agent.Event {
	var events []agent.Event
	for _, b := range p.Message.Content {
		if b.Type != "tool_result" {
			continue
		}
		e := agent.Event{Type: agent.ToolCompleted, ID: b.ToolUseID, Tool: c.tools[b.ToolUseID],
			Text: textOf(b.Content), Failed: b.IsError}
		for _, m := range p.ResultMeta {
			e.Denied = e.Denied || m.ID == b.ToolUseID && m.Decision.Decision == "reject"
		}
		delete(c.tools, b.ToolUseID)
		events = append(events, e)
		if change, ok := changeOf(p.ToolUseResult); ok && !b.IsError {
			change.ID = b.ToolUseID
			events = append(events, change)
		}
	}
	return events
}

// textOf returns the result of a tool as text.
func textOf(blocks content) string {
	var parts []string
	for _, b := range blocks {
		switch {
		case b.Type == "text":
			parts = append(parts, b.Text)
		case b.ToolName != "":
			parts = append(parts, b.ToolName)
		default:
			parts = append(parts, "["+b.Type+"]")
		}
	}
	return strings.Join(parts, "\n")
}

// changeOf decodes the description of a change that Write and Edit add to their results.
func changeOf(result json.RawMessage) (agent.Event, bool) {
	var change struct {
		Type     string           `json:"type"`
		FilePath string           `json:"filePath"`
		Patch    *json.RawMessage `json:"structuredPatch"`
	}
	if json.Unmarshal(result, &change) != nil || change.FilePath == "" || change.Patch == nil {
		return agent.Event{}, false
	}
	return agent.Event{Type: agent.FileChanged, Path: change.FilePath, Created: change.Type == "create"}, true
}

func (c *conversation) system(p *printed) ([]agent.Event, bool) {
	switch p.Subtype {
	case "init":
		e := agent.Event{Type: agent.Ready, Conversation: p.SessionID, Model: p.Model, Version: p.Version,
			MCP: p.MCPServers}
		if e.Own = c.ownTurn(); e.Own {
			e.Text, c.notice = c.notice, ""
		}
		return []agent.Event{e}, true
	case "task_notification":
		c.notice = p.Summary
		return nil, false
	case "background_tasks_changed":
		e := agent.Event{Type: agent.Background}
		for _, task := range p.Tasks {
			if !task.Ambient && !task.OffHost {
				e.Tasks++
			}
		}
		return []agent.Event{e}, true
	case "api_retry":
		text := fmt.Sprintf("attempt %d of %d in %.1f s: %s", p.Attempt, p.MaxRetries, float64(p.Delay)/1000, p.Error)
		if p.ErrorStatus != 0 {
			text += fmt.Sprintf(" (status %d)", p.ErrorStatus)
		}
		return []agent.Event{{Type: agent.Retrying, Attempt: p.Attempt, Text: text}}, true
	case "task_progress":
		return []agent.Event{{Type: agent.ToolOutput, ID: p.ToolUseID, Text: p.Description}}, p.ToolUseID != ""
	case "status": // whether a request to the model is under way
		return nil, true
	}
	return nil, false
}

// ask handles a request for a decision of the user.
func (c *conversation) ask(p *printed) ([]agent.Event, bool) {
	r := p.Request
	if r == nil || r.Subtype != "can_use_tool" || p.RequestID == "" {
		return nil, false
	}
	c.asked[p.RequestID] = r.Input
	e := agent.Event{Type: agent.Asked, ID: p.RequestID, Tool: r.ToolName, Input: r.Input}
	switch r.ToolName {
	case "AskUserQuestion":
		e.Questions = questionsOf(r.Input)
	case exitPlan:
		e.Text = c.plan
	}
	return []agent.Event{e}, true
}

func questionsOf(input json.RawMessage) []agent.Question {
	var asked struct {
		Questions []struct {
			Question    string         `json:"question"`
			Header      string         `json:"header"`
			MultiSelect bool           `json:"multiSelect"`
			Options     []agent.Option `json:"options"`
		} `json:"questions"`
	}
	if json.Unmarshal(input, &asked) != nil {
		return nil
	}
	var questions []agent.Question
	for _, q := range asked.Questions {
		questions = append(questions, agent.Question{Text: q.Question, Header: q.Header, Multiple: q.MultiSelect,
			Options: q.Options})
	}
	return questions
}

// ownTurn reports whether the current turn began without a prompt.
func (c *conversation) ownTurn() bool { return c.reports && len(c.prompts) == 0 }

// result handles the end of a turn. A failure of the model's API has subtype "success" and is_error true, and
// total_cost_usd counts from the beginning of the conversation, so neither is used.
func (c *conversation) result(p *printed) agent.Event {
	e := agent.Event{Type: agent.Done, Text: p.Result, Failed: p.IsError || p.Subtype != "success",
		Reason: p.TerminalReason, Usage: &agent.Usage{}}
	if e.Reason == "" {
		e.Reason = p.Subtype
	}
	if e.Text == "" {
		e.Text = strings.Join(p.Errors, "\n")
	}
	if e.Failed {
		e.Text = withoutGateway(e.Text)
	}
	e.Interrupted = strings.HasPrefix(p.TerminalReason, "aborted")
	for _, model := range slices.Sorted(maps.Keys(p.ModelUsage)) { // in a fixed order, so that sums of prices are equal
		u := p.ModelUsage[model]
		e.Usage.Add(agent.Usage{InputTokens: u.Input, OutputTokens: u.Output, CacheReadTokens: u.CacheRead,
			CacheWriteTokens: u.CacheWrite, Cost: u.Cost})
	}
	e.Own, e.Prompts, c.prompts = c.ownTurn(), c.prompts, nil
	c.plan = ""
	clear(c.tools)
	clear(c.asked)
	clear(c.blocks)
	clear(c.started)
	return e
}
