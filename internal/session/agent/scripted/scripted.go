// Package scripted is an agent without a model: it executes the orders in its prompts, with the same result every
// time. It is for demos and tests without a key, and says so wherever it appears. Its program is package program.
package scripted

import (
	"bytes"
	"encoding/json"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/session/agent"
)

// Program is the name of the agent's program, which is part of Harvest.
const Program = "harvest-scripted"

// Model is the agent's model name, which makes clear that no model is used.
const Model = "none (scripted agent)"

// Agent is the scripted agent.
type Agent struct{}

// Name implements agent.Agent.
func (Agent) Name() string { return "scripted" }

// Image returns the base image, since the agent runs in any image.
func (Agent) Image() string { return "base" }

// Modelless reports that the agent uses no model.
func (Agent) Modelless() bool { return true }

// Request is a line of the program's input. Its output consists of agent.Events as JSON.
type Request struct {
	Op     string        `json:"op"` // "prompt", "interrupt" or "answer"
	ID     string        `json:"id,omitempty"`
	Text   string        `json:"text,omitempty"`
	Answer *agent.Answer `json:"answer,omitempty"`
}

// Command implements agent.Agent.
func (Agent) Command(s agent.Setup) engine.Command {
	args := []string{Program, "-dir", s.Dir}
	if s.Conversation != "" {
		args = append(args, "-conversation", s.Conversation)
	}
	return engine.Command{Args: args, Own: true, Dir: s.Dir, Env: s.Env}
}

// Open implements agent.Agent.
func (Agent) Open(agent.Setup) agent.Conversation { return &conversation{asked: map[string]bool{}} }

type conversation struct{ asked map[string]bool }

// Begin implements agent.Conversation.
func (c *conversation) Begin() []byte { return nil }

// Prompt implements agent.Conversation.
func (c *conversation) Prompt(id, text string) []byte {
	return line(Request{Op: "prompt", ID: id, Text: text})
}

// Interrupt implements agent.Conversation.
func (c *conversation) Interrupt() []byte { return line(Request{Op: "interrupt"}) }

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
	var e agent.Event
	if json.Unmarshal(text, &e) != nil || e.Type == "" {
		return []agent.Event{agent.OtherLine(text)}
	}
	switch e.Type {
	case agent.Asked:
		c.asked[e.ID] = true
	case agent.Done:
		clear(c.asked)
	}
	return []agent.Event{e}
}

func line(r Request) []byte {
	data, err := json.Marshal(r)
	if err != nil { // unexpected: only strings
		return nil
	}
	return append(data, '\n')
}
