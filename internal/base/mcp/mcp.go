// Package mcp describes the MCP servers of agents in sandboxes, and generates the configuration file of each agent
// from that description.
package mcp

import (
	"maps"
	"slices"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// Paths in the agent image. Its Dockerfile uses the same ones.
const (
	Home         = "/home/agent"
	Workspace    = "/workspace"
	MemoryFile   = Home + "/.mcp-memory/memory.jsonl" // data of the memory server
	Instructions = "/app/AGENTS.md"                   // instructions for agents

	node     = "/opt/harvest/bin/node" // never the project's node: servers run on the image's own
	modules  = "/opt/harvest/node_modules/"
	chromium = "/usr/bin/chromium"
)

// Server is one MCP server. It is either a command that communicates over its standard input and output, or a URL.
type Server struct {
	Name  string
	About string // one line for people

	Command []string // a program and its arguments
	URL     string   // streamable HTTP

	// Env is for the command, Headers are for the URL. ${NAME} stands for the agent's environment variable NAME, so
	// that no configuration contains a secret.
	Env     map[string]string
	Headers map[string]string

	// Secret is the environment variable that the server requires; "" if the server is always available.
	Secret string
}

// Servers returns Harvest's built-in servers, those that are always available first. The caller may append others to
// the result.
func Servers() []Server {
	return []Server{
		{
			Name: "memory", About: "a knowledge graph that persists per repository",
			Command: []string{node, modules + "@modelcontextprotocol/server-memory/dist/index.js"},
			Env:     map[string]string{"MEMORY_FILE_PATH": MemoryFile},
		},
		{
			Name: "filesystem", About: "files of the workspace",
			Command: []string{node, modules + "@modelcontextprotocol/server-filesystem/dist/index.js", Workspace},
		},
		{
			Name: "playwright", About: "a browser, by what a page means",
			Command: []string{node, modules + "@playwright/mcp/cli.js", "--headless", "--isolated", "--no-sandbox",
				"--executable-path", chromium,
				"--output-dir", "/tmp/playwright-mcp"},
		},
		{
			Name: "devtools", About: "a browser, by the Chrome DevTools protocol",
			Command: []string{node, modules + "chrome-devtools-mcp/build/src/bin/chrome-devtools-mcp.js",
				"--headless", "--isolated",
				"--executablePath", chromium, "--chromeArg=--no-sandbox", "--no-usage-statistics",
				"--no-performance-crux"},
			Env: map[string]string{"CHROME_DEVTOOLS_MCP_NO_UPDATE_CHECKS": "1"},
		},
		{
			Name: "github", About: "GitHub's repositories, issues and pull requests", Secret: "GITHUB_TOKEN",
			Command: []string{node, modules + "@modelcontextprotocol/server-github/dist/index.js"},
			Env:     map[string]string{"GITHUB_PERSONAL_ACCESS_TOKEN": "${GITHUB_TOKEN}"},
		},
		{
			Name: "gemini", About: "reviews of plans, and research in the web, by Gemini", Secret: "GEMINI_API_KEY",
			Command: []string{node, "/opt/harvest/lib/gemini.mjs"},
			Env:     map[string]string{"GEMINI_API_KEY": "${GEMINI_API_KEY}"},
		},
		{
			Name: "sentry", About: "errors that Sentry has recorded", Secret: "SENTRY_AUTH_TOKEN",
			Command: []string{node, modules + "@sentry/mcp-server/dist/index.js"},
			Env:     map[string]string{"SENTRY_ACCESS_TOKEN": "${SENTRY_AUTH_TOKEN}"},
		},
		{
			Name: "linear", About: "Linear's issues", Secret: "LINEAR_API_KEY",
			URL:     "https://mcp.linear.app/mcp",
			Headers: map[string]string{"Authorization": "Bearer ${LINEAR_API_KEY}"},
		},
	}
}

// Enabled returns the servers that are always available and those whose secret exists, in the same order.
func Enabled(servers []Server, exists func(secret string) bool) []Server {
	return slices.DeleteFunc(slices.Clone(servers), func(s Server) bool { return s.Secret != "" && !exists(s.Secret) })
}

// namePattern matches server names that both agents can use in names of tools.
var namePattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// Check returns an error of kind Invalid if the servers that a user has configured have a problem, else nil.
func Check(servers []Server) error {
	seen := map[string]bool{}
	for _, s := range servers {
		if !namePattern().MatchString(s.Name) {
			err := errors.Newf(errors.Invalid, "an MCP server cannot have the name %.100q", s.Name)
			return errors.Remedy(err, "begin with a letter or digit, use letters, digits, _ and -, at most 64")
		}
		if seen[s.Name] {
			return errors.Remedy(errors.Newf(errors.Invalid, "there are two MCP servers %q", s.Name),
				"give one of them another name")
		}
		seen[s.Name] = true
		if (len(s.Command) == 0) == (s.URL == "") || len(s.Command) > 0 && s.Command[0] == "" {
			err := errors.Newf(errors.Invalid, "the MCP server %q has to have either a command or a URL", s.Name)
			return errors.Remedy(err, "give the program and its arguments, or the address")
		}
	}
	return nil
}

// reference matches a reference to an environment variable in Env and Headers.
var reference = pattern.New(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// rewrite returns values with their references rewritten to the form as; $1 is the variable's name.
func rewrite(values map[string]string, as string) map[string]string {
	if len(values) == 0 {
		return nil
	}
	out := maps.Clone(values)
	for k, v := range out {
		out[k] = reference().ReplaceAllString(v, as)
	}
	return out
}
