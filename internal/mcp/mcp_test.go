package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// connect returns a client of a server whose API is handled by routes.
func connect(t *testing.T, routes map[string]string) *sdk.ClientSession {
	t.Helper()
	return connectReady(t, routes, nil)
}

func connectReady(t *testing.T, routes map[string]string, ready func(context.Context) error) *sdk.ClientSession {
	t.Helper()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := routes[r.Method+" "+r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			body = `{"code":"not_found","detail":"unknown"}`
		}
		w.Header().Set("Content-Type", api.TypeJSON)
		fmt.Fprintln(w, body)
	}))
	t.Cleanup(web.Close)
	c, err := client.At(web.URL, "hv_1")
	if err != nil {
		t.Fatal(err)
	}
	near, far := sdk.NewInMemoryTransports()
	ctx := context.WithoutCancel(t.Context())
	serving, err := New(Options{Client: c, Version: "1", Ready: ready}).Connect(ctx, near, nil)
	if err != nil {
		t.Fatal(err)
	}
	session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, far, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = session.Close()
		_ = serving.Wait()
		c.Close()
	})
	return session
}

// call returns the text of a tool's answer.
func call(t *testing.T, session *sdk.ClientSession, tool string, in map[string]any) (text string, failed bool) {
	t.Helper()
	res, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: in})
	if err != nil {
		t.Fatal(err)
	}
	return res.Content[0].(*sdk.TextContent).Text, res.IsError
}

// TestTools checks what agents choose by: each tool and each argument has a description, and tools that only read say
// so.
func TestTools(t *testing.T) {
	session := connect(t, nil)
	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"agent_send", "agent_start", "agent_wait", "diff", "edit", "environment_create",
		"environment_list",
		"environment_remove", "fork", "hand_back", "list", "port", "read", "restore", "run", "run_output", "search",
		"snapshot", "write"}
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
		if len(tool.Description) < 60 || tool.Title == "" {
			t.Errorf("%s: %q", tool.Name, tool.Description)
		}
		text, err := json.Marshal(tool.InputSchema)
		var schema struct {
			Properties map[string]struct{ Description string }
		}
		if err = errors.Join(err, json.Unmarshal(text, &schema)); err != nil {
			t.Fatal(err)
		}
		for name, p := range schema.Properties {
			if len(p.Description) < 10 {
				t.Errorf("%s: the argument %s has no description", tool.Name, name)
			}
		}
		reading := strings.Contains(" agent_wait diff environment_list list read search ", " "+tool.Name+" ")
		if tool.Annotations.ReadOnlyHint != reading {
			t.Errorf("%s: reading only: %v", tool.Name, tool.Annotations.ReadOnlyHint)
		}
	}
	if fmt.Sprint(names) != fmt.Sprint(want) {
		t.Errorf("tools: %v", names)
	}
	if !strings.Contains(session.InitializeResult().Instructions, "environment_create") {
		t.Error("the instructions name no tool")
	}
}

func TestPromptAndResources(t *testing.T) {
	session := connect(t, map[string]string{"GET /v1/sandboxes": `{"data":[]}`})
	prompt, err := session.GetPrompt(t.Context(), &sdk.GetPromptParams{Name: "work_in_sandbox",
		Arguments: map[string]string{"task": "fix the test", "environment": "k"}})
	if err != nil {
		t.Fatal(err)
	}
	text := prompt.Messages[0].Content.(*sdk.TextContent).Text
	if !strings.Contains(text, "environment_create with the name k") || !strings.HasSuffix(text, "fix the test") {
		t.Errorf("prompt: %s", text)
	}
	res, err := session.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "harvest://environments"})
	if err != nil || !strings.Contains(res.Contents[0].Text, "no environments") {
		t.Errorf("environments: %+v, %v", res, err)
	}
	for _, uri := range []string{"harvest://environments/k/files/a", "harvest://sessions/ses_1/transcript",
		"harvest://sessions/%zz/transcript", "harvest://else"} {
		if _, err := session.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri}); err == nil {
			t.Errorf("%s exists", uri)
		}
	}
}

// TestFailuresSayWhatToDo checks errors of tools: they are answers for the model, with the next step.
func TestFailuresSayWhatToDo(t *testing.T) {
	gone := `{"data":[{"id":"sbx_1","name":"old","status":"terminated","reason":"idle for 1h"}]}`
	session := connect(t, map[string]string{"GET /v1/sandboxes": `{"data":[]}`})
	ended := connect(t, map[string]string{"GET /v1/sandboxes": gone})
	for _, c := range []struct {
		session *sdk.ClientSession
		tool    string
		in      map[string]any
		want    string
	}{
		{session, "run", map[string]any{"environment": "k", "command": "ls", "explanation": "x"},
			`environment "k": does not exist` + "\nnext: call environment_list"},
		{session, "read", map[string]any{"environment": "", "path": "x"}, "no environment given"},
		{session, "read", map[string]any{"path": "x"}, "environment"},
		{session, "environment_create", map[string]any{"repository": "ext::sh"}, "address is not https"},
		{session, "environment_create", map[string]any{"repository": "/home"}, "no access to directories"},
		{session, "environment_create", map[string]any{"branch": "-x"}, "invalid branch"},
		{session, "environment_remove", map[string]any{"environment": "k"}, "call environment_list"},
		{session, "agent_start", map[string]any{"prompt": " "}, "the prompt is empty"},
		{session, "agent_wait", map[string]any{"session": "ses_1", "timeout_seconds": -1}, "not from 0"},
		{session, "agent_wait", map[string]any{"session": "ses_1"}, "unknown\nnext: "},
		{ended, "run", map[string]any{"environment": "old", "command": "ls", "explanation": "x"},
			"its files are gone: idle for 1h\nnext: call environment_create"},
	} {
		if text, failed := call(t, c.session, c.tool, c.in); !failed || !strings.Contains(text, c.want) {
			t.Errorf("%s %v: %v, %s", c.tool, c.in, failed, text)
		}
	}
}

// TestServerThatDoesNotStart checks a server that has ended, and cannot be started again.
func TestServerThatDoesNotStart(t *testing.T) {
	session := connectReady(t, nil, func(context.Context) error {
		return errors.Remedy(errors.Newf(errors.Unavailable, "the server does not start"), "run: harvest doctor")
	})
	text, failed := call(t, session, "environment_list", nil)
	if !failed || text != "error: the server does not start\nnext: run: harvest doctor" {
		t.Errorf("%v, %s", failed, text)
	}
	if _, err := session.ReadResource(t.Context(), &sdk.ReadResourceParams{
		URI: "harvest://environments"}); err == nil || !strings.Contains(err.Error(), "does not start") {
		t.Errorf("a resource: %v", err)
	}
}

func TestWindow(t *testing.T) {
	text := func(w *window, parts ...string) (string, string) {
		for _, p := range parts {
			if n, err := w.Write([]byte(p)); n != len(p) || err != nil {
				t.Errorf("wrote %d, %v", n, err)
			}
		}
		got, notes := w.text("k", "c")
		return got, strings.Join(notes, "; ")
	}
	if got, notes := text(&window{head: 4, tail: 4}, "ab", "cdefg"); got != "abcdefg" || notes != "" {
		t.Errorf("short: %q %q", got, notes)
	}
	got, _ := text(&window{head: 4, tail: 4}, "abcd", strings.Repeat("x", 20000), "wxyz")
	if got != "abcd\n… 20000 bytes left out; to read them: run_output "+
		`{"environment": "k", "command": "c", "offset": 4} …`+"\nwxyz" {
		t.Errorf("middle: %q", got)
	}
	if got, notes := text(&window{tail: 4}, "abcdefg"); got != "defg" || !strings.Contains(notes,
		"bytes 3 to 7 of 7") {
		t.Errorf("end: %q %q", got, notes)
	}
	if got, notes := text(&window{from: 2, head: 3}, "a", "bcdefg"); got != "cde" || !strings.Contains(notes,
		`bytes 2 to 5 of 7; the rest: run_output {"environment": "k", "command": "c", "offset": 5}`) {
		t.Errorf("page: %q %q", got, notes)
	}
	if got, notes := text(&window{from: 5, head: 3}, "abcdefg"); got != "fg" || notes != "" {
		t.Errorf("last page: %q %q", got, notes)
	}
	w := &window{head: 4, tail: 4}
	w.skip(100)
	if got, notes := text(w, "ab"); got != "ab" || !strings.Contains(notes, "first 100 bytes are no longer kept") {
		t.Errorf("missing: %q %q", got, notes)
	}
}

func TestLines(t *testing.T) {
	for _, c := range []struct {
		text         string
		first, limit int
		want         string
		last, total  int
	}{
		{"a\nb\nc", 1, 0, "a\nb\nc\n", 3, 3},
		{"a\nb\nc\n", 2, 1, "b\n", 2, 3},
		{"", 1, 0, "", 0, 0},
		{"a\n", 5, 0, "", 0, 1},
		{strings.Repeat("x", pageBytes+3) + "\nb\n", 1, 0,
			strings.Repeat("x", pageBytes) + " … 3 bytes of this line are left out\n", 1, 2},
	} {
		got, last, total := lines([]byte(c.text), c.first, c.limit)
		if got != c.want || last != c.last || total != c.total {
			t.Errorf("%.20q: %.60q %d %d", c.text, got, last, total)
		}
	}
}

func TestReplace(t *testing.T) {
	for _, c := range []struct {
		in   editIn
		want string
		n    int
	}{
		{editIn{OldText: "b", NewText: "x"}, "a x a", 1},
		{editIn{OldText: "a", NewText: "x", ReplaceAll: true}, "x b x", 2},
		{editIn{OldText: "a", NewText: "x"}, "", 0},
		{editIn{OldText: "c", NewText: "x"}, "", 0},
		{editIn{OldText: "", NewText: "x"}, "", 0},
		{editIn{OldText: "a", NewText: "a"}, "", 0},
	} {
		got, n, err := replace("a b a", c.in)
		if got != c.want || n != c.n || (err == nil) != (n > 0) || err != nil && errors.RemedyOf(err) == "" {
			t.Errorf("%+v: %q %d %v", c.in, got, n, err)
		}
	}
}

func TestPaged(t *testing.T) {
	a := paged(answer{}, "3\nx\ny\n", 0, "matches")
	if a.text != "x\ny\n" || strings.Join(a.notes, "; ") != "1 to 2 of 3 matches; the next ones: offset 2" {
		t.Errorf("%+v", a)
	}
	if a = paged(answer{}, "0\n", 0, "matches"); a.notes[0] != "no matches" {
		t.Errorf("%+v", a)
	}
}

func TestLocksAreReleased(t *testing.T) {
	locks := &Locks{}
	release := locks.lock("a")
	locks.lock("b")()
	waits := make(chan struct{})
	go func() {
		defer close(waits)
		locks.lock("a")()
	}()
	select {
	case <-waits:
		t.Error("the lock is held twice")
	case <-time.After(10 * time.Millisecond):
	}
	release()
	<-waits
	if len(locks.all) != 0 {
		t.Errorf("left: %v", locks.all)
	}
}
