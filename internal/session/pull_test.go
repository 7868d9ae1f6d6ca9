package session_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted"
	"github.com/RelevanceAI/harvest/internal/session/pulls"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// writer is an agent that runs its prompts as shell commands. Asked for the text of a pull request, it replies with the
// output of the program /tmp/writes.
type writer struct{ scripted.Agent }

// Modelless reports that sessions may ask it for summaries.
func (writer) Modelless() bool { return false }

const writerProgram = `
import json, subprocess, sys
def say(e): print(json.dumps(e), flush=True)
for line in sys.stdin:
    m = json.loads(line)
    if m["op"] == "interrupt":
        say({"type": "done", "failed": True, "interrupted": True, "reason": "interrupted"})
        continue
    say({"type": "agent.ready", "conversation": "c"})
    own = m["text"].startswith("This request is from Harvest")
    if own:
        open("/tmp/asked", "w").write(m["text"])
        say({"type": "agent.asked", "id": "q", "tool": "AskUserQuestion", "questions": [{"text": "Which?"}]})
        say({"type": "message.completed", "id": "m", "text": json.loads(sys.stdin.readline())["answer"]["message"]})
    text = subprocess.run(["/tmp/writes"] if own else ["sh", "-ec", m["text"]], capture_output=True, text=True).stdout
    if text.strip() != "silence": say({"type": "done", "text": text, "reason": "completed"})
`

// Command implements agent.Agent.
func (writer) Command(s agent.Setup) engine.Command {
	return engine.Command{Args: []string{"python3", "-c", writerProgram}, Dir: s.Dir, Env: s.Env}
}

// writes sets the replies of the writer in a session.
func (h *house) writes(t *testing.T, id, text string) {
	t.Helper()
	h.sh(t, id, fmt.Sprintf("cat >/tmp/writes <<'END'\n#!/bin/sh\ncat <<'TEXT'\n%s\nTEXT\nEND\nchmod 755 /tmp/writes",
		text))
}

// TestPullRequestOfAgent checks that the agent writes the text of a pull request in a turn that is marked in the
// events, by the repository's template; that a later turn updates the text; and that text of people stays.
// mission: E3, E7
func TestPullRequestOfAgent(t *testing.T) {
	t.Parallel()
	g := newGitServer(t)
	template := "## What\n\n<!-- ## no heading -->\n## How it was tested\n"
	g.add("owner/project", map[string]string{"README.md": "one\n", ".github/pull_request_template.md": template})
	g.setTokens(canary)
	v := vault(t, secret.Pairs{"GIT_HOST": g.addr, "GIT_PASSWORD": canary,
		"GITHUB_API_URL": "http://" + g.addr + "/api/v3"})
	h := newHouse(t, session.Options{Secrets: v, Agents: map[string]agent.Agent{"scripted": writer{}}})
	s := h.create(t, session.Request{Repo: g.url("owner/project"), Sandbox: g.reach(),
		Prompt: "echo a >a; git add a; git commit -qm 'Add a'", Limits: records.Limits{Turns: 20}})
	w := h.watch(s.ID)
	w.until(t, "done")
	w.status(t, records.Done)
	h.writes(t, s.ID,
		"```markdown\n# Title: **Add the file a**\n\n## What\n\nA file, with "+canary+
			".\n\n## How it was tested\n\nNot at all.\n```")
	made, err := h.OpenPull(t.Context(), account, s.ID, pulls.Request{})
	if err != nil || !made.New || !made.Draft || made.Summary != pulls.SummaryAgent || made.Note != "" {
		t.Fatalf("%+v, %v", made, err)
	}
	title, body := g.setPull(nil)
	wantEqual(t, "title", title, "Add the file a")
	if !strings.HasPrefix(body, "## What\n\nA file, with ") || strings.Contains(body, canary) ||
		!strings.Contains(body,
			"\n\nNot at all.\n\n---\nThe work of an agent in Harvest session "+s.ID+".\n\n<!-- harvest ses_") {
		t.Errorf("%q", body)
	}
	asked := h.sh(t, s.ID, "cat /tmp/asked")
	for _, want := range []string{"## What\n", "- Add a\n", " a | 1 +"} {
		if !strings.Contains(asked, want) {
			t.Errorf("no %q in the prompt %q", want, asked)
		}
	}
	if sent := w.until(t, records.EventSent).data.Message; sent.Purpose != records.PurposePull {
		t.Errorf("%+v", sent)
	}
	if done := w.until(t, "done").data.Message; done.Purpose != records.PurposePull || done.State != records.Completed {
		t.Errorf("%+v", done)
	}
	if said := w.said(); len(said) != 1 || said[0] != "No person reads this turn. Answer without it." {
		t.Errorf("the answer to its question: %q", said)
	}
	if now := mustGet(t, h, s.ID); now.Turns != 2 || !strings.HasPrefix(now.Title, "echo a") {
		t.Errorf("%+v", now)
	}

	again, err := h.OpenPull(t.Context(), account, s.ID, pulls.Request{})
	if err != nil || again.New || again.Updated || again.Number != 12 || again.Summary != pulls.SummaryKept ||
		mustGet(t, h, s.ID).Turns != 2 {
		t.Errorf("without new commits: %+v, %v", again, err)
	}
	turn := func(text string) {
		t.Helper()
		h.turn(t, w, "echo "+text+" >"+text+"; git add .; git commit -qm 'Add "+text+"'")
		w.status(t, records.Done)
		h.writes(t, s.ID, "Add "+text+"\n\nNo headings: "+text+".")
	}
	turn("b")
	if again, err = h.OpenPull(t.Context(), account, s.ID, pulls.Request{Ready: true}); err != nil ||
		!again.Updated || again.Summary != pulls.SummaryAgent || !strings.Contains(again.Note, "still a draft") {
		t.Errorf("a later turn: %+v, %v", again, err)
	}
	title, body = g.setPull(nil)
	if title != "Add b" || !strings.HasPrefix(body, "No headings: b.\n\n"+strings.TrimSpace(template)+"\n\n---\n") {
		t.Errorf("after it: %q %q", title, body)
	}
	w.until(t, "done")
	w.status(t, records.Done)

	theirs := strings.ReplaceAll(strings.Replace(body, "No headings: b.", "A person's text.", 1), "\n", "\r\n")
	g.setPull(map[string]any{"body": theirs})
	turn("c")
	if again, err = h.OpenPull(t.Context(), account, s.ID, pulls.Request{}); err != nil || !again.Updated {
		t.Errorf("with a person's body: %+v, %v", again, err)
	}
	if title, body = g.setPull(nil); title != "Add c" || !strings.HasPrefix(body, "A person's text.\r\n") {
		t.Errorf("after it: %q %q", title, body)
	}
	g.setPull(map[string]any{"title": "A person's title"})
	h.send(t, s.ID, "true")
	w.until(t, "done")
	w.until(t, "done")
	w.status(t, records.Done)
	before := mustGet(t, h, s.ID).Turns
	again, err = h.OpenPull(t.Context(), account, s.ID, pulls.Request{Body: "Mine."})
	if err != nil || again.Summary != pulls.SummaryGiven || mustGet(t, h, s.ID).Turns != before {
		t.Errorf("with a given body: %+v, %v", again, err)
	}
	if title, body = g.setPull(nil); title != "A person's title" || !strings.HasPrefix(body, "Mine.\n") ||
		strings.Count(body, "<!-- harvest") != 1 {
		t.Errorf("after it: %q %q", title, body)
	}
}

// TestPullRequestWithoutSummary checks that a pull request lists the commits and says why when the agent cannot write
// its text in time, at all, or within its limits. A text that the agent wrote earlier stays.
// mission: E3, E7
func TestPullRequestWithoutSummary(t *testing.T) {
	t.Parallel()
	g := newGitServer(t)
	g.add("owner/project", map[string]string{"README.md": "one\n"})
	g.setTokens(canary)
	v := vault(t, secret.Pairs{"GIT_HOST": g.addr, "GIT_PASSWORD": canary,
		"GITHUB_API_URL": "http://" + g.addr + "/api/v3"})
	opts := session.Options{Secrets: v, Agents: map[string]agent.Agent{"scripted": writer{},
		"modelless": scripted.Agent{}}}
	h := newHouse(t, opts)
	opts.SummaryWait = time.Millisecond
	hasty := newHouse(t, opts)
	for name, c := range map[string]struct {
		agent, reply, want string
		turns              int
		none               bool
	}{
		"no model":      {agent: "modelless", want: "the agent has no model"},
		"too slow":      {reply: "silence", want: "exceeded 1ms"},
		"title only":    {reply: "Title", want: "no description"},
		"no turns left": {reply: "Title\n\nText", turns: 1, want: "limit of 1 turns"},
		"not wanted":    {reply: "Title\n\nText", none: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := h
			if c.reply == "silence" {
				h = hasty
			}
			s := h.create(t, session.Request{Repo: g.url("owner/project"), Sandbox: g.reach(), Agent: c.agent,
				Limits: records.Limits{Turns: c.turns}})
			w := h.watch(s.ID)
			if c.agent == "" {
				w.status(t, records.Ready)
				h.send(t, s.ID, "echo a >a; git add a; git commit -qm 'Add a'")
				h.writes(t, s.ID, c.reply)
			} else {
				h.send(t, s.ID, "/run echo a >a; git add a; git commit -qm 'Add a'")
			}
			w.until(t, "done")
			w.status(t, records.Done)
			g.mu.Lock()
			g.pull = nil
			g.mu.Unlock()
			made, err := h.OpenPull(t.Context(), account, s.ID, pulls.Request{NoSummary: c.none})
			if err != nil || made.Summary != pulls.SummaryCommits || !strings.Contains(made.Note, c.want) ||
				(made.Note == "") != (c.want == "") {
				t.Fatalf("%+v, %v", made, err)
			}
			if title, body := g.setPull(nil); title != mustGet(t, h, s.ID).Title ||
				!strings.HasPrefix(body, "- Add a\n\n---\n") {
				t.Errorf("%q %q", title, body)
			}
			if c.reply == "silence" {
				w.until(t, "done")
			}
			if err := h.End(t.Context(), account, s.ID); err != nil {
				t.Error(err)
			}
			if _, err := h.OpenPull(t.Context(), account, s.ID,
				pulls.Request{}); errors.KindOf(err) != errors.Gone {
				t.Errorf("after the end: %v", err)
			}
		})
	}
	s := h.create(t, session.Request{Repo: g.url("owner/project"), Sandbox: g.reach()})
	h.watch(s.ID).status(t, records.Ready)
	for name, req := range map[string]pulls.Request{
		"a long title":   {Title: strings.Repeat("x", 300)},
		"a title's line": {Title: "a\nb"},
		"a long body":    {Body: strings.Repeat("x", 70_000)},
	} {
		if _, err := h.OpenPull(t.Context(), account, s.ID, req); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	g.mu.Lock()
	g.pull = nil
	g.mu.Unlock()
	if _, err := h.OpenPull(t.Context(), account, s.ID, pulls.Request{}); errors.KindOf(err) != errors.Conflict ||
		mustGet(t, h, s.ID).Turns > 0 {
		t.Errorf("without changes: %v", err)
	}
}
