// Package claude talks to Claude Code (npm: @anthropic-ai/claude-code, 2.1.x) in its bidirectional stream-json mode,
// in which one process serves many turns. The lines are not fully documented. The features used here were observed
// with the real program and are recorded as transcripts in testdata.
package claude

import (
	"encoding/json"
	"maps"
	"strconv"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/mcp"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/session/agent"
)

// Agent is Claude Code.
type Agent struct{}

// Name implements agent.Agent.
func (Agent) Name() string { return "claude" }

// Package implements release.Packaged: the program for Linux on x86-64, as in the agent image.
func (Agent) Package() string { return "@anthropic-ai/claude-code-linux-x64" }

// modes maps approvals to the program's permission modes.
var modes = map[agent.Approval]string{
	agent.ApproveAll: "bypassPermissions", agent.ApproveEdits: "acceptEdits", agent.ApproveNone: "default",
	agent.ApprovePlan: "plan",
}

// Command implements agent.Agent.
func (Agent) Command(s agent.Setup) engine.Command {
	return command(s, "--input-format", "stream-json", "--permission-prompt-tool", "stdio")
}

// Once implements agent.OneShot.
func (Agent) Once(s agent.Setup) engine.Command { return command(s) }

func command(s agent.Setup, more ...string) engine.Command {
	args := append([]string{"claude", "--print", "--output-format", "stream-json", "--verbose",
		"--include-partial-messages", "--permission-mode", modes[s.Approval]}, more...)
	if s.Conversation != "" {
		args = append(args, "--resume", s.Conversation)
	}
	if s.Model != "" {
		args = append(args, "--model", s.Model)
	}
	if s.Effort != "" {
		args = append(args, "--effort", s.Effort)
	}
	if s.Settings != "" {
		args = append(args, "--settings", s.Settings)
	}
	if s.MCPConfig != "" {
		// The program's roots are its directory and those of --add-dir. The filesystem server serves the roots in place
		// of its arguments, and the session may have more repositories.
		args = append(args, "--mcp-config", s.MCPConfig, "--strict-mcp-config", "--add-dir", mcp.Workspace)
	}
	if s.System != "" {
		args = append(args, "--append-system-prompt", s.System)
	}
	env := map[string]string{
		"IS_SANDBOX": "1", // without it, the program refuses bypassPermissions to root
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
		"DISABLE_AUTOUPDATER":                      "1",
	}
	if s.MCPLimits.Timeout > 0 {
		env["MCP_TIMEOUT"] = strconv.FormatInt(s.MCPLimits.Timeout.Milliseconds(), 10)
	}
	if s.MCPLimits.AtOnce > 0 {
		env["MCP_SERVER_CONNECTION_BATCH_SIZE"] = strconv.Itoa(s.MCPLimits.AtOnce)
	}
	if s.Access != nil {
		maps.Copy(env, Environment(*s.Access))
	}
	maps.Copy(env, s.Env)
	return engine.Command{Args: args, Dir: s.Dir, Env: env}
}

// Kept implements agent.Keeper.
func (Agent) Kept() string { return `"$CLAUDE_CONFIG_DIR"/projects/*/"$CONVERSATION".jsonl` }

// MCPConfig implements agent.MCPConfigurer: the limits are in the program's environment.
func (Agent) MCPConfig(servers []mcp.Server, _ agent.MCPLimits) ([]byte, error) {
	return mcp.ClaudeConfig(servers)
}

// Environment returns the environment variables that tell the program how to reach its model:
// https://code.claude.com/docs/en/env-vars. The kind of the token determines the variable: the program uses other
// models and behaves differently with each kind.
func Environment(a agent.Access) map[string]string {
	base, token := "ANTHROPIC_BASE_URL", map[agent.AccessKind]string{
		agent.AccessKey: "ANTHROPIC_API_KEY", agent.AccessBearer: "ANTHROPIC_AUTH_TOKEN",
		agent.AccessOAuth: "CLAUDE_CODE_OAUTH_TOKEN", agent.AccessBedrock: "AWS_BEARER_TOKEN_BEDROCK",
	}[a.Kind]
	env := map[string]string{token: a.Token}
	if a.Kind == agent.AccessBedrock {
		base = "ANTHROPIC_BEDROCK_BASE_URL"
		env["CLAUDE_CODE_USE_BEDROCK"], env["AWS_REGION"] = "1", a.Region
	}
	if a.URL != "" {
		env[base] = a.URL
	}
	return env
}

// Open implements agent.Agent.
func (Agent) Open(agent.Setup) agent.Conversation {
	return &conversation{blocks: map[string]int{}, tools: map[string]string{}, started: map[string]bool{},
		parents: map[string]string{}, asked: map[string]json.RawMessage{}}
}

// conversation is the state that later lines refer to.
type conversation struct {
	blocks  map[string]int             // complete content blocks by the model's message ID
	current map[string]string          // model's message ID by parent tool call, while it streams; created when needed
	tools   map[string]string          // names of running tools by call ID
	parents map[string]string          // tool calls that run a sub-agent, by the ID of a running tool call of it
	started map[string]bool            // IDs of messages with a MessageStarted event
	asked   map[string]json.RawMessage // inputs of open questions by request ID
	written int                        // number of control requests sent
	prompts []string                   // IDs of prompts that the program has started since the last result
	reports bool                       // the program reports the prompts that it starts
	notice  string                     // latest notification of a background task
	plan    string                     // latest plan that the model has written or proposed
}

type userLine struct {
	Type    string      `json:"type"`
	UUID    string      `json:"uuid,omitempty"`
	Message userMessage `json:"message"`
}

type userMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Begin implements agent.Conversation: the program's answer to the request shows that it is running.
func (c *conversation) Begin() []byte { return c.request(map[string]any{"subtype": "initialize"}) }

// Prompt implements agent.Conversation.
func (c *conversation) Prompt(id, text string) []byte {
	return line(userLine{Type: "user", UUID: id, Message: userMessage{Role: "user", Content: text}})
}

// Interrupt implements agent.Conversation.
func (c *conversation) Interrupt() []byte { return c.request(map[string]any{"subtype": "interrupt"}) }

// AskMCP implements agent.MCPAsker.
func (c *conversation) AskMCP() []byte { return c.request(map[string]any{"subtype": "mcp_status"}) }

// restart is the beginning of the ID of a request that starts an MCP server again. Its name is the rest: another
// conversation may decode the answer.
const restart = "harvest-restart-"

// RestartMCP implements agent.MCPAsker.
func (c *conversation) RestartMCP(name string) []byte {
	return line(map[string]any{"type": "control_request", "request_id": restart + name,
		"request": map[string]any{"subtype": "mcp_reconnect", "serverName": name}})
}

// Answer implements agent.Conversation.
func (c *conversation) Answer(id string, a agent.Answer) ([]byte, error) {
	input, ok := c.asked[id]
	if !ok {
		return nil, errors.Remedy(errors.Newf(errors.NotFound, "the agent does not wait for an answer to %.80q", id),
			"see the session's events: the agent may have continued")
	}
	delete(c.asked, id)
	decision := map[string]any{"behavior": "deny", "message": a.Message}
	if a.Message == "" {
		decision["message"] = "The user said no."
	}
	if a.Allow {
		decision = map[string]any{"behavior": "allow", "updatedInput": answered(input, a.Answers)}
	}
	return line(map[string]any{"type": "control_response", "response": map[string]any{"subtype": "success",
		"request_id": id, "response": decision}}), nil
}

// answered returns the tool's input with the answers added.
func answered(input json.RawMessage, answers map[string]string) any {
	if len(answers) == 0 {
		return input
	}
	var fields map[string]any
	if json.Unmarshal(input, &fields) != nil || fields == nil {
		return input
	}
	fields["answers"] = answers
	return fields
}

// request returns a control request with a new ID.
func (c *conversation) request(request map[string]any) []byte {
	c.written++
	return line(map[string]any{"type": "control_request", "request_id": requestID(c.written), "request": request})
}

// line returns v as a line of JSON. A line that is not JSON would make the process exit.
func line(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil { // unexpected: strings, maps of strings, and decoded JSON
		return nil
	}
	return append(data, '\n')
}
