package session_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// rude is an agent that speaks the scripted agent's protocol and misbehaves.
type rude struct{ scripted.Agent }

// rudeProgram is the program of rude. A prompt is a word that selects its behaviour.
const rudeProgram = `
import json, os, signal, sys, time
def say(e): print(json.dumps(e), flush=True)
asked = 0
for line in sys.stdin:
    m = json.loads(line)
    if m["op"] == "interrupt":
        say({"type": "done", "failed": True, "interrupted": True, "reason": "interrupted"})
        continue
    # Like Claude Code, it ignores a prompt that its record of the conversation has.
    if os.path.exists("/tmp/record-" + m["id"]): continue
    open("/tmp/record-" + m["id"], "x")
    how = m["text"]
    if how.startswith("Your process crashed"):
        if how.endswith("\n\ncrash") or how.endswith("\n\ncrash of a child"): how = "go on with " + sys.argv[1]
        else: os.kill(os.getpid(), signal.SIGABRT)
    say({"type": "agent.ready", "conversation": "c"})
    if how == "noise":
        sys.stdout.buffer.write(b"this is no JSON\n\xff\xfe\x00\n{\"half\": \n[1, 2]\n\n")
    elif how == "large":
        say({"type": "message.completed", "id": "m", "text": "x" * (50 << 20)})
    elif how == "unended":
        sys.stdout.write("y" * (50 << 20))
        sys.stdout.flush()
        os._exit(0)
    elif how == "silent":
        while not os.path.exists("/tmp/speak"): time.sleep(0.02)
        os.remove("/tmp/speak")
    elif how.startswith("tools"):
        for _ in range(2):
            asked += 1
            say({"type": "agent.asked", "id": "q%d" % asked, "tool": "Bash"})
            if not json.loads(sys.stdin.readline())["answer"]["allow"]: break
    elif how.startswith("crash"):
        say({"type": "agent.asked", "id": "q", "tool": "Bash"})
        if how.endswith("child"): os._exit(128 + signal.SIGSEGV)
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "deaf":
        time.sleep(1000)
    elif how == "hog":
        hog = []
        while True: hog.append(b"z" * (16 << 20))
    say({"type": "done", "text": "did " + how[:20], "reason": "completed"})
`

// Command implements agent.Agent.
func (rude) Command(s agent.Setup) engine.Command {
	return engine.Command{Args: []string{"python3", "-c", rudeProgram, s.Conversation}, Dir: s.Dir, Env: s.Env}
}

// absent is an agent whose program is missing in the image.
type absent struct{ scripted.Agent }

// Command implements agent.Agent.
func (absent) Command(s agent.Setup) engine.Command {
	return engine.Command{Args: []string{"nosuchagent"}, Dir: s.Dir}
}

func newRudeHouse(t *testing.T, opts session.Options) *house {
	t.Helper()
	opts.Agents = map[string]agent.Agent{"scripted": rude{}, "absent": absent{}}
	return newHouse(t, opts)
}

// turn sends a prompt and returns the end of its turn.
func (h *house) turn(t *testing.T, w *watcher, prompt string) seen {
	t.Helper()
	h.send(t, w.id, prompt)
	return w.until(t, "done")
}

// TestAgentCrashes checks that an agent whose process dies of a signal restarts once for each prompt, with its
// conversation.
//
// mission: E1
func TestAgentCrashes(t *testing.T) {
	t.Parallel()
	h := newRudeHouse(t, session.Options{})
	s := h.create(t, session.Request{Approval: agent.ApproveNone})
	w := h.watch(s.ID)
	w.status(t, records.Ready)
	if done := h.turn(t, w, "crash"); done.data.Failed || done.data.Text != "did go on with c" ||
		done.data.Message.Prompt != "crash" {
		t.Errorf("%+v", done.data)
	}
	w.status(t, records.Done)
	if done := h.turn(t, w, "crash of a child"); done.data.Failed || done.data.Text != "did go on with c" {
		t.Errorf("%+v", done.data)
	}
	w.status(t, records.Done)
	h.send(t, w.id, "crash twice")
	h.send(t, w.id, "noise")
	if done := w.until(t, "done"); !done.data.Failed || done.data.Reason != "process_ended" ||
		!strings.Contains(done.data.Text, "SIGABRT") {
		t.Errorf("%+v", done.data)
	}
	if done := w.until(t, "done"); done.data.Failed || done.data.Text != "did noise" {
		t.Errorf("%+v", done.data)
	}
	var all []string
	for _, e := range w.all {
		switch e.typ {
		case records.EventCrashed:
			if !strings.Contains(e.data.Reason, "SIGSEGV") {
				t.Errorf("it crashed, and the reason is %q", e.data.Reason)
			}
			all = append(all, e.typ)
		case records.EventSent, string(agent.Withdrawn), string(agent.Done):
			all = append(all, e.typ)
		}
	}
	crashed := "message.sent agent.crashed agent.withdrawn done "
	want := crashed + crashed + crashed + "message.sent done"
	if got := strings.Join(all, " "); got != want {
		t.Errorf("the events are %s", got)
	}
}

// TestOutputOfAnotherKind checks that output of an agent outside its protocol is reported and blocks nothing: noise, a
// line of 50 MB, and a line without an end.
//
// mission: E1
func TestOutputOfAnotherKind(t *testing.T) {
	t.Parallel()
	h := newRudeHouse(t, session.Options{})
	s := h.create(t, session.Request{})
	w := h.watch(s.ID)
	w.status(t, records.Ready)
	if done := h.turn(t, w, "noise"); done.data.Failed || done.data.Text != "did noise" {
		t.Errorf("%+v", done.data)
	}
	var other []string
	for _, e := range w.all {
		if e.typ == string(agent.Other) {
			other = append(other, string(e.data.Raw))
		}
	}
	if got := strings.Join(other, "|"); len(other) != 4 || !strings.HasPrefix(got, `"this is no JSON"|`) ||
		!strings.HasSuffix(got, `|"{\"half\":"|[1,2]`) {
		t.Errorf("%q", got)
	}
	w.status(t, records.Done)
	if done := h.turn(t, w, "large"); done.data.Failed || done.data.Text != "did large" {
		t.Errorf("%+v", done.data)
	}
	told := w.all[len(w.all)-2]
	for _, e := range w.all {
		if e.typ == string(agent.Other) {
			told = e
		}
	}
	if string(told.data.Raw) != `"a line that is too long"` {
		t.Errorf("of a line of 50 MB: %s %.100s", told.typ, told.data.Raw)
	}
	w.status(t, records.Done)
	if done := h.turn(t, w, "unended"); !done.data.Failed || !strings.Contains(done.data.Text, "without a result") {
		t.Errorf("%+v", done.data)
	}
	w.status(t, records.Failed)
	if done := h.turn(t, w, "well"); done.data.Failed || done.data.Text != "did well" {
		t.Errorf("%+v", done.data)
	}
	w.status(t, records.Done)
}

// TestAgentOutOfMemory checks that an agent that uses up the memory ends with a reason. Its files stay, and the next
// prompt finds them.
//
// mission: A5, E4
func TestAgentOutOfMemory(t *testing.T) {
	t.Parallel()
	h := newRudeHouse(t, session.Options{})
	s := h.create(t, session.Request{Bundle: repository(t), Sandbox: spec.Request{Memory: 256 << 20}})
	w := h.watch(s.ID)
	w.status(t, records.Ready)
	h.sh(t, s.ID, "cd /workspace/work && echo kept >kept")
	first := mustGet(t, h, s.ID).SandboxID
	if done := h.turn(t, w, "hog"); !done.data.Failed || !strings.Contains(done.data.Text, "memory") ||
		done.data.Message.State != records.Broken {
		t.Errorf("%+v", done.data)
	}
	if failed := w.status(t, records.Failed); !strings.Contains(failed.data.Reason, "memory") {
		t.Errorf("%+v", failed.data)
	}
	if done := h.turn(t, w, "well"); done.data.Failed || done.data.Text != "did well" {
		t.Errorf("%+v\n%s", done.data, w)
	}
	wantEqual(t, "file", h.sh(t, s.ID, "cd /workspace/work && cat kept README.md && git branch --show-current"),
		"kept\n# A project\n"+s.WorkBranch())
	if mustGet(t, h, s.ID).SandboxID == first {
		t.Error("the sandbox is the first one")
	}
}

// TestDiskFull checks that a full disk in the middle of a turn fails only the tool. The turn continues, and so does the
// session when there is space again.
//
// mission: A6, E4
func TestDiskFull(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{Bundle: repository(t), Sandbox: spec.Request{Disk: 64 << 20}})
	w := h.watch(s.ID)
	w.status(t, records.Ready)
	done := h.turn(t, w, "/run head -c 500M /dev/zero >zeros\n/write note some text\n/say still here")
	var results []records.Event
	for _, e := range w.all {
		if e.typ == string(agent.ToolCompleted) {
			results = append(results, e.data)
		}
	}
	if done.data.Failed || done.data.Text != "still here" || len(results) != 2 || !results[0].Failed ||
		!strings.Contains(results[0].Text, "No space left on device") || !results[1].Failed {
		t.Errorf("%+v\n%+v", done.data, results)
	}
	w.status(t, records.Done)
	if _, err := h.Diff(t.Context(), account, s.ID, ""); err == nil {
		t.Log("a diff on a full disk works")
	} else if !strings.Contains(err.Error(), "No space left") {
		t.Errorf("a diff on a full disk: %v", err)
	}
	if done := h.turn(t, w,
		"/run rm zeros\n/write note some text\n/run git add -A && git commit -qm Note"); done.data.Failed {
		t.Errorf("%+v", done.data)
	}
	w.status(t, records.Done)
	if diff, err := h.Diff(t.Context(), account, s.ID, ""); err != nil ||
		!strings.Contains(string(diff), "+some text") {
		t.Errorf("%s, %v", diff, err)
	}
}

// TestPromptsAtOnce checks that prompts that many people send at once wait in one queue, and that no two turns run at
// the same time.
//
// mission: E3
func TestPromptsAtOnce(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{})
	w := h.watch(s.ID)
	const many = 20
	var sending sync.WaitGroup
	for i := range many {
		sending.Go(func() {
			prompt := fmt.Sprintf("/run mkdir /tmp/one && echo %d >>/tmp/order && rmdir /tmp/one\n/say %d", i, i)
			if _, _, err := h.Send(t.Context(), account, s.ID, prompt); err != nil {
				t.Error(err)
			}
		})
	}
	sending.Wait()
	var queued, sent, said []string
	at := map[int]int{} // how many prompts had each place in the queue
	for ended := 0; ended < many; {
		e := w.next(t, fmt.Sprintf("the end of turn %d of %d", ended+1, many))
		switch e.typ {
		case records.EventQueued:
			queued = append(queued, e.data.MessageID)
			at[e.data.Position]++
		case records.EventSent:
			if len(sent) != ended {
				t.Fatalf("a turn begins while another one is under way: %s", w)
			}
			sent = append(sent, e.data.MessageID)
		case string(agent.ToolCompleted):
			if e.data.Failed {
				t.Errorf("two at once: %+v", e.data)
			}
		case string(agent.MessageCompleted):
			said = append(said, e.data.Text)
		case "done":
			if e.data.MessageID != sent[len(sent)-1] {
				t.Errorf("the end of another turn: %+v", e.data)
			}
			ended++
		}
	}
	if strings.Join(queued, " ") != strings.Join(sent, " ") || len(queued) != many {
		t.Errorf("queued %q\nsent %q", queued, sent)
	}
	wantEqual(t, "order", strings.Join(strings.Fields(h.sh(t, s.ID, "cat /tmp/order")), " "), strings.Join(said, " "))
}

// TestOddPrompts checks that prompts of any kind arrive unchanged, or are refused with a remedy.
//
// mission: A9, E3
func TestOddPrompts(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{})
	w := h.watch(s.ID)
	w.status(t, records.Ready)
	for _, prompt := range []string{"", " \n\t", "a\x00b", strings.Repeat("x", records.MaxPrompt+1)} {
		if _, _, err := h.Send(t.Context(), account, s.ID, prompt); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%.20q: %v", prompt, err)
		}
	}
	for _, prompt := range []string{
		"a\x1b[31mred\x1b[0m\a\b\x7f \u202e\u2028 b\tc",
		strings.Repeat("long ", records.MaxPrompt/5),
	} {
		if done := h.turn(t, w, prompt); done.data.Failed {
			t.Errorf("%.20q: %.500q", prompt, done.data.Text)
		}
		text := h.sh(t, s.ID, "tail -n 1 SCRIPTED-AGENT.md | wc -c; rm SCRIPTED-AGENT.md")
		if want := fmt.Sprint(len(strings.TrimSpace(prompt)) + 3); text != want {
			t.Errorf("%.20q: %s bytes arrived, want %s", prompt, text, want)
		}
	}
	messages, err := h.Messages(t.Context(), account, s.ID)
	if err != nil || len(messages) != 2 || len(messages[1].Prompt) != records.MaxPrompt/5*5 {
		t.Errorf("%d messages, %v", len(messages), err)
	}
}

// TestHungAgent checks that a silent agent counts as hung until it prints again, and that an agent that ignores an
// interrupt is ended.
//
// mission: E1
func TestHungAgent(t *testing.T) {
	t.Parallel()
	h := newRudeHouse(t, session.Options{HangAfter: 200 * time.Millisecond, StopGrace: 100 * time.Millisecond})
	s := h.create(t, session.Request{})
	w := h.watch(s.ID)
	w.status(t, records.Ready)
	h.send(t, s.ID, "silent")
	if hung := w.status(t, records.Hung); !strings.Contains(hung.data.Reason, "nothing was heard of the agent") {
		t.Errorf("%+v", hung.data)
	}
	if now := mustGet(t, h, s.ID); now.Status != records.Hung || now.Reason == "" {
		t.Errorf("%+v", now)
	}
	h.sh(t, s.ID, "touch /tmp/speak")
	if done := w.until(t, "done"); done.data.Failed || done.data.Text != "did silent" {
		t.Errorf("%+v", done.data)
	}
	w.status(t, records.Done)
	h.send(t, s.ID, "deaf")
	w.status(t, records.Hung)
	if err := h.Stop(t.Context(), account, s.ID); err != nil {
		t.Fatal(err)
	}
	if done := w.until(t, "done"); !done.data.Interrupted || done.data.Message.State != records.Stopped {
		t.Errorf("%+v", done.data)
	}
	w.status(t, records.Done)
	if done := h.turn(t, w, "well"); done.data.Failed || done.data.Text != "did well" {
		t.Errorf("%+v", done.data)
	}
}

// TestHungOverRestart checks that a hung turn stays hung when the server restarts, and can continue.
//
// mission: E4
func TestHungOverRestart(t *testing.T) {
	t.Parallel()
	h := newRudeHouse(t, session.Options{HangAfter: 200 * time.Millisecond})
	s := h.create(t, session.Request{Prompt: "silent"})
	w := h.watch(s.ID)
	w.until(t, string(agent.Ready)) // its last line: a slow agent is hung once before
	w.status(t, records.Hung)
	h.close(t)
	h.open(t)
	if now := mustGet(t, h, s.ID); now.Status != records.Hung {
		t.Errorf("%+v", now)
	}
	h.sh(t, s.ID, "touch /tmp/speak")
	if done := w.until(t, "done"); done.data.Failed || done.data.Text != "did silent" {
		t.Errorf("%+v", done.data)
	}
	w.status(t, records.Done)
}

// TestQuestionsOverRestart checks that an answered question does not reopen when the next server reads the agent's
// output, and that an unanswered question stays open.
//
// mission: E4
func TestQuestionsOverRestart(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{})
	defer h.Attend(t.Context(), account, s.ID)()
	h.send(t, s.ID, "/ask One? | yes\n/run while [ ! -e /tmp/go ]; do sleep 0.05; done\n/ask Two? | yes")
	w := h.watch(s.ID)
	first := w.until(t, string(agent.Asked)).data.ID
	h.close(t)
	h.open(t)
	defer h.Attend(t.Context(), account, s.ID)()
	if now := mustGet(t, h, s.ID); now.Status != records.Thinking && now.Status != records.Waiting {
		t.Errorf("%+v", now)
	}
	yes := func(question string) agent.Answer {
		return agent.Answer{Allow: true, Answers: map[string]string{question: "yes"}}
	}
	w.status(t, records.Waiting)
	if err := h.Answer(t.Context(), account, s.ID, first, yes("One?")); err != nil {
		t.Fatal(err)
	}
	w.status(t, records.RunningTool)
	h.close(t)
	h.open(t)
	defer h.Attend(t.Context(), account, s.ID)()
	if err := h.Answer(t.Context(), account, s.ID, first, yes("One?")); errors.KindOf(err) != errors.NotFound {
		t.Errorf("a question that was answered: %v", err)
	}
	h.sh(t, s.ID, "touch /tmp/go")
	second := w.until(t, string(agent.Asked)).data.ID
	w.status(t, records.Waiting)
	if err := h.Answer(t.Context(), account, s.ID, second, yes("Two?")); err != nil {
		t.Fatal(err)
	}
	w.until(t, "done")
	w.status(t, records.Done)
	waited := 0
	for _, e := range w.all {
		if e.typ == records.EventStatus && e.data.Status == records.Waiting {
			waited++
		}
	}
	if waited != 2 {
		t.Errorf("it waited %d times: %s", waited, w)
	}
	wantEqual(t, "said", strings.Join(w.said(), "|"), "The answer is yes.|The answer is yes.")
}

// TestAllowedForAlways checks that a tool that is always allowed causes no further question, neither in the same turn
// nor after a restart. A denial is not remembered.
//
// mission: E1
func TestAllowedForAlways(t *testing.T) {
	t.Parallel()
	h := newRudeHouse(t, session.Options{})
	s := h.create(t, session.Request{Prompt: "tools denied", Approval: agent.ApproveNone})
	w := h.watch(s.ID)
	answer := func(a agent.Answer) {
		t.Helper()
		id := w.until(t, string(agent.Asked)).data.ID
		w.status(t, records.Waiting)
		if err := h.Answer(t.Context(), account, s.ID, id, a); err != nil {
			t.Fatal(err)
		}
	}
	answer(agent.Answer{Always: true, Message: "no"})
	w.until(t, "done")
	w.status(t, records.Done)
	h.send(t, s.ID, "tools allowed")
	answer(agent.Answer{Allow: true, Always: true})
	w.until(t, "done")
	w.status(t, records.Done)
	h.close(t)
	h.open(t)
	if done := h.turn(t, w, "tools again"); done.data.Failed {
		t.Errorf("%+v", done.data)
	}
	asked, withdrawn := 0, 0
	for _, e := range w.all {
		switch agent.Type(e.typ) {
		case agent.Asked:
			asked++
		case agent.Withdrawn:
			withdrawn++
		}
	}
	if asked != 5 || withdrawn != 5 {
		t.Errorf("asked %d times, answered %d times: %s", asked, withdrawn, w)
	}
	if now := mustGet(t, h, s.ID); len(now.Allowed) != 1 || now.Allowed[0] != "Bash" || len(now.Answered) > 0 {
		t.Errorf("%+v", now)
	}
}

// TestNothingWaitsWhereNothingIsAsked checks that in a session that asks nothing, neither a tool that asks in each mode
// nor a question of the model waits for a person who is not there. A question waits a limited time for a person who is.
//
// mission: E1
func TestNothingWaitsWhereNothingIsAsked(t *testing.T) {
	t.Parallel()
	h := newRudeHouse(t, session.Options{})
	s := h.create(t, session.Request{Prompt: "tools"})
	w := h.watch(s.ID)
	if done := w.until(t, "done"); done.data.Failed || done.data.Text != "did tools" {
		t.Errorf("%+v", done.data)
	}
	for _, e := range w.all {
		if e.typ == string(agent.Withdrawn) && e.data.Text != "allowed" {
			t.Errorf("%+v", e.data)
		}
	}
	if now := mustGet(t, h, s.ID); len(now.Allowed) > 0 {
		t.Errorf("allowed for always: %v", now.Allowed)
	}

	h = newHouse(t, session.Options{QuestionWait: time.Second})
	s = h.create(t, session.Request{Prompt: "/ask Which? | red"})
	w = h.watch(s.ID)
	w.until(t, "done")
	release := h.Attend(t.Context(), account, s.ID)
	h.send(t, s.ID, "/ask And now? | red")
	w.until(t, "done")
	release()
	h.send(t, s.ID, "/ask And now? | red")
	w.until(t, "done")
	const alone = "No answer: No person is there to answer. Decide yourself, and say what you decided."
	want := alone + "|No answer: No person answered within 1s. Decide yourself, and say what you decided.|" + alone
	if said := strings.Join(w.said(), "|"); said != want {
		t.Errorf("said %q", said)
	}
}

// TestAnswersToWhatWasNotAsked checks that an answer must match an open question. Other answers are refused, and the
// question stays open.
//
// mission: E1
func TestAnswersToWhatWasNotAsked(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{})
	defer h.Attend(t.Context(), account, s.ID)()
	h.send(t, s.ID, "/ask Which? | red | blue")
	w := h.watch(s.ID)
	id := w.until(t, string(agent.Asked)).data.ID
	w.status(t, records.Waiting)
	for name, c := range map[string]struct {
		id     string
		answer agent.Answer
		kind   errors.Kind
		text   string
	}{
		"another id": {"ask_99", agent.Answer{Allow: true}, errors.NotFound, `does not wait for an answer to "ask_99"`},
		"no answer":  {id, agent.Answer{Allow: true}, errors.Invalid, `question "Which?": no answer given`},
		"an empty answer": {id, agent.Answer{Allow: true, Answers: map[string]string{"Which?": " "}}, errors.Invalid,
			`question "Which?": no answer given`},
		"another question": {id, agent.Answer{Allow: true, Answers: map[string]string{"Which?": "red", "Why?": "x"}},
			errors.Invalid, `unknown question "Why?"`},
	} {
		err := h.Answer(t.Context(), account, s.ID, c.id, c.answer)
		if errors.KindOf(err) != c.kind || !strings.Contains(errors.Message(err), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := h.Answer(t.Context(), account, s.ID, id,
		agent.Answer{Allow: true, Answers: map[string]string{"Which?": "red"}}); err != nil {
		t.Fatal(err)
	}
	if e := w.until(t, string(agent.Withdrawn)); e.data.Text != "Which? red" {
		t.Errorf("%+v", e.data)
	}
	w.until(t, "done")

	rude := newRudeHouse(t, session.Options{})
	s = rude.create(t, session.Request{Prompt: "tools", Approval: agent.ApproveEdits})
	w = rude.watch(s.ID)
	id = w.until(t, string(agent.Asked)).data.ID
	w.status(t, records.Waiting)
	err := rude.Answer(t.Context(), account, s.ID, id,
		agent.Answer{Allow: true, Answers: map[string]string{"Why?": "x"}})
	if errors.KindOf(err) != errors.Invalid || !strings.Contains(errors.Message(err), `has no question "Why?"`) {
		t.Errorf("answers for a tool: %v", err)
	}
	if err := rude.Answer(t.Context(), account, s.ID, id, agent.Answer{Allow: true, Always: true}); err != nil {
		t.Fatal(err)
	}
	w.until(t, "done")
}

// TestAgentThatIsNotThere checks that an agent that is missing in the image fails its prompts with a reason, and has no
// other effect.
//
// mission: E1
func TestAgentThatIsNotThere(t *testing.T) {
	t.Parallel()
	h := newRudeHouse(t, session.Options{})
	s := h.create(t, session.Request{Agent: "absent", Prompt: "go"})
	w := h.watch(s.ID)
	if done := w.until(t, "done"); !done.data.Failed || done.data.Reason != "not_started" &&
		done.data.Reason != "process_ended" || !strings.Contains(done.data.Text, "nosuchagent") {
		t.Errorf("%+v", done.data)
	}
	w.status(t, records.Failed)
	if done := h.turn(t, w, "again"); !done.data.Failed || done.data.Message.State != records.Broken {
		t.Errorf("%+v", done.data)
	}
}
