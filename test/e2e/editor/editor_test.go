// Package editor tests harvest acp: the client of the official SDK for TypeScript drives it, as editors do.
package editor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// opened returns the session of an answer to session/new.
func opened(t *testing.T, result string) string {
	t.Helper()
	var p struct {
		Session string `json:"sessionId"`
	}
	if err := json.Unmarshal([]byte(result), &p); err != nil || !strings.HasPrefix(p.Session, "ses_") {
		t.Fatalf("session/new: %s, %v", result, err)
	}
	return p.Session
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

// TestEditor checks a thread of an editor from its beginning to its end: uncommitted files in the sandbox, a turn with
// a tool, a question, a cancelled turn, changes that are applied to the editor's directory, a killed editor whose turn
// continues, and a second editor that loads the thread.
func TestEditor(t *testing.T) {
	h := host.New(t, "gvisor", host.GVisor(t))
	dir := h.Project()
	testenv.WriteFile(t, filepath.Join(dir, "notes.txt"), []byte("walnut\n"))
	e := start(t, h, `{}`, "--agent", "scripted")
	dirs := map[string]any{"cwd": dir, "mcpServers": []any{}}
	id := opened(t, e.request("session/new", params(t, dirs)))
	e.update("available_commands_update", `"apply"`)

	testenv.WriteFile(t, filepath.Join(dir, "late.txt"), []byte("hazel\n")) // after the session was made
	e.prompt(id, "/run cat notes.txt late.txt\n/say done")
	if reason := e.stopped(); reason != "end_turn" {
		t.Errorf("stopped: %s", reason)
	}
	e.has(`walnut\nhazel`)
	e.has(`"kind":"execute"`)
	e.has(`"agent_message_chunk"`)
	if current := h.Session(); current == id {
		t.Errorf("session %s has the files of this moment, but was made before", current)
	}

	e.prompt(id, "/ask Which colour? | red | blue")
	if asked := e.asked("permission"); !strings.Contains(asked, `"name":"blue"`) {
		t.Errorf("asked: %s", asked)
	}
	e.write(chosen("answer_1"))
	if reason := e.stopped(); reason != "end_turn" {
		t.Errorf("after the question: %s", reason)
	}
	e.has(`blue.`)

	e.prompt(id, "/run sleep 1000")
	e.update("tool_call", "sleep 1000")
	e.write(map[string]any{"notify": "session/cancel", "params": map[string]string{"sessionId": id}})
	if reason := e.stopped(); reason != "cancelled" {
		t.Errorf("cancelled: %s", reason)
	}

	e.prompt(id, "/write made.txt hello")
	e.stopped()
	e.has(filepath.Join(dir, "made.txt")) // a path of this machine
	e.prompt(id, "/apply")
	e.stopped()
	if text := read(t, filepath.Join(dir, "made.txt")); text != "hello\n" {
		t.Errorf("made.txt: %q", text)
	}
	if text := read(t, filepath.Join(dir, "notes.txt")); text != "walnut\n" {
		t.Errorf("notes.txt: %q", text)
	}
	e.prompt(id, "/fail of no model")
	if l := e.answer("session/prompt"); l.Error == nil || l.Error.Code != -32603 ||
		!strings.Contains(l.Error.Message, "of no model") {
		t.Errorf("failed: %+v", l.Error)
	}
	killed(t, h, e, id, dir)
	again(t, h, id, dir)
}

// killed kills the editor and harvest acp in the middle of a turn, and checks that the turn continues.
func killed(t *testing.T, h *host.Host, e *editor, id, dir string) {
	t.Helper()
	e.prompt(id, "/run until test -e over; do sleep 0.1; done\n/say I went on")
	e.update("tool_call", "until test")
	for _, pid := range []int{e.cmd.Process.Pid, e.pid} {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	e.close()
	session := h.Session()
	h.Must("sandbox", "exec", h.Box(), "--", "touch", filepath.Join("/workspace", filepath.Base(dir), "over"))
	said := h.Event(session, 0, "message.completed")
	for said.Data.Text != "I went on" {
		said = h.Event(session, said.ID, "message.completed")
	}
}

// again loads the thread in another editor, which gets the earlier events, and ends it.
func again(t *testing.T, h *host.Host, id, dir string) {
	t.Helper()
	e := start(t, h, `{"session":{"notices":{}}}`, "--agent", "scripted")
	if list := e.request("session/list", params(t, map[string]any{"cwd": dir})); !strings.Contains(list, id) {
		t.Errorf("list: %s", list)
	}
	e.request("session/load", params(t, map[string]any{"sessionId": id, "cwd": dir, "mcpServers": []any{}}))
	for _, text := range []string{`"user_message_chunk"`, "cat notes.txt", "hazel", "The answer is blue.",
		"I went on"} {
		e.has(text)
	}
	e.prompt(id, "/say here again")
	if reason := e.stopped(); reason != "end_turn" {
		t.Errorf("after the load: %s", reason)
	}
	e.has("again")
	e.request("session/resume", params(t, map[string]any{"sessionId": id, "cwd": dir, "mcpServers": []any{}}))
	if slices.ContainsFunc(e.seen, func(text string) bool { return strings.Contains(text, "hazel") }) {
		t.Error("session/resume repeats the conversation")
	}
	e.prompt(id, "/end")
	if l := e.answer("session/prompt"); l.Error == nil || !strings.Contains(l.Error.Message, "/end discard") {
		t.Errorf("the end loses changes: %+v", l.Error)
	}
	e.prompt(id, "/end discard")
	e.stopped()
	var ended api.Session
	if err := json.Unmarshal([]byte(h.Must("sessions", "--all", "-o", "json")), &[]*api.Session{&ended}); err != nil ||
		ended.Ended.IsZero() {
		t.Errorf("the session has not ended: %+v, %v", ended, err)
	}
	e.prompt(id, "/run cat made.txt") // a new session continues the thread
	if reason := e.stopped(); reason != "end_turn" {
		t.Errorf("after the end: %s", reason)
	}
	e.has("hello")
}

// chosen is the answer of an editor to a question.
func chosen(option string) map[string]any {
	return map[string]any{"reply": map[string]any{"outcome": map[string]string{"outcome": "selected",
		"optionId": option}}}
}

// TestPermission checks an agent that speaks the protocol itself, so that Harvest is in the middle: the editor chooses
// the mode, gets the agent's plan, its request for permission, and its change; and it learns of an MCP server that the
// agent did not start.
func TestPermission(t *testing.T) {
	h := host.New(t, "gvisor", host.GVisor(t))
	dir := h.Project()
	program, err := os.ReadFile(filepath.Join("testdata", "agent.py"))
	if err != nil {
		t.Fatal(err)
	}
	testenv.WriteFile(t, filepath.Join(dir, "agent.py"), program)
	e := start(t, h, `{}`, "--agent", "python3 agent.py", "--image", "base")
	id := opened(t, e.request("session/new", params(t, map[string]any{"cwd": dir, "mcpServers": []any{
		map[string]any{"name": "my server", "command": "/missing", "args": []string{}, "env": []any{}}}})))
	e.request("session/set_mode", params(t, map[string]any{"sessionId": id, "modeId": "ask"}))

	e.prompt(id, "write")
	e.update("available_commands_update", `"shorten"`)
	asked := e.asked("permission")
	for _, text := range []string{`"toolCallId":"call_1"`, `"allow_always"`, `"reject_once"`,
		filepath.Join(dir, "made.txt")} {
		if !strings.Contains(asked, text) {
			t.Errorf("%s lacks %s", asked, text)
		}
	}
	e.has("MCP server my-server failed")
	e.has(`"sessionUpdate":"plan"`)
	e.write(chosen("allow"))
	if reason := e.stopped(); reason != "end_turn" {
		t.Errorf("allowed: %s", reason)
	}
	e.has("written")
	e.has(`"status":"completed"`)

	e.prompt(id, "again")
	e.asked("permission")
	e.write(chosen("reject"))
	e.update("agent_message_chunk", "left")
	e.stopped()
	e.has(`"status":"failed"`)

	e.prompt(id, "once more")
	e.asked("permission")
	e.write(map[string]any{"notify": "session/cancel", "params": map[string]string{"sessionId": id}})
	if reason := e.stopped(); reason != "cancelled" {
		t.Errorf("cancelled: %s", reason)
	}
	e.request("session/set_config_option", params(t, map[string]any{"sessionId": id, "configId": "mode",
		"value": "all"}))
	e.prompt(id, "freely")
	if reason := e.stopped(); reason != "end_turn" {
		t.Errorf("in the mode all: %s", reason)
	}
	e.has("written")
	if slices.ContainsFunc(e.seen, func(text string) bool { return strings.Contains(text, `"asked"`) }) {
		t.Error("the mode all asks")
	}
}

// TestForm checks that an editor with forms gets the model's questions as one, and that a question that was answered
// elsewhere is withdrawn.
func TestForm(t *testing.T) {
	h := host.New(t, "gvisor", host.GVisor(t))
	dir := h.Project()
	e := start(t, h, `{"elicitation":{"form":{}}}`, "--agent", "scripted", "--approval", "ask")
	id := opened(t, e.request("session/new", params(t, map[string]any{"cwd": dir, "mcpServers": []any{}})))
	e.prompt(id, "/ask Which colour? | red | blue || Which size?")
	if asked := e.asked("elicitation"); !strings.Contains(asked, `"const":"blue"`) ||
		!strings.Contains(asked, "Which size?") {
		t.Errorf("asked: %s", asked)
	}
	e.write(map[string]any{"reply": map[string]any{"action": "accept",
		"content": map[string]string{"answer_1": "blue", "answer_2": "large"}}})
	e.stopped()
	e.has("large.")

	e.prompt(id, "/ask Which way? | left | right")
	e.asked("elicitation")
	h.Must("answer", id, "ask_3", "--answer", "Which way?=left")
	e.until("the end of the question", func(l line) bool { return l.Withdrawn == "elicitation" })
	e.stopped()
	e.has("left.")
}
