package mcp

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// claudeServer is a server in Claude Code's format: https://code.claude.com/docs/en/mcp.
type claudeServer struct {
	Type    string            `json:"type"`
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
}

// ClaudeConfig returns the file for Claude Code's --mcp-config. It returns Invalid if Check reports a problem.
func ClaudeConfig(servers []Server) ([]byte, error) {
	if err := Check(servers); err != nil {
		return nil, err
	}
	var all inOrder
	for _, s := range servers {
		c := claudeServer{Type: "http", URL: s.URL, Headers: s.Headers}
		if len(s.Command) > 0 {
			c = claudeServer{Type: "stdio", Command: s.Command[0], Args: s.Command[1:], Env: s.Env}
		}
		all = append(all, named{s.Name, c})
	}
	return encode(map[string]any{"mcpServers": all})
}

// inOrder is an object of JSON whose members keep their order: Claude Code starts servers in the order of the file, a
// few at a time, so that a server that hangs delays only the later ones.
type inOrder []named

type named struct {
	name  string
	value any
}

// MarshalJSON implements json.Marshaler.
func (o inOrder) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, member := range o {
		name, err := json.Marshal(member.name)
		if err != nil {
			return nil, err
		}
		value, err := encode(member.value)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// openCodeServer is a server in OpenCode's format: https://opencode.ai/docs/mcp-servers.
type openCodeServer struct {
	Type        string            `json:"type"`
	Command     []string          `json:"command,omitempty"`
	Environment map[string]string `json:"environment,omitempty"`
	URL         string            `json:"url,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"`
	OAuth       *bool             `json:"oauth,omitempty"`
	Enabled     bool              `json:"enabled"`
	Timeout     int64             `json:"timeout,omitempty"` // in milliseconds
}

// openCode is an opencode.json: https://opencode.ai/docs/config.
type openCode struct {
	Schema       string                    `json:"$schema"`
	AutoUpdate   bool                      `json:"autoupdate"`
	Share        string                    `json:"share"`
	Instructions []string                  `json:"instructions"`
	Permission   map[string]string         `json:"permission"`
	MCP          map[string]openCodeServer `json:"mcp"`
}

// OpenCodeConfig returns a complete opencode.json for a sandbox: the servers and the agent's instructions, with
// sharing and updates disabled. Permission prompts are off, since the sandbox is the limit. A server has the time
// timeout to start; 0 means the agent's own limit. It returns Invalid if Check reports a problem.
func OpenCodeConfig(servers []Server, timeout time.Duration) ([]byte, error) {
	if err := Check(servers); err != nil {
		return nil, err
	}
	config := openCode{
		Schema: "https://opencode.ai/config.json", Share: "disabled", Instructions: []string{Instructions},
		Permission: map[string]string{"*": "allow"}, MCP: map[string]openCodeServer{},
	}
	const variable = "{env:$1}"
	for _, s := range servers {
		c := openCodeServer{Type: "remote", URL: s.URL, Headers: rewrite(s.Headers, variable), Enabled: true}
		if len(s.Command) > 0 {
			c = openCodeServer{Type: "local", Command: s.Command, Environment: rewrite(s.Env, variable), Enabled: true}
		}
		c.Timeout = timeout.Milliseconds()
		if len(c.Headers) > 0 {
			c.OAuth = new(bool) // the key is in the headers: OAuth sign-in is not needed
		}
		config.MCP[s.Name] = c
	}
	return encode(config)
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return nil, errors.Wrapf(err, "encode the configuration of MCP servers")
	}
	return b.Bytes(), nil
}

// maxConfig is the size limit for a file of MCP servers, in bytes.
const maxConfig = 64 << 10

// Parse reads a project's file of MCP servers, .mcp.json: https://code.claude.com/docs/en/mcp. It returns the servers
// sorted by name, and Invalid if the file is malformed or Check reports a problem.
func Parse(text []byte) ([]Server, error) {
	var file struct {
		Servers map[string]claudeServer `json:"mcpServers"`
	}
	if len(text) > maxConfig {
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "the configuration of MCP servers has more than %d bytes",
			maxConfig), "keep it short")
	}
	if err := json.Unmarshal(text, &file); err != nil {
		err := errors.Newf(errors.Invalid, "the configuration of MCP servers is not the JSON that it should be")
		return nil, errors.Remedy(err, `write {"mcpServers": {"NAME": {"command": "…", "args": ["…"]}}}`)
	}
	var servers []Server
	for _, name := range slices.Sorted(maps.Keys(file.Servers)) {
		c := file.Servers[name]
		s := Server{Name: name, URL: c.URL, Env: c.Env, Headers: c.Headers}
		if c.Command != "" {
			s.Command = append([]string{c.Command}, c.Args...)
		}
		servers = append(servers, s)
	}
	return servers, Check(servers)
}

// Merge returns servers with others added. A server in others replaces the server of the same name.
func Merge(servers, others []Server) []Server {
	all := slices.Clone(servers)
	for _, o := range others {
		if i := slices.IndexFunc(all, func(s Server) bool { return s.Name == o.Name }); i >= 0 {
			all[i] = o
		} else {
			all = append(all, o)
		}
	}
	return all
}
