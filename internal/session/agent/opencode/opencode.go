// Package opencode talks to OpenCode (npm: opencode-ai, 1.18.x) through its server. A small bridge (package bridge)
// runs beside the server in the sandbox. It prints the server's events as lines and reads requests as lines, so that
// OpenCode is a single process like other agents, and no events are lost while no client is attached. The events are
// those of the server's /event. The features used here were observed with the real program and are recorded as
// transcripts in testdata.
package opencode

import (
	"cmp"
	"encoding/json"
	"maps"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/mcp"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/session/agent"
)

// Program is the bridge's name in the sandbox.
const Program = "harvest-opencode"

// Agent is OpenCode.
type Agent struct{}

// Name implements agent.Agent.
func (Agent) Name() string { return "opencode" }

// Request is a line of the bridge's input.
type Request struct {
	Op string `json:"op"` // "prompt", "abort", "reply", "answer", "dismiss", "mcp" or "restart"
	// ID is the ID of the prompt, of the permission that a reply is about, or of the question that is answered or
	// dismissed; or the name of an MCP server to restart.
	ID      string     `json:"id,omitempty"`
	Text    string     `json:"text,omitempty"`    // the prompt; or the reason of a reply that rejects
	Reply   string     `json:"reply,omitempty"`   // "once", "always" or "reject"
	Answers [][]string `json:"answers,omitempty"` // for each question the labels chosen, or free text
}

// Types of lines that come from the bridge itself.
const (
	BridgeReady = "harvest.ready" // Notice: the server is ready, and the conversation exists
	BridgeError = "harvest.error" // Notice: a request failed
	BridgeMCP   = "harvest.mcp"   // Notice: state of the MCP servers
	// BridgeRestarted has the Server that was started again, and the Message if it failed.
	BridgeRestarted = "harvest.mcp_restarted"
	BridgeTired     = "harvest.tired" // Notice: the model's API has failed too often; the turn is aborted
)

// Notice is a line that comes from the bridge itself.
type Notice struct {
	Type    string      `json:"type"`
	Session string      `json:"session,omitempty"`
	Version string      `json:"version,omitempty"`
	Message string      `json:"message,omitempty"`
	Server  string      `json:"server,omitempty"`
	MCP     []agent.MCP `json:"mcp,omitempty"`
}

// Package implements release.Packaged: the program for Linux on x86-64, as in the agent image.
func (Agent) Package() string { return "opencode-linux-x64-baseline" }

// Command implements agent.Agent. The configuration, with provider and MCP servers, is the user's or the directory's
// opencode.json.
func (Agent) Command(s agent.Setup) engine.Command {
	args := []string{Program, "-dir", s.Dir}
	if s.Conversation != "" {
		args = append(args, "-session", s.Conversation)
	}
	if s.Model != "" {
		args = append(args, "-model", s.Model)
	}
	if s.Effort != "" {
		args = append(args, "-effort", s.Effort)
	}
	if s.System != "" {
		args = append(args, "-system", s.System)
	}
	env := map[string]string{
		"OPENCODE_DISABLE_MODELS_FETCH": "1",
		"OPENCODE_DISABLE_AUTOUPDATE":   "1",
		"OPENCODE_PERMISSION":           permissions[s.Approval],
	}
	if s.Access != nil {
		maps.Copy(env, Environment(*s.Access, s.Model))
	}
	if s.MCPConfig != "" {
		env["OPENCODE_CONFIG"] = s.MCPConfig
	}
	maps.Copy(env, s.Env)
	return engine.Command{Args: args, Own: true, Dir: s.Dir, Env: env}
}

// Kept implements agent.Keeper: all conversations are in one database.
func (Agent) Kept() string { return `"$XDG_DATA_HOME"/opencode/opencode.db` }

// MCPConfig implements agent.MCPConfigurer.
func (Agent) MCPConfig(servers []mcp.Server, limits agent.MCPLimits) ([]byte, error) {
	return mcp.OpenCodeConfig(servers, limits.Timeout)
}

// Environment returns the environment variables that tell the program how to reach its model: the key, and the
// address as a piece of configuration that takes precedence over files (https://opencode.ai/docs/config). That enables
// the provider of the key, and that of the model which the user chose; those of files are not used. It supports keys of
// Anthropic's API and of Bedrock; tokens of subscriptions are for Claude Code only.
func Environment(a agent.Access, model string) map[string]string {
	provider, key, url := "anthropic", "ANTHROPIC_API_KEY", cmp.Or(a.URL, "https://api.anthropic.com")+"/v1"
	env := map[string]string{}
	if a.Kind == agent.AccessBedrock {
		provider, key, url = "amazon-bedrock", "AWS_BEARER_TOKEN_BEDROCK",
			cmp.Or(a.URL, "https://bedrock-runtime."+a.Region+".amazonaws.com")
		env["AWS_REGION"] = a.Region
	}
	env[key] = a.Token
	options := map[string]string{"baseURL": url}
	if a.Kind != agent.AccessBedrock {
		options["apiKey"] = a.Token // a project's file would take precedence over the variable
	}
	enabled := []string{provider}
	if chosen, _, ok := strings.Cut(model, "/"); ok && chosen != provider {
		enabled = append(enabled, chosen)
	}
	config, err := json.Marshal(map[string]any{
		"enabled_providers": enabled, "disabled_providers": []string{},
		"provider": map[string]any{provider: map[string]any{"npm": packages[provider], "options": options}},
	})
	if err == nil { // cannot fail: only strings
		env["OPENCODE_CONFIG_CONTENT"] = string(config)
	}
	return env
}

// packages are the programs that speak to a provider, which a file of the repository could replace.
var packages = map[string]string{"anthropic": "@ai-sdk/anthropic", "amazon-bedrock": "@ai-sdk/amazon-bedrock"}

// permissions maps approvals to the server's rules (https://opencode.ai/docs/permissions).
var permissions = map[agent.Approval]string{
	agent.ApproveAll: `{"*":"allow"}`,
	agent.ApproveEdits: `{"*":"ask","edit":"allow","read":"allow","glob":"allow","grep":"allow","list":"allow",` +
		`"question":"allow"}`,
	agent.ApproveNone: `{"*":"ask","read":"allow","glob":"allow","grep":"allow","list":"allow","question":"allow"}`,
	agent.ApprovePlan: `{"*":"deny","read":"allow","glob":"allow","grep":"allow","list":"allow","question":"allow"}`,
}

// Permissions returns the server's rules for an approval, for its variable OPENCODE_PERMISSION.
func Permissions(a agent.Approval) string { return permissions[a] }

// Open implements agent.Agent.
func (Agent) Open(s agent.Setup) agent.Conversation {
	return &conversation{session: s.Conversation, again: s.Again, children: map[string]string{},
		users: map[string]bool{}, texts: map[string]bool{}, calls: map[string]*call{}, ended: map[string]bool{},
		asked: map[string]bool{}, questions: map[string][]agent.Question{}}
}

// Begin implements agent.Conversation: the bridge starts without input.
func (c *conversation) Begin() []byte { return nil }

// Prompt implements agent.Conversation.
func (c *conversation) Prompt(id, text string) []byte {
	c.turn, c.again = turn{state: asked}, false
	return line(Request{Op: "prompt", ID: id, Text: text})
}

// Interrupt implements agent.Conversation.
func (c *conversation) Interrupt() []byte { return line(Request{Op: "abort"}) }

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
	if questions := c.questions[id]; questions != nil {
		delete(c.questions, id)
		return line(answerTo(id, questions, a)), nil
	}
	r := Request{Op: "reply", ID: id, Reply: "reject", Text: a.Message}
	switch {
	case a.Allow && a.Always:
		r.Reply = "always"
	case a.Allow:
		r.Reply = "once"
	}
	return line(r), nil
}

// answerTo returns the request that answers questions. The program has no field for the reason of a refusal, so the
// reason is sent as the answer.
func answerTo(id string, questions []agent.Question, a agent.Answer) Request {
	if !a.Allow && a.Message == "" {
		return Request{Op: "dismiss", ID: id}
	}
	r := Request{Op: "answer", ID: id}
	for _, q := range questions {
		given, ok := a.Answers[q.Text]
		switch {
		case !a.Allow:
			r.Answers = append(r.Answers, []string{a.Message})
		case !ok:
			r.Answers = append(r.Answers, []string{})
		case q.Multiple:
			r.Answers = append(r.Answers, strings.Split(given, ", "))
		default:
			r.Answers = append(r.Answers, []string{given})
		}
	}
	return r
}

func line(r Request) []byte {
	data, err := json.Marshal(r)
	if err != nil { // unexpected: only strings
		return nil
	}
	return append(data, '\n')
}
