package program_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted/program"
)

// talk is a running program.
type talk struct {
	agent.Conversation
	dir    string
	in     *io.PipeWriter
	events chan agent.Event
	code   chan int
	stderr bytes.Buffer // read it after code
}

func start(t *testing.T) *talk {
	t.Helper()
	a := scripted.Agent{}
	setup := agent.Setup{Dir: t.TempDir(), Conversation: "c"}
	stdin, in := io.Pipe()
	out, stdout := io.Pipe()
	w := &talk{Conversation: a.Open(setup), dir: setup.Dir, in: in, events: make(chan agent.Event, 1000),
		code: make(chan int, 1)}
	go func() {
		w.code <- program.Main(context.WithoutCancel(t.Context()), a.Command(setup).Args[1:], stdin, stdout, &w.stderr)
		stdout.Close()
	}()
	go func() {
		defer close(w.events)
		text, _ := io.ReadAll(io.TeeReader(out, lines(func(line []byte) {
			for _, e := range w.Decode(line) {
				w.events <- e
			}
		})))
		_ = text
	}()
	t.Cleanup(func() { in.Close() })
	return w
}

// lines is a writer that passes on each line.
func lines(tell func(line []byte)) io.Writer {
	var rest []byte
	return writer(func(b []byte) (int, error) {
		rest = append(rest, b...)
		for {
			i := bytes.IndexByte(rest, '\n')
			if i < 0 {
				return len(b), nil
			}
			tell(rest[:i])
			rest = rest[i+1:]
		}
	})
}

type writer func(b []byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

func (w *talk) send(t *testing.T, line []byte) {
	t.Helper()
	if _, err := w.in.Write(line); err != nil {
		t.Fatal(err)
	}
}

// until returns the events up to one of that type.
func (w *talk) until(t *testing.T, last agent.Type) []agent.Event {
	t.Helper()
	var all []agent.Event
	for e := range w.events {
		all = append(all, e)
		if e.Type == last {
			return all
		}
	}
	t.Fatalf("the program ended before %s: %+v", last, all)
	return nil
}

func find(events []agent.Event, typ agent.Type) agent.Event {
	for _, e := range events {
		if e.Type == typ {
			return e
		}
	}
	return agent.Event{}
}

// A plain prompt is answered, honestly, and leaves something to hand back.
func TestPlain(t *testing.T) {
	t.Parallel()
	w := start(t)
	for i, want := range []string{"- say hello\n", "- say hello\n- and\n  again\n"} {
		w.send(t, w.Prompt("p", []string{"say hello", "and\nagain"}[i]))
		events := w.until(t, agent.Done)
		if ready := events[0]; ready.Type != agent.Ready || ready.Conversation != "c" || ready.Model != scripted.Model {
			t.Errorf("%+v", ready)
		}
		if said := find(events, agent.MessageCompleted); !strings.Contains(said.Text, "no model is at work") {
			t.Errorf("%+v", said)
		}
		if changed := find(events, agent.FileChanged); changed.Path != filepath.Join(w.dir, program.File) ||
			changed.Created != (i == 0) {
			t.Errorf("%+v", changed)
		}
		if text, err := os.ReadFile(filepath.Join(w.dir, program.File)); err != nil || string(text) != want {
			t.Errorf("%q, %v", text, err)
		}
	}
	w.in.Close()
	if code := <-w.code; code != 0 {
		t.Errorf("exit %d: %s", code, w.stderr.String())
	}
}

func TestOrders(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.send(t, w.Prompt("p", "/think hm\n/say one two\n/run echo out; echo err >&2; exit 3\n/write d/f.txt some text\n"))
	var got []agent.Event
	for _, e := range w.until(t, agent.Done) {
		if e.Type != agent.ToolOutput { // whether both streams come as one piece depends
			got = append(got, e)
		}
	}
	want := []agent.Event{
		{Type: agent.Ready, Conversation: "c", Model: scripted.Model},
		{Type: agent.MessageStarted, ID: "msg_1", Thinking: true},
		{Type: agent.MessageDelta, ID: "msg_1", Text: "hm"},
		{Type: agent.MessageCompleted, ID: "msg_1", Text: "hm", Thinking: true},
		{Type: agent.MessageStarted, ID: "msg_2"},
		{Type: agent.MessageDelta, ID: "msg_2", Text: "one "},
		{Type: agent.MessageDelta, ID: "msg_2", Text: "two"},
		{Type: agent.MessageCompleted, ID: "msg_2", Text: "one two"},
		{Type: agent.ToolStarted, ID: "call_3", Tool: "Bash",
			Input: json.RawMessage(`{"command":"echo out; echo err \u003e\u00262; exit 3"}`)},
		{Type: agent.ToolCompleted, ID: "call_3", Tool: "Bash", Text: "out\nerr\nexit status 3", Failed: true},
		{Type: agent.ToolStarted, ID: "call_4", Tool: "Write",
			Input: json.RawMessage(`{"content":"some text\n","file_path":"d/f.txt"}`)},
		{Type: agent.ToolCompleted, ID: "call_4", Tool: "Write", Text: "written"},
		{Type: agent.FileChanged, ID: "call_4", Path: filepath.Join(w.dir, "d/f.txt"), Created: true},
		{Type: agent.Done, Text: "one two", Reason: "completed", Usage: &agent.Usage{}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if text, err := os.ReadFile(filepath.Join(w.dir, "d/f.txt")); err != nil || string(text) != "some text\n" {
		t.Errorf("%q, %v", text, err)
	}
	w.send(t, w.Prompt("p", "/write "+w.dir+"/d/f.txt/below x"))
	if done := find(w.until(t, agent.Done), agent.ToolCompleted); !done.Failed {
		t.Errorf("%+v", done)
	}
}

// TestFailures checks that failed turns report the reason, and that the next one works.
func TestFailures(t *testing.T) {
	t.Parallel()
	w := start(t)
	for prompt, want := range map[string]string{
		"/fail out of luck": "out of luck", "/odd": "does not know /odd; it knows /say", "/sleep long": "/sleep needs",
		"/exit now": "/exit needs",
	} {
		w.send(t, w.Prompt("p", prompt))
		events := w.until(t, agent.Done)
		if done := events[len(events)-1]; !done.Failed || !strings.Contains(done.Text, want) {
			t.Errorf("%s: %+v", prompt, done)
		}
	}
	w.send(t, w.Prompt("p", "/exit 7"))
	if code := <-w.code; code != 7 {
		t.Errorf("exit %d", code)
	}
}

// An interrupt ends the turn with all that runs in it; prompts that were sent meanwhile follow.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	for _, prompt := range []string{"/sleep 600", "/run echo begun; sleep 600 & sleep 600", "/ask Sure? | yes"} {
		w := start(t)
		w.send(t, w.Prompt("p", "/say begun\n"+prompt))
		w.send(t, w.Prompt("q", "/say next"))
		w.until(t, agent.MessageCompleted)
		w.send(t, w.Interrupt())
		events := w.until(t, agent.Done)
		if done := events[len(events)-1]; !done.Interrupted || !done.Failed {
			t.Errorf("%s: %+v", prompt, done)
		}
		if events := w.until(t, agent.Done); find(events, agent.MessageCompleted).Text != "next" {
			t.Errorf("%s: %+v", prompt, events)
		}
	}
}

func TestAsk(t *testing.T) {
	t.Parallel()
	w := start(t)
	for want, answer := range map[string]agent.Answer{
		"The answer is blue.": {Allow: true, Answers: map[string]string{"Which?": "blue"}},
		"No answer: later":    {Message: "later"},
	} {
		w.send(t, w.Prompt("p", "/ask Which? | red | blue"))
		events := w.until(t, agent.Asked)
		ask := events[len(events)-1]
		if diff := cmp.Diff([]agent.Question{{Text: "Which?",
			Options: []agent.Option{{Label: "red"}, {Label: "blue"}}}}, ask.Questions); diff != "" {
			t.Error(diff)
		}
		stale, err := json.Marshal(scripted.Request{Op: "answer", ID: "ask_0", Answer: &answer})
		if err != nil {
			t.Fatal(err)
		}
		w.send(t, append(stale, '\n'))
		line, err := w.Answer(ask.ID, answer)
		if err != nil {
			t.Fatal(err)
		}
		w.send(t, line)
		if said := find(w.until(t, agent.Done), agent.MessageCompleted); said.Text != want {
			t.Errorf("%q, want %q", said.Text, want)
		}
		if _, err := w.Answer(ask.ID, answer); errors.KindOf(err) != errors.NotFound {
			t.Errorf("a second answer: %v", err)
		}
	}
}

func TestApproveAsASubAgent(t *testing.T) {
	t.Parallel()
	w := start(t)
	for want, answer := range map[string]agent.Answer{"ran\n": {Allow: true}, "Denied: no": {Message: "no"}} {
		w.send(t, w.Prompt("p", "/agent explore /approve echo ran"))
		events := w.until(t, agent.Asked)
		call, ask := find(events, agent.ToolStarted), events[len(events)-1]
		const task = `{"description":"approve echo ran","subagent_type":"explore"}`
		if call.Tool != "Task" || string(call.Input) != task ||
			call.Parent != "" || ask.Parent != call.ID || ask.Tool != "Bash" ||
			string(ask.Input) != `{"command":"echo ran"}` {
			t.Errorf("the sub-agent is %+v, the question %+v", call, ask)
		}
		line, err := w.Answer(ask.ID, answer)
		if err != nil {
			t.Fatal(err)
		}
		w.send(t, line)
		events = w.until(t, agent.Done)
		said := find(events, agent.MessageCompleted)
		if !answer.Allow && (said.Text != want || said.Parent != call.ID) {
			t.Errorf("after a denial: %+v", said)
		}
		if ran := find(events, agent.ToolCompleted); answer.Allow && (ran.Text != want || ran.Parent != call.ID) {
			t.Errorf("after the approval: %+v", ran)
		}
		if end := events[len(events)-2]; end.Type != agent.ToolCompleted || end.ID != call.ID || end.Parent != "" {
			t.Errorf("the end of the sub-agent: %+v", end)
		}
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	var out, stderr bytes.Buffer
	if code := program.Main(t.Context(), []string{"-odd"}, strings.NewReader(""), &out, &stderr); code != 2 ||
		!strings.Contains(stderr.String(), "-odd") {
		t.Errorf("%d, %s", code, stderr.String())
	}
	stderr.Reset()
	if code := program.Main(t.Context(), nil, strings.NewReader("no JSON\n"), &out, &stderr); code != 1 ||
		!strings.Contains(stderr.String(), "invalid request") {
		t.Errorf("%d, %s", code, stderr.String())
	}
	c := scripted.Agent{}.Open(agent.Setup{})
	for _, line := range []string{"noise", `{"x":1}`} {
		if got := c.Decode([]byte(line)); len(got) != 1 || got[0].Type != agent.Other {
			t.Errorf("%s: %+v", line, got)
		}
	}
	if got := c.Decode([]byte(" \n")); got != nil || c.Begin() != nil || (scripted.Agent{}).Name() != "scripted" {
		t.Errorf("%+v", got)
	}
}
