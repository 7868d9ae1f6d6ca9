package git_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/session/git"
)

// workplace is an origin, a person's clone of it, and an agent's clone, whose branch is harvest/x.
type workplace struct {
	*testing.T
	origin, person, agent string
	events                string
}

func newWorkplace(t *testing.T) *workplace {
	t.Helper()
	t.Parallel()
	testenv.RequireTool(t, "git", "git")
	dir := t.TempDir()
	w := &workplace{t, filepath.Join(dir, "origin.git"), filepath.Join(dir, "person"), filepath.Join(dir, "agent"),
		filepath.Join(dir, "events")}
	w.git("/", "init", "-q", "--bare", "-b", "main", w.origin)
	w.git("/", "clone", "-q", w.origin, w.person)
	w.commit(w.person, "README.md", "one\ntwo\nthree\n", "Begin")
	w.git(w.person, "push", "-q", "origin", "HEAD:main")
	w.git("/", "clone", "-q", w.origin, w.agent)
	w.git(w.agent, "switch", "-q", "-c", "harvest/x")
	for name, value := range map[string]string{"onto": "main", "work": "harvest/x", "base": w.head(w.agent),
		"title": "What was asked for", "events": w.events} {
		w.git(w.agent, "config", "harvest."+name, value)
	}
	return w
}

func (w *workplace) run(dir string, args ...string) (string, error) {
	w.Helper()
	cmd := exec.CommandContext(w.Context(), args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(testenv.CleanEnv(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=Ada (Harvest)", "GIT_AUTHOR_EMAIL=ada@example.org",
		"GIT_COMMITTER_NAME=Ada (Harvest)", "GIT_COMMITTER_EMAIL=ada@example.org", "HARVEST_GIT_WAIT=0")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (w *workplace) git(dir string, args ...string) string {
	w.Helper()
	out, err := w.run(dir, append([]string{"git"}, args...)...)
	if err != nil {
		w.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return out
}

func (w *workplace) head(dir string) string { w.Helper(); return w.git(dir, "rev-parse", "HEAD") }

func (w *workplace) write(dir, name, text string) {
	w.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		w.Fatal(err)
	}
}

func (w *workplace) commit(dir, name, text, message string) {
	w.Helper()
	w.write(dir, name, text)
	w.git(dir, "add", "-A")
	w.git(dir, "commit", "-q", "-m", message)
}

// others makes a person push a commit to main.
func (w *workplace) others(name, text, message string) {
	w.Helper()
	w.commit(w.person, name, text, message)
	w.git(w.person, "push", "-q", "origin", "HEAD:main")
}

// program runs harvest-git as an agent, which must end with a code.
func (w *workplace) program(code int, args ...string) string {
	w.Helper()
	out, err := w.run(w.agent, append([]string{"/bin/sh", "-c", git.Program, git.ProgramName}, args...)...)
	got := 0
	if err != nil {
		got = err.(*exec.ExitError).ExitCode()
	}
	if got != code {
		w.Fatalf("harvest-git %v ended with %d, not %d\n%s", args, got, code, out)
	}
	return out
}

type told struct {
	kind string
	git.Event
}

// told returns the events so far.
func (w *workplace) told() (all []told) {
	w.Helper()
	text, err := os.ReadFile(w.events)
	if err != nil && !os.IsNotExist(err) {
		w.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		kind, e, ok := git.ParseEvent(line)
		if !ok {
			w.Fatalf("no event: %q", line)
		}
		all = append(all, told{kind, e})
	}
	return all
}

func (w *workplace) last() told {
	w.Helper()
	all := w.told()
	if len(all) == 0 {
		w.Fatal("nothing was told")
	}
	return all[len(all)-1]
}

func (w *workplace) subjects() string {
	w.Helper()
	return strings.ReplaceAll(w.git(w.agent, "log", "--format=%s"), "\n", "|")
}

func (w *workplace) checkpoints() string {
	w.Helper()
	return w.git(w.agent, "branch", "--format=%(refname:short)", "--list", "checkpoint/*")
}

func (w *workplace) want(what, got, want string) {
	w.Helper()
	if got != want {
		w.Errorf("%s: %q, want %q", what, got, want)
	}
}

// TestSync checks that uncommitted and committed changes go on top of upstream's. At the end the wip commits are gone,
// and so is the checkpoint.
// mission: E8
func TestSync(t *testing.T) {
	w := newWorkplace(t)
	w.commit(w.agent, "a", "a\n", "wip: half")
	w.commit(w.agent, "a", "a\nb\n", "Add a")
	w.write(w.agent, "new", "not committed\n")
	w.others("theirs", "x\n", "Theirs")
	out := w.program(0, "sync")
	w.want("commits", w.subjects(), "Add a|Theirs|Begin")
	w.want("files", w.git(w.agent, "ls-files"), "README.md\na\nnew\ntheirs")
	w.want("status", w.git(w.agent, "status", "--porcelain"), "")
	w.want("checkpoints", w.checkpoints(), "")
	if e := w.last(); e.kind != git.Synced || e.Failed || e.Onto != "main" || e.Branch != "harvest/x" ||
		e.Commits != 1 || e.Dir != w.agent {
		t.Errorf("%+v\n%s", e, out)
	}
	if all := w.told(); all[0].kind != git.Committed || all[0].Subject != "wip: half" || len(all) != 4 {
		t.Errorf("%+v", all)
	}
	w.want("again", w.program(0, "sync"), "harvest-git: nothing new on origin/main")
}

// TestSyncConflict checks that after three attempts the repository is unchanged, the checkpoint stays, and the report
// lists the attempts.
// mission: E8
func TestSyncConflict(t *testing.T) {
	w := newWorkplace(t)
	w.commit(w.agent, "README.md", "one\nmine\nthree\n", "Mine")
	w.write(w.agent, "README.md", "one\nmine\nthree\nfour\n")
	w.others("README.md", "one\ntheirs\nthree\n", "Theirs")
	out := w.program(1, "sync")
	w.want("commits", w.subjects(), "wip: before a sync|Mine|Begin")
	w.want("status", w.git(w.agent, "status", "--porcelain"), "")
	w.want("branch", w.git(w.agent, "branch", "--show-current"), "harvest/x")
	e := w.last()
	if e.kind != git.Synced || !e.Failed || e.Checkpoint != w.checkpoints() ||
		strings.Count(e.Tried, "conflicts in README.md") != 3 {
		t.Errorf("%+v\n%s", e, out)
	}
	w.want("checkpoint", w.git(w.agent, "rev-parse", e.Checkpoint), w.head(w.agent))
	for _, text := range []string{"not synchronised: the work conflicts with origin/main", "1. git rebase",
		"3. the same", e.Checkpoint} {
		if !strings.Contains(out, text) {
			t.Errorf("%q is missing in\n%s", text, out)
		}
	}
}

// TestSyncThirdAttempt checks that commits that undo one another conflict one by one, and not as one: the third
// attempt.
// mission: E8
func TestSyncThirdAttempt(t *testing.T) {
	w := newWorkplace(t)
	w.commit(w.agent, "README.md", "one\nmine\nthree\n", "Change it")
	w.commit(w.agent, "README.md", "one\ntwo\nthree\n", "Change it back")
	w.commit(w.agent, "other", "x\n", "Add other")
	w.others("README.md", "one\ntheirs\nthree\n", "Theirs")
	w.program(0, "sync")
	w.want("file", w.git(w.agent, "show", "HEAD:README.md"), "one\ntheirs\nthree")
	w.want("message", w.git(w.agent, "log", "-1", "--format=%B"), "Change it\n\nChange it back\n\nAdd other")
	w.want("checkpoints", w.checkpoints(), "")
}

// TestSyncRewritten checks that a rewritten shared branch needs a person's decision, also the second time, and that a
// person may confirm the rewrite.
// mission: E8
func TestSyncRewritten(t *testing.T) {
	w := newWorkplace(t)
	w.others("second", "x\n", "Second")
	w.program(0, "sync")
	w.commit(w.agent, "mine", "x\n", "Mine")
	before := w.head(w.agent)
	w.git(w.person, "commit", "-q", "--amend", "-m", "Second, rewritten")
	w.git(w.person, "push", "-q", "--force", "origin", "HEAD:main")
	for range 2 {
		w.program(1, "sync")
		if e := w.last(); !e.Failed || !strings.Contains(e.Reason, "origin/main was rewritten") {
			t.Errorf("%+v", e)
		}
		w.want("head", w.head(w.agent), before)
	}
	w.program(0, "sync", "--rewritten")
	w.want("commits", w.subjects(), "Mine|Second, rewritten|Begin")
}

// mission: E8
func TestSyncRefuses(t *testing.T) {
	w := newWorkplace(t)
	w.program(2)
	w.program(2, "odd")
	w.program(2, "sync", "--upload-pack=touch x")
	w.program(2, "sync", "a..b")
	w.commit(w.agent, ".gitignore", "ignored\n", "Ignore")
	w.write(w.agent, "ignored", "mine\n")
	w.others("ignored", "theirs\n", "Add ignored")
	if out := w.program(1, "sync"); !strings.Contains(out, "overwritten: ignored") {
		t.Error(out)
	}
	w.git(w.agent, "switch", "-q", "--detach")
	if out := w.program(1, "sync"); !strings.Contains(out, "no branch is checked out") {
		t.Error(out)
	}
	w.git(w.agent, "switch", "-q", "harvest/x")
	w.git(w.agent, "remote", "set-url", "origin", filepath.Join(t.TempDir(), "nosuch"))
	if out := w.program(1, "sync"); !strings.Contains(out, "fetching from origin failed") ||
		!strings.Contains(w.last().Reason, "does not appear to be a git repository") {
		t.Error(out)
	}
	w.commit(w.agent, "README.md", "mine\n", "Mine")
	w.git(w.agent, "branch", "other", "HEAD~1")
	w.git(w.agent, "switch", "-q", "other")
	w.commit(w.agent, "README.md", "theirs\n", "Theirs")
	_, _ = w.run(w.agent, "git", "merge", "-q", "harvest/x")
	for _, order := range []string{"sync", "snapshot", "squash", "push"} {
		if out := w.program(1, order); !strings.Contains(out, "is under way") {
			t.Errorf("%s: %s", order, out)
		}
	}
	out, err := w.run(t.TempDir(), "/bin/sh", "-c", git.Program, git.ProgramName, "sync")
	if err == nil || !strings.Contains(out, "no git repository") {
		t.Errorf("%s, %v", out, err)
	}
}

// TestSquash checks that squashing changes no file, keeps authors, and keeps the user's uncommitted changes separate.
// mission: E8
func TestSquash(t *testing.T) {
	w := newWorkplace(t)
	w.commit(w.agent, "a", "1\n", "wip: a")
	w.git(w.agent, "commit", "-q", "--allow-empty", "--author=Bob <bob@example.org>", "-m", "Add a\n\nBecause.")
	w.commit(w.agent, "a", "2\n", "wip: more")
	w.write(w.agent, "b", "1\n")
	w.program(0, "squash")
	w.want("commits", w.git(w.agent, "log", "-2", "--format=%an %s %b"), "Bob Add a Because.\n\n\nAda (Harvest) Begin")
	w.want("a and b", w.git(w.agent, "show", "HEAD:a")+w.git(w.agent, "show", "HEAD:b"), "21")
	w.program(0, "squash")

	w.commit(w.agent, "c", "1\n", "wip: c")
	w.program(0, "squash", "Add c")
	w.want("with a message", w.subjects(), "Add c|Add a|Begin")

	w = &workplace{t, w.origin, w.person, filepath.Join(t.TempDir(), "second"), w.events}
	w.git("/", "clone", "-q", w.origin, w.agent)
	w.git(w.agent, "config", "harvest.title", "What was asked for")
	w.commit(w.agent, "u", "1\n", "What was not committed\n\nHarvest-Carried: yes")
	w.commit(w.agent, "u", "2\n", "wip: agent's")
	w.program(0, "squash")
	w.want("carried", w.subjects(), "What was asked for|What was not committed|Begin")
	w.want("carried file", w.git(w.agent, "show", "HEAD~1:u"), "1")

	w.git(w.agent, "switch", "-q", "-c", "side", "HEAD~1")
	w.commit(w.agent, "s", "1\n", "wip: side")
	w.git(w.agent, "merge", "-q", "-m", "Merge", "@{-1}")
	before := w.head(w.agent)
	if out := w.program(0, "squash"); !strings.Contains(out, "there are merges") {
		t.Error(out)
	}
	w.want("merges", w.head(w.agent), before)
}

// TestSnapshotOfNothing checks that a snapshot of a repository without commits succeeds and saves nothing.
func TestSnapshotOfNothing(t *testing.T) {
	w := newWorkplace(t)
	w.agent = t.TempDir()
	w.git(w.agent, "init", "-q", "-b", "main")
	w.program(0, "snapshot")
	w.write(w.agent, "a", "1\n")
	w.program(0, "snapshot", "the first")
	w.want("commits", w.subjects(), "wip: the first")
}

// TestPush checks that the session's own branch is pushed, squashed, and that a push does not overwrite other changes
// to it.
// mission: E8
func TestPush(t *testing.T) {
	w := newWorkplace(t)
	hook := filepath.Join(w.agent, ".git", "hooks", "pre-push")
	if err := os.WriteFile(hook, []byte("#!/bin/sh\necho ran >"+w.origin+"/ran\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.commit(w.agent, "a", "1\n", "wip: a")
	w.program(0, "push")
	w.want("pushed", w.git(w.origin, "log", "-1", "--format=%s", "harvest/x"), "What was asked for")
	if e := w.last(); e.kind != git.Pushed || e.Branch != "harvest/x" || e.Commit != w.head(w.agent) {
		t.Errorf("%+v", e)
	}
	if _, err := os.Stat(filepath.Join(w.origin, "ran")); err == nil {
		t.Error("the repository's hook ran")
	}
	w.write(w.agent, "a", "2\n")
	w.program(0, "push")
	w.want("pushed", w.git(w.origin, "show", "harvest/x:a"), "2")

	w.git(w.person, "fetch", "-q", "origin", "harvest/x")
	w.git(w.person, "switch", "-q", "-c", "theirs", "FETCH_HEAD")
	w.commit(w.person, "t", "1\n", "Theirs")
	w.git(w.person, "push", "-q", "origin", "HEAD:harvest/x")
	w.write(w.agent, "a", "3\n")
	if out := w.program(1, "push"); !strings.Contains(out, "changed by somebody else") {
		t.Error(out)
	}
	theirs := w.head(w.person)
	w.git(w.agent, "fetch", "-q", "origin") // so that the lease alone would let it pass
	if out := w.program(1, "push"); !strings.Contains(out, "never on this branch") {
		t.Errorf("%s", out)
	}
	w.want("pushed", w.git(w.origin, "rev-parse", "harvest/x"), theirs)
	w.git(w.agent, "switch", "-q", "main")
	if out := w.program(1, "push"); !strings.Contains(out, "pushes harvest/x only") {
		t.Error(out)
	}
}

// TestPanic checks that a panic saves everything as a branch, changes nothing, and reports all that a person must know.
// mission: E9
func TestPanic(t *testing.T) {
	w := newWorkplace(t)
	w.write(w.agent, "README.md", "staged\n")
	w.git(w.agent, "add", "-A")
	w.write(w.agent, "README.md", "half done\n")
	w.write(w.agent, "new", "x\n")
	before := w.git(w.agent, "status", "--porcelain") + w.head(w.agent)
	out := w.program(1, "panic", "--failed", "npm test: 3 fail\nall of \"a=b\"", "--tried", "once", "--tried", "twice",
		"--need", "decide")
	w.want("state", w.git(w.agent, "status", "--porcelain")+w.head(w.agent), before)
	e := w.last()
	if e.kind != git.Panic || e.Reason != "npm test: 3 fail\nall of \"a=b\"" || e.Tried != "- once\n- twice" ||
		e.Need != "decide" || e.Checkpoint != w.checkpoints() {
		t.Errorf("%+v", e)
	}
	w.want("saved", w.git(w.agent, "show", e.Checkpoint+":README.md")+w.git(w.agent, "show", e.Checkpoint+":new"),
		"half donex")
	if !strings.HasPrefix(out, "PANIC: npm test") || !strings.HasPrefix(e.Report(), "PANIC: npm test") ||
		!strings.Contains(e.Report(), "A person must: decide") {
		t.Errorf("%s\n%s", out, e.Report())
	}
	w.program(2, "panic", "--failed", "x")
	w.program(2, "panic", "--odd", "x")
	w.agent = t.TempDir()
	if out, err := w.run(w.agent, "/bin/sh", "-c", git.Program, git.ProgramName, "panic", "--failed", "no repository",
		"--need", "x"); err == nil || !strings.Contains(out, "Checkpoint: none") {
		t.Errorf("%s, %v", out, err)
	}
}
