package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

// TestModalClaude checks that the document's section 4 holds with the real Claude, line by line.
// mission: 8.6
func TestModalClaude(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	stub := modeltest.New(t, host.ModelKey)
	stub.Script("work",
		modeltest.Step{Say: "I look.", Call: "Bash",
			Input: map[string]any{"command": "pwd; echo token ${ANTHROPIC_API_KEY%_*}; printf 'x\\033[31my'; " +
				"touch written && stat -c ' written by %U' written", "description": "look"}},
		modeltest.Step{Say: "That is it."})
	stub.Script("curl", modeltest.Step{Say: "Hello, curl."})
	stub.Script("long", modeltest.Step{Call: "Bash", Input: map[string]any{"command": "tail -f /dev/null",
		"description": "wait"}})
	stub.Script("refused", modeltest.Step{Status: 403, Kind: "permission_error"})
	h := host.NewCLI(t, stub)
	h.Must("sandbox", "ls") // starts the server
	resp := h.Post(t.Context(), api.ModalSandboxes,
		`{"image_base":"cli","volume_name":"work","volume_mount_path":"/data"}`)
	var made api.ModalSandbox
	if err := json.NewDecoder(resp.Body).Decode(&made); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s, %v", resp.Status, err)
	}
	resp.Body.Close()
	route := strings.Replace(api.ModalClaude, "{id}", made.SandboxID, 1)
	ask := func(ctx context.Context, prompt string) (*bufio.Scanner, io.Closer) {
		t.Helper()
		ctx, cancel := context.WithTimeout(ctx, 5*time.Minute) // a stream that does not end fails the test
		t.Cleanup(cancel)
		resp := h.Post(ctx, route, `{"prompt":"`+prompt+`"}`)
		// mission: 4.2
		if kind := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || kind != api.TypeEvents {
			text, _ := io.ReadAll(resp.Body)
			t.Fatalf("%s %s: %s\n%s", resp.Status, kind, text, h.Log())
		}
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<26)
		return lines, resp.Body
	}

	lines, body := ask(t.Context(), "[work] look")
	names, text := map[string]int{}, ""
	lastEvent := host.Sent{}
	for e, ok := host.NextSent(lines); ok; e, ok = host.NextSent(lines) {
		names[e.Name]++
		text += e.Data + "\n"
		lastEvent = e
		if !json.Valid([]byte(e.Data)) {
			t.Errorf("no JSON: %s", e.Data)
		}
	}
	body.Close()
	// mission: 4.1, 4.10
	if names["message.delta"] == 0 || names["tool.started"] != 1 || names["tool.completed"] != 1 ||
		names["agent.ready"] != 1 || names["agent.other"] > 0 {
		t.Errorf("events: %v\n%.5000s", names, text)
	}
	// mission: 4.4
	var done api.ModalDone
	if err := json.Unmarshal([]byte(lastEvent.Data), &done); err != nil || lastEvent.Name != "done" || done.Failed ||
		done.ReturnCode != 0 || done.Text != "That is it." ||
		done.Usage == nil || done.Usage.Cost <= 0 || done.SandboxID != made.SandboxID {
		t.Errorf("the end: %+v %+v, %v", lastEvent, done, err)
	}
	// mission: 4.8, 4.9
	if !strings.Contains(text, `"text":"/data\ntoken hvm`) {
		t.Errorf("directory and environment: %.5000s", text)
	}
	// The image's user is not root, and the volume is a new one.
	if !strings.Contains(text, " written by agent") {
		t.Errorf("no file in the volume: %.5000s", text)
	}
	// mission: 4.7
	if list := h.Must("sandbox", "ps", made.SandboxID, "-o", "json"); !strings.Contains(list, `"terminal":true`) &&
		!strings.Contains(list, `"terminal": true`) {
		t.Errorf("no command has a terminal: %s", list)
	}

	// mission: 6.6, 6.7
	curl := exec.CommandContext(t.Context(), testenv.RequireTool(t, "curl", "curl"), "-sS", "-w",
		"%{http_code} %{content_type}", "--unix-socket", filepath.Join(h.Data, client.Socket),
		"-d", `{"prompt":"[curl] say hello"}`, "http://harvest"+route)
	answer, err := curl.CombinedOutput()
	told := string(answer)
	if err != nil || !strings.HasSuffix(told, "200 "+api.TypeEvents) ||
		!strings.Contains(told, "event: message.delta\ndata: {") ||
		!strings.Contains(told, "event: done\ndata: {") || !strings.Contains(told, `"text":"Hello, curl."`) ||
		strings.Contains(told, `"failed":true`) {
		t.Errorf("curl, %v: %s", err, told)
	}

	// mission: 4.5
	lines, body = ask(t.Context(), "[refused] look")
	failed := ""
	for e, ok := host.NextSent(lines); ok; e, ok = host.NextSent(lines) {
		if e.Name == "error" {
			failed = e.Data
		}
		lastEvent = e
	}
	body.Close()
	if !strings.Contains(failed, "403") || lastEvent.Name != "done" ||
		!strings.Contains(lastEvent.Data, `"failed":true`) {
		t.Errorf("a failure: %q, %+v", failed, lastEvent)
	}

	// mission: 4.3, 4.6
	ctx, leave := context.WithCancel(t.Context())
	lines, body = ask(ctx, "[long] wait")
	for e, ok := host.NextSent(lines); e.Name != "tool.started"; e,
		ok = host.NextSent(lines) { // although the turn continues
		if !ok {
			t.Fatalf("awaited the start of the tool, and the stream ended: %v", lines.Err())
		}
	}
	if busy := h.Post(t.Context(), route, `{"prompt":"me too"}`); busy.StatusCode != http.StatusConflict {
		t.Errorf("a second prompt meanwhile: %s", busy.Status)
	}
	leave()
	body.Close()
	testenv.Try(t, func() error {
		out, _, _ := h.Run("sandbox", "exec", "--user", "0", made.SandboxID, "--", "sh", "-c",
			`cat /proc/[0-9]*/cmdline | tr '\0' ' '`)
		if strings.Contains(out, "tail -f /dev/null") || strings.Contains(out, "claude") ||
			strings.Contains(out, "harvest-model") {
			return errors.Errorf("still running: %s", out)
		}
		return nil
	})
	if left := h.Must("sandbox", "exec", made.SandboxID, "--", "sh", "-c",
		"ls -d /tmp/harvest-prompt-* 2>/dev/null || true"); left != "" {
		t.Errorf("prompts stay: %s", left)
	}
}
