package mcp

import (
	"context"
	"encoding/json"
	"html"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

var hiddenField = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// allow opens the page to which a client of OAuth sends its user, allows it with a key, and returns the address of the
// client to which the page leads.
func allow(t *testing.T, page, key string) *url.URL {
	t.Helper()
	browser := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	do := func(method, body string, header ...string) (*http.Response, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, page, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := browser.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(text)
	}
	_, text := do("GET", "")
	form := url.Values{"key": {key}, "decision": {"allow"}}
	for _, m := range hiddenField.FindAllStringSubmatch(text, -1) {
		form.Set(m[1], html.UnescapeString(m[2]))
	}
	origin, path, _ := strings.Cut(page, "/oauth/")
	path, _, _ = strings.Cut(path, "?")
	page = origin + "/oauth/" + path
	resp, text := do("POST", form.Encode(), "Content-Type", "application/x-www-form-urlencoded", "Origin", origin)
	to, err := resp.Location()
	if err != nil {
		t.Fatalf("allow: %s %s", resp.Status, text)
	}
	return to
}

// freeAddress returns an address on which nothing listens, so that a server can restart on it.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestClaudeCodeSignsIn has Claude Code sign in with OAuth. It stays signed in when the server restarts, until the user
// withdraws it.
func TestClaudeCodeSignsIn(t *testing.T) {
	testenv.Long(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	address := freeAddress(t)
	stop := h.UpUntil("--listen", address)
	key := h.Must("key", "create", "laptop", "--quiet")
	home := t.TempDir()
	claude := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), host.ClaudeCode(t), args...)
		cmd.Dir = home
		cmd.Env = append(testenv.CleanEnv(), "HOME="+home, "PWD="+home, "DISABLE_AUTOUPDATER=1",
			"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1")
		return cmd
	}
	says := func(want string, args ...string) {
		t.Helper()
		if out, err := claude(args...).CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("claude %v lacks %q: %v: %s", args, want, err, out)
		}
	}
	says("Added", "mcp", "add", "--transport", "http", "harvest", "http://"+address+"/mcp")
	says("Needs authentication", "mcp", "list")
	login(t, claude("mcp", "login", "harvest", "--no-browser"), key, true)
	says("Connected", "mcp", "list")
	stop()
	stop = h.UpUntil("--listen", address)
	defer func() { stop() }()
	says("Connected", "mcp", "list")
	ls := h.Must("key", "ls")
	at := regexp.MustCompile(`oau_\S+`).FindString(ls)
	if at == "" || !strings.Contains(ls, "Claude-Code-") {
		t.Fatalf("harvest key ls: %s", ls)
	}
	h.Must("key", "rm", at)
	says("Needs authentication", "mcp", "list")
	if log := h.Log(); strings.Contains(log, key) || regexp.MustCompile(`hv[ar]_[a-z2-7]{20}`).MatchString(log) {
		t.Error("a secret is in the server's log")
	}
}

// login signs a program in: the user opens the address that it prints. Either the browser reaches the program at the
// end, or the user pastes the address that the browser then shows.
func login(t *testing.T, cmd *exec.Cmd, key string, paste bool) {
	t.Helper()
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 50, Cols: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	var said strings.Builder
	page := regexp.MustCompile(`http://[^\s\x1b\a]+/oauth/authorize\?[^\s\x1b\a]+`)
	opened := false
	for buffer := make([]byte, 64<<10); ; {
		n, err := terminal.Read(buffer)
		said.Write(buffer[:n])
		found := page.FindString(said.String())
		switch {
		case found == "" || opened || paste && !strings.Contains(said.String(), "aste"):
		case paste:
			opened = true
			if _, err := io.WriteString(terminal, allow(t, found, key).String()+"\r"); err != nil {
				t.Error(err)
			}
		default:
			opened = true
			resp, err := http.Get(allow(t, found, key).String())
			if err != nil {
				t.Fatalf("the program's own address: %v", err)
			}
			resp.Body.Close()
		}
		if err != nil { // EIO at the end of the process
			break
		}
	}
	if err := cmd.Wait(); err != nil || !opened {
		t.Fatalf("%q: %v: %s", cmd.Args, err, &said)
	}
}

// TestTypeScriptClientSignsIn has the client of the official SDK for TypeScript, which most clients use, register, sign
// in, and refresh its token.
func TestTypeScriptClientSignsIn(t *testing.T) {
	t.Parallel()
	program := inspector(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	address := h.Up()
	key := h.Must("key", "create", "laptop", "--quiet")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, testenv.RequireTool(t, "node", "nodejs"),
		filepath.Join(filepath.Dir(program), "..", "..", "oauth.mjs"), address+"/mcp")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := json.NewDecoder(out)
	var said struct {
		Page    string `json:"page"`
		Before  int    `json:"before"`
		After   int    `json:"after"`
		Rotated bool   `json:"rotated"`
	}
	if err := lines.Decode(&said); err != nil || said.Page == "" {
		t.Fatalf("%+v, %v", said, err)
	}
	if _, err := io.WriteString(in, allow(t, said.Page, key).Query().Get("code")+"\n"); err != nil {
		t.Fatal(err)
	}
	if err := lines.Decode(&said); err != nil || said.Before < 15 || said.After != said.Before || !said.Rotated {
		t.Errorf("%+v, %v", said, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestOtherAgentsSignIn has Codex and OpenCode sign in. They wait for the browser at an address of their own.
func TestOtherAgentsSignIn(t *testing.T) {
	testenv.Long(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	address := h.Up() + "/mcp"
	key := h.Must("key", "create", "laptop", "--quiet")
	for name, c := range map[string]struct {
		program, list string
		args          []string
		file, content string
	}{
		"Codex": {host.Codex(t), "OAuth", []string{"mcp", "login", "harvest"}, ".codex/config.toml",
			"[mcp_servers.harvest]\nurl = \"" + address + "\"\n"},
		"OpenCode": {host.OpenCode(t), "connected", []string{"mcp", "auth", "harvest"},
			".config/opencode/opencode.json",
			`{"mcp":{"harvest":{"type":"remote","url":"` + address + `"}}}`},
	} {
		home := testenv.DataDir(t)
		testenv.WriteFile(t, filepath.Join(home, c.file), []byte(c.content))
		command := func(args ...string) *exec.Cmd {
			cmd := exec.CommandContext(t.Context(), c.program, args...)
			cmd.Dir = home
			cmd.Env = append(testenv.CleanEnv(), "HOME="+home, "PWD="+home, "BROWSER=true",
				"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1")
			return cmd
		}
		login(t, command(c.args...), key, false)
		if out, err := command("mcp", "list").CombinedOutput(); err != nil || !strings.Contains(string(out), c.list) {
			t.Errorf("%s lacks %q: %v: %s", name, c.list, err, out)
		}
		if ls := h.Must("key", "ls"); !strings.Contains(ls, " "+name+"-") {
			t.Errorf("no %s in: %s", name, ls)
		}
	}
}
