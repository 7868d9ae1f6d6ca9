package editor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/jsonrpc"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// world is the protocol of a server: events that a test sends, and the requests that come.
type world struct {
	mu       sync.Mutex
	requests []string                 // guarded by mu
	events   map[string][]string      // guarded by mu; by session
	more     chan struct{}            // closed and replaced when more events arrive; guarded by mu
	made     int                      // guarded by mu; sessions
	approval string                   // of all sessions
	gone     bool                     // sessions cannot be continued
	prompts  int                      // guarded by mu
	ended    map[string]bool          // guarded by mu; sessions
	refuse   map[string]errors.Kind   // guarded by mu; requests that fail, by method and path
	onPrompt func(id, session string) // called before a prompt is answered
}

func newWorld(t *testing.T) (*world, *client.Client) {
	t.Helper()
	w := &world{more: make(chan struct{}), events: map[string][]string{}, ended: map[string]bool{},
		refuse: map[string]errors.Kind{}}
	server := httptest.NewServer(http.HandlerFunc(w.serve))
	c, err := client.At(server.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		server.CloseClientConnections()
		server.Close()
	})
	return w, c
}

// event sends an event of a session.
func (w *world) event(session, kind, data string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events[session] = append(w.events[session], fmt.Sprintf("id: %d\nevent: %s\ndata: %s\n\n",
		len(w.events[session])+1, kind, data))
	close(w.more)
	w.more = make(chan struct{})
}

func (w *world) serve(resp http.ResponseWriter, req *http.Request) {
	if req.URL.Path == api.Events {
		w.stream(resp, req)
		return
	}
	body, _ := io.ReadAll(req.Body)
	name := req.Method + " " + req.URL.Path
	w.mu.Lock()
	w.requests = append(w.requests, name+" "+strings.TrimSpace(string(body)))
	kind, parts := w.refuse[name], strings.Split(req.URL.Path, "/")
	w.mu.Unlock()
	session := func(id string) {
		w.mu.Lock()
		s := api.Session{ID: id, Agent: "scripted", Approval: w.approval,
			Repositories: []api.Repository{{Dir: "/workspace/p"}}}
		if w.ended[id] {
			s.Ended = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		}
		w.mu.Unlock()
		resp.Header().Set("Content-Type", api.TypeJSON)
		_ = json.NewEncoder(resp).Encode(s)
	}
	switch {
	case kind != "":
		resp.Header().Set("Content-Type", "application/problem+json")
		resp.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(resp).Encode(map[string]any{"status": 409, "detail": "it is refused", "code": kind})
	case name == "POST "+api.Sessions && w.gone && strings.Contains(string(body), "continues"):
		resp.Header().Set("Content-Type", "application/problem+json")
		resp.WriteHeader(http.StatusGone)
		_, _ = io.WriteString(resp, `{"status":410,"detail":"it has no files","code":"gone"}`)
	case name == "POST "+api.Sessions:
		w.mu.Lock()
		w.made++
		id := fmt.Sprint("ses_", w.made)
		w.mu.Unlock()
		session(id)
	case len(parts) == 4 && req.Method != http.MethodDelete:
		session(parts[3])
	case req.Method == http.MethodPost && strings.HasSuffix(name, "/messages"):
		w.mu.Lock()
		w.prompts++
		id := fmt.Sprint("msg_", w.prompts)
		w.mu.Unlock()
		if w.onPrompt != nil {
			w.onPrompt(id, parts[3])
		}
		resp.WriteHeader(http.StatusAccepted)
		fmt.Fprintf(resp, `{"message_id":%q}`, id)
	default:
		resp.WriteHeader(http.StatusNoContent)
	}
}

// stream sends the events of a session.
func (w *world) stream(resp http.ResponseWriter, req *http.Request) {
	resp.Header().Set("Content-Type", api.TypeEvents)
	session, at := req.URL.Query().Get("stream"), 0
	_, _ = fmt.Sscan(req.URL.Query().Get("after"), &at)
	w.mu.Lock()
	if req.URL.Query().Get("tail") == "1" {
		at = max(0, len(w.events[session])-1)
	}
	w.mu.Unlock()
	for {
		w.mu.Lock()
		events, more := w.events[session][at:], w.more
		w.mu.Unlock()
		at += len(events)
		_, _ = io.WriteString(resp, strings.Join(events, ""))
		resp.(http.Flusher).Flush()
		select {
		case <-more:
		case <-req.Context().Done():
			return
		}
	}
}

// asked waits for a request to the server.
func (w *world) asked(t *testing.T, text string) {
	t.Helper()
	testenv.Eventually(t, "the request "+text, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return strings.Contains(strings.Join(w.requests, "\n"), text)
	})
}

// screen is an editor of a test.
type screen struct {
	t     *testing.T
	in    *io.PipeWriter
	lines chan jsonrpc.Message
	early []jsonrpc.Message // answers that came before another one that was awaited: their order is not fixed
	next  int
	over  chan struct{} // closed when Run has returned
}

// newScreen starts an editor with a thread for each session that the world makes.
func newScreen(t *testing.T, c *client.Client, change func(*Options)) *screen {
	t.Helper()
	in, input := io.Pipe()
	output, out := io.Pipe()
	o := Options{In: in, Out: out, Version: "1", Records: t.TempDir(),
		Offers:  Offers{Agents: []string{"claude", "scripted"}, Efforts: []string{"high"}},
		Connect: func(context.Context) (*client.Client, error) { return c, nil },
		Create: func(ctx context.Context, c *client.Client, wish Wish) (Begun, error) {
			s, err := c.CreateSession(ctx, api.SessionRequest{Agent: wish.Agent, MCP: wish.MCP})
			return Begun{Session: s, Root: wish.Dir}, err
		},
		Root:   func(_ context.Context, dir string) string { return dir },
		Begins: func(context.Context, string, string) {},
		Explain: func(_ string, end api.SessionEvent) error {
			return errors.Newf(errors.Invalid, "the turn failed: %s", end.Text)
		},
	}
	if change != nil {
		change(&o)
	}
	s := &screen{t: t, in: input, lines: make(chan jsonrpc.Message, 1000), over: make(chan struct{})}
	go func() {
		defer close(s.over)
		if err := Run(t.Context(), o); err != nil {
			t.Error(err)
		}
	}()
	go jsonrpc.ReadLines(output, 1<<20, func(l jsonrpc.Line) {
		m, ok := jsonrpc.Parse(l.Text)
		if !ok && !strings.Contains(string(l.Text), `"id":null`) {
			t.Errorf("%s is not a message", l.Text)
		}
		s.lines <- m
	})
	t.Cleanup(func() {
		_ = input.Close()
		<-s.over
		_ = output.Close()
	})
	return s
}

// send sends a request, and returns its ID.
func (s *screen) send(method, params string) string {
	s.t.Helper()
	s.next++
	s.line(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, s.next, method, params))
	return fmt.Sprint(s.next)
}

func (s *screen) line(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.in, text+"\n"); err != nil {
		s.t.Fatal(err)
	}
}

// until returns the next message that is wanted.
func (s *screen) until(awaited string, wanted func(jsonrpc.Message) bool) jsonrpc.Message {
	s.t.Helper()
	for {
		select {
		case m := <-s.lines:
			if wanted(m) {
				return m
			}
			if m.Method == "" {
				s.early = append(s.early, m)
			}
		case <-time.After(testenv.Limit):
			s.t.Fatalf("awaited %s", awaited)
		}
	}
}

// answer returns the answer to a request, and its error as "CODE MESSAGE".
func (s *screen) answer(id string) (result, failure string) {
	s.t.Helper()
	wanted := func(m jsonrpc.Message) bool { return m.Method == "" && string(m.ID) == id }
	var m jsonrpc.Message
	if i := slices.IndexFunc(s.early, wanted); i >= 0 {
		m, s.early = s.early[i], slices.Delete(s.early, i, i+1)
	} else {
		m = s.until("the answer to "+id, wanted)
	}
	if f, failed := m.Failed(); failed {
		failure = f.Number() + " " + f.Text()
	}
	return string(m.Result), failure
}

// open opens a thread.
func (s *screen) open() {
	s.t.Helper()
	dir, _ := json.Marshal(s.t.TempDir())
	if _, failure := s.answer(s.send("session/new", fmt.Sprintf(`{"cwd":%s,"mcpServers":[]}`, dir))); failure != "" {
		s.t.Fatal(failure)
	}
}

// prompt begins a turn of the first session.
func (s *screen) prompt(text string) string {
	s.t.Helper()
	return s.send("session/prompt", fmt.Sprintf(`{"sessionId":"ses_1","prompt":[{"type":"text","text":%q}]}`, text))
}

// TestBadMessages checks the answers to messages that are wrong, and that the connection survives them.
func TestBadMessages(t *testing.T) {
	t.Parallel()
	_, c := newWorld(t)
	s := newScreen(t, c, nil)
	for line, code := range map[string]string{"{": "-32700", `[{"id":1,"method":"initialize"}]`: "-32600",
		"7": "-32600", `{"jsonrpc":"2.0"}`: "-32600"} {
		s.line(line)
		m := s.until("an error", func(jsonrpc.Message) bool { return true })
		if f, failed := m.Failed(); !failed || f.Number() != code || string(m.ID) != "null" {
			t.Errorf("%s: %+v", line, f)
		}
	}
	s.line(`{"jsonrpc":"2.0","method":"session/unknown"}`) // no answer
	s.line(`{"jsonrpc":"2.0","id":77,"result":{}}`)
	for request, want := range map[string]string{
		`session/fork {}`:                                             "-32601",
		`authenticate {"methodId":"x"}`:                               "-32602",
		`session/new {"cwd":"relative","mcpServers":[]}`:              "-32602",
		`session/new {"cwd":"/nowhere","mcpServers":[]}`:              "-32602",
		`session/new {"cwd":"/","additionalDirectories":["/tmp"]}`:    "-32602",
		`session/new {"cwd":"/","mcpServers":[{"type":"sse"}]}`:       "-32602",
		`session/load {"cwd":"/","sessionId":"../x"}`:                 "-32002",
		`session/list {"cursor":"x"}`:                                 "-32602",
		`session/list {"cwd":"x"}`:                                    "-32602",
		`session/prompt {"sessionId":"ses_9","prompt":[{"type":""}]}`: "-32002",
		`session/prompt {"sessionId":"ses_9","prompt":[]}`:            "-32602",
		`session/set_mode {"sessionId":"ses_9"}`:                      "-32002",
		`session/set_config_option {"sessionId":"ses_9"}`:             "-32002",
	} {
		method, params, _ := strings.Cut(request, " ")
		if _, failure := s.answer(s.send(method, params)); !strings.HasPrefix(failure, want+" ") {
			t.Errorf("%s: %s", request, failure)
		}
	}
	if result, _ := s.answer(s.send("initialize", `{"protocolVersion":9}`)); !strings.Contains(result,
		`"protocolVersion":1`) {
		t.Errorf("initialize: %s", result)
	}
}

// TestEnds checks how turns end: their reasons, failures, and an end that comes before the answer about the prompt.
func TestEnds(t *testing.T) {
	t.Parallel()
	w, c := newWorld(t)
	s := newScreen(t, c, nil)
	s.open()
	for data, want := range map[string]string{
		`{}`:                                      `{"stopReason":"end_turn"}`,
		`{"reason":"refusal","failed":true}`:      `{"stopReason":"refusal"}`,
		`{"reason":"max_turns","failed":true}`:    `{"stopReason":"max_turn_requests"}`,
		`{"reason":"max_tokens","failed":true}`:   `{"stopReason":"max_tokens"}`,
		`{"interrupted":true,"failed":true}`:      `{"stopReason":"cancelled"}`,
		`{"failed":true,"text":"no such model"}`:  "-32603 the turn failed: no such model",
		`{"cancelled":true,"reason":"made room"}`: "-32603 the prompt was not sent to the agent: made room",
		`{"cancelled":true}`:                      "-32603 the prompt was not sent to the agent: it was withdrawn",
	} {
		w.onPrompt = func(id, session string) { // before the editor knows the ID
			kind := "done"
			if strings.Contains(data, "cancelled") {
				kind = "message.cancelled"
			}
			w.event(session, kind, withID(data, id))
		}
		if result, failure := s.answer(s.prompt("do it")); result+failure != want {
			t.Errorf("%s: %s%s", data, result, failure)
		}
	}
	w.mu.Lock()
	w.refuse["POST /v1/sessions/ses_1/messages"] = errors.Exhausted
	w.mu.Unlock()
	if _, failure := s.answer(s.prompt("too much")); !strings.HasPrefix(failure, "-32603 it is refused") {
		t.Errorf("%s", failure)
	}
}

// withID adds the ID of a prompt to an event.
func withID(data, id string) string {
	fields := map[string]any{}
	_ = json.Unmarshal([]byte(data), &fields)
	fields["message_id"] = id
	text, _ := json.Marshal(fields)
	return string(text)
}

// TestQueue checks that prompts are queued in their order, that a cancel withdraws all of them, and that it stops the
// turn of the one that was sent.
func TestQueue(t *testing.T) {
	t.Parallel()
	w, c := newWorld(t)
	w.refuse["DELETE /v1/sessions/ses_1/messages/msg_1"] = errors.Conflict // it runs
	s := newScreen(t, c, nil)
	s.open()
	first, second := s.prompt("first"), s.prompt("second")
	w.asked(t, "second")
	w.event("ses_1", "message.sent", `{"message_id":"msg_1","message":{"id":"msg_1","prompt":"first"}}`)
	s.line(`{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"ses_1"}}`)
	w.asked(t, "POST /v1/sessions/ses_1/stop")
	w.asked(t, "DELETE /v1/sessions/ses_1/messages/msg_2")
	w.event("ses_1", "message.cancelled", `{"message_id":"msg_2"}`)
	if result, failure := s.answer(second); result != `{"stopReason":"cancelled"}` {
		t.Errorf("the queued prompt: %s%s", result, failure)
	}
	w.event("ses_1", "done", `{"message_id":"msg_1","text":"it ended anyway"}`)
	if result, failure := s.answer(first); result != `{"stopReason":"cancelled"}` {
		t.Errorf("the running prompt: %s%s", result, failure)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	all := strings.Join(w.requests, "\n")
	if strings.Index(all, `{"prompt":"first"}`) > strings.Index(all, `{"prompt":"second"}`) {
		t.Errorf("the order: %s", all)
	}
}

// TestEndedSession checks that a prompt fails if its session ends, and that the next one continues in a new session.
func TestEndedSession(t *testing.T) {
	t.Parallel()
	w, c := newWorld(t)
	s := newScreen(t, c, nil)
	s.open()
	id := s.prompt("first")
	w.asked(t, "first")
	w.event("ses_1", "session.ended", `{"status":"failed","reason":"no disk"}`)
	if _, failure := s.answer(id); failure != "-32603 the session failed: no disk" {
		t.Errorf("%s", failure)
	}
	w.onPrompt = func(id, session string) { w.event(session, "done", withID(`{}`, id)) }
	if result, failure := s.answer(s.prompt("second")); result != `{"stopReason":"end_turn"}` {
		t.Errorf("%s%s", result, failure)
	}
	w.asked(t, `POST /v1/sessions {"continues":"ses_1"`)
	w.asked(t, `POST /v1/sessions/ses_2/messages {"prompt":"second"}`)
}

// TestStale checks that a session without a prompt is replaced if the files or the settings have changed, and that it
// is not replaced otherwise.
func TestStale(t *testing.T) {
	t.Parallel()
	for change, want := range map[string]string{"": "ses_1", "files": "ses_2", "settings": "ses_2"} {
		w, c := newWorld(t)
		w.onPrompt = func(id, session string) { w.event(session, "done", withID(`{}`, id)) }
		s := newScreen(t, c, func(o *Options) {
			create := o.Create
			o.Create = func(ctx context.Context, c *client.Client, wish Wish) (Begun, error) {
				b, err := create(ctx, c, wish)
				b.Work = "one"
				return b, err
			}
			o.Work = func(context.Context, string) (string, error) {
				if change == "files" {
					return "two", nil
				}
				return "one", nil
			}
		})
		s.open()
		if change == "settings" {
			if _, failure := s.answer(s.send("session/set_config_option",
				`{"sessionId":"ses_1","configId":"agent","value":"claude"}`)); failure != "" {
				t.Error(failure)
			}
		}
		s.answer(s.prompt("go"))
		w.asked(t, "POST /v1/sessions/"+want+"/messages")
		if want == "ses_2" {
			w.asked(t, "DELETE /v1/sessions/ses_1")
		}
		if change == "settings" {
			w.asked(t, `POST /v1/sessions {"agent":"claude"`)
		}
		s.answer(s.prompt("again")) // later changes do not matter
		w.mu.Lock()
		if made := fmt.Sprint("ses_", w.made); made != want {
			t.Errorf("%q: the last session is %s, want %s", change, made, want)
		}
		w.mu.Unlock()
	}
}

// TestChange checks that options change in the session at once, that changes from elsewhere reach the editor, and that
// the changes of a session that has ended hold in the one that continues it.
func TestChange(t *testing.T) {
	t.Parallel()
	w, c := newWorld(t)
	w.onPrompt = func(id, session string) { w.event(session, "done", withID(`{}`, id)) }
	s := newScreen(t, c, nil)
	s.open()
	s.answer(s.prompt("go"))
	set := func(option, value string) (string, string) {
		return s.answer(s.send("session/set_config_option",
			fmt.Sprintf(`{"sessionId":"ses_1","configId":%q,"value":%q}`, option, value)))
	}
	if result, failure := set("effort", "high"); !strings.Contains(result, `"currentValue":"high"`) {
		t.Errorf("%s%s", result, failure)
	}
	w.asked(t, `PATCH /v1/sessions/ses_1 {"effort":"high"}`)
	if _, failure := set("agent", "claude"); !strings.Contains(failure, "until the first prompt") {
		t.Errorf("%s", failure)
	}
	w.event("ses_1", "session.changed", `{"changed":{"model":"opus","effort":"high","approval":"plan"}}`)
	s.until("the change", func(m jsonrpc.Message) bool {
		return strings.Contains(string(m.Params), `"currentModeId":"plan"`)
	})
	w.event("ses_1", "session.ended", `{"status":"ended"}`)
	s.until("the end", func(m jsonrpc.Message) bool { return strings.Contains(string(m.Params), "has ended") })
	if result, failure := s.answer(s.send("session/set_mode", `{"sessionId":"ses_1","modeId":"ask"}`)); failure != "" {
		t.Errorf("%s%s", result, failure)
	}
	s.answer(s.prompt("go on"))
	w.asked(t, `PATCH /v1/sessions/ses_2 {"model":"opus","effort":"high","approval":"ask"}`)
}

// TestCommandsOfAgent checks that the editor offers the agent's commands after Harvest's, and that one of them is a
// prompt.
func TestCommandsOfAgent(t *testing.T) {
	t.Parallel()
	w, c := newWorld(t)
	w.onPrompt = func(id, session string) { w.event(session, "done", withID(`{}`, id)) }
	s := newScreen(t, c, nil)
	s.open()
	w.event("ses_1", "agent.commands", `{"commands":[{"name":"diff"},{"name":"compact","description":"Shorten.",`+
		`"hint":"how"}]}`)
	s.until("the commands", func(m jsonrpc.Message) bool {
		return strings.Count(string(m.Params), `"name":"diff"`) == 1 && strings.Contains(string(m.Params),
			`{"name":"end"`) && strings.Contains(string(m.Params),
			`{"name":"compact","description":"Shorten.","input":{"hint":"how"}}]`)
	})
	s.answer(s.prompt("/compact now"))
	w.asked(t, `POST /v1/sessions/ses_1/messages {"prompt":"/compact now"}`)
}

// TestForeign checks a session that was not created in an editor. A question that is open is asked after the answer.
func TestForeign(t *testing.T) {
	t.Parallel()
	w, c := newWorld(t)
	w.approval = "ask"
	for _, e := range []string{`message.sent {"message_id":"msg_x","message":{"id":"msg_x","prompt":"from elsewhere"}}`,
		`agent.asked {"id":"old","tool":"Bash"}`, `agent.withdrawn {"id":"old"}`,
		`agent.asked {"id":"q","tool":"Bash","input":{"command":"rm"}}`} {
		kind, data, _ := strings.Cut(e, " ")
		w.event("ses_x", kind, data)
	}
	s := newScreen(t, c, nil)
	dir, _ := json.Marshal(t.TempDir())
	id := s.send("session/load",
		fmt.Sprintf(`{"cwd":%s,"sessionId":"ses_x","mcpServers":[{"name":"late","command":"x"}]}`, dir))
	s.until("the replay", func(m jsonrpc.Message) bool { return strings.Contains(string(m.Params), "from elsewhere") })
	result, failure := s.answer(id)
	if !strings.Contains(result, `"currentModeId":"ask"`) || !strings.Contains(result, `"scripted"`) {
		t.Errorf("%s%s", result, failure)
	}
	asks, notes := false, false
	for !asks || !notes {
		m := s.until("the question", func(m jsonrpc.Message) bool { return m.Method != "" })
		if m.Method == "session/request_permission" {
			asks = true
			if strings.Contains(string(m.Params), `"old"`) || !strings.Contains(string(m.Params), `"title":"rm"`) {
				t.Errorf("%s", m.Params)
			}
			s.line(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":{"outcome":{"outcome":"selected",` +
				`"optionId":"always"}}}`)
		}
		notes = notes || strings.Contains(string(m.Params), "MCP server late is not a part of this session")
	}
	w.asked(t, `POST /v1/sessions/ses_x/answers/q {"allow":true,"always":true}`)
}

// TestGone checks that a thread whose session left no files begins anew, and says so.
func TestGone(t *testing.T) {
	t.Parallel()
	w, c := newWorld(t)
	w.onPrompt = func(id, session string) { w.event(session, "done", withID(`{}`, id)) }
	w.gone = true
	s := newScreen(t, c, nil)
	s.open()
	s.answer(s.prompt("go"))
	w.event("ses_1", "session.ended", `{"status":"failed"}`)
	s.until("the end", func(m jsonrpc.Message) bool { return strings.Contains(string(m.Params), "session failed") })
	id := s.prompt("go on")
	s.until("the note", func(m jsonrpc.Message) bool {
		return strings.Contains(string(m.Params), "A new session begins: it has no files")
	})
	if result, failure := s.answer(id); result != `{"stopReason":"end_turn"}` {
		t.Errorf("%s%s", result, failure)
	}
	w.asked(t, `POST /v1/sessions/ses_2/messages {"prompt":"go on"}`)
}

// TestCancelledRequest checks that a request that the editor cancels is answered, and that its turn is stopped.
func TestCancelledRequest(t *testing.T) {
	t.Parallel()
	w, c := newWorld(t)
	w.refuse["DELETE /v1/sessions/ses_1/messages/msg_1"] = errors.Conflict // it runs
	s := newScreen(t, c, nil)
	s.open()
	id := s.prompt("go")
	s.until("the first prompt's end of preparations", func(m jsonrpc.Message) bool {
		return strings.Contains(string(m.Params), "config_option_update")
	})
	s.line(`{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":` + id + `}}`)
	if _, failure := s.answer(id); !strings.HasPrefix(failure, "-32800 ") {
		t.Errorf("%s", failure)
	}
	w.asked(t, "POST /v1/sessions/ses_1/stop")
}

// TestCancelledInLine checks that a prompt that is cancelled before it was sent is never sent, and that those after it
// keep their order.
func TestCancelledInLine(t *testing.T) {
	t.Parallel()
	w, c := newWorld(t)
	sends := make(chan struct{})
	w.onPrompt = func(id, session string) {
		<-sends
		w.event(session, "done", withID(`{}`, id))
	}
	s := newScreen(t, c, nil)
	s.open()
	first := s.prompt("first")
	w.asked(t, `{"prompt":"first"}`)
	second, third := s.prompt("second"), s.prompt("third")
	s.line(`{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":` + second + `}}`)
	if _, failure := s.answer(second); !strings.HasPrefix(failure, "-32800 ") {
		t.Errorf("%s", failure)
	}
	w.mu.Lock()
	if all := strings.Join(w.requests, "\n"); strings.Contains(all, `"third"`) {
		t.Errorf("the third prompt was sent before the first one: %s", all)
	}
	w.mu.Unlock()
	close(sends)
	s.answer(first)
	if result, failure := s.answer(third); result != `{"stopReason":"end_turn"}` {
		t.Errorf("%s%s", result, failure)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if all := strings.Join(w.requests, "\n"); strings.Contains(all, `"second"`) {
		t.Errorf("the cancelled prompt was sent: %s", all)
	}
}

// TestLeave checks that the connection ends when the editor's output ends, and that the turn goes on.
func TestLeave(t *testing.T) {
	t.Parallel()
	w, c := newWorld(t)
	s := newScreen(t, c, nil)
	s.open()
	s.prompt("go")
	w.asked(t, `{"prompt":"go"}`)
	if err := s.in.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.over:
	case <-time.After(testenv.Limit):
		t.Fatal("the connection has not ended")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, request := range w.requests {
		if strings.HasPrefix(request, "DELETE ") || strings.Contains(request, "/stop ") {
			t.Errorf("the editor left, and sent %s", request)
		}
	}
}

// FuzzMessages checks that no message of an editor breaks the connection, and that only messages are sent.
func FuzzMessages(f *testing.F) {
	for _, line := range []string{
		`{"id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"session":{"notices":{}}}}}`,
		`{"id":2,"method":"session/new","params":{"cwd":"/","mcpServers":[{"name":"a","command":"b","env":[{}]}]}}`,
		`{"id":3,"method":"session/load","params":{"cwd":"/","sessionId":"ses_1"}}`,
		`{"id":4,"method":"session/prompt","params":{"sessionId":"ses_1","prompt":[{"type":"resource","resource":` +
			`{"uri":"file:///p/a","text":"x"}},{"type":"resource_link","uri":"%zz"}]}}`,
		`{"id":4,"method":"session/prompt","params":{"sessionId":"ses_1","prompt":[{"type":"text","text":"/apply"}]}}`,
		`{"id":5,"method":"session/set_config_option","params":{"sessionId":"ses_1","configId":"mode","value":"all"}}`,
		`{"method":"session/cancel","params":{"sessionId":"ses_1"}}`, `{"id":"x","error":{"code":1}}`, "[]", "\xff"} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		ctx, stop := context.WithCancel(t.Context())
		stop() // no request reaches a server
		var out bytes.Buffer
		face := &face{Options: Options{Out: &out, Records: t.TempDir()}, ctx: ctx, stop: stop,
			threads: map[string]*thread{}, running: map[string]context.CancelFunc{},
			calls: map[string]chan jsonrpc.Message{}}
		face.Connect = func(context.Context) (*client.Client, error) {
			return nil, errors.Newf(errors.Unavailable, "no server")
		}
		opened := newThread(face, nil, record{Dir: "/p", Root: "/p", Sessions: []string{"ses_1"}, Prompted: true})
		opened.id, opened.ended = "ses_1", false
		opened.view.paths = paths{local: "/p", inside: "/workspace/p"}
		face.threads["ses_1"] = opened
		jsonrpc.ReadLines(bytes.NewReader(data), 1<<20, func(in jsonrpc.Line) {
			m, _ := jsonrpc.Parse(in.Text)
			switch m.Method {
			case "session/prompt", "session/cancel": // only decoded: there is no server
				var p struct {
					Prompt []block `json:"prompt"`
				}
				if jsonrpc.Decode(m.Params, &p) {
					_, _ = promptText(p.Prompt, opened.paths())
				}
			default:
				face.line(in)
			}
		})
		face.writing.Lock()
		defer face.writing.Unlock()
		for line := range bytes.Lines(out.Bytes()) {
			if !json.Valid(line) || !bytes.HasSuffix(line, []byte("\n")) {
				t.Errorf("%q", line)
			}
		}
	})
}
