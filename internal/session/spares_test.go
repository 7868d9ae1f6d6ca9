package session_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/reserve"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// newSpareHouse is newHouse with the base image built: nothing is made ahead from images that do not exist.
func newSpareHouse(t *testing.T, opts session.Options) *house {
	t.Helper()
	h := newHouse(t, opts)
	if _, err := h.engine.Images().Build(t.Context(), image.Spec{Base: "base"}, image.BuildOptions{}); err != nil {
		t.Fatal(err)
	}
	return h
}

// warm makes a session like req wait.
func (h *house) warm(t *testing.T, req session.Request) {
	t.Helper()
	if err := h.Warm(t.Context(), account, req); err != nil {
		t.Fatal(err)
	}
	h.waitSpares(t, 1)
}

func (h *house) waitSpares(t *testing.T, n int) {
	t.Helper()
	testenv.Eventually(t, "so many sessions wait", func() bool {
		waiting, making := h.Spares()
		return waiting == n && making == 0
	})
}

// spareBoxes returns the sandboxes made ahead that have not ended.
func (h *house) spareBoxes(t *testing.T) []record.Sandbox {
	t.Helper()
	list, err := h.fleet.List(t.Context(), record.SpareAccount, record.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// takes creates a session, and reports whether it was made ahead.
func (h *house) takes(t *testing.T, req session.Request) (records.Session, bool) {
	t.Helper()
	s := h.create(t, req)
	return s, s.Status != records.Creating
}

// printed returns the output of a session's commands, trimmed.
func (h *house) printed(t *testing.T, id string) string {
	t.Helper()
	events, err := h.events.Read(t.Context(), id, 0, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, e := range events {
		var data records.Event
		if err := json.Unmarshal(e.Data, &data); err != nil {
			t.Fatal(err)
		}
		if e.Type == string(agent.ToolCompleted) && data.Tool == "Bash" {
			all.WriteString(data.Text)
		}
	}
	return strings.TrimSpace(all.String())
}

// wantNoSpares checks that nothing is left of sessions made ahead.
func (h *house) wantNoSpares(t *testing.T) {
	t.Helper()
	if left := h.spareBoxes(t); len(left) != 0 {
		t.Errorf("sandboxes made ahead are left: %+v", left)
	}
	records, err := h.sessions.Sessions(t.Context(), "", false, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, s := range records {
		known[s.ID] = true
		if s.Spare {
			t.Errorf("the record of %s is left", s.ID)
		}
	}
	err = filepath.WalkDir(filepath.Join(h.dir, "volumes"), func(path string, d os.DirEntry, err error) error {
		if name, of := strings.CutPrefix(filepath.Base(path), "ses_"); of &&
			!known["ses_"+strings.TrimSuffix(name, ".db")] {
			t.Errorf("%s is left", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A session made ahead is in no list and no total of its account until a prompt of its kind comes, and is replaced
// then.
func TestSpareIsTaken(t *testing.T) {
	t.Parallel()
	g := newGitServer(t)
	clone := g.add("public/project", map[string]string{"README.md": "one\n", "CLAUDE.md": "be kind\n"})
	h := newSpareHouse(t, session.Options{Spares: 1})
	req := session.Request{Repo: g.url("public/project"), Sandbox: g.reach()}
	h.warm(t, req)
	ahead := h.spareBoxes(t)
	list, err := h.List(t.Context(), account, session.Filter{All: true})
	boxes, boxErr := h.fleet.List(t.Context(), account, record.Filter{All: true})
	totals, totalErr := h.Totals(t.Context(), account)
	if len(list)+len(boxes)+totals.Sessions != 0 || len(ahead) != 1 || err != nil || boxErr != nil || totalErr != nil {
		t.Fatalf("while it waits: %d sessions, %d sandboxes, %+v, %d made ahead; %v, %v, %v", len(list), len(boxes),
			totals, len(ahead), err, boxErr, totalErr)
	}
	if _, err := h.Get(t.Context(), account, ahead[0].Tags["harvest.session"]); err == nil {
		t.Error("its account finds it")
	}

	g.push(clone, map[string]string{"README.md": "two\n"}, "Second")
	first := req
	first.Limits = records.Limits{Turns: 3}
	first.Prompt = "/run git log -1 --format=%s; git status --porcelain; git branch --show-current; " +
		"git config harvest.title"
	s, taken := h.takes(t, first)
	if !taken || s.SandboxID != ahead[0].ID || s.Limits.Turns != 3 || s.Title == "" || s.Spare {
		t.Fatalf("%+v", s)
	}
	w := h.watch(s.ID)
	w.status(t, records.Done)
	wantEqual(t, "output", h.printed(t, s.ID), "Second\n"+s.WorkBranch()+"\n"+s.Title)
	wantEqual(t, "base", s.Base, g.git(clone, "rev-parse", "HEAD"))
	if got, err := h.fleet.Get(t.Context(), account, s.SandboxID); err != nil || got.Account != account ||
		!got.SnapshotOnEnd {
		t.Errorf("its sandbox: %+v, %v", got, err)
	}
	h.waitSpares(t, 1)

	g.push(clone, map[string]string{"CLAUDE.md": "be quick\n"}, "Third")
	second, taken := h.takes(t, first)
	if taken {
		t.Error("its agent had started with other instructions")
	}
	w = h.watch(second.ID)
	w.status(t, records.Done)
	if printed := h.printed(t, second.ID); !strings.HasPrefix(printed, "Third\n") {
		t.Errorf("the session in its place: %q", printed)
	}
	ids := []string{}
	if list, err = h.List(t.Context(), account, session.Filter{}); err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	wantEqual(t, "newest first", strings.Join(ids, " "), second.ID+" "+s.ID)
}

// The commits and the uncommitted changes of a person's own repository come into a session that was made ahead.
func TestSpareTakesBundle(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	g := newGitServer(t)
	clone := g.add("public/project", map[string]string{"README.md": "one\n"})
	h := newSpareHouse(t, session.Options{Spares: 1})
	req := session.Request{Repo: g.url("public/project"), Branch: "main", Sandbox: g.reach()}
	h.warm(t, req)
	if err := os.WriteFile(filepath.Join(clone, "mine"), []byte("mine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	g.git(clone, "add", "-A")
	g.git(clone, "commit", "-q", "-m", "Not pushed")
	bundle := filepath.Join(t.TempDir(), "bundle")
	g.git(clone, "bundle", "create", "-q", bundle, "HEAD", "main")
	if err := os.WriteFile(filepath.Join(clone, "README.md"), []byte("changed\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var err error
	if req.Bundle, err = os.ReadFile(bundle); err != nil {
		t.Fatal(err)
	}
	req.Uncommitted = workspace.Uncommitted{Patch: []byte(g.git(clone, "diff", "HEAD") + "\n"),
		Author: workspace.Author{Name: "Ada", Email: "ada@example.org"}}
	req.Prompt = "/run git log -2 --format='%an %s' | cut -c1-20; cat README.md; git config harvest.base; git " +
		"rev-parse HEAD"
	s, taken := h.takes(t, req)
	if !taken {
		t.Fatal("not taken")
	}
	w := h.watch(s.ID)
	w.status(t, records.Done)
	said := strings.Split(h.printed(t, s.ID), "\n")
	if len(said) != 5 || said[0] != "Ada Uncommitted chan" || !strings.HasSuffix(said[1], "Not pushed") ||
		said[2] != "changed" || said[3] != said[4] || said[4] != s.Repositories()[0].Start {
		t.Errorf("%q, %+v", said, s.Repositories())
	}
	if diff, err := h.Diff(t.Context(), account, s.ID, ""); err != nil || len(diff) != 0 {
		t.Errorf("the agent's changes: %s, %v", diff, err)
	}
}

// A request takes only sessions of its own kind, and never one of another account.
func TestSpareOfAnotherKind(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	g := newGitServer(t)
	clone := g.add("public/project", map[string]string{"README.md": "one\n"})
	g.git(clone, "push", "-q", "origin", "HEAD:other")
	v := vault(t, nil)
	h := newSpareHouse(t, session.Options{Spares: 1, Secrets: v})
	like := func(change func(*session.Request)) session.Request {
		req := session.Request{Repo: g.url("public/project"), Sandbox: g.reach()}
		change(&req)
		return req
	}
	h.warm(t, like(func(*session.Request) {}))
	for what, req := range map[string]session.Request{
		"branch":     like(func(r *session.Request) { r.Branch = "other" }),
		"repository": like(func(r *session.Request) { r.Repo = g.url("other/project") }), // of the same name
		"place":      like(func(r *session.Request) { r.Name = "elsewhere" }),
		"depth":      like(func(r *session.Request) { r.Depth = 1 }),
		"directory":  like(func(r *session.Request) { r.Subdir = "sub" }),
		"model":      like(func(r *session.Request) { r.Model = "m" }),
		"approval":   like(func(r *session.Request) { r.Approval = agent.ApproveEdits }),
		"author": like(func(r *session.Request) {
			r.Author = workspace.Author{Name: "Ada",
				Email: "ada@example.org"}
		}),
		"servers": like(func(r *session.Request) { r.MCP = []byte(`{"mcpServers":{}}`) }),
		"network": like(func(r *session.Request) {
			r.Sandbox.Network.Allow = append(r.Sandbox.Network.Allow,
				"example.org")
		}),
		"environment": like(func(r *session.Request) { r.Sandbox.Env = map[string]string{"A": "b"} }),
		"memory":      like(func(r *session.Request) { r.Sandbox.Memory = 1 << 30 }),
		"name":        like(func(r *session.Request) { r.Sandbox.Name = "mine" }),
		"volume":      like(func(r *session.Request) { r.Sandbox.Volumes = []spec.Mount{{Name: "v", Path: "/v"}} }),
	} {
		if err := h.Warm(t.Context(), account,
			like(func(*session.Request) {})); err != nil { // so that it is never the oldest kind
			t.Fatal(err)
		}
		s, taken := h.takes(t, req)
		if taken {
			t.Errorf("another %s: it was taken", what)
		}
		if err := h.End(t.Context(), account, s.ID); err != nil {
			t.Error(err)
		}
	}
	other, err := h.Create(t.Context(), "other", like(func(*session.Request) {}))
	if err != nil || other.Status != records.Creating {
		t.Errorf("another account: %+v, %v", other, err)
	}
	if err := h.End(t.Context(), "other", other.ID); err != nil {
		t.Error(err)
	}
	setSecret(t, v, secret.Pairs{"TOKEN": "x"})
	if s, taken := h.takes(t, like(func(*session.Request) {})); taken {
		t.Errorf("%s has secrets from before a change", s.ID)
	}
	if err := v.Delete(t.Context(), account, "git"); err != nil {
		t.Fatal(err)
	}
	if _, taken := h.takes(t, like(func(*session.Request) {})); !taken {
		t.Error("the same kind was not taken")
	}
}

// The credentials of one account's session that waits reach no session of another account, and nothing on disk.
func TestSpareCanary(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	g := newGitServer(t)
	g.add("public/project", map[string]string{"README.md": "one\n"})
	v := vault(t, secret.Pairs{"GIT_HOST": g.addr, "GIT_PASSWORD": canary})
	h := newSpareHouse(t, session.Options{Spares: 1, Secrets: v})
	req := session.Request{Repo: g.url("public/project"), Sandbox: g.reach()}
	h.warm(t, req)
	req.Prompt = "/run env; cat /dev/shm/.harvest-git/* /proc/*/environ 2>/dev/null | tr '\\0' '\\n'"
	s, err := h.Create(t.Context(), "other", req)
	if err != nil || s.Status != records.Creating {
		t.Fatalf("%+v, %v", s, err)
	}
	testenv.Eventually(t, "the other account's turn is over", func() bool {
		got, err := h.Get(t.Context(), "other", s.ID)
		return err == nil && got.Status == records.Done
	})
	if printed := h.printed(t, s.ID); !strings.Contains(printed, "PATH=") || strings.Contains(printed, canary) {
		t.Errorf("in the other account's sandbox: %q", printed)
	}
	if err := h.End(t.Context(), "other", s.ID); err != nil {
		t.Error(err)
	}
	req.Prompt = "/say here"
	own, taken := h.takes(t, req)
	if !taken {
		t.Error("its own account did not get it")
	}
	h.watch(own.ID).status(t, records.Done)
	noCanary(t, h, own.ID, canary)
}

// Sessions that wait end after a while, when the server ends, and without leaving anything behind.
func TestSparesEnd(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	g := newGitServer(t)
	g.add("public/project", map[string]string{"README.md": "one\n"})
	h := newSpareHouse(t, session.Options{Spares: 2, SpareLife: time.Minute})
	req := session.Request{Repo: g.url("public/project"), Sandbox: g.reach()}
	if err := h.Warm(t.Context(), account, req); err != nil {
		t.Fatal(err)
	}
	h.waitSpares(t, 2)
	h.close(t)
	h.opts.SpareLife = time.Millisecond
	h.open(t)
	h.wantNoSpares(t)
	images, err := h.engine.Images().List(t.Context())
	if err != nil || len(images) != 1 {
		t.Errorf("images: %+v, %v", images, err)
	}
	if err := h.Warm(t.Context(), account, req); err != nil {
		t.Fatal(err)
	}
	quiet := 0 // observations in a row: the next one may begin right after the first one has ended
	testenv.Eventually(t, "none waits or is made, and no record is left", func() bool {
		waiting, making := h.Spares()
		left, err := h.sessions.Sessions(t.Context(), "", false, "", 0)
		quiet++
		if err != nil || waiting+making+len(left)+len(h.spareBoxes(t)) > 0 {
			quiet = 0
		}
		return quiet >= 10
	})
	h.wantNoSpares(t)
}

// A session that waits is replaced if its agent ends.
func TestSpareDies(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	h := newSpareHouse(t, session.Options{Spares: 1})
	h.warm(t, session.Request{})
	dead := h.spareBoxes(t)[0]
	kill(t, h, dead.ID, "harvest-scripted")
	testenv.Eventually(t, "another one waits", func() bool {
		waiting, _ := h.Spares()
		boxes := h.spareBoxes(t)
		return waiting == 1 && len(boxes) == 1 && boxes[0].ID != dead.ID
	})
	if s, taken := h.takes(t, session.Request{Prompt: "/say here"}); !taken {
		t.Error("the other one was not taken")
	} else {
		h.watch(s.ID).status(t, records.Done)
	}
}

// kill ends a process in a sandbox by the name of its program.
func kill(t *testing.T, h *house, box, program string) {
	t.Helper()
	infos, err := h.fleet.Processes(t.Context(), account, box)
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		if len(info.Args) == 0 || info.Args[0] != program {
			continue
		}
		x, err := h.fleet.Attach(t.Context(), account, box, info.ID, engine.Stdio{})
		if err == nil {
			err = x.Kill(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("no %s among %+v", program, infos)
}

// An agent that cannot start is not started again and again, and leaves nothing behind.
func TestSpareWithoutAgent(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	h := newSpareHouse(t, session.Options{Spares: 1, Agents: map[string]agent.Agent{"scripted": absent{}}})
	if err := h.Warm(t.Context(), account, session.Request{}); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "it was tried, and has ended", func() bool {
		_, making := h.Spares()
		records, err := h.sessions.Sessions(t.Context(), "", false, "", 0)
		return making == 0 && err == nil && len(records) == 0 && h.fleet.Stats().Created > 0 &&
			len(h.spareBoxes(t)) == 0
	})
	if n := h.fleet.Stats().Created; n != 1 {
		t.Errorf("%d sandboxes were made at once", n)
	}
}

// A session made ahead counts for the quota from the moment that it is taken.
func TestSpareAndQuota(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	h := newSpareHouse(t, session.Options{Spares: 1})
	h.close(t)
	h.quotas = reserve.Quotas{Sandboxes: 1}
	h.open(t)
	h.warm(t, session.Request{})
	first, taken := h.takes(t, session.Request{Prompt: "/say here"})
	if !taken {
		t.Fatal("the quota has room for it")
	}
	h.watch(first.ID).status(t, records.Done)
	h.waitSpares(t, 1)
	second, taken := h.takes(t, session.Request{Prompt: "/say here"})
	if taken {
		t.Error("it was taken beyond the quota")
	}
	if reason := h.watch(second.ID).outcome(t); !strings.Contains(reason, "1 sandbox at once") {
		t.Errorf("the second session: %s", reason)
	}
}

// TestSpareWaitsForServers checks that a session is offered only after its agent's MCP servers are ready, and that the
// prompt which takes it does not wait for them.
//
// mission: E5
func TestSpareWaitsForServers(t *testing.T) {
	t.Parallel()
	h := newSpareHouse(t, session.Options{Spares: 1, Agents: map[string]agent.Agent{"scripted": likeClaude{}}})
	req := session.Request{MCP: []byte(`{"mcpServers":{"quick":{"command":"true"},"slow":{"command":"true"}}}`)}
	h.warm(t, req)
	req.Prompt = "hello"
	s, taken := h.takes(t, req)
	if !taken {
		t.Fatalf("not made ahead: %+v", s)
	}
	w := h.watch(s.ID)
	w.until(t, string(agent.Done))
	var order []string
	for _, e := range w.all {
		switch {
		case e.typ == records.EventMCPReady:
			order = append(order, e.typ+" "+e.data.ID)
		case e.typ == records.EventStage && e.data.Stage.Name == "made ahead", e.typ == records.EventQueued,
			e.typ == records.EventStarted, e.typ == records.EventSent:
			order = append(order, e.typ)
		}
	}
	wantEqual(t, "order", strings.Join(order, ", "),
		"agent.started, mcp.ready quick, mcp.ready slow, session.stage, message.queued, message.sent")
}

// TestAgentStartsBeforeFirstPrompt checks that a new session without a prompt, as the terminal opens it, starts its
// agent ahead, and that the first prompt goes to that process.
//
// mission: E5
func TestAgentStartsBeforeFirstPrompt(t *testing.T) {
	t.Parallel()
	h := newSpareHouse(t, session.Options{Spares: 1})
	s := h.create(t, session.Request{})
	w := h.watch(s.ID)
	w.until(t, records.EventStarted)
	h.send(t, s.ID, "/say hello")
	w.until(t, string(agent.Done))
	var order []string
	for _, e := range w.all {
		if e.typ == records.EventStarted || e.typ == records.EventQueued || e.typ == records.EventSent {
			order = append(order, e.typ)
		}
	}
	wantEqual(t, "order", strings.Join(order, ", "), "agent.started, message.queued, message.sent")
}
