package opencode

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/internal/session/agent"
)

// conversation is the state that later lines refer to.
type conversation struct {
	session  string            // ID of the main session
	children map[string]string // maps the session of a sub-agent to the tool call that runs it
	users    map[string]bool   // IDs of the user's messages
	texts    map[string]bool   // parts with text: false while streaming, true once complete
	calls    map[string]*call  // by ID
	ended    map[string]bool   // IDs of the calls that ended: after an abort, the server may report an end once more
	asked    map[string]bool   // open questions
	// questions are the open questions that are not about a permission.
	questions map[string][]agent.Question
	turn      turn
	again     bool // there are turns whose prompts were written before
}

// turn is the state of the current prompt. The server may report the end of a turn more than once, even after the
// next prompt was sent.
type turn struct {
	state       state
	usage       agent.Usage
	text        string // the last text of the agent
	failure     string
	reason      string
	interrupted bool
	tired       bool // the bridge aborts it, since the model's API keeps failing
}

type state int

const (
	idle  state = iota
	asked       // the prompt was written
	busy        // the server is working on it
)

// call is a tool call that has not ended.
type call struct {
	started bool
	output  string   // output reported so far
	files   []string // files changed meanwhile
	late    bool     // the turn ended before the call did
}

// event is a line: an event of the server or a Notice of the bridge.
type event struct {
	Notice
	Properties properties `json:"properties"`
}

type properties struct {
	ID         string          `json:"id"`
	SessionID  string          `json:"sessionID"`
	MessageID  string          `json:"messageID"`
	PartID     string          `json:"partID"`
	Field      string          `json:"field"`
	Delta      string          `json:"delta"`
	Info       info            `json:"info"`
	Part       part            `json:"part"`
	Status     status          `json:"status"`
	Error      *failure        `json:"error"`
	Permission string          `json:"permission"`
	Metadata   json.RawMessage `json:"metadata"`
	RequestID  string          `json:"requestID"`
	File       string          `json:"file"`
	Questions  []question      `json:"questions"`
}

type question struct {
	Question string         `json:"question"`
	Header   string         `json:"header"`
	Multiple bool           `json:"multiple"`
	Options  []agent.Option `json:"options"`
}

type info struct {
	ID       string   `json:"id"`
	ParentID string   `json:"parentID"`
	Role     string   `json:"role"`
	Error    *failure `json:"error"`
}

type failure struct {
	Name string `json:"name"`
	Data struct {
		Message string `json:"message"`
	} `json:"data"`
}

type part struct {
	ID        string `json:"id"`
	MessageID string `json:"messageID"`
	Type      string `json:"type"`
	Text      string `json:"text"`
	Time      struct {
		End float64 `json:"end"`
	} `json:"time"`
	Tool   string    `json:"tool"`
	CallID string    `json:"callID"`
	State  toolState `json:"state"`
	Reason string    `json:"reason"`
	Tokens tokens    `json:"tokens"`
	Cost   float64   `json:"cost"`
}

type toolState struct {
	Status   string          `json:"status"`
	Input    json.RawMessage `json:"input"`
	Output   string          `json:"output"`
	Error    string          `json:"error"`
	Metadata struct {
		Output    string `json:"output"`
		SessionID string `json:"sessionId"`
		Filepath  string `json:"filepath"`
		Exists    *bool  `json:"exists"`
	} `json:"metadata"`
}

type tokens struct {
	Input     int64 `json:"input"`
	Output    int64 `json:"output"`
	Reasoning int64 `json:"reasoning"`
	Cache     struct {
		Read  int64 `json:"read"`
		Write int64 `json:"write"`
	} `json:"cache"`
}

type status struct {
	Type    string `json:"type"`
	Attempt int    `json:"attempt"`
	Message string `json:"message"`
}

// Decode implements agent.Conversation.
func (c *conversation) Decode(line []byte) []agent.Event {
	return agent.DecodeLine(line, func(e *event) ([]agent.Event, string, bool) {
		events, ok := c.decode(e)
		return events, c.children[e.Properties.SessionID], ok
	})
}

// decode returns false for an unrecognized line.
func (c *conversation) decode(e *event) ([]agent.Event, bool) {
	p := &e.Properties
	switch e.Type {
	case BridgeReady:
		c.session = e.Session
		return []agent.Event{{Type: agent.Ready, Conversation: e.Session, Version: e.Version}}, true
	case BridgeMCP:
		return []agent.Event{{Type: agent.MCPStatus, MCP: e.MCP}}, true
	case BridgeRestarted:
		return []agent.Event{{Type: agent.MCPRestarted, ID: e.Server, Failed: e.Message != "", Text: e.Message}}, true
	case BridgeError:
		if c.turn.state == idle {
			return nil, false
		}
		c.turn.failure, c.turn.reason = e.Message, "request_failed"
		return c.end(), true
	case BridgeTired:
		if c.turn.state == idle {
			return nil, false
		}
		c.turn.failure, c.turn.reason, c.turn.tired = e.Message, agent.GaveUp, true
		return nil, true
	case "message.updated":
		return nil, c.message(p)
	case "message.part.updated":
		return c.part(p)
	case "message.part.delta":
		if _, known := c.texts[p.PartID]; !known || p.Field != "text" {
			return nil, true // of a user's message, or of a tool's input, which is sent as a whole
		}
		return []agent.Event{{Type: agent.MessageDelta, ID: p.PartID, Text: p.Delta}}, true
	case "session.status":
		return c.status(p), true
	case "session.error":
		c.fail(p.Error)
		return nil, true
	case "session.idle":
		if p.SessionID != c.session || c.turn.state != busy {
			return nil, true
		}
		return c.end(), true
	case "permission.asked":
		c.asked[p.ID] = true
		return []agent.Event{{Type: agent.Asked, ID: p.ID, Tool: p.Permission, Input: p.Metadata}}, true
	case "question.asked":
		return c.question(p), true
	case "permission.replied", "question.replied", "question.rejected":
		if !c.asked[p.RequestID] {
			return nil, true
		}
		delete(c.asked, p.RequestID)
		delete(c.questions, p.RequestID)
		return []agent.Event{{Type: agent.Withdrawn, ID: p.RequestID}}, true
	case "file.edited":
		return c.edited(p.File), true
	case "server.connected", "server.heartbeat", "session.created", "session.updated", "session.diff", "plugin.added",
		"catalog.updated", "reference.updated",
		"integration.updated", "file.watcher.updated":
		return nil, true
	}
	return nil, false
}

// question returns the event for a question of the model to a person.
func (c *conversation) question(p *properties) []agent.Event {
	questions := []agent.Question{}
	for _, q := range p.Questions {
		questions = append(questions, agent.Question{Text: q.Question, Header: q.Header, Multiple: q.Multiple,
			Options: q.Options})
	}
	c.asked[p.ID], c.questions[p.ID] = true, questions
	return []agent.Event{{Type: agent.Asked, ID: p.ID, Tool: "question", Questions: questions}}
}

// message records the author of a message.
func (c *conversation) message(p *properties) bool {
	if p.Info.Role == "user" {
		c.users[p.Info.ID] = true
	}
	if p.SessionID == c.session {
		c.fail(p.Info.Error)
	}
	return true
}

// fail records why the turn will end.
func (c *conversation) fail(f *failure) {
	if f == nil || c.turn.tired {
		return
	}
	c.turn.reason = f.Name
	if f.Name == "MessageAbortedError" {
		c.turn.interrupted = true
		return
	}
	c.turn.failure = f.Data.Message
	if c.turn.failure == "" {
		c.turn.failure = f.Name
	}
}

func (c *conversation) part(p *properties) ([]agent.Event, bool) {
	if c.users[p.Part.MessageID] {
		return nil, true
	}
	switch p.Part.Type {
	case "text", "reasoning":
		return c.text(p), true
	case "tool":
		return c.tool(&p.Part), true
	case "step-finish":
		t := p.Part.Tokens
		c.turn.usage.Add(agent.Usage{InputTokens: t.Input, OutputTokens: t.Output + t.Reasoning,
			CacheReadTokens: t.Cache.Read, CacheWriteTokens: t.Cache.Write, Cost: p.Part.Cost})
		return nil, true
	case "step-start", "snapshot", "patch":
		return nil, true
	}
	return nil, false
}

func (c *conversation) text(p *properties) []agent.Event {
	var events []agent.Event
	thinking := p.Part.Type == "reasoning"
	complete, known := c.texts[p.Part.ID]
	if !known {
		c.texts[p.Part.ID] = false
		events = append(events, agent.Event{Type: agent.MessageStarted, ID: p.Part.ID, Thinking: thinking})
	}
	if p.Part.Time.End > 0 && !complete {
		c.texts[p.Part.ID] = true
		events = append(events, agent.Event{Type: agent.MessageCompleted, ID: p.Part.ID, Text: p.Part.Text,
			Thinking: thinking})
		if !thinking && p.SessionID == c.session {
			c.turn.text = p.Part.Text
		}
	}
	return events
}

func (c *conversation) tool(p *part) []agent.Event {
	s := &p.State
	if s.Status == "pending" {
		return nil
	}
	t := c.calls[p.CallID]
	if c.ended[p.CallID] {
		return nil
	}
	if t == nil {
		t = &call{}
		c.calls[p.CallID] = t
	}
	var events []agent.Event
	if !t.started {
		t.started = true
		events = append(events, agent.Event{Type: agent.ToolStarted, ID: p.CallID, Tool: p.Tool, Input: s.Input})
	}
	if s.Metadata.SessionID != "" {
		c.children[s.Metadata.SessionID] = p.CallID
	}
	if more, grown := strings.CutPrefix(s.Metadata.Output, t.output); grown && more != "" && s.Status == "running" {
		t.output = s.Metadata.Output
		events = append(events, agent.Event{Type: agent.ToolOutput, ID: p.CallID, Text: more})
	}
	switch s.Status {
	case "completed":
		events = append(events, agent.Event{Type: agent.ToolCompleted, ID: p.CallID, Tool: p.Tool, Text: s.Output})
	case "error":
		events = append(events, agent.Event{Type: agent.ToolCompleted, ID: p.CallID, Tool: p.Tool,
			Text: s.Error, Failed: true,
			Denied: strings.Contains(s.Error, "rejected permission")})
	default:
		return events
	}
	delete(c.calls, p.CallID)
	c.ended[p.CallID] = true
	for _, file := range t.files {
		created := s.Metadata.Exists != nil && !*s.Metadata.Exists && file == s.Metadata.Filepath
		events = append(events, agent.Event{Type: agent.FileChanged, ID: p.CallID, Path: file, Created: created})
	}
	return events
}

// edited records a changed file until the tool call that changed it reports whether the file existed before. The call
// is known only if exactly one is running.
func (c *conversation) edited(file string) []agent.Event {
	var running []*call
	for _, t := range c.calls {
		if !t.late {
			running = append(running, t)
		}
	}
	if len(running) != 1 {
		return []agent.Event{{Type: agent.FileChanged, Path: file}}
	}
	running[0].files = append(running[0].files, file)
	return nil
}

func (c *conversation) status(p *properties) []agent.Event {
	if p.SessionID != c.session && c.children[p.SessionID] == "" {
		return nil
	}
	switch p.Status.Type {
	case "busy":
		if p.SessionID != c.session {
			return nil
		}
		if c.again && c.turn.state == idle {
			c.turn = turn{state: asked}
		}
		if c.turn.state == asked {
			c.turn.state = busy
		}
	case "retry":
		return []agent.Event{{Type: agent.Retrying, Attempt: p.Status.Attempt,
			Text: fmt.Sprintf("attempt %d: %s", p.Status.Attempt, p.Status.Message)}}
	}
	return nil
}

// end ends the turn. The server reports the end of interrupted calls only after it.
func (c *conversation) end() []agent.Event {
	t := c.turn
	c.turn = turn{}
	clear(c.asked)
	clear(c.questions)
	clear(c.texts)
	var events []agent.Event
	for _, id := range slices.Sorted(maps.Keys(c.calls)) {
		running := c.calls[id]
		for _, file := range running.files {
			events = append(events, agent.Event{Type: agent.FileChanged, ID: id, Path: file})
		}
		running.files, running.late = nil, true
	}
	e := agent.Event{Type: agent.Done, Text: t.text, Failed: t.failure != "" || t.interrupted,
		Interrupted: t.interrupted, Reason: t.reason, Usage: &t.usage}
	if t.failure != "" {
		e.Text = t.failure
	}
	if e.Reason == "" {
		e.Reason = "completed"
	}
	return append(events, e)
}
