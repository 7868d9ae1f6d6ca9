// Package agent defines the contract of coding-agent programs such as Claude Code and OpenCode.
//
// The package is pure: an Agent returns the command to start and the lines to write to it, and converts the lines
// that the program prints to events of one vocabulary. Package session runs the command, stores the events and
// answers the questions. Therefore transcripts of the real programs test an Agent completely.
package agent

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/mcp"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// Agent is a coding agent's program.
type Agent interface {
	// Name returns a word for records and texts, such as "claude".
	Name() string
	// Command returns the command for a process that lives as long as the session has work for it: it reads lines on
	// its standard input and prints lines on its standard output. Its environment contains no credentials except
	// those of Setup.
	Command(s Setup) engine.Command
	// Open starts a conversation with a process that Command has started.
	Open(s Setup) Conversation
}

// Conversation translates between a session and one process. The caller writes the results of its methods to the
// process unchanged; nil means that there is nothing to write. It is not safe for concurrent use.
type Conversation interface {
	// Begin returns the first input.
	Begin() []byte
	// Prompt returns the input that sends a prompt to an idle agent. A prompt that is sent again needs another id:
	// Claude Code ignores a prompt whose id is in its record of the conversation.
	Prompt(id, text string) []byte
	// Interrupt returns the input that ends the turn. The process keeps running and reports the end with a Done
	// event.
	Interrupt() []byte
	// Answer returns the input that answers an Asked event. It returns Invalid if no such question is open.
	Answer(id string, a Answer) ([]byte, error)
	// Decode returns the events of a line of standard output, in order. Unrecognized lines become Other events, since
	// these programs change without notice. Decode never fails.
	Decode(line []byte) []Event
}

// Setup contains the parameters of a session for its agent.
type Setup struct {
	Dir          string // directory of the repository
	Conversation string // the program's ID of a conversation to resume; "" starts a new one
	Model        string // "" means the program's default
	Effort       string // of the model, in the program's words, such as "high"; "" means the program's default
	Env          map[string]string
	Access       *Access // nil: the program reaches a model on its own
	Approval     Approval
	Settings     string // path in the sandbox of the file that Guard returned; "" means none
	MCPConfig    string // path in the sandbox of the MCP configuration; "" means none
	MCPLimits    MCPLimits
	// Again means that the process runs already, and that all its output is decoded again: turns begin without
	// Prompt.
	Again  bool
	System string // instructions in addition to the program's own; "" means none
}

// Access is the address and credential of a model's API.
type Access struct {
	Kind   AccessKind
	URL    string // base URL of the API; "" means the provider's own
	Token  string // credential for the API
	Region string // of Bedrock
}

// ExitForgotten is the exit code of a program of Harvest's own whose agent cannot continue Setup.Conversation. It is
// then started without it, and the prompt has the last messages.
const ExitForgotten = 86

// Provider is a provider of models, whose API a program speaks.
type Provider string

// The providers.
const (
	Anthropic Provider = "anthropic" // or a server with its Messages API
	Bedrock   Provider = "bedrock"   // Amazon Bedrock

	OpenAI     Provider = "openai"     // or a server with a compatible API
	OpenRouter Provider = "openrouter" // whose API is OpenAI's
	Gemini     Provider = "gemini"     // Google's
)

// Speaker is an Agent that does not use Anthropic or Bedrock, or uses other providers, too.
type Speaker interface {
	// Speaks returns the providers, at least one. The account's secrets decide which of them the program uses.
	Speaks() []Provider
}

// AccessKind determines how a program presents its token.
type AccessKind string

// The kinds of access.
const (
	AccessKey     AccessKind = "api_key" // key of Anthropic's API
	AccessBearer  AccessKind = "bearer"  // bearer token of a compatible API
	AccessOAuth   AccessKind = "oauth"   // token of a subscription
	AccessBedrock AccessKind = "bedrock" // key of Amazon Bedrock

	AccessOpenAI     AccessKind = "openai"     // key of OpenAI; the URL ends in /v1
	AccessOpenRouter AccessKind = "openrouter" // key of OpenRouter; the URL ends in /v1
	AccessGemini     AccessKind = "gemini"     // key of Gemini; the URL has no version
)

// Approval determines which tools run without asking.
type Approval string

// The approvals.
const (
	ApproveAll   Approval = ""      // all tools run: the sandbox is the boundary
	ApproveEdits Approval = "edits" // file changes run without asking
	ApproveNone  Approval = "ask"   // every tool that changes something asks
	ApprovePlan  Approval = "plan"  // nothing may be changed
)

// Approvals are all approvals.
var Approvals = []Approval{ApproveAll, ApproveEdits, ApproveNone, ApprovePlan}

// Type is the type of an event, as clients see it.
type Type string

// The events. The comments list the fields of Event that are set. Parent may be set in all events of a sub-agent.
const (
	Ready            Type = "agent.ready"       // Conversation, Model, Version, MCP: at the beginning of each turn
	MessageStarted   Type = "message.started"   // ID, Thinking
	MessageDelta     Type = "message.delta"     // ID, Text: a piece; not every agent sends them
	MessageCompleted Type = "message.completed" // ID, Text: all of it; Thinking
	ToolStarted      Type = "tool.started"      // ID, Tool, Input
	ToolOutput       Type = "tool.output"       // ID, Text: a piece, or the current activity
	ToolCompleted    Type = "tool.completed"    // ID, Tool, Text, Failed, Denied, Interrupted
	FileChanged      Type = "file.changed"      // ID of the tool call, Path, Created
	// Asked sets ID, Tool, Input, Questions: the agent waits for an Answer. Text is the plan that it proposes.
	Asked      Type = "agent.asked"
	Withdrawn  Type = "agent.withdrawn"  // ID: the question is closed; Answer, Text: the answer
	Retrying   Type = "agent.retrying"   // Text, Attempt: the model's API failed and the request is retried
	Overridden Type = "agent.overridden" // Text: settings of the repository that are overridden
	MCPStatus  Type = "mcp.status"       // MCP: the answer to AskMCP; not for clients
	// MCPRestarted sets ID, Failed, Text: the server of this name is ready after RestartMCP, or why not; not for
	// clients.
	MCPRestarted Type = "mcp.restarted"
	// Background reports in Tasks how many background tasks run, such as commands that outlive their turn; not for
	// clients.
	Background Type = "background.tasks"
	// Notice sets Text, Reason: something that a person should know, such as a mode that the agent did not accept.
	Notice  Type = "agent.notice"
	Planned Type = "agent.plan" // Plan: all steps of the agent's plan
	// Commands sets Commands: all commands of the agent, which a prompt such as "/name" runs.
	Commands Type = "agent.commands"
	Silent   Type = "agent.silent" // Text: nothing was heard of the agent for some time
	Done     Type = "done"         // Text, Failed, Interrupted, Reason, Usage: the turn has ended
	Other    Type = "agent.other"  // Raw: a line that Harvest does not recognize, as printed
)

// GaveUp is the Reason of a turn that Harvest ended because the model's API kept failing, or wants to be asked again
// only much later. The event's Text says which.
const GaveUp = "gave_up"

// Event is an event of an agent. Type determines which fields are set.
type Event struct {
	Type     Type   `json:"type"`
	ID       string `json:"id,omitempty"`     // of the message, tool call or question; unique in the conversation
	Parent   string `json:"parent,omitempty"` // tool call that runs the sub-agent of the event
	Text     string `json:"text,omitempty"`
	Thinking bool   `json:"thinking,omitempty"`

	Tool    string          `json:"tool,omitempty"`
	Input   json.RawMessage `json:"input,omitempty"`
	Failed  bool            `json:"failed,omitempty"`
	Denied  bool            `json:"denied,omitempty"` // not run: a person or a rule refused it
	Path    string          `json:"path,omitempty"`
	Created bool            `json:"created,omitempty"` // the file did not exist before

	Questions []Question `json:"questions,omitempty"`
	// Answer is the person's answer, of a Withdrawn event; nil if the question no longer needed an answer.
	Answer *Answer `json:"answer,omitempty"`

	Attempt     int    `json:"attempt,omitempty"`
	Interrupted bool   `json:"interrupted,omitempty"`
	Reason      string `json:"reason,omitempty"` // why the turn ended, in the program's own terms, such as "max_turns"
	Usage       *Usage `json:"usage,omitempty"`
	// Own marks a Ready or Done event of a turn that the program began by itself, for example because a background
	// command ended. In such a Ready event, Text is the reason.
	Own bool `json:"own,omitempty"`
	// Unproven marks a Done event whose success is only the agent's own word: the agent may have ended the turn because
	// its model failed.
	Unproven bool      `json:"-"`
	Plan     []Step    `json:"plan,omitempty"`
	Commands []Command `json:"commands,omitempty"`
	Context  *Context  `json:"context,omitempty"` // of a Done event
	Tasks    int       `json:"-"`
	// Prompts are the IDs of the prompts that a Done event answers; empty if the program does not report them.
	Prompts []string `json:"-"`

	Conversation string `json:"conversation,omitempty"`
	Model        string `json:"model,omitempty"`
	Version      string `json:"version,omitempty"`
	MCP          []MCP  `json:"mcp,omitempty"`

	Raw json.RawMessage `json:"raw,omitempty"` // a JSON string if the line was not JSON
}

// Step is a step of a plan.
type Step struct {
	Text   string `json:"text"`
	Status string `json:"status,omitempty"` // "pending", "in_progress" or "completed"
}

// Context is how full the model's context is.
type Context struct {
	Used int64 `json:"used"` // tokens
	Size int64 `json:"size"`
}

// Question is a question for a person, with options to choose from.
type Question struct {
	Text     string   `json:"text"`
	Header   string   `json:"header,omitempty"`
	Multiple bool     `json:"multiple,omitempty"` // more than one option may be chosen
	Options  []Option `json:"options,omitempty"`
}

// Option is a possible answer.
type Option struct {
	Label       string `json:"label"`
	Description string `json:"description,omitempty"`
}

// Answer is a person's answer to an Asked event.
type Answer struct {
	Allow bool `json:"allow"` // the tool may run; for Questions: they were answered
	// Always allows the same in the future, too, if the program can remember it.
	Always  bool   `json:"always,omitempty"`
	Message string `json:"message,omitempty"` // reason for a refusal, for the agent
	// Answers maps the text of a Question to the chosen label or to free text.
	Answers map[string]string `json:"answers,omitempty"`
}

// Usage is the usage of one turn.
type Usage struct {
	InputTokens      int64   `json:"input_tokens"`
	OutputTokens     int64   `json:"output_tokens"`
	CacheReadTokens  int64   `json:"cache_read_tokens"`
	CacheWriteTokens int64   `json:"cache_write_tokens"`
	Cost             float64 `json:"cost_usd"` // by the program's own price list, or else by the server's
	// Unpriced means that Cost is too low: it lacks requests to a model whose price is not known.
	Unpriced bool `json:"unpriced,omitempty"`
}

// Add adds v to u.
func (u *Usage) Add(v Usage) {
	u.InputTokens += v.InputTokens
	u.OutputTokens += v.OutputTokens
	u.CacheReadTokens += v.CacheReadTokens
	u.CacheWriteTokens += v.CacheWriteTokens
	u.Cost += v.Cost
	u.Unpriced = u.Unpriced || v.Unpriced
}

// MCP is the state of an MCP server as the agent reports it.
type MCP struct {
	Name   string `json:"name"`
	Status string `json:"status"` // "connected", "pending", "failed", …
	Error  string `json:"error,omitempty"`
}

// MCPLimits limit the start of MCP servers. Zero values mean the program's own limits.
type MCPLimits struct {
	Timeout time.Duration // after which a server that has not answered has failed
	AtOnce  int           // how many servers start at the same time
}

// Stopper is an Agent whose program may need longer than others to end a turn.
type Stopper interface {
	// StopGrace is the time between an Interrupt and the kill of the process.
	StopGrace() time.Duration
}

// OneShot is an Agent whose program can answer one prompt and exit.
type OneShot interface {
	// Once returns the command: its standard input is the prompt, and the Conversation of Open decodes the lines of
	// its output. Its output may be a terminal.
	Once(s Setup) engine.Command
}

// MCPAsker is a Conversation whose program can report the state of its MCP servers.
type MCPAsker interface {
	// AskMCP returns the input that requests the state; the answer is an MCPStatus event.
	AskMCP() []byte
	// RestartMCP returns the input that starts an MCP server again; the answer is an MCPRestarted event. The program
	// may read no other input until then.
	RestartMCP(name string) []byte
}

// MCPConfigurer is an Agent whose program supports MCP servers.
type MCPConfigurer interface {
	// MCPConfig returns the content of the file that Setup.MCPConfig names.
	MCPConfig(servers []mcp.Server, limits MCPLimits) ([]byte, error)
}

// Guard is an Agent whose program reads settings from files of the repository. These settings must not change the
// address of its model or the credential for it.
type Guard interface {
	// Guarded returns the environment variables that determine address and credential.
	Guarded() []string
	// Guard returns the content of the file that Setup.Settings names. Its settings take precedence over the
	// repository's. env contains Guarded's variables; unset variables are "". Guard returns nil if the program needs
	// no such file.
	Guard(env map[string]string) []byte
	// SettingsFiles returns the paths of files of a repository from which the program reads settings.
	SettingsFiles() []string
	// Redirects returns the names of settings in such a file that Harvest's settings override.
	Redirects(text []byte) []string
}

// Keeper is an Agent whose program stores its conversations in files.
type Keeper interface {
	// Kept returns a shell pattern: while a path matches it, the program can resume the conversation in the variable
	// CONVERSATION. The variables of Setup.Env are set, too.
	Kept() string
}

// DecodeLine parses a line as JSON, and converts it with decode, which returns false for an unrecognized line. parent
// is the Parent of all events. It implements Conversation.Decode.
func DecodeLine[T any](line []byte, decode func(*T) (events []Event, parent string, ok bool)) []Event {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return nil
	}
	var printed T
	if err := json.Unmarshal(line, &printed); err != nil {
		return []Event{OtherLine(line)}
	}
	events, parent, ok := decode(&printed)
	if !ok {
		return []Event{OtherLine(line)}
	}
	for i := range events {
		events[i].Parent = parent
	}
	return events
}

// OtherLine returns the event for an unrecognized line.
func OtherLine(line []byte) Event {
	if json.Valid(line) {
		return Event{Type: Other, Raw: append(json.RawMessage(nil), line...)}
	}
	text, err := json.Marshal(string(line)) // invalid UTF-8 is replaced
	if err != nil {
		text = nil
	}
	return Event{Type: Other, Raw: text}
}
