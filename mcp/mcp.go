// Package mcp describes the MCP servers that agents have in their sandboxes, once, and makes of it the configuration that each
// agent reads.
package mcp

import (
	"maps"
	"slices"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/pattern"
)

// Where the agent image has things. Its Dockerfile says the same.
const (
	Home         = "/home/agent"
	Workspace    = "/workspace"
	MemoryFile   = Home + "/.mcp-memory/memory.jsonl" // what the memory server keeps
	Instructions = "/app/AGENTS.md"                   // what agents are told

	node     = "/opt/harvest/bin/node" // never the project's: servers run on the image's own
	modules  = "/opt/harvest/node_modules/"
	chromium = "/usr/bin/chromium"
)

// Server is one MCP server. It either is a command that speaks over its standard input and output, or is reached by a URL.
type Server struct {
	Name  string
	About string // one line for people

	Command []string // a program and its arguments
	URL     string   // streamable HTTP

	// Env of the command and Headers for the URL. ${NAME} stands for the environment variable NAME of the agent, so that no
	// configuration has a secret in it.
	Env     map[string]string
	Headers map[string]string

	// Secret is the environment variable without which the server is of no use; "" if it is always there.
	Secret string
}

// Servers returns those that Harvest knows, first those that are always there. Others may be added to them.
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
			Command: []string{node, modules + "@playwright/mcp/cli.js", "--headless", "--isolated", "--no-sandbox", "--executable-path", chromium,
				"--output-dir", "/tmp/playwright-mcp"},
		},
		{
			Name: "devtools", About: "a browser, by the Chrome DevTools protocol",
			Command: []string{node, modules + "chrome-devtools-mcp/build/src/bin/chrome-devtools-mcp.js", "--headless", "--isolated",
				"--executablePath", chromium, "--chromeArg=--no-sandbox", "--no-usage-statistics", "--no-performance-crux"},
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

// Enabled returns the servers that are always there and those whose secret exists, in the same order.
func Enabled(servers []Server, exists func(secret string) bool) []Server {
	return slices.DeleteFunc(slices.Clone(servers), func(s Server) bool { return s.Secret != "" && !exists(s.Secret) })
}

// namePattern is what both agents make parts of tools' names of.
var namePattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// Check says what is wrong with servers that a user has configured, or nil. The error's kind is Invalid.
func Check(servers []Server) error {
	seen := map[string]bool{}
	for _, s := range servers {
		if !namePattern().MatchString(s.Name) {
			err := errors.Newf(errors.Invalid, "an MCP server cannot have the name %.100q", s.Name)
			return errors.Remedy(err, "begin with a letter or digit, use letters, digits, _ and -, at most 64")
		}
		if seen[s.Name] {
			return errors.Remedy(errors.Newf(errors.Invalid, "there are two MCP servers %q", s.Name), "give one of them another name")
		}
		seen[s.Name] = true
		if (len(s.Command) == 0) == (s.URL == "") || len(s.Command) > 0 && s.Command[0] == "" {
			err := errors.Newf(errors.Invalid, "the MCP server %q has to have either a command or a URL", s.Name)
			return errors.Remedy(err, "give the program and its arguments, or the address")
		}
	}
	return nil
}

// reference is how an environment variable is written in Env and Headers.
var reference = pattern.New(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// rewrite returns values with their references written in another way; $1 is the variable's name.
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
