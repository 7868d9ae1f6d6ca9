package image

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/mcp"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestAgentImageBuilds runs before all tests that use the agent image: they find it in the cache of testenv.
//
// mission: B3
func TestAgentImageBuilds(t *testing.T) {
	_, built := host.NewBuiltAgent(t)
	if built.ID == "" || built.Size == 0 {
		t.Errorf("the agent image: %+v", built)
	}
}

// The agent image builds from the README's command, and everything in it works as the user agent.
//
// mission: B3, E6
func TestAgentImage(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h, built := host.NewBuiltAgent(t)
	t.Logf("the agent image: %s, %s, built in %.0f s", built.ID, fmt.Sprintf("%.1f GB", float64(built.Size)/1e9),
		built.BuildSeconds)
	if out := h.Must("run", "--image", "agent", "--", "claude", "--version"); !strings.Contains(out, "(Claude Code)") {
		t.Errorf("claude --version: %s", out)
	}
	box := h.Must("sandbox", "create", "--image", "agent", "--name", "agent", "--memory", "4GiB",
		"--network", "default")
	exec := func(args ...string) (string, string, int) {
		return h.Run(append([]string{"sandbox", "exec", box, "--"}, args...)...)
	}
	t.Run("programs", func(t *testing.T) { testPrograms(t, built, exec) })
	t.Run("app", func(t *testing.T) { testApp(t, exec) })
	t.Run("chromium", func(t *testing.T) { testChromium(t, exec) })
	t.Run("node", func(t *testing.T) { testNodeOfProject(t, exec) })
	t.Run("mcp", func(t *testing.T) { testMCP(t, h, box) })
	t.Run("doctor", func(t *testing.T) {
		out, _, _ := h.Run("doctor") // the disk may be nearly full
		if !strings.Contains(out, "agent image") || !strings.Contains(out, "claude ") {
			t.Errorf("doctor says nothing of the agent image: %s", out)
		}
		for _, part := range built.Missing {
			if !strings.Contains(out, part.Name) {
				t.Errorf("doctor says nothing of %s: %s", part.Name, out)
			}
		}
	})
}

type execFunc func(args ...string) (stdout, stderr string, code int)

func testPrograms(t *testing.T, built api.Image, exec execFunc) {
	versions := map[string]string{}
	for _, p := range built.Parts {
		versions[p.Name] = p.Version
	}
	for _, c := range []struct{ command, want string }{
		{"id -un", "agent"}, {"id -u", "1000"}, {"pwd", "/workspace"}, {"printenv HOME", "/home/agent"},
		{"claude --version", versions["claude"]}, {"opencode --version", versions["opencode"]},
		{"node --version", "v22."}, {"npm --version", versions["npm"]}, {"npx --version", versions["npm"]},
		{"pnpm --version", versions["pnpm"]},
		{"yarn --version", versions["yarn"]}, {"npm prefix -g", "/home/agent/.local"},
		{"playwright --version", versions["playwright"]},
		{"python3 --version", "Python 3.11."}, {"pip --version", "python 3.11"}, {"gh --version", "gh version "},
		{"git --version", "git version "},
		{"git lfs version", "git-lfs/"}, {"rg --version", "ripgrep "}, {"jq --version", "jq-"}, {"ssh -V", "OpenSSH"},
		{"less --version", "less "}, {"ps", "ps"},
	} {
		begun := time.Now()
		out, stderr, code := exec(strings.Fields(c.command)...)
		if code != 0 || c.want == "" || !strings.Contains(out+stderr, c.want) {
			t.Errorf("%s: exit code %d, %s%s, want %q", c.command, code, out, stderr, c.want)
		}
		t.Logf("%s: %d ms", c.command, time.Since(begun).Milliseconds())
	}
	if out, stderr, code := exec("sh", "-c", "python3 -m venv /tmp/venv && /tmp/venv/bin/pip --version"); code != 0 {
		t.Errorf("venv: %s%s", out, stderr)
	}
	for _, name := range []string{"claude", "opencode", "node", "npm", "pnpm", "chromium", "gh", "git",
		"@playwright/mcp", "chrome-devtools-mcp"} {
		if versions[name] == "" {
			t.Errorf("the image does not say that it has %s", name)
		}
	}
	// Volta is installed, or the image gives the reason why not.
	why := ""
	for _, p := range built.Missing {
		if p.Name == "volta" {
			why = p.Reason
		}
	}
	if (versions["volta"] == "") == (why == "") {
		t.Errorf("volta: version %q, missing because %q", versions["volta"], why)
	}
}

// mission: E6
func testApp(t *testing.T, exec execFunc) {
	for _, file := range []string{"AGENTS.md", "CLAUDE.md", "opencode.json", "mcp.json", "memory-seed.json"} {
		if out, stderr, code := exec("sh", "-c",
			"test -s /app/"+file+" && ! test -w /app/"+file+" && stat -L -c '%U %a' /app/"+file); code != 0 ||
			strings.TrimSpace(out) != "root 644" {
			t.Errorf("%s: %d, %s%s", file, code, out, stderr)
		}
	}
	for _, command := range []string{"touch /app/new", "echo >>/app/AGENTS.md", "rm -f /app/opencode.json",
		"mv /app/CLAUDE.md /tmp/", "chmod 777 /app", "rm -rf /app", "echo >/opt/harvest/new",
		"ln -sf /tmp/x /usr/local/bin/node", "echo >>/etc/claude-code/CLAUDE.md"} {
		if out, stderr, code := exec("sh", "-c", command); code == 0 {
			t.Errorf("the agent may do this: %s: %s%s", command, out, stderr)
		}
	}
	for _, command := range []string{"cmp /app/AGENTS.md /etc/claude-code/CLAUDE.md",
		"touch /workspace/x ~/x ~/.mcp-memory/x /var/cache/harvest/node/x", "jq -e .entities /app/memory-seed.json"} {
		if out, stderr, code := exec("sh", "-c", command); code != 0 {
			t.Errorf("%s: exit code %d, %s%s", command, code, out, stderr)
		}
	}
}

func testChromium(t *testing.T, exec execFunc) {
	const page = `data:text/html,<title>x</title><script>document.write('<p>' + 6 * 7 + '</p>')</script>`
	if out, stderr, code := exec("chromium", "--headless", "--dump-dom", page); code != 0 ||
		!strings.Contains(out, "<p>42</p>") {
		t.Errorf("exit code %d, %s%s", code, out, stderr)
	}
	out, stderr, code := exec("sh", "-c",
		"cd /tmp && chromium --headless --screenshot=/tmp/shot.png 'data:text/html,<h1>hello</h1>' >/dev/null 2>&1 "+
			"&& file shot.png")
	if code != 0 || !strings.Contains(out, "PNG image data") {
		t.Errorf("exit code %d, %s%s", code, out, stderr)
	}
}

// mission: B4
func testNodeOfProject(t *testing.T, exec execFunc) {
	for _, c := range []struct{ file, text, want string }{
		{".nvmrc", "20", "v20."},
		{"package.json", `{"engines":{"node":">=18"}}`, "v22."},
		{"package.json", `{"volta":{"node":"^20"}}`, "v20."},
	} {
		dir := "/workspace/" + strings.Trim(strings.ReplaceAll(c.file+c.want, ".", "-"), "-")
		out, stderr, code := exec("sh", "-c",
			`mkdir -p "$1" && cd "$1" && printf %s "$2" >"$3" && node --version && npm --version >/dev/null`, "sh", dir,
			c.text, c.file)
		if code != 0 || !strings.HasPrefix(out, c.want) {
			t.Errorf("%s %s: exit code %d, %s%s", c.file, c.text, code, out, stderr)
		}
	}
}

// mission: E5
func testMCP(t *testing.T, h *host.Host, box string) {
	for _, s := range mcp.Servers() {
		t.Run(s.Name, func(t *testing.T) {
			if s.URL != "" {
				t.Skip("it is somewhere else")
			}
			args := []string{"sandbox", "exec"}
			for name, value := range s.Env {
				args = append(args, "-e", name+"="+strings.ReplaceAll(value, "${"+s.Secret+"}", "not-a-key"))
			}
			if s.Name == "gemini" {
				h.Must("sandbox", "exec", "-d", box, "--", "node", "-e", geminiStub)
				args = append(args, "-e", "GEMINI_BASE_URL=http://127.0.0.1:8099")
			}
			c := talk(t, h, append(append(args, box, "--"), s.Command...)...)
			var list struct{ Tools []struct{ Name string } }
			c.call(t, "tools/list", nil, &list)
			t.Logf("%d tools, the first after %d ms", len(list.Tools), c.ready.Milliseconds())
			var names []string
			for _, tool := range list.Tools {
				names = append(names, tool.Name)
			}
			for _, use := range uses[s.Name] {
				if !strings.Contains(" "+strings.Join(names, " ")+" ", " "+use.tool+" ") {
					t.Errorf("there is no tool %s: %v", use.tool, names)
				}
				if use.want == "" {
					continue
				}
				var result struct {
					Content []struct{ Text string }
					IsError bool
				}
				params := map[string]any{"name": use.tool}
				if use.arguments != nil {
					params["arguments"] = use.arguments
				}
				c.call(t, "tools/call", params, &result)
				if text := fmt.Sprint(result.Content); result.IsError != use.fails ||
					!strings.Contains(text, use.want) {
					t.Errorf("%s: %t, %.2000s, want %q", use.tool, result.IsError, text, use.want)
				}
			}
			if len(uses[s.Name]) == 0 {
				t.Error("nothing is asked of it")
			}
		})
	}
}

type use struct {
	tool      string
	arguments map[string]any
	want      string // part of the answer; "" if it is not called
	fails     bool
}

// uses has the calls of the test to each server.
var uses = map[string][]use{
	"memory": {
		{"create_entities", map[string]any{"entities": []any{map[string]any{"name": "walnut", "entityType": "tree",
			"observations": []string{"it is tall"}}}}, "walnut", false},
		{"search_nodes", map[string]any{"query": "walnut"}, "it is tall", false},
	},
	"filesystem": {
		{"write_file", map[string]any{"path": "/workspace/note", "content": "hello"}, "note", false},
		{"read_text_file", map[string]any{"path": "/workspace/note"}, "hello", false},
		{"read_text_file", map[string]any{"path": "/etc/passwd"}, "denied", true},
	},
	"playwright": {
		{"browser_navigate", map[string]any{"url": "data:text/html,<title>walnut</title><h1>tall tree</h1>"},
			"walnut", false},
		{"browser_snapshot", nil, "tall tree", false},
	},
	"devtools": {{"new_page", map[string]any{"url": "data:text/html,<title>walnut</title>"}, "walnut", false}},
	"github":   {{tool: "create_pull_request"}},
	"gemini": {
		{"review_plan", map[string]any{"plan": "walnut"}, "the key is not-a-key, reviewed: walnut", false},
		{"research", map[string]any{"question": "oak"}, "- Trees: https://example.org/", false},
		{"research", map[string]any{"question": "quota"}, "Gemini answers 429: too many", true},
		{"review_plan", map[string]any{"plan": ""}, "plan", true},
	},
	"sentry": {{tool: "search_issues"}},
}

// geminiStub answers as the Gemini API does, in the sandbox.
const geminiStub = `require('http').createServer((q, r) => {
	let body = ''
	q.on('data', d => { body += d }).on('end', () => {
		const asked = JSON.parse(body), text = asked.contents[0].parts[0].text
		r.statusCode = text === 'quota' ? 429 : 200
		r.end(JSON.stringify(text === 'quota' ? { error: { message: 'too many' } } : { candidates: [{
			content: { parts: [{ text: 'the key is ' + q.headers['x-goog-api-key'] + ', reviewed: ' + text.slice(-6) }] },
			groundingMetadata: asked.tools && { groundingChunks: [{ web: { title: 'Trees', uri: 'https://example.org/' } }] } }] }))
	})
}).listen(8099, '127.0.0.1')`

// conversation is a conversation with an MCP server over its standard input and output: JSON-RPC, one message a line.
type conversation struct {
	in    io.Writer
	out   *bufio.Reader
	last  int
	ready time.Duration // until it was initialised
}

// talk starts a server with one of our command lines, and initialises it.
func talk(t *testing.T, h *host.Host, args ...string) *conversation {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	cmd := h.Command(ctx, args...)
	var said strings.Builder
	cmd.Stderr = &said
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cancel()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the server said: %.4000s", said.String())
		}
	})
	c := &conversation{in: in, out: bufio.NewReader(out)}
	var server struct{ ServerInfo struct{ Name string } }
	c.call(t, "initialize", map[string]any{"protocolVersion": "2025-06-18", "capabilities": map[string]any{},
		"clientInfo": map[string]any{"name": "harvest-test", "version": "1"}}, &server)
	if server.ServerInfo.Name == "" {
		t.Error("the server has no name")
	}
	c.ready = time.Since(begun)
	c.send(t, map[string]any{"jsonrpc": "2.0", "method": "notifications/initialized"})
	return c
}

func (c *conversation) send(t *testing.T, message map[string]any) {
	t.Helper()
	text, err := json.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.in.Write(append(text, '\n')); err != nil {
		t.Fatal(err)
	}
}

// call sends a request and waits for its answer. Requests of the server in between are refused.
func (c *conversation) call(t *testing.T, method string, params, result any) {
	t.Helper()
	c.last++
	request := map[string]any{"jsonrpc": "2.0", "id": c.last, "method": method}
	if params != nil {
		request["params"] = params
	}
	c.send(t, request)
	for {
		line, err := c.out.ReadBytes('\n')
		if err != nil {
			t.Fatalf("%s: the server's answer ends: %v", method, err)
		}
		var message struct {
			ID     json.RawMessage
			Method string
			Result json.RawMessage
			Error  json.RawMessage
		}
		if err := json.Unmarshal(line, &message); err != nil {
			t.Fatalf("%s: the server does not speak JSON: %.200s", method, line)
		}
		switch {
		case message.Method != "" && message.ID != nil:
			c.send(t, map[string]any{"jsonrpc": "2.0", "id": message.ID,
				"error": map[string]any{"code": -32601, "message": "not here"}})
		case message.Method != "" || string(message.ID) != fmt.Sprint(c.last):
		case message.Error != nil:
			t.Fatalf("%s: %s", method, message.Error)
		default:
			if err := json.Unmarshal(message.Result, result); err != nil {
				t.Fatalf("%s: %v: %.500s", method, err, message.Result)
			}
			return
		}
	}
}
