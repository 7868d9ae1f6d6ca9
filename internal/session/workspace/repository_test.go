package workspace

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// TestGitConfig checks that git reads back any title and any branch unchanged.
func TestGitConfig(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config")
	tree := Tree{Session: "ses_1", Title: `say "hi\n" # ; [x] \`}
	if err := os.WriteFile(file, []byte(tree.config(`odd"branch`)+"\tbase = abc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"title": tree.Title, "onto": `odd"branch`, "work": "harvest/1",
		"events": tree.events(), "base": "abc"} {
		out, err := exec.CommandContext(t.Context(), testenv.RequireTool(t, "git", "git"), "config", "--file", file,
			"harvest."+key).Output()
		if err != nil || string(out) != want+"\n" {
			t.Errorf("%s: %q, %v, want %q", key, out, err, want)
		}
	}
	if text := tree.config(""); strings.Contains(text, "onto") {
		t.Error(text)
	}
}

// TestDiffScript checks that a diff has only the agent's changes, and no changes by others or uncommitted changes of
// the user, whether the work was carried forward or not.
// mission: E8
func TestDiffScript(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = dir
		cmd.Env = append(testenv.CleanEnv(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=A",
			"GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@example.org")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	commit := func(name, message string) string {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		run("git", "add", "-A")
		run("git", "commit", "-q", "-m", message)
		return run("git", "rev-parse", "HEAD")
	}
	want := func(what, start, names string) {
		t.Helper()
		var got []string
		for line := range strings.Lines(run("/bin/sh", "-euc", diffScript, "sh", dir, start)) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "+++ b/"); ok {
				got = append(got, name)
			}
		}
		if strings.Join(got, " ") != names {
			t.Errorf("%s: %q, want %q", what, got, names)
		}
	}
	run("git", "init", "-q", "-b", "main")
	want("nothing", "", "")
	base := commit("base", "Base")
	want("all of it", "", "base")
	run("git", "switch", "-q", "-c", "work")
	run("git", "config", "harvest.onto", "main")
	carried := commit("carried", "What was not committed\n\nHarvest-Carried: yes")
	commit("mine", "Mine")
	if err := os.WriteFile(filepath.Join(dir, "new"), []byte("x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	want("without an origin", carried, "mine new")
	run("git", "update-ref", "refs/remotes/origin/main", base)
	want("not carried forward", carried, "mine new")
	want("from the beginning", base, "mine new") // it is below the user's uncommitted changes
	if err := os.Remove(filepath.Join(dir, "new")); err != nil {
		t.Fatal(err)
	}
	run("git", "switch", "-q", "main")
	theirs := commit("theirs", "Theirs")
	run("git", "update-ref", "refs/remotes/origin/main", theirs)
	run("git", "switch", "-q", "work")
	want("fetched only", carried, "mine")
	run("git", "rebase", "-q", "main")
	want("carried forward", carried, "mine")
	run("git", "switch", "-q", "-c", "plain", base)
	commit("other", "Other")
	run("git", "merge", "-q", "-m", "Merge", "main")
	want("merged", base, "other")
}
