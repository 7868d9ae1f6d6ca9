package session_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/reserve"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/debian"
	"github.com/RelevanceAI/harvest/internal/image/imagetest"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted"
	"github.com/RelevanceAI/harvest/internal/session/github"
	"github.com/RelevanceAI/harvest/internal/session/inbox"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
	"github.com/RelevanceAI/harvest/internal/store"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

func TestMain(m *testing.M) {
	if dir := testenv.CoverDir(); dir != "" {
		_ = os.Setenv("GOCOVERDIR", dir) // for programs in sandboxes
	}
	if os.Getenv("HARVEST_TEST_LOG") == "" {
		logf.Setup(io.Discard, 0, false)
	}
	os.Exit(m.Run())
}

const account = "personal"

// house is a server's set of packages on a data directory, with real sandboxes. Its stored data outlives a restart.
type house struct {
	boots    int // at once
	quotas   reserve.Quotas
	dir      string
	images   string
	opts     session.Options // in addition to open's own
	rented   *provider       // whose the sandboxes are; nil for our own
	events   store.Events
	sessions store.Sessions
	boxes    store.Sandboxes
	items    store.Inbox

	inbox   *inbox.Box
	fleet   *fleet.Fleet
	journal *event.Journal
	engine  *gvisor.Engine
	volumes *volume.Local
	*session.Manager
}

func newHouse(t *testing.T, opts session.Options) *house {
	t.Helper()
	return newHouseOf(t, opts, nil)
}

func newHouseOf(t *testing.T, opts session.Options, rented *provider) *house {
	t.Helper()
	db := testdb.Open(t)
	h := &house{dir: testenv.DataDir(t), opts: opts, rented: rented, events: db.Events(),
		sessions: db.Sessions(), boxes: db.Sandboxes(), items: db.Inbox()}
	h.images = t.TempDir() // apart: a library's locks last as long as the process, also when the test plays a restart
	copyImages(t, h.images)
	h.open(t)
	t.Cleanup(func() {
		list, err := h.List(context.Background(), account, session.Filter{})
		if err != nil {
			t.Error(err)
		}
		for _, s := range list {
			if err := h.End(context.Background(), account, s.ID); err != nil {
				t.Error(err)
			}
		}
		h.close(t)
	})
	return h
}

// copyImages makes a separate library, since sessions add images to theirs.
func copyImages(t *testing.T, dir string) {
	t.Helper()
	shared := imagetest.Library(t)
	from := filepath.Dir(shared.Root(imagetest.Base(t, shared)))
	to := filepath.Join(dir, filepath.Base(from))
	if err := os.MkdirAll(to, 0o700); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.Link(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			if out, err := exec.CommandContext(t.Context(), "cp", "-a", filepath.Join(from, e.Name()),
				to).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	}
}

func (h *house) open(t *testing.T) {
	t.Helper()
	images, err := image.OpenLibrary(h.images,
		image.Sources{Named: map[string]image.Source{"base": debian.New(debian.Options{CertificateDir: imagetest.Certificates})}})
	if err != nil {
		t.Fatal(err)
	}
	if h.volumes, err = volume.OpenDir(filepath.Join(h.dir, "volumes")); err != nil {
		t.Fatal(err)
	}
	h.engine, err = gvisor.Open(t.Context(), gvisor.Options{Dir: h.dir, Images: images, Volumes: h.volumes,
		Executable: testenv.Binary(t)})
	if err != nil {
		t.Fatal(err)
	}
	h.journal = event.Open(context.WithoutCancel(t.Context()), event.Options{Store: h.events})
	if h.inbox, err = inbox.Open(t.Context(), inbox.Options{Store: h.items, Journal: h.journal}); err != nil {
		t.Fatal(err)
	}
	boxes := fleet.Options{Engine: h.engine, Store: h.boxes, Boots: h.boots, Quotas: h.quotas,
		Event: record.Publish(context.WithoutCancel(t.Context()), h.journal)}
	if h.rented != nil {
		h.rented.Engine = h.engine
		boxes.Engine, boxes.Event = h.rented, h.rented.note
	}
	if h.fleet, err = fleet.Open(t.Context(), boxes); err != nil {
		t.Fatal(err)
	}
	opts := h.opts
	opts.Fleet, opts.Journal, opts.Store, opts.Image, opts.Default = h.fleet, h.journal, h.sessions, "base", "scripted"
	opts.Volumes, opts.Inbox = h.volumes, h.inbox
	if opts.GitHub == nil { // stubs of GitHub are on this machine
		opts.GitHub = func(string) *http.Client { return netguard.Rules{Any: true}.Client(github.Timeout) }
	}
	if opts.Agents == nil {
		opts.Agents = map[string]agent.Agent{"scripted": scripted.Agent{}}
	}
	if h.Manager, err = session.Open(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
}

// close stops the server. Sandboxes and agents keep running.
func (h *house) close(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	h.Manager.Close()
	h.inbox.Close()
	if err := errors.Join(h.fleet.Close(ctx), h.journal.Close(ctx), h.engine.Close(), h.volumes.Close()); err != nil {
		t.Error(err)
	}
}

func (h *house) create(t *testing.T, req session.Request) records.Session {
	t.Helper()
	s, err := h.Create(t.Context(), account, req)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (h *house) send(t *testing.T, id, prompt string) records.Message {
	t.Helper()
	m, _, err := h.Send(t.Context(), account, id, prompt)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// seen is an event as a client receives it.
type seen struct {
	id   int64
	typ  string
	data records.Event
}

// watcher reads a session's events.
type watcher struct {
	h     *house
	id    string
	after int64
	got   []seen // read and not yet asked for
	all   []seen
}

func (h *house) watch(id string) *watcher { return &watcher{h: h, id: id} }

// next returns the next event. awaited describes the event that the caller waits for, for the case that no event comes.
func (w *watcher) next(t *testing.T, awaited string) seen {
	t.Helper()
	for len(w.got) == 0 {
		r, err := w.h.journal.Subscribe(t.Context(), w.id, w.after)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Limit)
		batch, err := r.Next(ctx)
		cancel()
		r.Close()
		if err != nil {
			t.Fatalf("awaited %s, and no further event came within %s: %v. The events were:\n%s", awaited,
				testenv.Limit,
				err, w)
		}
		for _, e := range batch {
			if e.ID != w.after+1 {
				t.Fatalf("event %d follows %d", e.ID, w.after)
			}
			w.after = e.ID
			s := seen{id: e.ID, typ: e.Type}
			if err := json.Unmarshal(e.Data, &s.data); err != nil {
				t.Fatal(err)
			}
			w.got, w.all = append(w.got, s), append(w.all, s)
		}
	}
	s := w.got[0]
	w.got = w.got[1:]
	return s
}

// until returns the next event of that type.
func (w *watcher) until(t *testing.T, typ string) seen {
	t.Helper()
	for {
		if e := w.next(t, "an event "+typ); e.typ == typ {
			return e
		}
	}
}

// status waits for a state.
func (w *watcher) status(t *testing.T, want records.Status) seen {
	t.Helper()
	for {
		e := w.next(t, "the status "+string(want))
		if (e.typ == records.EventStatus || e.typ == records.EventEnded) && e.data.Status == want {
			return e
		}
	}
}

func (w *watcher) String() string {
	var b strings.Builder
	for _, e := range w.all {
		data, err := json.Marshal(e.data)
		b.WriteString(e.typ + " " + string(data) + "\n")
		if err != nil {
			b.WriteString(err.Error())
		}
	}
	return b.String()
}

// said returns the agent's text so far, from the events.
func (w *watcher) said() []string {
	var all []string
	for _, e := range w.all {
		if e.typ == string(agent.MessageCompleted) {
			all = append(all, e.data.Text)
		}
	}
	return all
}

// repository makes a git repository with one commit and returns it as a bundle.
func repository(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	git := func(args ...string) []byte {
		cmd := exec.CommandContext(t.Context(), "git",
			append([]string{"-C", dir, "-c", "user.name=T", "-c", "user.email=t@example.org", "-c",
				"init.defaultBranch=main"}, args...)...)
		cmd.Env = testenv.CleanEnv()
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("git %v: %v", args, err)
		}
		return out
	}
	git("init", "-q")
	if err := os.WriteFile(filepath.Join(dir, "README.md"), []byte("# A project\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	git("add", "-A")
	git("commit", "-q", "-m", "one")
	return git("bundle", "create", "-q", "-", "HEAD", "main")
}

// A prompt changes a file of the repository, and the change comes back as a patch.
// mission: E3, E10
func TestTurn(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{Repo: "https://example.org/owner/project.git", Bundle: repository(t),
		Prompt: "say hello\n/run git log -1 --format=%s; git branch --show-current; git remote -v | head -1"})
	if s.Status != records.Creating || s.Dir != "/workspace/project" || !strings.HasPrefix(s.Title, "say hello") {
		t.Errorf("%+v", s)
	}
	w := h.watch(s.ID)
	done := w.until(t, "done")
	if done.data.Failed || done.data.Message == nil || done.data.Message.State != records.Completed {
		t.Errorf("%s", w)
	}
	w.status(t, records.Done)
	var output string
	var stages []string
	for _, e := range w.all {
		if e.typ == string(agent.ToolCompleted) && e.data.Tool == "Bash" {
			output = e.data.Text
			if e.data.Took <= 0 || e.data.Took > 60_000 {
				t.Errorf("it took %v ms", e.data.Took)
			}
		}
		if e.data.Stage != nil {
			stages = append(stages, e.data.Stage.Name)
		}
	}
	want := "one\n" + s.WorkBranch() + "\norigin\thttps://example.org/owner/project.git (fetch)\n"
	if output != want {
		t.Errorf("%q, want %q", output, want)
	}
	if got := strings.Join(stages, " "); got != "sandbox directories repository" {
		t.Errorf("stages %q", got)
	}
	diff, err := h.Diff(t.Context(), account, s.ID, "")
	if err != nil || !bytes.Contains(diff, []byte("+++ b/SCRIPTED-AGENT.md")) ||
		!bytes.Contains(diff, []byte("+- say hello")) {
		t.Errorf("%s, %v", diff, err)
	}
	again, _, err := h.Bundle(t.Context(), account, s.ID, "")
	if err != nil || !bytes.HasPrefix(again, []byte("# v2 git bundle\n-"+mustGet(t, h, s.ID).Base)) {
		t.Errorf("%.100q, %v", again, err)
	}
	now, err := h.Get(t.Context(), account, s.ID[:12])
	if err != nil || now.Turns != 1 || now.Base == "" || now.Model != scripted.Model {
		t.Errorf("%+v, %v", now, err)
	}
	if err := h.End(t.Context(), account, s.ID); err != nil {
		t.Fatal(err)
	}
	if err := h.End(t.Context(), account, s.ID); err != nil {
		t.Errorf("again: %v", err)
	}
	if now, err := h.Get(t.Context(), account, s.ID); err != nil || now.Status != records.Ended || now.Ended.IsZero() {
		t.Errorf("%+v, %v", now, err)
	}
	if _, _, err := h.Send(t.Context(), account, s.ID, "more"); errors.KindOf(err) != errors.Gone {
		t.Errorf("a prompt for a session that has ended: %v", err)
	}
	if list, err := h.fleet.List(t.Context(), account, record.Filter{}); err != nil || len(list) != 0 {
		t.Errorf("sandboxes stay: %v, %v", list, err)
	}
}

// TestQueue checks that prompts wait in order, can be cancelled, and follow one another, that a turn can be stopped,
// and that a question can be answered.
// mission: E3
func TestQueue(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{})
	w := h.watch(s.ID)
	w.status(t, records.Ready)
	defer h.Attend(t.Context(), account, s.ID)()
	if _, _, err := h.Bundle(t.Context(), account, s.ID, ""); errors.KindOf(err) != errors.Conflict {
		t.Errorf("a bundle of nothing: %v", err)
	}
	h.send(t, s.ID, "/say one\n/run sleep 600 & sleep 600")
	w.status(t, records.RunningTool)
	h.send(t, s.ID, "/say two")
	gone := h.send(t, s.ID, "/say three")
	h.send(t, s.ID, "/ask Which? | red | blue")
	if err := h.Cancel(t.Context(), account, s.ID, gone.ID); err != nil {
		t.Fatal(err)
	}
	if err := h.Cancel(t.Context(), account, s.ID, gone.ID); errors.KindOf(err) != errors.NotFound {
		t.Errorf("again: %v", err)
	}
	if err := h.Stop(t.Context(), account, s.ID); err != nil {
		t.Fatal(err)
	}
	if done := w.until(t, "done"); !done.data.Interrupted || done.data.Message.State != records.Stopped {
		t.Errorf("%+v", done)
	}
	asked := w.until(t, string(agent.Asked))
	w.status(t, records.Waiting)
	if err := h.Answer(t.Context(), account, s.ID, asked.data.ID,
		agent.Answer{Allow: true, Answers: map[string]string{"Which?": "blue"}}); err != nil {
		t.Fatal(err)
	}
	if err := h.Answer(t.Context(), account, s.ID, asked.data.ID,
		agent.Answer{}); errors.KindOf(err) != errors.NotFound {
		t.Errorf("again: %v", err)
	}
	w.until(t, "done")
	w.status(t, records.Done)
	if got := strings.Join(w.said(), "|"); got != "one|two|The answer is blue." {
		t.Errorf("%q", got)
	}
	if err := h.Stop(t.Context(), account, s.ID); errors.KindOf(err) != errors.Conflict {
		t.Errorf("stop without a turn: %v", err)
	}
	messages, err := h.Messages(t.Context(), account, s.ID)
	var states []string
	for _, m := range messages {
		states = append(states, string(m.State))
	}
	if got := strings.Join(states, " "); err != nil || got != "stopped completed cancelled completed" {
		t.Errorf("%s, %v", got, err)
	}
}

// TestRestart checks that a turn continues when the server stops in the middle of it, and that the stream resumes at
// the same place.
// mission: E4
func TestRestart(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	s := h.create(t,
		session.Request{Prompt: "/say before\n/run while [ ! -e /tmp/go ]; do sleep 0.05; done; echo went on\n/say " +
			"after"})
	w := h.watch(s.ID)
	w.until(t, string(agent.ToolStarted))
	h.send(t, s.ID, "/say next")
	h.close(t)
	h.open(t)
	x, err := h.fleet.Exec(t.Context(), account, mustGet(t, h, s.ID).SandboxID,
		fleet.ExecRequest{Args: []string{"touch", "/tmp/go"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.until(t, "done")
	w.until(t, "done")
	w.status(t, records.Done)
	if got := strings.Join(w.said(), "|"); got != "before|after|next" {
		t.Errorf("%q\n%s", got, w)
	}
	if now := mustGet(t, h, s.ID); now.Turns != 2 {
		t.Errorf("%+v", now)
	}
}

// TestRestartAtOnce checks that a server that stops before it has found the agent again does not take it for dead.
func TestRestartAtOnce(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{Prompt: "/run while [ ! -e /tmp/go ]; do sleep 0.05; done\n/say after"})
	w := h.watch(s.ID)
	w.until(t, string(agent.ToolStarted))
	for range 3 {
		h.close(t)
		h.open(t)
	}
	h.sh(t, s.ID, "touch /tmp/go")
	if done := w.until(t, "done"); done.data.Failed || done.data.Text != "after" {
		t.Errorf("%+v", done.data)
	}
}

func mustGet(t *testing.T, h *house, id string) records.Session {
	t.Helper()
	s, err := h.Get(t.Context(), account, id)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestAgentEnds checks that a turn fails if its agent exits in the middle of it, with any exit code, and that the next
// prompt starts the agent again.
// mission: E1
func TestAgentEnds(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{Prompt: "/exit 0"})
	w := h.watch(s.ID)
	if done := w.until(t, "done"); !done.data.Failed || done.data.Message.State != records.Broken ||
		!strings.Contains(done.data.Text, "without a result") {
		t.Errorf("%+v", done)
	}
	w.status(t, records.Failed)
	h.send(t, s.ID, "/say again")
	w.until(t, "done")
	w.status(t, records.Done)
	if got := w.said(); len(got) != 1 || got[0] != "again" {
		t.Errorf("%q", got)
	}
}

// A sandbox that is gone is replaced by one with its last files.
// mission: E4, A5
func TestSandboxEnds(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{Bundle: repository(t), Prompt: "remember this"})
	w := h.watch(s.ID)
	w.status(t, records.Done)
	first := mustGet(t, h, s.ID).SandboxID
	if err := h.fleet.Destroy(t.Context(), account, first); err != nil {
		t.Fatal(err)
	}
	h.send(t, s.ID, "/run cat SCRIPTED-AGENT.md; git branch --show-current")
	var output string
	for done := false; !done; {
		e := w.next(t, "the end of the turn")
		done = e.typ == "done"
		if e.typ == string(agent.ToolCompleted) {
			output = e.data.Text
		}
	}
	if want := "- remember this\n" + s.WorkBranch() + "\n"; output != want {
		t.Errorf("%q, want %q\n%s", output, want, w)
	}
	if now := mustGet(t, h, s.ID); now.SandboxID == first {
		t.Error("the sandbox is the first one")
	}
}

// TestLimits checks that turns end at the session's limits, and that a silent agent counts as hung, not as thinking.
func TestLimits(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{ToolHangAfter: 300 * time.Millisecond})
	// Two sessions: on a slow machine the limit of one could come before it hangs.
	quiet := h.create(t, session.Request{Prompt: "/run sleep 600"})
	if hung := h.watch(quiet.ID).status(t, records.Hung); !strings.Contains(hung.data.Reason, "nothing was heard") {
		t.Errorf("%+v", hung)
	}
	s := h.create(t, session.Request{Limits: records.Limits{Turns: 2, Seconds: 2}, Prompt: "/run sleep 600"})
	w := h.watch(s.ID)
	if done := w.until(t, "done"); !strings.Contains(done.data.Reason, "limit of 2 s") ||
		done.data.Message.State != records.Stopped {
		t.Errorf("%+v", done)
	}
	h.send(t, s.ID, "/say two")
	if _, _, err := h.Send(t.Context(), account, s.ID, "three"); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("%v", err)
	}
}

// TestCloneFails checks that a session whose repository cannot be cloned fails with the reason and leaves nothing.
// mission: A9
func TestCloneFails(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{Repo: "file:///nosuch/repository", Prompt: "go"})
	w := h.watch(s.ID)
	ended := w.until(t, records.EventEnded)
	if ended.data.Status != records.Failed || !strings.Contains(ended.data.Reason, "repository") ||
		!strings.Contains(ended.data.Reason, "could not be cloned") {
		t.Errorf("%+v", ended)
	}
	if now := mustGet(t, h, s.ID); now.Status != records.Failed || now.Ended.IsZero() {
		t.Errorf("%+v", now)
	}
	if messages, err := h.Messages(t.Context(), account, s.ID); err != nil || len(messages) != 1 ||
		messages[0].State != records.Cancelled {
		t.Errorf("%+v, %v", messages, err)
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	for name, req := range map[string]session.Request{
		"agent":             {Agent: "odd"},
		"empty prompt":      {Prompt: " \n"},
		"long prompt":       {Prompt: strings.Repeat("x", records.MaxPrompt+1)},
		"NUL":               {Prompt: "a\x00b"},
		"negative limit":    {Limits: records.Limits{USD: -1}},
		"option as branch":  {Branch: "--upload-pack=touch /tmp/x"},
		"branch":            {Branch: "a..b"},
		"transport":         {Repo: "ext::sh -c touch% /tmp/x"},
		"option as address": {Repo: "-oProxyCommand=x"},
		"local path":        {Repo: "/etc"},
		"password":          {Repo: "https://user:secret@example.org/x"},
		"token":             {Repo: "https://token@example.org/x"},
		"control character": {Repo: "https://example.org/\n"},
		"depth":             {Depth: -1},
		"author":            {Author: workspace.Author{Name: "A <b>", Email: "x"}},
	} {
		_, err := h.Create(t.Context(), account, req)
		if kind := errors.KindOf(err); kind != errors.Invalid && kind != errors.NotFound {
			t.Errorf("%s: %v", name, err)
		}
		if strings.Contains(errors.Message(err), "secret") && name == "password" &&
			strings.Contains(errors.Message(err), "user:secret") {
			t.Errorf("%s: the error tells the password: %v", name, err)
		}
	}
	for _, ref := range []string{"", "ses_", "ses_nosuch"} {
		if _, err := h.Get(t.Context(), account, ref); errors.KindOf(err) != errors.NotFound {
			t.Errorf("%q: %v", ref, err)
		}
	}
	s := h.create(t, session.Request{})
	if _, err := h.Get(t.Context(), "another", s.ID); errors.KindOf(err) != errors.NotFound {
		t.Errorf("another account's: %v", err)
	}
	if _, _, err := h.Send(t.Context(), account, s.ID, ""); errors.KindOf(err) != errors.Invalid {
		t.Errorf("%v", err)
	}
	var list bytes.Buffer
	if all, err := h.List(t.Context(), account, session.Filter{All: true}); err != nil || len(all) != 1 {
		t.Errorf("%v, %v, %s", all, err, list.String())
	}
}
