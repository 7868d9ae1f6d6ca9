package worktree

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// applied is a repository with a file, a directory and two links, to which patches are applied.
func applied(t *testing.T) string {
	t.Helper()
	testenv.RequireTool(t, "git", "git")
	dir := filepath.Join(t.TempDir(), "repository")
	if out, err := exec.CommandContext(t.Context(), "git", "init", "-q", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755),
		os.WriteFile(filepath.Join(dir, "a", "file"), []byte("x\n"), 0o644),
		os.Symlink("..", filepath.Join(dir, "up")), os.Symlink("a/file", filepath.Join(dir, "link")),
		os.Symlink("../..", filepath.Join(dir, "a", "b", "top"))); err != nil {
		t.Fatal(err)
	}
	return dir
}

func addition(mode, name, text string) string {
	return "diff --git a/" + name + " b/" + name + "\nnew file mode " + mode + "\n--- /dev/null\n+++ b/" + name +
		"\n@@ -0,0 +1 @@\n+" + text + "\n\\ No newline at end of file\n"
}

// TestApplyPatch checks that a patch is applied within the repository, or not at all: it neither writes outside, nor
// leaves a link to the outside.
// mission: E3
func TestApplyPatch(t *testing.T) {
	t.Parallel()
	file := addition("100644", "new", "/etc/passwd")
	for name, patch := range map[string]string{
		"a file": file, "within": file + addition("120000", "a/b/l", "../../new"),
		"to nothing": file + addition("120000", "l", "nothing"),
		"changed": file + "diff --git a/link b/link\n--- a/link\n+++ b/link\n@@ -1 +1 @@\n-a/file\n\\ No newline " +
			"at end of file\n+new\n\\ No newline at end of file\n",
	} {
		dir := applied(t)
		if _, err := (applying{top: dir}).run(t.Context(), []byte(patch), false); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "new")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		patch string
		kind  errors.Kind
	}{
		"absolute":                   {addition("120000", "l", "/etc/passwd"), errors.Denied},
		"above":                      {addition("120000", "a/l", "../../x"), errors.Denied},
		"the parent":                 {addition("120000", "l", ".."), errors.Denied},
		"a mode that git reads, too": {addition("0120000 ", "l", "/etc"), errors.Denied},
		"through a link":             {addition("120000", "l", "a/b/top/../x/.."), errors.Denied},
		"without a mode": {"diff --git a/link b/link\n--- a/link\n+++ b/link\n@@ -1 +1 @@\n-a/file\n\\ " +
			"No newline at end of file\n+/etc\n\\ No newline at end of file\n", errors.Denied},
		"a path outside": {addition("100644", "../out", "x"), errors.Conflict},
		"a hook":         {addition("100755", ".git/hooks/post-checkout", "x"), errors.Conflict},
		"behind a link":  {addition("100644", "up/out", "x"), errors.Conflict},
		"behind a new one": {addition("120000", "l", "a/b") + addition("100644", "l/out", "x"),
			errors.Conflict},
		"an absolute path": {addition("100644", "/tmp/harvest-out", "x"), errors.Conflict},
	} {
		dir := applied(t)
		if _, err := (applying{top: dir}).run(t.Context(), []byte(file+c.patch), false); errors.KindOf(err) != c.kind ||
			errors.RemedyOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Lstat(filepath.Join(dir, "new")); err == nil {
			t.Errorf("%s: half of it was applied", name)
		}
		if target, err := os.Readlink(filepath.Join(dir, "link")); err != nil || target != "a/file" {
			t.Errorf("%s: the link is %q, %v", name, target, err)
		}
		if _, err := os.Lstat(filepath.Join(dir, "l")); err == nil {
			t.Errorf("%s: the link stays", name)
		}
	}
}
