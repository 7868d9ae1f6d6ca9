package chat

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// seat is a user in front of a model.
type seat struct {
	t *testing.T
	*Model
	id      int64
	printed []string
	actions []Action
}

func newSeat(t *testing.T) *seat {
	t.Helper()
	m := NewModel(api.Session{ID: "ses_1", Status: "creating"}, 0, false, false, nil)
	m.Tick(time.Unix(1000, 0))
	return &seat{t: t, Model: m}
}

// event sends an event and performs the resulting actions.
func (s *seat) event(kind, data string) {
	s.t.Helper()
	s.id++
	if err := s.Event(api.Event{ID: s.id, Type: kind, Data: json.RawMessage(data)}); err != nil {
		s.t.Fatal(err)
	}
	s.take()
}

func (s *seat) take() {
	printed, actions := s.Take()
	s.printed = append(s.printed, printed...)
	s.actions = append(s.actions, actions...)
}

// typed sends text as a terminal's bytes.
func (s *seat) typed(text string) {
	var d decoder
	for _, k := range append(d.decode([]byte(text)), d.flush()...) {
		s.Key(k)
	}
	s.take()
}

// later lets time pass.
func (s *seat) later(d time.Duration) { s.Tick(s.now.Add(d)) }

// screen is the part that is redrawn. It checks that it fits.
func (s *seat) screen() string {
	s.t.Helper()
	f := s.View()
	for _, line := range f.lines {
		if w := ansi.StringWidth(line); w >= s.width {
			s.t.Errorf("a line of %d columns: %q", w, line)
		}
	}
	if len(f.lines) > s.height || f.row >= len(f.lines) || f.row < 0 || f.column >= s.width {
		s.t.Errorf("%d lines, cursor at %d, %d of %d x %d", len(f.lines), f.row, f.column, s.width, s.height)
	}
	return ansi.Strip(strings.Join(f.lines, "\n"))
}

func (s *seat) has(where, text string) {
	s.t.Helper()
	if !strings.Contains(where, text) {
		s.t.Errorf("%q is not in:\n%s", text, where)
	}
}

func (s *seat) lacks(where, text string) {
	s.t.Helper()
	if strings.Contains(where, text) {
		s.t.Errorf("%q is in:\n%s", text, where)
	}
}

func (s *seat) all() string { return strings.Join(s.printed, "\n") }

// acted returns the actions since the last call.
func (s *seat) acted() []Action {
	actions := s.actions
	s.actions = nil
	return actions
}

// sent begins a turn.
func (s *seat) sent(prompt string) {
	s.event("message.queued", fmt.Sprintf(`{"message":{"id":"msg_1","prompt":%q}}`, prompt))
	s.event("message.sent", fmt.Sprintf(`{"message":{"id":"msg_1","prompt":%q}}`, prompt))
	s.event("session.status_changed", `{"status":"thinking"}`)
}

// TestTurn checks that the screen shows in each phase of a turn which event it waits for, and that finished text is
// printed once.
// mission: E1
func TestTurn(t *testing.T) {
	t.Parallel()
	s := newSeat(t)
	s.has(s.screen(), "preparing the sandbox")
	s.event("session.stage", `{"stage":{"name":"sandbox","ms":12}}`)
	s.has(s.screen(), "preparing the sandbox: sandbox is ready")
	s.event("session.status_changed", `{"status":"ready"}`)
	s.has(s.screen(), "a prompt, or /help\nready")
	s.typed("fix it")
	s.has(s.screen(), "› fix it\n")
	s.typed("\r")
	if a := s.acted(); len(a) != 1 || a[0].Act != Send || a[0].Text != "fix it" {
		t.Errorf("%+v", a)
	}
	s.has(s.screen(), "being sent: fix it")
	s.has(s.screen(), "sending the prompt")
	s.event("message.queued", `{"message":{"id":"msg_1","prompt":"fix it"}}`)
	s.Result(Action{Act: Send, Text: "fix it"}, "", nil)
	s.has(s.screen(), "queued: fix it")
	s.has(s.screen(), "starting the agent and its MCP servers")
	s.event("mcp.ready", `{"id":"memory"}`)
	s.event("mcp.failed", `{"id":"github","reason":"no key"}`)
	s.event("message.sent", `{"message":{"id":"msg_1","prompt":"fix it"}}`)
	s.event("session.status_changed", `{"status":"thinking"}`)
	s.later(3 * time.Second)
	s.has(s.screen(), "waiting for the model, 3 s · turn 3 s · MCP 1/2 · $0.00 · Esc stops")
	s.lacks(s.screen(), "queued: fix it")
	s.event("message.started", `{"id":"th","thinking":true}`)
	s.event("message.delta", `{"id":"th","text":"hm"}`)
	s.has(s.screen(), "thinking, 0 s · turn 3 s")
	s.lacks(s.screen(), "hm\n")
	s.event("message.completed", `{"id":"th","text":"hm","thinking":true}`)
	s.event("message.started", `{"id":"a"}`)
	s.event("message.delta", `{"id":"a","text":"I **look**.\n\nNow"}`)
	s.has(s.screen(), "Now\n")
	s.has(s.all(), "I look.")
	s.event("message.delta", `{"id":"a","text":" the test."}`)
	s.event("message.completed", `{"id":"a","text":"I **look**.\n\nNow the test."}`)
	s.event("tool.started", `{"id":"c","tool":"Bash","input":{"command":"go test"}}`)
	s.event("tool.output", `{"id":"c","text":"1\n2\n3\n4\n5\n6\n7\n"}`)
	s.later(2 * time.Second)
	s.has(s.screen(), "● Bash  go test  2 s\n  │ 3\n")
	s.has(s.screen(), "running Bash, 2 s · turn 5 s")
	s.event("tool.completed", `{"id":"c","tool":"Bash","text":"1\n2\n3\n4\n5\n6\n7\n","failed":true,"took_ms":2000}`)
	s.event("tool.started",
		`{"id":"e","tool":"Edit","input":{"file_path":"/w/a","old_string":"a\nb\nc","new_string":"a\nx\nc"}}`)
	s.event("tool.completed", `{"id":"e","tool":"Edit","text":"done"}`)
	s.event("file.changed", `{"id":"e","path":"/w/a"}`)
	s.event("done", `{"text":"ok","usage":{"cost_usd":0.25}}`)
	s.event("session.status_changed", `{"status":"done"}`)
	want := []string{
		"MCP server github failed: no key", "", "› fix it", "", "(thinking) hm", "", "I look.", "", "Now the test.", "",
		"● Bash  go test  failed  2 s", "  … 2 lines above; /output shows all", "  │ 3", "  │ 4", "  │ 5", "  │ 6",
		"  │ 7", "",
		"● Edit  /w/a", "   a", "  -b", "  +x", "   c", "", "done after 5 s; 1 file changed: /diff shows it",
	}
	if !slices.Equal(s.printed, want) {
		t.Errorf("printed:\n%s\nwant:\n%s", s.all(), strings.Join(want, "\n"))
	}
	s.has(s.screen(), "ready · MCP 1/2 · $0.25 · /help")
}

// TestStopAndLeave checks that Esc stops the turn once, and that Ctrl-C clears the line, and leaves on an empty one.
func TestStopAndLeave(t *testing.T) {
	t.Parallel()
	s := newSeat(t)
	s.typed("\x1b")
	if a := s.acted(); len(a) != 0 {
		t.Errorf("without a turn: %+v", a)
	}
	s.sent("go")
	s.typed("\x1b\x1b")
	if a := s.acted(); len(a) != 1 || a[0].Act != Stop {
		t.Errorf("%+v", a)
	}
	s.has(s.screen(), "stopping the turn")
	s.Result(Action{Act: Stop}, "", errors.Remedy(errors.Newf(errors.Conflict, "no"), "wait"))
	s.take()
	s.has(s.all(), "error: no\n  try: wait")
	s.typed("/stop\r")
	if a := s.acted(); len(a) != 1 || a[0].Act != Stop {
		t.Errorf("%+v", a)
	}
	s.event("tool.started", `{"id":"c","tool":"Bash","input":{"command":"sleep 9"}}`)
	s.event("done", `{"failed":true,"interrupted":true,"reason":"interrupted"}`)
	s.has(s.all(), "● Bash  sleep 9  stopped")
	s.has(s.all(), "stopped")
	s.typed("half\x03")
	if s.Done() {
		t.Error("it left with text in the line")
	}
	s.typed("\x1b[A")
	s.has(s.screen(), "› half")
	s.typed("\x15\x03")
	s.has(s.all(), "Session ses_1 stays. To return:\n  harvest agent --continue ses_1")
	if !s.Done() || len(s.acted()) != 0 {
		t.Error("it did not leave, or did something")
	}
}

func TestLeaveDuringTurnAndBefore(t *testing.T) {
	t.Parallel()
	s := newSeat(t)
	s.sent("go")
	s.typed("\x04")
	s.has(s.all(), "The agent continues in session ses_1.")
	s.Leave()
	s = newSeat(t)
	s.typed("/quit\r")
	if a := s.acted(); len(a) != 1 || a[0].Act != End || !s.Done() {
		t.Errorf("a session in which nothing was asked: %+v", a)
	}
}

// TestQuestions checks that questions can be answered by one number, several numbers, or text, and that commands still
// work meanwhile.
func TestQuestions(t *testing.T) {
	t.Parallel()
	s := newSeat(t)
	s.sent("go")
	s.event("agent.asked", `{"id":"q","tool":"AskUserQuestion","questions":[
		{"text":"Colour?","options":[{"label":"red","description":"warm"},{"label":"blue"}]},
		{"text":"Sizes?","multiple":true,"options":[{"label":"S"},{"label":"M"}]},
		{"text":"Name?"}]}`)
	s.has(s.all(), "? Colour?\n  1. red  warm\n  2. blue")
	s.has(s.screen(), "? 1-2, or your own words\nthe agent waits for your answer")
	s.typed("/help\r")
	s.has(s.all(), "/diff            show the agent's changes")
	s.typed("2\r")
	s.has(s.screen(), "numbers such as 1,2 of 1-2")
	s.typed("1, 2\r")
	s.has(s.screen(), "? your answer")
	s.typed("Ada\r")
	a := s.acted()
	if len(a) != 1 || a[0].Act != Answer || a[0].ID != "q" || !a[0].Answer.Allow ||
		fmt.Sprint(a[0].Answer.Answers) != "map[Colour?:blue Name?:Ada Sizes?:S, M]" {
		t.Errorf("%+v", a)
	}
	for typed, want := range map[string]api.AnswerRequest{
		"1": {Allow: true}, "2": {Allow: true, Always: true}, "3": {}, "no": {},
		"3 not on main": {Message: "not on main"}, "YES": {Allow: true},
	} {
		s.event("agent.asked", `{"id":"p","tool":"Bash","input":{"command":"rm x"}}`)
		s.typed(typed + "\r")
		if a := s.acted(); len(a) != 1 || fmt.Sprint(a[0].Answer) != fmt.Sprint(want) {
			t.Errorf("%s: %+v", typed, a)
		}
	}
	s.has(s.all(), "? May Bash run?  rm x\n  1. yes\n")
	for _, words := range []string{"Yes, go ahead", "not on main", "1 please", "no problem, do it"} { // decide nothing
		s.event("agent.asked", `{"id":"w","tool":"Bash","input":{"command":"rm y"}}`)
		s.typed(words + "\r")
		if a := s.acted(); len(a) != 0 || s.current() == nil || s.editor.text != words {
			t.Errorf("%q decides: %+v; the line has %q", words, a, s.editor.text)
		}
		s.has(s.all(), "Nothing is decided")
		s.editor.take()
		s.event("agent.withdrawn", `{"id":"w"}`)
	}
	s.event("agent.asked", `{"id":"plan","tool":"ExitPlanMode","input":{},"text":"# First\n\n1. look"}`)
	s.event("agent.asked", `{"id":"next","tool":"Bash","input":{"command":"second"}}`)
	s.has(s.all(), "First\n\n1. look\n\n? Is the plan right?")
	s.lacks(s.all(), "second")
	s.typed("y\r")
	s.has(s.all(), "second")
	s.event("agent.withdrawn", `{"id":"plan","text":"yes"}`) // the answer of this terminal
	if n := strings.Count(s.all(), "› y"); n != 1 {
		t.Errorf("the own answer is there %d times", n)
	}
	s.event("agent.asked", `{"id":"last","tool":"Bash","input":{"command":"third"}}`)
	s.lacks(s.all(), "third")
	s.event("agent.withdrawn", `{"id":"next","text":"no: not on main"}`) // of another client
	for _, text := range []string{"second", "› no: not on main", "third"} {
		s.has(s.all(), text)
	}
	s.event("agent.withdrawn", `{"id":"last"}`)
	s.has(s.screen(), "waiting for the model")
	if got := Choose(api.Question{Options: []api.Option{{Label: "a"}}}, "7"); got != "7" {
		t.Errorf("a number without an option: %q", got)
	}
	if got := Choose(api.Question{Options: []api.Option{{Label: "a"}, {Label: "b"}}}, "1 2"); got != "1 2" {
		t.Errorf("several where one is meant: %q", got)
	}
}

// TestQuestionDeadline checks that a question shows when the agent decides it itself.
func TestQuestionDeadline(t *testing.T) {
	t.Parallel()
	s := newSeat(t)
	s.sent("go")
	s.event("agent.asked", `{"id":"q","deadline":"1970-01-01T00:21:40Z","questions":[{"text":"Colour?"}]}`)
	s.has(s.all(), "Without an answer within 5 min 00 s, the agent decides itself.")
	s.later(48 * time.Second)
	s.has(s.screen(), "answer within 4 min 12 s, or the agent decides")
	s.later(time.Hour)
	s.has(s.screen(), "answer within 0 s, or the agent decides")
}

// TestHeldPrompts checks that prompts can be held and released, and that held ones are seen.
func TestHeldPrompts(t *testing.T) {
	t.Parallel()
	s := newSeat(t)
	s.typed("/hold\r/release\r")
	if a := s.acted(); len(a) != 0 {
		t.Errorf("without a prompt: %+v", a)
	}
	s.has(s.all(), "No turn and no queued prompt.\n\nNo prompt is held.")
	s.sent("go")
	s.event("message.queued", `{"message":{"id":"msg_2","prompt":"later"}}`)
	s.typed("/hold\r")
	s.event("message.held", `{"message":{"id":"msg_2","prompt":"later"}}`)
	s.has(s.screen(), "held: later")
	s.lacks(s.screen(), "queued: later")
	s.event("done", `{"interrupted":true}`)
	if !s.idle() {
		t.Error("a held prompt is waited for")
	}
	s.typed("/release\r")
	if got := fmt.Sprint(s.acted()); got != fmt.Sprint([]Action{{Act: Hold}, {Act: Release}}) {
		t.Error(got)
	}
	s.event("message.queued", `{"message":{"id":"msg_2","prompt":"later"}}`)
	s.has(s.screen(), "queued: later")
	s.lacks(s.screen(), "held: later")
	s.event("message.held", `{"message":{"id":"msg_2","prompt":"later"}}`)
	s.typed("/cancel\r")
	if a := s.acted(); len(a) != 1 || a[0].Act != Cancel || a[0].ID != "msg_2" || s.editor.text != "later" {
		t.Errorf("%+v, %q", a, s.editor.text)
	}
}

// TestPromptKeepsIndentation checks that only blank lines before a prompt, and space after it, are left out.
func TestPromptKeepsIndentation(t *testing.T) {
	t.Parallel()
	s := newSeat(t)
	s.Submit("\n  \n    indented\n  less\n\n")
	s.take()
	if a := s.acted(); len(a) != 1 || a[0].Text != "    indented\n  less" {
		t.Errorf("%+v", a)
	}
	s.event("message.sent", `{"message":{"id":"msg_1","prompt":"    indented\n  less"}}`)
	s.has(s.all(), "›     indented\n    less")
}

// TestStoppedTool checks that a tool call that ends because the user stops the turn is not shown as failed.
func TestStoppedTool(t *testing.T) {
	t.Parallel()
	s := newSeat(t)
	s.sent("go")
	s.event("tool.started", `{"id":"x","tool":"Bash","input":{"command":"sleep 1"}}`)
	s.event("tool.completed", `{"id":"x","tool":"Bash","failed":true,"interrupted":true}`)
	s.event("tool.started", `{"id":"y","tool":"Bash","input":{"command":"sleep 2"}}`)
	s.event("done", `{"interrupted":true}`)
	s.has(s.all(), "sleep 1  stopped")
	s.has(s.all(), "sleep 2  stopped")
	s.lacks(s.all(), "failed")
}

// TestServersOfTheAgent checks that a server counts once, whatever happens to it, and that the list is shown.
func TestServersOfTheAgent(t *testing.T) {
	t.Parallel()
	s := newSeat(t)
	s.sent("go")
	s.event("mcp.ready", `{"id":"memory"}`)
	s.event("mcp.failed", `{"id":"github","reason":"it died"}`)
	s.has(s.screen(), "MCP 1/2")
	s.event("mcp.restarting", `{"id":"github"}`)
	s.has(s.all(), "MCP server github starts again")
	s.has(s.screen(), "MCP 1/2")
	s.event("mcp.ready", `{"id":"github"}`)
	s.has(s.all(), "MCP server github is ready")
	s.has(s.screen(), "MCP 2/2")
	s.Result(Action{Act: Servers}, "github  failed  it died\n", nil)
	s.take()
	s.has(s.all(), "github  failed  it died")
	s.Result(Action{Act: Servers}, "", nil)
	s.take()
	s.has(s.all(), "The agent has no MCP servers, or does not run yet.")
}

func TestCommands(t *testing.T) {
	t.Parallel()
	s := newSeat(t)
	s.sent("go")
	for typed, want := range map[string]Action{
		"/diff": {Act: Diff}, "/checkout": {Act: Checkout}, "/checkout mine": {Act: Checkout, Text: "mine"},
		"/apply": {Act: Apply},
		"/end":   {Act: End}, "/end discard": {Act: End, Discard: true}, "/end of it": {Act: Send, Text: "/end of it"},
		"//help": {Act: Send, Text: "/help"}, "/compact": {Act: Send, Text: "/compact"},
		"/help me": {Act: Send, Text: "/help me"}, "/mcp": {Act: Servers},
		"/mcp restart memory": {Act: Restart, ID: "memory"}, "/mcp restart": {Act: Send, Text: "/mcp restart"},
	} {
		s.typed(typed + "\r")
		if a := s.acted(); len(a) != 1 || fmt.Sprint(a[0]) != fmt.Sprint(want) {
			t.Errorf("%s: %+v", typed, a)
		}
	}
	s.typed("/help\r")
	s.lacks(s.all(), "The agent offers")
	s.event("agent.commands", `{"commands":[{"name":"old"}]}`)
	s.event("agent.commands",
		`{"commands":[{"name":"compact","description":"Shorten\u001b it.","hint":"how"},{"name":"diff"}]}`)
	s.typed("/help\r")
	s.has(s.all(), "The agent offers these:\n\n  /compact how     Shorten it.\n  //diff")
	s.typed("/diff\r")
	s.later(2 * time.Second)
	s.has(s.screen(), "reading the changes, 2 s")
	s.Result(Action{Act: Diff}, "diff --git a/x b/x\n+\x1b[2Jnew\n", nil)
	s.take()
	s.has(s.all(), "diff --git a/x b/x\n+new")
	s.Result(Action{Act: Diff}, "", nil)
	s.Result(Action{Act: Checkout}, "it is there", nil)
	s.take()
	s.has(s.all(), "The agent has made no changes.\n\nit is there")
	s.typed("/output\r")
	s.has(s.all(), "No tool has run yet.")
	s.event("tool.completed", `{"id":"x","tool":"Read","text":""}`)
	s.typed("/output\r")
	s.has(s.all(), "● Read\nno output")
	s.typed("/cancel\r")
	s.has(s.all(), "No prompt is queued.")
	s.event("message.queued", `{"message":{"id":"msg_2","prompt":"later"}}`)
	s.typed("/cancel\r")
	if a := s.acted(); a[len(a)-1].Act != Cancel || a[len(a)-1].ID != "msg_2" || s.editor.text != "later" {
		t.Errorf("%+v, %q", a, s.editor.text)
	}
	s.event("message.cancelled", `{"message":{"id":"msg_2","prompt":"later"},"reason":"why"}`)
	s.has(s.all(), "not sent: later: why")
	s.typed("\x15\x0c\x1a")
	if a := s.acted(); len(a) != 2 || a[0].Act != Redraw || a[1].Act != Suspend {
		t.Errorf("%+v", a)
	}
	s.Result(Action{Act: Send, Text: "lost"}, "", errors.Newf(errors.Exhausted, "too many"))
	if s.editor.text != "lost" {
		t.Errorf("the prompt that was refused: %q", s.editor.text)
	}
}

// TestNothingCommandsTheTerminal checks that text of the agent cannot control the terminal, whichever way it arrives.
// mission: E3
func TestNothingCommandsTheTerminal(t *testing.T) {
	t.Parallel()
	s := newSeat(t)
	for _, evil := range []string{"\\u001b]52;c;x\\u0007", "\\u001b[2J", "\\u009b2J", "a\\rb", "\\u202e", "&#27;[2J",
		"&#x9b;2J", "`\\u001b[2J`", "\\u0007", "[x](\\u001b]8;;)", "<\\u001b[2J>"} {
		for _, e := range []struct{ kind, data string }{
			{"session.stage", `{"stage":{"name":"EVIL"}}`},
			{"mcp.failed", `{"id":"EVIL","reason":"EVIL"}`},
			{"session.recalled", `{"text":"EVIL"}`},
			{"session.notice", `{"text":"EVIL"}`},
			{"repo.synced", `{"synced":{"error":"EVIL"}}`},
			{"message.queued", `{"message":{"id":"m","prompt":"EVIL"}}`},
			{"message.sent", `{"message":{"id":"m","prompt":"EVIL"}}`},
			{"message.queued", `{"message":{"id":"n","prompt":"EVIL"}}`},
			{"message.delta", `{"id":"a","text":"EVIL\n\n| EVIL | b |\n|--|--|\n| EVIL | c |\n\nEVIL"}`},
			{"message.completed", `{"id":"t","text":"EVIL","thinking":true}`},
			{"tool.started", `{"id":"c","tool":"EVIL","input":{"command":"EVIL"}}`},
			{"tool.output", `{"id":"c","text":"EVIL"}`},
			{"agent.asked",
				`{"id":"q","tool":"EVIL","questions":[{"text":"EVIL","options":[{"label":"EVIL","description":"EVIL"}` +
					`]}]}`},
			{"agent.retrying", `{"text":"EVIL"}`},
			{"agent.crashed", `{"reason":"EVIL"}`},
			{"agent.output_lost", `{"reason":"EVIL"}`},
			{"agent.continued", `{"reason":"EVIL"}`},
			{"agent.overridden", `{"text":"EVIL"}`},
			{"tool.started", `{"id":"e","tool":"EVIL","input":{"file_path":"EVIL","content":"EVIL"}}`},
			{"tool.completed", `{"id":"e","tool":"EVIL","text":"EVIL"}`},
			{"agent.asked", `{"id":"p","tool":"EVIL","input":{"plan":"EVIL"}}`},
			{"git.panic", `{"git":{"reason":"EVIL","need":"EVIL"}}`},
			{"git.committed", `{"git":{"subject":"EVIL"}}`},
			{"git.pushed", `{"git":{"branch":"EVIL"}}`},
			{"git.synced", `{"git":{"failed":true,"reason":"EVIL"}}`},
			{"git.synced", `{"git":{"onto":"EVIL"}}`},
			{"git.left", `{"git":{"reason":"EVIL"}}`},
			{"git.stashed", `{"git":{"commits":2}}`},
			{"done", `{"failed":true,"text":"EVIL"}`},
		} {
			s.event(e.kind, strings.ReplaceAll(e.data, "EVIL", evil))
			s.printed = append(s.printed, s.screen())
		}
	}
	s.typed("\x1b[200~x\x1b[2J\x1b[201~")
	for _, line := range append(s.printed, s.screen()) {
		if rest := strings.ReplaceAll(line, "\n", ""); Plain(rest) != rest {
			t.Errorf("%q", line)
		}
	}
}

// TestResume checks that earlier events are read first and shown in part, and that the state is right afterwards.
func TestResume(t *testing.T) {
	t.Parallel()
	s := newSeat(t)
	s.Model = NewModel(api.Session{ID: "ses_1", Status: "thinking"}, 205, false, false, nil)
	s.Tick(time.Unix(1000, 0))
	s.event("session.created", `{"status":"creating"}`)
	for range 100 {
		s.event("message.sent", `{"message":{"id":"msg_1","prompt":"first"}}`)
		s.event("done", `{"usage":{"cost_usd":0.01}}`)
	}
	s.has(s.screen(), "reading the events so far")
	s.event("message.queued", `{"message":{"id":"msg_2","prompt":"second"}}`)
	s.event("message.sent", `{"message":{"id":"msg_2","prompt":"second","started_at":"1970-01-01T00:15:40Z"}}`)
	s.event("session.ended", `{"status":"ended"}`)
	if len(s.printed) > 0 {
		t.Errorf("printed before all is read: %q", s.printed)
	}
	s.event("message.sent", `{"message":{"id":"msg_2","prompt":"second","started_at":"1970-01-01T00:15:40Z"}}`)
	if len(s.printed) != earlier+1 || !strings.Contains(s.printed[0], "harvest attach ses_1 shows all") {
		t.Errorf("%d lines: %q", len(s.printed), s.printed)
	}
	s.ended = false
	s.has(s.screen(), "waiting for the model, 1 min 00 s · turn 1 min 00 s · $1.00")
}

func TestEndOfSession(t *testing.T) {
	t.Parallel()
	s := newSeat(t)
	s.event("session.ended", `{"status":"ended"}`)
	s.has(s.all(), "To continue with its files and its conversation:\n  harvest agent --continue ses_1")
	if !s.Done() {
		t.Error("the conversation goes on")
	}
	s.Leave()
	s = newSeat(t)
	s.event("session.ended", `{"status":"failed","reason":"no disk"}`)
	s.has(s.all(), "error: the session failed: no disk")
	if err := s.Event(api.Event{Type: "done", Data: json.RawMessage("7")}); errors.KindOf(err) != errors.Unavailable {
		t.Errorf("%v", err)
	}
}

// TestSmallScreens checks that the screen fits terminals of any size, and shows the end of the text in progress.
func TestSmallScreens(t *testing.T) {
	t.Parallel()
	s := newSeat(t)
	s.sent("go")
	s.event("message.delta", fmt.Sprintf(`{"id":"a","text":%q}`,
		"```\n"+strings.Repeat("a long line of code, "+strings.Repeat("x", 300)+"\n", 50)+"last"))
	s.event("tool.started", `{"id":"c","tool":"Bash","input":{"command":"seq 100"}}`)
	for i := range 6 {
		s.event("message.queued", fmt.Sprintf(`{"message":{"id":"q%d","prompt":"prompt %d"}}`, i, i))
	}
	s.typed(strings.Repeat("wörter und 漢字 ", 60))
	for _, size := range [][2]int{{80, 24}, {40, 10}, {20, 6}, {10, 3}, {200, 60}} {
		s.Resize(size[0], size[1])
		s.screen()
	}
	s.Resize(80, 24)
	s.typed("\x15")
	s.has(s.screen(), "… and 3 more")
	s.has(s.screen(), "last\n")
	s.has(s.screen(), "● Bash  seq 100")
}

// TestDoing checks that every activity of an agent has its words.
func TestDoing(t *testing.T) {
	t.Parallel()
	s := newSeat(t)
	s.sent("go")
	s.event("agent.retrying", `{"text":"529"}`)
	s.has(s.screen(), "waiting for the model's API: 529")
	s.event("agent.overridden", `{"text":"opencode.json sets model: not used"}`)
	s.has(s.all(), "opencode.json sets model: not used")
	s.event("agent.ready", `{}`)
	s.event("session.status_changed", `{"status":"hung"}`)
	s.has(s.screen(), "no sign of the agent for minutes")
	s.event("session.status_changed", `{"status":"thinking"}`)
	s.event("tool.started", `{"id":"a","tool":"Task","input":{"description":"look"}}`)
	s.event("tool.started", `{"id":"b","parent":"a","tool":"Read","input":{"file_path":"x"}}`)
	s.has(s.screen(), "running 2 tools")
	s.event("message.started", `{"id":"m","parent":"a"}`)
	s.event("message.delta", `{"id":"m","parent":"a","text":"inner\n\nwords\n\n"}`)
	s.event("message.completed", `{"id":"m","parent":"a","text":"inner\n\nwords"}`)
	s.event("tool.completed", `{"id":"b","parent":"a","tool":"Read","text":"x","denied":true,"failed":true}`)
	s.has(s.all(), "  ● Read  x  not allowed")
	s.lacks(s.all(), "inner")
	s.event("done", `{"failed":true,"reason":"broken"}`)
	s.event("session.status_changed", `{"status":"failed"}`)
	s.has(s.all(), "error: the turn failed: broken")
	s.has(s.screen(), "the last turn failed")
	s.event("agent.continued", `{"message":{"id":"own","own":true}}`)
	s.event("file.changed", `{"path":"a"}`)
	s.event("file.changed", `{"path":"b"}`)
	s.event("done", `{}`)
	s.has(s.all(), "the agent continues by itself: no reason given\n\ndone; 2 files changed")
	s.event("repo.synced", `{"synced":{"commits_behind":3}}`)
	s.has(s.all(), "the image was 3 commits behind")
	s.event("repo.synced", `{}`)
	s.event("git.synced", `{}`)
	s.explain = func(e api.SessionEvent) error { return errors.Newf(errors.Denied, "no credit: %s", e.Text) }
	s.event("done", `{"failed":true,"text":"x"}`)
	s.has(s.all(), "error: no credit: x")
}
