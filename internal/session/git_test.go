package session_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/credentials"
	"github.com/RelevanceAI/harvest/internal/session/git"
	"github.com/RelevanceAI/harvest/internal/session/memory"
	"github.com/RelevanceAI/harvest/internal/session/pulls"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// canary is a token that must not appear anywhere.
const canary = "ghp_CANARY7f3a9c51d2e8"

// TestPrivateRepository checks that a private repository can be cloned with the account's token, worked on, carried
// forward, pushed and proposed. Only git's own file contains the token. When the token is revoked halfway, all clients
// are notified, and a new token is used.
// mission: E3, E7, E8
func TestPrivateRepository(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	g := newGitServer(t)
	clone := g.add("owner/project", map[string]string{"README.md": "one\n",
		".github/pull_request_template.md": "## What was changed\n"})
	g.setTokens(canary)
	v := vault(t, secret.Pairs{"GIT_HOST": g.addr, "GIT_PASSWORD": canary,
		"GITHUB_API_URL": "http://" + g.addr + "/api/v3"})
	h := newHouse(t, session.Options{Secrets: v})
	s := h.create(t, session.Request{Repo: g.url("owner/project"), Sandbox: g.reach(),
		Author: workspace.Author{Name: "Ada", Email: "ada@example.org"},
		Prompt: "/run echo a >a; git add a; git commit -qm 'Add a'\n/write b b\n/run env; cat /proc/*/environ " +
			"/proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; git config --list"})
	w := h.watch(s.ID)
	w.until(t, "done")
	committed := w.until(t, git.Committed)
	if e := committed.data.Git; e == nil || e.Subject != "Add a" || e.Branch != s.WorkBranch() {
		t.Errorf("%+v", committed.data)
	}
	wantEqual(t, "author", h.sh(t, s.ID, "git log -1 --format='%an <%ae>'"), "Ada (Harvest) <ada@example.org>")
	wantEqual(t, "file", h.sh(t, s.ID, "stat -c '%a %A' "+"/dev/shm/.harvest-git/credentials"), "600 -rw-------")

	g.push(clone, map[string]string{"theirs": "x\n"}, "Theirs")
	done, err := h.Sync(t.Context(), account, s.ID, session.Sync{})
	if err != nil || done.Failed || done.Commits != 1 {
		t.Fatalf("%+v, %v", done, err)
	}
	if e := w.until(t, git.Synced); e.data.Git.Onto != "main" {
		t.Errorf("%+v", e.data.Git)
	}
	if diff, err := h.Diff(t.Context(), account, s.ID, ""); err != nil || !bytes.Contains(diff, []byte("+++ b/a")) ||
		bytes.Contains(diff, []byte("theirs")) {
		t.Errorf("a diff after others went on: %s, %v", diff, err)
	}
	pull, err := h.OpenPull(t.Context(), account, s.ID, pulls.Request{Title: "My title"})
	if err != nil || pull.Number != 12 || !pull.New {
		t.Fatalf("%+v, %v", pull, err)
	}
	if calls := g.called("POST /repos/owner/project/pulls"); len(calls) != 1 ||
		!strings.Contains(calls[0], `"title":"My title","body":"- Add a\n\n## What was changed\n\n---\n`) ||
		!strings.Contains(calls[0], `"head":"`+s.WorkBranch()+`","base":"main","draft":true`) {
		t.Errorf("%q", g.called(""))
	}
	wantEqual(t, "pushed", g.git(g.dir("owner/project"), "log", "--format=%s", "-2", s.WorkBranch()), "Add a\nTheirs")
	if e := w.until(t, git.Pushed); e.data.Git.Branch != s.WorkBranch() {
		t.Errorf("%+v", e.data.Git)
	}
	wantEqual(t, "recorded", mustGet(t, h, s.ID).Repositories()[0].Pull, pull.URL)

	const second = "ghp_SECOND0CANARY77aa1"
	g.setTokens(second)
	g.push(clone, map[string]string{"more": "x\n"}, "More")
	done, err = h.Sync(t.Context(), account, s.ID, session.Sync{})
	if err != nil || !done.Failed || !strings.Contains(done.Reason, "Authentication failed") {
		t.Errorf("a token that was revoked: %+v, %v", done, err)
	}
	if _, err := h.Push(t.Context(), account, s.ID, ""); errors.KindOf(err) != errors.Denied ||
		!strings.Contains(err.Error(), "revoked") {
		t.Errorf("a push with it: %v", err)
	}
	setSecret(t, v, secret.Pairs{"GIT_HOST": g.addr, "GIT_PASSWORD": second})
	if done, err = h.Sync(t.Context(), account, s.ID, session.Sync{}); err != nil || done.Failed {
		t.Errorf("with a new one: %+v, %v", done, err)
	}

	for _, token := range []string{canary, second} {
		if strings.Contains(w.String(), token) {
			t.Errorf("%s is in the events", token)
		}
		if found := h.sh(t, s.ID,
			"grep -rlF "+token[:8]+" /workspace /root /etc /tmp /home /mnt 2>/dev/null || true"); found != "" {
			t.Errorf("%s is in %s", token, found)
		}
	}
	noCanary(t, h, s.ID, canary, second)
}

// noCanary ends a session and searches all its remaining data.
func noCanary(t *testing.T, h *house, id string, tokens ...string) {
	t.Helper()
	if err := h.End(t.Context(), account, id); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{h.dir, h.images} {
		err := filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
			if err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) > time.Hour {
				return nil // gone meanwhile, or the base image
			}
			text, err := os.ReadFile(path)
			for _, token := range tokens {
				if err == nil && bytes.Contains(text, []byte(token)) {
					t.Errorf("%s is in %s", token, path)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestBadRepositories checks that problems with a repository are reported in a sentence, and that no code from a
// malicious repository runs.
// mission: E3
func TestBadRepositories(t *testing.T) {
	t.Parallel()
	g := newGitServer(t)
	g.setTokens("good")
	h := newHouse(t, session.Options{Secrets: vault(t, nil)})
	g.add("owner/private", map[string]string{"a": "a\n"})
	g.add("public/empty", nil)
	g.add("public/plain", map[string]string{"a": "a\n"})
	random := make([]byte, 24<<20)
	if _, err := io.ReadFull(rand.Reader, random); err != nil {
		t.Fatal(err)
	}
	g.add("public/large", map[string]string{"large": string(random)})
	evil := g.add("public/evil", map[string]string{
		".gitattributes": "* filter=evil diff=evil merge=evil\n", ".lfsconfig": "[lfs]\n\turl = ext::touch /tmp/ran\n",
		".githooks/post-checkout": "#!/bin/sh\ntouch /tmp/ran\n",
		".gitconfig":              "[filter \"evil\"]\n\tsmudge = touch /tmp/ran\n", "out": "-> /etc/passwd",
		"up": "-> ../../../etc", ".git-hidden": "x", "plain": "x\n",
	})
	g.push(evil,
		map[string]string{".gitmodules": "[submodule \"sub\"]\n\tpath = sub\n\turl = ext::sh -c touch% /tmp/ran\n"},
		"A submodule")
	g.git(evil, "update-index", "--add", "--cacheinfo", "160000,"+g.git(evil, "rev-parse", "HEAD")+",sub")
	g.git(evil, "commit", "-q", "-m", "More of it")
	g.git(evil, "push", "-q", "origin", "HEAD:main")

	for name, c := range map[string]struct {
		req  session.Request
		want string
	}{
		"no such repository": {session.Request{Repo: g.url("public/nosuch")},
			"does not exist, or the token may not see it"},
		"private without token": {session.Request{Repo: g.url("owner/private")}, "is private and there is no token"},
		"no such branch": {session.Request{Repo: g.url("public/plain"), Branch: "nosuch"},
			"it has no such branch"},
		"nobody there": {session.Request{Repo: "http://" + strings.Split(g.addr, ":")[0] + ":1/a/b"},
			"cannot be reached"},
		"not allowed": {session.Request{Repo: "https://git.nowhere.example/a/b"},
			"the network policy of the sandbox refused git.nowhere.example: "},
		"too large": {session.Request{Repo: g.url("public/large"),
			Sandbox: spec.Request{Disk: 16 << 20}}, "too large for the sandbox's disk"},
		"an ext:: submodule": {session.Request{Repo: g.url("public/evil"), Submodules: true},
			"has an address that is not taken"},
		"no git-lfs":       {session.Request{Repo: g.url("public/plain"), LFS: true}, "the image has no git-lfs"},
		"the wrong secret": {session.Request{Repo: g.url("public/plain"), GitSecret: "nosuch"}, "nosuch"},
		"empty":            {session.Request{Repo: g.url("public/empty")}, ""},
		"evil":             {session.Request{Repo: g.url("public/evil"), Depth: 1}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			box := c.req.Sandbox
			c.req.Sandbox = g.reach()
			c.req.Sandbox.Disk = box.Disk
			if name == "nobody there" {
				c.req.Sandbox.Network.Allow = []string{strings.Split(g.addr, ":")[0]}
			}
			s := h.create(t, c.req)
			w := h.watch(s.ID)
			got := w.outcome(t)
			if !strings.Contains(got, c.want) || c.want == "" && got != "" {
				t.Fatalf("%q, want %q", got, c.want)
			}
			if c.want != "" {
				return
			}
			h.send(t, s.ID, "/write new x\n/run git add -A; git commit -qm New; ls -A; ls /tmp")
			w.until(t, "done")
			if strings.Contains(w.String(), `ran\n`) {
				t.Errorf("something of the repository ran\n%s", w)
			}
			diff, err := h.Diff(t.Context(), account, s.ID, "")
			if err != nil || !bytes.Contains(diff, []byte("+++ b/new")) || bytes.Contains(diff, []byte("root:")) {
				t.Errorf("%s, %v", diff, err)
			}
			bundle, _, err := h.Bundle(t.Context(), account, s.ID, "")
			if err != nil || !bytes.HasPrefix(bundle, []byte("# v2 git bundle\n")) {
				t.Errorf("%.80q, %v", bundle, err)
			}
			if err := h.End(t.Context(), account, s.ID); err != nil {
				t.Error(err)
			}
		})
	}
}

// sizeOf names the variable with the size of TestLargeRepository's repository in MiB.
const sizeOf = "HARVEST_TEST_REPOSITORY"

// TestLargeRepository checks that a large repository can be cloned in full or with little history. Its turns work like
// those of a small one, also with less memory than the repository's size.
//
// mission: E3
func TestLargeRepository(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	size := 64
	if n, err := strconv.Atoi(os.Getenv(sizeOf)); err == nil {
		size = n
	}
	g := newGitServer(t)
	g.add("public/large", nil)
	g.fill("public/large", size)
	h := newHouse(t, session.Options{})
	for name, depth := range map[string]int{"whole": 0, "a commit of it": 1} {
		t.Run(name, func(t *testing.T) {
			box := g.reach()
			box.Memory = 512 << 20
			begun := time.Now()
			s := h.create(t, session.Request{Repo: g.url("public/large"), Depth: depth, Sandbox: box})
			for s.Status == records.Creating {
				time.Sleep(50 * time.Millisecond)
				var err error
				if s, err = h.Get(t.Context(), account, s.ID); err != nil {
					t.Fatal(err)
				}
			}
			if s.Status != records.Ready {
				t.Fatalf("%+v", s)
			}
			cloned := time.Since(begun)
			w := h.watch(s.ID)
			h.send(t, s.ID,
				"/write new x\n/run git add -A; git commit -qm New; git rev-list --count HEAD; ls blobs | wc -l")
			if done := w.until(t, "done"); done.data.Failed {
				t.Fatalf("%+v", done)
			}
			commits := 3
			if depth == 1 {
				commits = 2
			}
			if want := fmt.Sprintf("%d\\n%d\\n", commits, size); !strings.Contains(w.String(), want) {
				t.Errorf("no %q in\n%s", want, w)
			}
			diff, err := h.Diff(t.Context(), account, s.ID, "")
			if err != nil || strings.Count(string(diff), "diff --git") != 1 ||
				!bytes.Contains(diff, []byte("+++ b/new")) {
				t.Errorf("%.200s, %v", diff, err)
			}
			bundle, _, err := h.Bundle(t.Context(), account, s.ID, "")
			if err != nil || len(bundle) > 1<<20 {
				t.Errorf("a bundle of %d bytes, %v", len(bundle), err)
			}
			t.Logf("%d MiB: ready after %s, all after %s", size, cloned, time.Since(begun))
			if err := h.End(t.Context(), account, s.ID); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestApp checks that an App's tokens are for one repository, are replaced before they expire, and are invalid after
// the session's end.
// mission: E7
func TestApp(t *testing.T) {
	t.Parallel()
	g := newGitServer(t)
	g.add("owner/project", map[string]string{"a": "a\n"})
	var made atomic.Int64
	g.mu.Lock()
	g.issue = func() (any, int) {
		n := made.Add(1)
		token, life := fmt.Sprintf("ghs_CANARY%d00d1f7e", n), time.Hour // an expired token is not withdrawn
		if n == 1 {
			life = 3 * time.Second
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.tokens = append(g.tokens, token)
		return map[string]any{"token": token, "expires_at": time.Now().Add(life)}, http.StatusCreated
	}
	g.mu.Unlock()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	key := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(private)})
	h := newHouse(t, session.Options{Secrets: vault(t, secret.Pairs{"GITHUB_HOST": g.addr, "GITHUB_APP_ID": "1",
		"GITHUB_APP_PRIVATE_KEY": string(key), "GITHUB_API_URL": "http://" + g.addr + "/api/v3"})})
	s := h.create(t, session.Request{Repo: g.url("owner/project"), Sandbox: g.reach()})
	w := h.watch(s.ID)
	if why := w.outcome(t); why != "" {
		t.Fatal(why)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for h.sh(t, s.ID, "grep -c CANARY[2-9] /dev/shm/.harvest-git/credentials || true") != "1" {
		if ctx.Err() != nil {
			t.Fatal("the token was not replaced")
		}
	}
	h.send(t, s.ID,
		"/run echo b >b; git add b; git commit -qm b; git push -q origin HEAD; git ls-remote --exit-code http://"+
			g.addr+"/other/project.git || echo refused")
	w.until(t, "done")
	if !strings.Contains(w.String(), "refused") || strings.Contains(w.String(), "CANARY") {
		t.Errorf("%s", w)
	}
	w.until(t, git.Pushed)
	h.close(t)
	before := made.Load()
	h.open(t)
	for made.Load() == before && ctx.Err() == nil {
		h.sh(t, s.ID, "true")
	}
	noCanary(t, h, s.ID, "ghs_CANARY")
	if len(g.called("DELETE /installation/token")) == 0 || ctx.Err() != nil {
		t.Errorf("%v", g.called(""))
	}
}

// TestSync checks that a session handles upstream commits, conflicts and a rewritten upstream, and that the repository
// is left alone while the agent works.
// mission: E8
func TestSync(t *testing.T) {
	t.Parallel()
	g := newGitServer(t)
	clone := g.add("public/project", map[string]string{"README.md": "one\ntwo\nthree\n"})
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{Repo: g.url("public/project"), Branch: "main", Sandbox: g.reach(),
		Prompt: "/run sed -i s/two/mine/ README.md; git commit -qam Mine\n/run while [ ! -e /tmp/go ]; do sleep 0.1; " +
			"done"})
	w := h.watch(s.ID)
	w.until(t, string(agent.ToolCompleted))
	w.until(t, string(agent.ToolStarted))
	if _, err := h.Sync(t.Context(), account, s.ID, session.Sync{}); errors.KindOf(err) != errors.Conflict {
		t.Errorf("while the agent is at work: %v", err)
	}
	h.sh(t, s.ID, "touch /tmp/go")
	w.until(t, "done")
	g.push(clone, map[string]string{"README.md": "one\ntheirs\nthree\n"}, "Theirs")
	done, err := h.Sync(t.Context(), account, s.ID, session.Sync{Branch: "main"})
	if err != nil || !done.Failed || done.Checkpoint == "" || !strings.Contains(done.Tried, "3. ") {
		t.Errorf("a conflict: %+v, %v", done, err)
	}
	wantEqual(t, "state",
		h.sh(t, s.ID, "git status --porcelain; git log -1 --format=%s; git rev-parse --verify -q "+done.Checkpoint+
			" >/dev/null"), "Mine")
	if e := w.until(t, git.Synced); !e.data.Git.Failed {
		t.Errorf("%+v", e.data.Git)
	}
	g.push(clone, map[string]string{"README.md": "one\ntwo\nthree\n", "other": "x\n"}, "Rewritten", "--amend")
	if done, err = h.Sync(t.Context(), account, s.ID, session.Sync{}); err != nil ||
		!strings.Contains(done.Reason, "was rewritten") {
		t.Errorf("rewritten: %+v, %v", done, err)
	}
	if done, err = h.Sync(t.Context(), account, s.ID, session.Sync{Rewritten: true}); err != nil || done.Failed {
		t.Errorf("rewritten on purpose: %+v, %v", done, err)
	}
	h.send(t, s.ID, "/run harvest-git sync && harvest-git snapshot && echo carried")
	w.until(t, "done")
	if !strings.Contains(w.String(), "carried") {
		t.Errorf("%s", w)
	}
	for what, err := range map[string]error{
		"a bad branch":           second(h.Sync(t.Context(), account, s.ID, session.Sync{Branch: "--exec=x"})),
		"no such branch":         second(h.Sync(t.Context(), account, s.ID, session.Sync{Repository: "nosuch"})),
		"a pull without a token": second(h.OpenPull(t.Context(), account, s.ID, pulls.Request{})),
		"a push without a token": second(h.Push(t.Context(), account, s.ID, "")),
	} {
		if kind := errors.KindOf(err); kind != errors.Invalid && kind != errors.NotFound && kind != errors.Denied {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestPanic checks that the panic button ends the turn with a report, and that the commands queued behind it do not
// run.
// mission: E9
func TestPanic(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{Bundle: repository(t), Name: "project",
		Prompt: "/write half half\n/run harvest-git panic --failed 'make test: 3 fail' --tried once --need 'choose a " +
			"parser'\n/say I go on"})
	h.send(t, s.ID, "/say more")
	w := h.watch(s.ID)
	pressed := w.until(t, git.Panic)
	if e := pressed.data.Git; e.Reason != "make test: 3 fail" || e.Need != "choose a parser" || e.Tried != "- once" ||
		!strings.HasPrefix(e.Checkpoint, "checkpoint/panic-") {
		t.Errorf("%+v", e)
	}
	done := w.until(t, "done")
	if !done.data.Failed || done.data.Reason != "panic" || done.data.Message.State != records.Broken ||
		!strings.Contains(done.data.Text, "A person must: choose a parser") {
		t.Errorf("%+v", done.data)
	}
	if e := w.status(t, records.Failed); !strings.HasPrefix(e.data.Reason, "PANIC: make test") {
		t.Errorf("%+v", e.data)
	}
	if said := w.said(); len(said) > 0 {
		t.Errorf("it went on: %q", said)
	}
	messages, err := h.Messages(t.Context(), account, s.ID)
	if err != nil || len(messages) != 2 || messages[1].State != records.Cancelled {
		t.Errorf("%+v, %v", messages, err)
	}
	wantEqual(t, "saved", h.sh(t, s.ID, "git show "+pressed.data.Git.Checkpoint+":half"), "half")

	// After a restart no event is repeated, and events from the time in between are not lost.
	h.close(t)
	h.open(t)
	h.send(t, s.ID, "/run harvest-git snapshot once")
	for committed, idle := false, false; !committed || !idle; { // in any order
		e := w.next(t, "the commit of the snapshot and the end of the turn")
		if committed = committed || e.typ == git.Committed; e.typ == git.Committed &&
			e.data.Git.Subject != "wip: once" {
			t.Errorf("%+v", e.data.Git)
		}
		idle = idle || e.typ == records.EventStatus && e.data.Status == records.Done
	}
	h.sh(t, s.ID, "HARVEST_GIT_WAIT=0 harvest-git panic --failed 'between turns' --need help || true")
	if e := w.status(t, records.Failed); !strings.Contains(e.data.Reason, "between turns") {
		t.Errorf("%+v", e.data)
	}
}

// TestGitEventsOfOthers checks that only a session's own sandbox reports its git events: agents of other sessions of
// the account cannot press its panic button, and the next sandbox does not repeat a report.
// mission: E9, F6
func TestGitEventsOfOthers(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{Bundle: repository(t), Prompt: "/run echo m >m; harvest-git snapshot mine"})
	w := h.watch(s.ID)
	w.until(t, git.Committed)
	file := h.sh(t, s.ID, "git config harvest.events")
	lines := h.sh(t, s.ID, "head -n 1 "+file)
	other := h.create(t, session.Request{Prompt: "/say ready"})
	v := h.watch(other.ID)
	v.status(t, records.Done)
	forged := strings.ReplaceAll(lines, git.Committed, git.Panic)
	script := "for f in " + file + " $(find / -xdev -name '" + path.Base(file) +
		"' -type f 2>/dev/null) /mnt/state/sessions/" + s.ID + "/git-events; do mkdir -p ${f%/*}; echo '" + forged +
		"' >>$f; done"
	if done := h.turn(t, v, "/run "+script); done.data.Failed {
		t.Errorf("%+v", done.data)
	}
	if err := h.fleet.Destroy(t.Context(), account, mustGet(t, h, s.ID).SandboxID); err != nil {
		t.Fatal(err)
	}
	h.turn(t, w, "/run echo x >x; harvest-git snapshot again")
	again := func(e seen) bool { return e.typ == git.Committed && e.data.Git.Subject == "wip: again" }
	for !slices.ContainsFunc(w.all, again) { // it may come before the end of the turn
		w.next(t, "the commit of the second snapshot")
	}
	told := ""
	for _, e := range append(w.all, v.all...) {
		if e.data.Git != nil {
			told += e.typ + " " + e.data.Git.Subject + "|"
		}
	}
	wantEqual(t, "events", told, git.Committed+" wip: mine|"+git.Committed+" wip: again|")
}

// TestWorkspace checks that uncommitted changes become a separate commit by their author, below the agent's commits.
// Several repositories are placed side by side. Memories are in a separate volume of the repository, which is seeded
// once.
// mission: E3, C3
func TestWorkspace(t *testing.T) {
	t.Parallel()
	g := newGitServer(t)
	part := g.add("public/part", map[string]string{"p": "p\n"})
	second := g.add("public/second", map[string]string{"s": "s\n",
		".gitmodules": "[submodule \"part\"]\n\tpath = part\n\turl = ../part.git\n"})
	g.git(second, "update-index", "--add", "--cacheinfo", "160000,"+g.git(part, "rev-parse", "HEAD")+",part")
	g.git(second, "commit", "-q", "-m", "A submodule")
	g.git(second, "push", "-q", "origin", "HEAD:main")
	h := newHouse(t, session.Options{})
	patch := "diff --git a/README.md b/README.md\n--- a/README.md\n+++ b/README.md\n@@ -1 +1,2 @@\n # A project\n" +
		"+not committed\n"
	box := g.reach()
	box.Image = h.imageWith(t,
		`mkdir /app && echo '{"entities":[{"name":"rule","entityType":"rule","observations":["never `+
			`pull"]}],"relations":[]}' >/app/memory-seed.json`)
	s := h.create(t, session.Request{Repo: "https://github.com/Owner/project", Bundle: repository(t), Sandbox: box,
		GitSecret: credentials.None,
		Uncommitted: workspace.Uncommitted{Patch: []byte(patch),
			Author: workspace.Author{Name: "Bob", Email: "bob@example.org"}},
		More: []workspace.RepositoryRequest{{URL: g.url("public/second"), Submodules: true}},
		Prompt: "/write new new\n/write /workspace/second/t t\n/run cat /home/agent/.mcp-memory/memory.jsonl; git " +
			"log --format='%an|%s'; git status --porcelain"})
	w := h.watch(s.ID)
	w.until(t, "done")
	output := ""
	for _, e := range w.all {
		if e.typ == string(agent.ToolCompleted) && e.data.Tool == "Bash" {
			output += e.data.Text
		}
	}
	wantEqual(t, "output", output,
		`{"type":"entity","name":"rule","entityType":"rule","observations":["never pull"]}`+
			"\nBob|Uncommitted changes at the start of the session\nT|one\n?? new\n")
	diff, err := h.Diff(t.Context(), account, s.ID, "")
	if err != nil || bytes.Contains(diff, []byte("Uncommitted changes")) || !bytes.Contains(diff, []byte("+++ b/new")) {
		t.Errorf("%s, %v", diff, err)
	}
	before := h.sh(t, s.ID, "git status --porcelain; git rev-parse HEAD; git branch")
	if _, _, err := h.Bundle(t.Context(), account, s.ID, "project"); err != nil {
		t.Error(err)
	}
	wantEqual(t, "what the agent has", h.sh(t, s.ID, "git status --porcelain; git rev-parse HEAD; git branch"), before)
	if diff, err = h.Diff(t.Context(), account, s.ID, "second"); err != nil ||
		!bytes.Contains(diff, []byte("+++ b/t")) {
		t.Errorf("%s, %v", diff, err)
	}
	if _, err := h.Diff(t.Context(), account, s.ID, "third"); errors.KindOf(err) != errors.NotFound ||
		!strings.Contains(errors.RemedyOf(err), "project second") {
		t.Error(err)
	}
	wantEqual(t, "submodule", h.sh(t, s.ID, "cat /workspace/second/part/p"), "p")
	store := memory.Store{Volumes: volume.Of(h.volumes, "")}
	if err := store.Remove(t.Context(), "owner-project", "rule"); err != nil {
		t.Fatal(err)
	}
	if err := h.End(t.Context(), account, s.ID); err != nil {
		t.Fatal(err)
	}
	s = h.create(t, session.Request{Repo: "https://github.com/Owner/project", Bundle: repository(t), Sandbox: box,
		GitSecret: credentials.None, Prompt: "/run cat /home/agent/.mcp-memory/memory.jsonl"})
	w = h.watch(s.ID)
	w.until(t, "done")
	if strings.Contains(w.String(), "never pull") {
		t.Errorf("it was seeded again\n%s", w)
	}
	if _, err := h.Sync(t.Context(), account, s.ID, session.Sync{}); err != nil {
		t.Log(err) // github.com is out of the sandbox's reach
	}
}

// imageWith makes an image from the base image and a script's changes, and returns its id.
func (h *house) imageWith(t *testing.T, script string) string {
	t.Helper()
	box, err := h.fleet.Create(t.Context(), account, spec.Request{Image: "base"})
	if err != nil {
		t.Fatal(err)
	}
	x, err := h.fleet.Exec(t.Context(), account, box.ID, fleet.ExecRequest{Args: []string{"/bin/sh", "-ec", script}})
	if err != nil {
		t.Fatal(err)
	}
	if result, err := x.Wait(t.Context()); err != nil || result.ReturnCode != 0 {
		t.Fatalf("%+v, %v", result, err)
	}
	made, err := h.fleet.Snapshot(t.Context(), account, box.ID, fleet.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.fleet.Destroy(t.Context(), account, box.ID); err != nil {
		t.Fatal(err)
	}
	return made.ID
}

// TestWorkspaceRefuses checks that invalid requests are refused before anything is created.
func TestWorkspaceRefuses(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	more := make([]workspace.RepositoryRequest, 10)
	for i := range more {
		more[i].URL = fmt.Sprintf("https://example.org/%d", i)
	}
	for name, req := range map[string]session.Request{
		"twice": {Repo: "https://example.org/a/x",
			More: []workspace.RepositoryRequest{{URL: "https://example.com/b/x.git"}}},
		"one without address": {Repo: "https://example.org/a/x", More: []workspace.RepositoryRequest{{}}},
		"too many":            {Repo: "https://example.org/a/x", More: more},
		"a bad name":          {Name: "../x"},
		"a branch": {Repo: "https://example.org/a/x",
			More: []workspace.RepositoryRequest{{URL: "https://example.org/b", Branch: "--upload-pack=x"}}},
		"depth of a bundle": {Bundle: []byte("x"), Depth: 1},
		"uncommitted alone": {Repo: "https://example.org/a/x", Uncommitted: workspace.Uncommitted{Patch: []byte("x"),
			Author: workspace.Author{Name: "a", Email: "b"}}},
		"nobody's":     {Bundle: []byte("x"), Uncommitted: workspace.Uncommitted{Patch: []byte("x")}},
		"a main ext::": {Repo: "ext::sh -c x"},
	} {
		if s, err := h.Create(t.Context(), account, req); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

// TestSubmoduleHandBack checks that commits and files of a submodule can be handed back like those of a repository, and
// that they are not pushed.
// mission: E3, E8
func TestSubmoduleHandBack(t *testing.T) {
	t.Parallel()
	g := newGitServer(t)
	module := g.add("public/module", map[string]string{"m": "one\n"})
	clone := g.add("public/project", map[string]string{"a": "a\n"})
	g.git(clone, "submodule", "--quiet", "add", g.url("public/module"), "libs/mod")
	g.push(clone, nil, "A submodule")
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{Repo: g.url("public/project"), Submodules: true, Sandbox: g.reach(),
		Prompt: "/run cd libs/mod; echo two >>m; git -c user.name=A -c user.email=a@example.org commit -qam Two; " +
			"echo three >new"})
	w := h.watch(s.ID)
	w.until(t, "done")
	const name = "project/libs/mod"
	patch, err := h.Diff(t.Context(), account, s.ID, name)
	if err != nil || !bytes.Contains(patch, []byte("+two\n")) || !bytes.Contains(patch, []byte("+++ b/new\n")) ||
		bytes.Contains(patch, []byte("+one\n")) {
		t.Errorf("%s, %v", patch, err)
	}
	bundle, _, err := h.Bundle(t.Context(), account, s.ID, name)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "bundle")
	testenv.WriteFile(t, file, bundle)
	g.git(module, "fetch", "-q", file, s.WorkBranch()+":theirs")
	wantEqual(t, "files", g.git(module, "show", "theirs:m", "theirs:new"), "one\ntwo\nthree")
	wantEqual(t, "first commit", g.git(module, "log", "-1", "--format=%s", "theirs~1"), "Two")
	if begin := "\n-" + g.git(module, "rev-parse", "HEAD"); !bytes.Contains(bundle, []byte(begin)) {
		t.Error("the bundle contains the commits from before the session")
	}
	if _, err := h.Push(t.Context(), account, s.ID, name); errors.KindOf(err) != errors.Conflict {
		t.Errorf("a push: %v", err)
	}
	for _, other := range []string{"project/libs", "project/../x", "project//etc", "nosuch/libs/mod", "project/.",
		"project/../project"} {
		if _, err := h.Diff(t.Context(), account, s.ID, other); errors.KindOf(err) != errors.NotFound {
			t.Errorf("%s: %v", other, err)
		}
	}
}
