// Package agent is the contract of coding-agent programs such as Claude Code and OpenCode.
//
// It is pure: an Agent says which command to start and what lines to write to it, and turns the lines that it prints into events
// of one vocabulary. Who runs the command, keeps the events and answers the questions is package session. So transcripts of
// the real programs test an Agent completely.
package agent

import (
	"encoding/json"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/mcp"
)

// Agent is a coding agent's program.
type Agent interface {
	// Name is a word for records and texts, such as "claude".
	Name() string
	// Command starts the program as a process that lives as long as the session has work for it: it reads lines on its standard
	// input and prints lines on its standard output. Its environment holds no credential but what Setup gives.
	Command(s Setup) engine.Command
	// Open begins a conversation with a process that Command has started.
	Open(s Setup) Conversation
}

// Conversation translates between a session and one process. What its methods return is written to the process as it is; nil
// means that nothing need be written. It is not safe for concurrent use.
type Conversation interface {
	// Begin returns what is written first.
	Begin() []byte
	// Prompt returns what sends a prompt to an agent that is idle.
	Prompt(id, text string) []byte
	// Interrupt returns what ends the turn. The process stays and tells the end with a Done event.
	Interrupt() []byte
	// Answer returns what answers an Asked event. Invalid if no such question is open.
	Answer(id string, a Answer) ([]byte, error)
	// Decode returns what a line of standard output says, in order. Lines it does not understand become Other events: these
	// programs change without asking. It never fails.
	Decode(line []byte) []Event
}

// Setup is how a session wants its agent.
type Setup struct {
	Dir          string // where the repository is
	Conversation string // the program's own name for a conversation to go on with; "" begins one
	Model        string // "" means the program's default
	Env          map[string]string
	Access       *Access // nil: the program finds its own way to a model
	Approval     Approval
	Settings     string // path of the file of Guard in the sandbox; "" means none
	MCPConfig    string // path of the MCP servers' configuration in the sandbox; "" means none
	Again        bool   // the process runs already, and all that it has printed is decoded again: turns begin without Prompt
	System       string // instructions on top of the program's own; "" means none
}

// Access is how a program reaches the API of its model.
type Access struct {
	Kind   AccessKind
	URL    string // base of the API; "" means the provider's own
	Token  string // what lets it in there
	Region string // of Bedrock
}

// AccessKind says how a program shows its token.
type AccessKind string

// The kinds of access.
const (
	AccessKey     AccessKind = "api_key" // of Anthropic's API
	AccessBearer  AccessKind = "bearer"  // of what speaks like it
	AccessOAuth   AccessKind = "oauth"   // of a subscription
	AccessBedrock AccessKind = "bedrock" // of Amazon Bedrock
)

// Approval says which tools run without asking.
type Approval string

// The approvals.
const (
	ApproveAll   Approval = ""      // everything runs: the sandbox is the boundary
	ApproveEdits Approval = "edits" // files are changed without asking
	ApproveNone  Approval = "ask"   // every tool that changes something asks
	ApprovePlan  Approval = "plan"  // nothing is changed
)

// Type names an event as clients see it.
type Type string

// The events. Beside each are the fields of Event that are set; Parent may be set in all that a sub-agent does.
const (
	Ready            Type = "agent.ready"       // Conversation, Model, Version, MCP: at the beginning of each turn
	MessageStarted   Type = "message.started"   // ID, Thinking
	MessageDelta     Type = "message.delta"     // ID, Text: a piece; not every agent sends them
	MessageCompleted Type = "message.completed" // ID, Text: all of it; Thinking
	ToolStarted      Type = "tool.started"      // ID, Tool, Input
	ToolOutput       Type = "tool.output"       // ID, Text: a piece, or what it is doing
	ToolCompleted    Type = "tool.completed"    // ID, Tool, Text, Failed, Denied
	FileChanged      Type = "file.changed"      // ID of the tool call, Path, Created
	Asked            Type = "agent.asked"       // ID, Tool, Input, Questions: the agent waits for an Answer
	Withdrawn        Type = "agent.withdrawn"   // ID: the question needs no answer any more
	Retrying         Type = "agent.retrying"    // Text, Attempt: the model's API failed and is asked again
	Overridden       Type = "agent.overridden"  // Text: settings of the repository that are not used
	MCPStatus        Type = "mcp.status"        // MCP: the answer to AskMCP; not for clients
	Done             Type = "done"              // Text, Failed, Interrupted, Reason, Usage: the turn has ended
	Other            Type = "agent.other"       // Raw: a line that means nothing to Harvest, as it was printed
)

// Event is something that an agent did. Type says which fields are set.
type Event struct {
	Type     Type   `json:"type"`
	ID       string `json:"id,omitempty"`     // of the message, tool call or question; unique in the conversation
	Parent   string `json:"parent,omitempty"` // tool call that runs the sub-agent whose event it is
	Text     string `json:"text,omitempty"`
	Thinking bool   `json:"thinking,omitempty"`

	Tool    string          `json:"tool,omitempty"`
	Input   json.RawMessage `json:"input,omitempty"`
	Failed  bool            `json:"failed,omitempty"`
	Denied  bool            `json:"denied,omitempty"` // not run, because somebody or a rule said no
	Path    string          `json:"path,omitempty"`
	Created bool            `json:"created,omitempty"` // the file did not exist before

	Questions []Question `json:"questions,omitempty"`
	Answer    *Answer    `json:"answer,omitempty"` // of a Withdrawn event: what the person answered; nil if the question needed no answer any more

	Attempt     int    `json:"attempt,omitempty"`
	Interrupted bool   `json:"interrupted,omitempty"`
	Reason      string `json:"reason,omitempty"` // why the turn ended, in the program's own word, such as "max_turns"
	Usage       *Usage `json:"usage,omitempty"`
	// Own marks a Ready or Done event of a turn that the program began by itself, for example since a background command has ended. Text of
	// such a Ready event is the reason.
	Own bool `json:"own,omitempty"`
	// Prompts are the ids of the prompts that a Done event answers; empty if the program does not report them.
	Prompts []string `json:"-"`

	Conversation string `json:"conversation,omitempty"`
	Model        string `json:"model,omitempty"`
	Version      string `json:"version,omitempty"`
	MCP          []MCP  `json:"mcp,omitempty"`

	Raw json.RawMessage `json:"raw,omitempty"` // a JSON string if the line was no JSON
}

// Question is asked of a person, with answers to choose from.
type Question struct {
	Text     string   `json:"text"`
	Header   string   `json:"header,omitempty"`
	Multiple bool     `json:"multiple,omitempty"` // more than one answer may be chosen
	Options  []Option `json:"options,omitempty"`
}

// Option is an answer to choose.
type Option struct {
	Label       string `json:"label"`
	Description string `json:"description,omitempty"`
}

// Answer is a person's answer to an Asked event.
type Answer struct {
	Allow   bool              `json:"allow"`             // the tool may run; for Questions: they were answered
	Always  bool              `json:"always,omitempty"`  // and the same may run from now on, where the program can remember it
	Message string            `json:"message,omitempty"` // why not, for the agent
	Answers map[string]string `json:"answers,omitempty"` // text of a Question to the label chosen, or free text
}

// Usage of one turn.
type Usage struct {
	InputTokens      int64   `json:"input_tokens"`
	OutputTokens     int64   `json:"output_tokens"`
	CacheReadTokens  int64   `json:"cache_read_tokens"`
	CacheWriteTokens int64   `json:"cache_write_tokens"`
	Cost             float64 `json:"cost_usd"` // by the program's own price list
}

// Add adds v to u.
func (u *Usage) Add(v Usage) {
	u.InputTokens += v.InputTokens
	u.OutputTokens += v.OutputTokens
	u.CacheReadTokens += v.CacheReadTokens
	u.CacheWriteTokens += v.CacheWriteTokens
	u.Cost += v.Cost
}

// MCP is an MCP server as the agent sees it.
type MCP struct {
	Name   string `json:"name"`
	Status string `json:"status"` // "connected", "pending", "failed", …
	Error  string `json:"error,omitempty"`
}

// OneShot is an Agent whose program can answer one prompt and end.
type OneShot interface {
	// Once starts the program: its standard input is the prompt, what it prints are the lines that Open's Conversation decodes. It may
	// have a terminal as its output.
	Once(s Setup) engine.Command
}

// MCPAsker is a Conversation whose program says, when it is asked, how its MCP servers are.
type MCPAsker interface {
	// AskMCP returns what asks; the answer is an MCPStatus event.
	AskMCP() []byte
}

// MCPConfigurer is an Agent whose program can have MCP servers.
type MCPConfigurer interface {
	// MCPConfig returns the file that Setup.MCPConfig names.
	MCPConfig(servers []mcp.Server) ([]byte, error)
}

// Guard is an Agent whose program takes settings from files of the repository. They must not say where its model is, nor what lets the
// program in there.
type Guard interface {
	// Guarded returns the variables that do.
	Guarded() []string
	// Guard returns the file that Setup.Settings names, whose settings go over the repository's: env has Guarded's variables, those that
	// are not set as "". nil if the program needs none.
	Guard(env map[string]string) []byte
	// SettingsFiles returns the names of files of a repository from which the program takes settings.
	SettingsFiles() []string
	// Redirects returns the names of settings in such a file that Harvest's go over.
	Redirects(text []byte) []string
}

// Keeper is an Agent whose program keeps its conversations in files.
type Keeper interface {
	// Kept returns a pattern of the shell: as long as a path fits, the program can go on with the conversation that the variable CONVERSATION names.
	// Those of Setup.Env are set, too.
	Kept() string
}

// OtherLine returns the event of a line that means nothing to Harvest.
func OtherLine(line []byte) Event {
	if json.Valid(line) {
		return Event{Type: Other, Raw: append(json.RawMessage(nil), line...)}
	}
	text, err := json.Marshal(string(line)) // what is not UTF-8 is replaced
	if err != nil {
		text = nil
	}
	return Event{Type: Other, Raw: text}
}
