package git_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/session/git"
)

// fill writes files, with the directories above them.
func (w *workplace) fill(dir string, files map[string]string) {
	w.Helper()
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			w.Fatal(err)
		}
		w.write(dir, name, text)
	}
}

// files returns the entries of a commit: modes and names.
func (w *workplace) files(dir, commit string) string {
	w.Helper()
	return strings.ReplaceAll(w.git(dir, "ls-tree", "-r", "--format=%(objectmode) %(path)", commit), "\n", "|")
}

// TestSnapshotOfNestedRepositories checks that files of repositories that an agent makes within its repository are
// ordinary files of the snapshot, with or without commits there. Ignored files stay out. Submodules and other work
// trees are unchanged.
// mission: E3, E8
func TestSnapshotOfNestedRepositories(t *testing.T) {
	w := newWorkplace(t)
	w.fill(w.agent, map[string]string{".gitignore": "node_modules/\n*.log\n/lib\n", "with space/app/lib/a": "a\n",
		"with space/app/node_modules/n": "n\n",
		"with space/app/out.log":        "l\n", "with space/app/own": "o\n", "with space/app/.gitignore": "own\n",
		"with space/app/deep/d": "d\n", "unborn/u": "u\n"})
	app := filepath.Join(w.agent, "with space", "app")
	for _, dir := range []string{app, filepath.Join(app, "deep"), filepath.Join(w.agent, "unborn")} {
		w.git(dir, "init", "-q", "-b", "main")
	}
	w.git(app, "add", "-f", "lib", "out.log") // it has a file that the repository above ignores
	w.git(app, "commit", "-q", "-m", "App")
	w.git(w.agent, "worktree", "add", "-q", "-b", "other", "tree")
	w.program(0, "snapshot")
	want := "100644 .gitignore|100644 README.md|100644 unborn/u|100644 with space/app/.gitignore|100644 with " +
		"space/app/deep/d|100644 with space/app/lib/a|100644 with space/app/out.log"
	w.want("files", w.files(w.agent, "HEAD"), want)

	w.fill(app, map[string]string{"lib/a": "b\n", "new": "n\n"})
	if err := os.Remove(filepath.Join(app, "out.log")); err != nil {
		t.Fatal(err)
	}
	w.program(0, "snapshot")
	w.want("files", w.files(w.agent, "HEAD"), strings.Replace(want, "out.log", "new", 1))
	w.want("changed", w.git(w.agent, "show", "HEAD:with space/app/lib/a"), "b")
	before := w.head(w.agent)
	w.program(0, "snapshot")
	w.want("HEAD", w.head(w.agent), before)
}

// TestSnapshotOfCommittedRepository checks that a nested repository that the agent has committed in git's usual way is
// files in the snapshot, and that a submodule remains one.
// mission: E3
func TestSnapshotOfCommittedRepository(t *testing.T) {
	w := newWorkplace(t)
	w.git(w.agent, "-c", "protocol.file.allow=always", "submodule", "add", "-q", w.origin, "module")
	inner := filepath.Join(w.agent, "inner")
	w.fill(inner, map[string]string{"a": "a\n"})
	w.git(inner, "init", "-q", "-b", "main")
	w.git(inner, "add", "-A")
	w.git(inner, "commit", "-q", "-m", "Inner")
	w.git(w.agent, "add", "-A")
	w.git(w.agent, "commit", "-q", "-m", "As git does it")
	w.want("files", w.files(w.agent, "HEAD"), "100644 .gitmodules|100644 README.md|160000 inner|160000 module")
	if out, err := w.run(w.agent, "/bin/sh", "-euc", "export GIT_INDEX_FILE="+filepath.Join(w.agent, ".git",
		"index")+"\n"+git.Stage+"\nstage HEAD; git ls-files inner"); err != nil || out != "inner" {
		t.Errorf("one that the tree has as a commit: %q, %v", out, err)
	}
	w.program(0, "push")
	w.want("files", w.files(w.origin, "harvest/x"), "100644 .gitmodules|100644 README.md|100644 inner/a|160000 module")
}

// TestReportLeft checks that each report lists the changes that are not handed back, and the stash.
// mission: E8
func TestReportLeft(t *testing.T) {
	w := newWorkplace(t)
	w.git(w.agent, "-c", "protocol.file.allow=always", "submodule", "add", "-q", w.origin, "a module")
	w.commit(w.agent, "a", "1\n", "A")
	w.program(0, "report")
	for _, e := range w.told() {
		if e.kind == git.Left || e.kind == git.Stashed {
			t.Errorf("%+v", e)
		}
	}
	w.want("left", w.program(0, "left"), "")
	w.commit(filepath.Join(w.agent, "a module"), "b", "1\n", "B")
	w.write(filepath.Join(w.agent, "a module"), "c", "1\n")
	w.git(w.agent, "worktree", "add", "-q", "-b", "other", "../tree")
	tree := filepath.Join(filepath.Dir(w.agent), "tree")
	w.commit(tree, "d", "1\n", "D")
	w.write(tree, "e", "1\n")
	w.git(w.agent, "branch", "checkpoint/x", "other")
	w.write(w.agent, "a", "2\n")
	w.git(w.agent, "stash", "push", "-q", "-m", "for later")
	want := "submodule a module: 1 commit, 1 changed file\nwork tree " + tree +
		": 1 changed file\nbranch other: 1 commit"
	w.want("left", w.program(0, "left"), want)
	if err := os.Remove(w.events); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		w.program(0, "report")
	}
	var left []string
	stashed := 0
	for _, e := range w.told() {
		switch e.kind {
		case git.Left:
			left = append(left, e.Reason)
		case git.Stashed:
			stashed++
			if e.Commits != 1 || !strings.Contains(e.Subject, "for later") {
				t.Errorf("%+v", e)
			}
		}
	}
	w.want("reported", strings.Join(left, "\n"), want+"\n"+want)
	if stashed != 2 {
		t.Errorf("%d reports of the stash", stashed)
	}
}
