// Package acp talks to coding agents that speak the Agent Client Protocol, version 1
// (https://agentclientprotocol.com): one adapter for many agents. A bridge (package bridge) runs beside the agent in
// the sandbox and holds the state of the protocol, so that a restart of the server loses nothing. Its lines are events
// in Harvest's vocabulary, and requests.
package acp

import (
	"bytes"
	"encoding/json"
	"maps"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/mcp"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/session/agent"
)

// Program is the bridge's name in the sandbox.
const Program = "harvest-acp"

// Request is a line of the bridge's input.
type Request struct {
	Op     string        `json:"op"`           // "prompt", "interrupt", "answer", "mcp" or "restart"
	ID     string        `json:"id,omitempty"` // of the prompt or question; or the name of an MCP server
	Text   string        `json:"text,omitempty"`
	Answer *agent.Answer `json:"answer,omitempty"`
}

// Line is a line of the bridge's output.
type Line struct {
	agent.Event
	Unproven bool `json:"unproven,omitempty"` // agent.Event.Unproven
}

// Agent is an agent that speaks the protocol.
type Agent struct{ Profile }

// Profile describes an agent.
type Profile struct {
	ID   string   // name for records and texts
	Args []string // command that speaks the protocol on its standard input and output
	// Env returns environment variables. They take precedence over the sandbox's.
	Env func(agent.Setup) map[string]string
	// Access returns the environment variables for the model; nil if the agent reaches its model on its own.
	Access func(agent.Access, agent.Setup) map[string]string
	// Providers are those whose models it uses through the server; nil means Anthropic and Bedrock.
	Providers []agent.Provider
	// Lock names the bridge's lock that installs the agent where it is missing, and Install is a shell script that does
	// so; "" for neither.
	Lock, Install string
	// NPM is the package whose version can be chosen, with the version of Lock after "@"; "" for none.
	NPM string
	// Record is agent.Keeper's Kept; "" means that the agent has to be asked.
	Record string
}

// stopGrace is how long an agent has to end a turn: the bridge waits for its answer, and then ends the process.
const stopGrace = 20 * time.Second

// Name implements agent.Agent.
func (a Agent) Name() string { return a.ID }

// Package implements release.Packaged.
func (a Agent) Package() string { return a.NPM[:max(strings.LastIndex(a.NPM, "@"), 0)] }

// Modelless reports that Harvest does not connect the agent with a model.
func (a Agent) Modelless() bool { return a.Access == nil }

// Speaks implements agent.Speaker.
func (a Agent) Speaks() []agent.Provider {
	if a.Providers == nil {
		return []agent.Provider{agent.Anthropic, agent.Bedrock}
	}
	return a.Providers
}

// StopGrace implements agent.Stopper.
func (Agent) StopGrace() time.Duration { return stopGrace }

// Kept implements agent.Keeper.
func (a Agent) Kept() string {
	if a.Record == "" {
		return "/" // exists: the bridge reports a conversation that the agent does not know
	}
	return a.Record
}

// MCPConfig implements agent.MCPConfigurer: the bridge translates the file.
func (Agent) MCPConfig(servers []mcp.Server, _ agent.MCPLimits) ([]byte, error) {
	return mcp.ClaudeConfig(servers)
}

// Command implements agent.Agent.
func (a Agent) Command(s agent.Setup) engine.Command {
	args := []string{Program, "-name", a.ID, "-dir", s.Dir}
	for _, option := range [][2]string{{"-session", s.Conversation}, {"-model", s.Model}, {"-effort", s.Effort},
		{"-system", s.System}, {"-approval", string(s.Approval)}, {"-mcp", s.MCPConfig}, {"-lock", a.Lock}, {"-install",
			a.Install}} {
		if option[1] != "" {
			args = append(args, option[0], option[1])
		}
	}
	env := map[string]string{}
	if a.Env != nil {
		maps.Copy(env, a.Env(s))
	}
	if s.Access != nil && a.Access != nil {
		maps.Copy(env, a.Access(*s.Access, s))
	}
	maps.Copy(env, s.Env)
	return engine.Command{Args: append(append(args, "--"), a.Args...), Own: true, Dir: s.Dir, Env: env}
}

// Open implements agent.Agent.
func (Agent) Open(agent.Setup) agent.Conversation { return &conversation{asked: map[string]bool{}} }

// conversation has the open questions.
type conversation struct{ asked map[string]bool }

// Begin implements agent.Conversation: the bridge starts without input.
func (c *conversation) Begin() []byte { return nil }

// Prompt implements agent.Conversation.
func (c *conversation) Prompt(id, text string) []byte {
	return line(Request{Op: "prompt", ID: id, Text: text})
}

// Interrupt implements agent.Conversation.
func (c *conversation) Interrupt() []byte { return line(Request{Op: "interrupt"}) }

// AskMCP implements agent.MCPAsker.
func (c *conversation) AskMCP() []byte { return line(Request{Op: "mcp"}) }

// RestartMCP implements agent.MCPAsker.
func (c *conversation) RestartMCP(name string) []byte { return line(Request{Op: "restart", ID: name}) }

// Answer implements agent.Conversation.
func (c *conversation) Answer(id string, a agent.Answer) ([]byte, error) {
	if !c.asked[id] {
		return nil, errors.Remedy(errors.Newf(errors.NotFound, "the agent does not wait for an answer to %.80q", id),
			"see the session's events: the agent may have continued")
	}
	delete(c.asked, id)
	return line(Request{Op: "answer", ID: id, Answer: &a}), nil
}

// Decode implements agent.Conversation.
func (c *conversation) Decode(text []byte) []agent.Event {
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return nil
	}
	var l Line
	if json.Unmarshal(text, &l) != nil || l.Type == "" {
		return []agent.Event{agent.OtherLine(text)}
	}
	l.Event.Unproven = l.Unproven
	switch l.Type {
	case agent.Asked:
		c.asked[l.ID] = true
	case agent.Withdrawn:
		if !c.asked[l.ID] {
			return nil // it was answered
		}
		delete(c.asked, l.ID)
	case agent.Done:
		clear(c.asked)
	}
	return []agent.Event{l.Event}
}

func line(r Request) []byte {
	data, err := json.Marshal(r)
	if err != nil { // unexpected: only strings
		return nil
	}
	return append(data, '\n')
}
