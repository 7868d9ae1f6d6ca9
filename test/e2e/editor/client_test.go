package editor

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// sdk returns a directory with the client of the official SDK.
func sdk(t *testing.T) string {
	t.Helper()
	testenv.RequireTool(t, "node", "nodejs")
	npm := testenv.RequireTool(t, "npm", "npm")
	dir := testenv.Cache(t, "acp-client", "test/e2e/editor/testdata/client")
	if _, err := os.Stat(filepath.Join(dir, "ready")); err == nil {
		return dir
	}
	err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700),
		os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "client"))))
	if err != nil {
		t.Fatal(err)
	}
	install := exec.CommandContext(t.Context(), npm, "ci", "--registry", testenv.NPMRegistry(t), "--ignore-scripts",
		"--no-audit", "--no-fund")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	testenv.WriteFile(t, filepath.Join(dir, "ready"), nil)
	return dir
}

// line is a line of the client: an answer, or a message of the agent.
type line struct {
	PID     int             `json:"pid"`
	Answer  string          `json:"answer"`
	Result  json.RawMessage `json:"result"`
	Error   *failure        `json:"error"`
	Asked   string          `json:"asked"`
	Params  json.RawMessage `json:"params"`
	Update  json.RawMessage `json:"update"`
	Invalid string          `json:"invalid"`

	Withdrawn string `json:"withdrawn"`
	Exit      *int   `json:"exit"`
}

type failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// editor is an editor with harvest acp.
type editor struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	pid   int      // of harvest acp
	seen  []string // lines since the last request
}

// start starts an editor, and initializes the connection with abilities of the editor.
func start(t *testing.T, h *host.Host, abilities string, flags ...string) *editor {
	t.Helper()
	program := h.Command(t.Context(), append([]string{"acp"}, flags...)...)
	node := testenv.RequireTool(t, "node", "nodejs")
	e := &editor{t: t, lines: make(chan string, 1000)}
	e.cmd = exec.CommandContext(t.Context(), node, append([]string{"client.mjs"}, program.Args...)...)
	e.cmd.Dir, e.cmd.Env, e.cmd.Stderr = sdk(t), program.Env, os.Stderr
	e.cmd.Args[2] = program.Path
	out, err := e.cmd.StdoutPipe()
	if err == nil {
		e.in, err = e.cmd.StdinPipe()
	}
	if err = errors.Join(err, e.cmd.Start()); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(e.lines)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 64<<20)
		for lines.Scan() {
			e.lines <- lines.Text()
		}
	}()
	t.Cleanup(e.close)
	e.pid = e.until("the process", func(l line) bool { return l.PID != 0 }).PID
	result := e.request("initialize", `{"protocolVersion":1,"clientCapabilities":`+abilities+`}`)
	if !strings.Contains(result, `"protocolVersion":1`) || !strings.Contains(result, `"loadSession":true`) {
		t.Errorf("initialize: %s", result)
	}
	return e
}

// close ends the editor.
func (e *editor) close() {
	_ = e.in.Close()
	for range e.lines {
	}
	_ = e.cmd.Wait()
}

// next returns the next line of the client.
func (e *editor) next(awaited string) (l line) {
	e.t.Helper()
	select {
	case text, ok := <-e.lines:
		if !ok {
			e.t.Fatalf("awaited %s; the client has ended. Its lines:\n%s", awaited, strings.Join(e.seen, "\n"))
		}
		e.seen = append(e.seen, text)
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			e.t.Fatalf("%s: %v", text, err)
		}
		if l.Invalid != "" {
			e.t.Errorf("a message differs from the schema: %s", text)
		}
	case <-time.After(testenv.Limit):
		e.t.Fatalf("awaited %s. These lines came:\n%s", awaited, strings.Join(e.seen, "\n"))
	}
	return l
}

// until returns the next line that is wanted.
func (e *editor) until(awaited string, wanted func(line) bool) line {
	e.t.Helper()
	for {
		if l := e.next(awaited); wanted(l) {
			return l
		}
	}
}

// write sends a line to the client.
func (e *editor) write(fields map[string]any) {
	e.t.Helper()
	text, err := json.Marshal(fields)
	if err == nil {
		_, err = e.in.Write(append(text, '\n'))
	}
	if err != nil {
		e.t.Fatal(err)
	}
}

// begin sends a request.
func (e *editor) begin(method, params string) {
	e.t.Helper()
	e.seen = nil
	e.write(map[string]any{"request": method, "params": json.RawMessage(params)})
}

// answer waits for the answer to a request.
func (e *editor) answer(method string) line {
	e.t.Helper()
	return e.until("the answer to "+method, func(l line) bool { return l.Answer == method })
}

// request returns the result of a request, which must succeed.
func (e *editor) request(method, params string) string {
	e.t.Helper()
	e.begin(method, params)
	l := e.answer(method)
	if l.Error != nil {
		e.t.Fatalf("%s: %+v", method, *l.Error)
	}
	return string(l.Result)
}

// prompt begins a turn.
func (e *editor) prompt(session, text string) {
	e.t.Helper()
	e.begin("session/prompt", params(e.t, map[string]any{"sessionId": session,
		"prompt": []any{map[string]string{"type": "text", "text": text}}}))
}

// stopped waits for the end of a turn, and returns its reason.
func (e *editor) stopped() string {
	e.t.Helper()
	l := e.answer("session/prompt")
	if l.Error != nil {
		e.t.Fatalf("session/prompt: %+v\n%s", *l.Error, strings.Join(e.seen, "\n"))
	}
	var result struct{ StopReason string }
	if err := json.Unmarshal(l.Result, &result); err != nil {
		e.t.Fatal(err)
	}
	return result.StopReason
}

// asked waits for a request of the agent.
func (e *editor) asked(what string) string {
	e.t.Helper()
	return string(e.until("a question", func(l line) bool { return l.Asked == what }).Params)
}

// update waits for an update with a text.
func (e *editor) update(kind, text string) string {
	e.t.Helper()
	return string(e.until(kind+" with "+text, func(l line) bool {
		return strings.Contains(string(l.Update), `"`+kind+`"`) && strings.Contains(string(l.Update), text)
	}).Update)
}

// has checks that the lines since the last request have a text.
func (e *editor) has(text string) {
	e.t.Helper()
	if all := strings.Join(e.seen, "\n"); !strings.Contains(all, text) {
		e.t.Errorf("%s lacks %s", all, text)
	}
}

func params(t *testing.T, fields map[string]any) string {
	t.Helper()
	text, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
