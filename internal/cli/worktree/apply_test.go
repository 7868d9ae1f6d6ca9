package worktree

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// twin is a local repository and the agent's copy of it.
type twin struct {
	*testing.T
	local, agent string
}

// newTwin makes a repository with files of each kind, and the agent's copy.
func newTwin(t *testing.T) *twin {
	t.Helper()
	testenv.RequireTool(t, "git", "git")
	w := &twin{T: t, local: filepath.Join(t.TempDir(), "local"), agent: filepath.Join(t.TempDir(), "agent")}
	w.git(".", "init", "-q", "-b", "main", w.local)
	w.write(w.local, map[string]string{"text": "1\n2\n3\n4\n5\n6\n7\n8\n9\n", "binary": "\x00\x01\x02",
		"script": "#!/bin/sh\n", "gone": "x\n", "old name": "a\nb\nc\nd\n",
		".gitignore": "ignored\n", "sub[1]/mine": "x\n"})
	if err := os.Symlink("text", filepath.Join(w.local, "link")); err != nil {
		t.Fatal(err)
	}
	w.commit(w.local)
	w.git(".", "clone", "-q", w.local, w.agent)
	return w
}

func (w *twin) git(dir string, args ...string) string {
	w.Helper()
	out, err := gitWith(w.Context(), dir, []string{"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null"}, nil,
		append([]string{"-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always"},
			args...)...)
	if err != nil {
		w.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func (w *twin) write(dir string, files map[string]string) {
	w.Helper()
	for name, text := range files {
		testenv.WriteFile(w.T, filepath.Join(dir, name), []byte(text))
	}
}

func (w *twin) commit(dir string) {
	w.Helper()
	w.git(dir, "add", "-A")
	w.git(dir, "commit", "-q", "-m", "one")
}

// patch returns the agent's changes, as the server sends them.
func (w *twin) patch() []byte {
	w.Helper()
	w.git(w.agent, "add", "-A")
	out, err := gitIn(w.Context(), w.agent, nil, "diff", "--cached", "--binary", "origin/main")
	if err != nil {
		w.Fatal(err)
	}
	return out
}

// files returns the local files with their modes.
func (w *twin) files() map[string]string {
	w.Helper()
	all := map[string]string{}
	err := filepath.Walk(w.local, func(path string, info os.FileInfo, err error) error {
		switch {
		case err != nil:
			return err
		case info.Name() == ".git":
			if info.IsDir() {
				return filepath.SkipDir
			}
			return nil
		case info.IsDir():
			return nil
		}
		text, err := os.ReadFile(path)
		if info.Mode()&os.ModeSymlink != 0 {
			var target string
			target, err = os.Readlink(path)
			text = []byte("-> " + target)
		}
		name, _ := filepath.Rel(w.local, path)
		all[name] = fmt.Sprintf("%t %s", info.Mode()&0o100 != 0, text)
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return all
}

func (w *twin) apply(patch []byte, check bool) (string, error) {
	record := filepath.Join(w.local, ".git", "harvest", "applied", "ses_1")
	return applying{top: w.local, session: "ses_1", record: record}.run(w.Context(), patch, check)
}

// change makes a change of each kind in the agent's copy.
func (w *twin) change() {
	w.Helper()
	w.write(w.agent, map[string]string{"text": "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n", "binary": "\x00\x01\x03\xff",
		"new/file": "n\n"})
	w.git(w.agent, "mv", "old name", "new name")
	w.git(w.agent, "rm", "-q", "gone")
	if err := errors.Join(os.Chmod(filepath.Join(w.agent, "script"), 0o755), os.Remove(filepath.Join(w.agent, "link")),
		os.Symlink("script", filepath.Join(w.agent, "link"))); err != nil {
		w.Fatal(err)
	}
}

// TestApplyKinds checks that changes of each kind are applied beside the user's own changes, that --check changes
// nothing, and that the index and the branch stay.
// mission: E3
func TestApplyKinds(t *testing.T) {
	t.Parallel()
	w := newTwin(t)
	w.change()
	w.write(w.local, map[string]string{"text": "mine\n1\n2\n3\n4\n5\n6\n7\n8\n9\n", "untracked": "mine\n"})
	index, before := w.git(w.local, "ls-files", "--stage"), w.files()
	patch := w.patch()
	if text, err := w.apply(patch, true); err != nil || text != "7 files, +3 -2: can be applied" {
		t.Errorf("%q, %v", text, err)
	}
	if now := w.files(); !maps.Equal(now, before) {
		t.Errorf("--check changed files: %q", now)
	}
	if text, err := w.apply(patch, false); err != nil || !strings.HasSuffix(text, ": applied to the files") {
		t.Errorf("%q, %v", text, err)
	}
	delete(before, "gone")
	delete(before, "old name")
	maps.Copy(before, map[string]string{"text": "false mine\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n",
		"binary": "false \x00\x01\x03\xff", "new/file": "false n\n", "new name": "false a\nb\nc\nd\n",
		"script": "true #!/bin/sh\n", "link": "true -> script"})
	if now := w.files(); !maps.Equal(now, before) {
		t.Errorf("%q, want %q", now, before)
	}
	if now := w.git(w.local, "ls-files", "--stage"); now != index {
		t.Errorf("the index is %s", now)
	}
	if text, err := w.apply(patch, false); err != nil || text != "the files have these changes already" {
		t.Errorf("again: %q, %v", text, err)
	}
}

// TestApplyConflicts checks that nothing is changed if one file conflicts, and that the error names the user's own
// changes.
// mission: E3
func TestApplyConflicts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mine map[string]string
		want string
	}{
		"the same line":     {map[string]string{"text": "1\n2\n3\n4\n5\n6\n7\n8\n9 mine\n"}, "text"},
		"a binary file":     {map[string]string{"binary": "\x00mine"}, "binary"},
		"a deleted file":    {map[string]string{"gone": "mine\n"}, "gone"},
		"a file in the way": {map[string]string{"new/file": "mine\n"}, "new/file"},
		"a renamed file":    {map[string]string{"new name": "mine\n"}, "new name"},
		"a file as a directory": {map[string]string{"new": "mine\n"},
			""}, // git notices it when it has written other files
	} {
		t.Run(name, func(t *testing.T) {
			w := newTwin(t)
			w.change()
			w.write(w.local, c.mine)
			before := w.files()
			for _, check := range []bool{true, false} {
				_, err := w.apply(w.patch(), check)
				if check && c.want == "" {
					continue
				}
				if errors.KindOf(err) != errors.Conflict || !strings.Contains(errors.Message(err)+errors.RemedyOf(err),
					c.want) || !strings.Contains(errors.RemedyOf(err), "harvest") {
					t.Errorf("%v; %s", err, errors.RemedyOf(err))
				}
				if c.want != "" && !strings.Contains(errors.RemedyOf(err), "your own changes of "+c.want) {
					t.Errorf("the remedy is %s", errors.RemedyOf(err))
				}
				if now := w.files(); !maps.Equal(now, before) {
					t.Errorf("files changed: %q", now)
				}
			}
		})
	}
}

// TestApplyLaterTurn checks that the changes of a later turn replace those that were applied before, beside the user's
// own changes, and that nothing is lost if they cannot.
// mission: E3
func TestApplyLaterTurn(t *testing.T) {
	t.Parallel()
	w := newTwin(t)
	clean := w.files()
	w.change()
	if _, err := w.apply(w.patch(), false); err != nil {
		t.Fatal(err)
	}
	w.write(w.local, map[string]string{"text": "mine\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n"})
	w.write(w.agent, map[string]string{"text": "1\n2\n3\n4\n5\n6\n7\n8\n9\nten\n", "new/file": "second\n"})
	w.git(w.agent, "checkout", "-q", "HEAD", "--", "gone")
	for _, check := range []bool{true, false} {
		if text, err := w.apply(w.patch(), check); err != nil {
			t.Fatalf("%q, %v", text, err)
		}
	}
	now := w.files()
	if now["text"] != "false mine\n1\n2\n3\n4\n5\n6\n7\n8\n9\nten\n" || now["new/file"] != "false second\n" ||
		now["gone"] == "" {
		t.Errorf("%q", now)
	}
	w.write(w.local, map[string]string{"third": "mine\n"})
	w.write(w.agent, map[string]string{"third": "agent's\n"})
	before := w.files()
	if _, err := w.apply(w.patch(), false); errors.KindOf(err) != errors.Conflict {
		t.Errorf("%v", err)
	}
	if now := w.files(); !maps.Equal(now, before) {
		t.Errorf("%q, want %q", now, before)
	}
	w.git(w.agent, "reset", "-q", "--hard", "origin/main")
	if _, err := w.apply(w.patch(), false); err != nil {
		t.Errorf("nothing is left: %v", err)
	}
	clean["text"], clean["third"] = "false mine\n1\n2\n3\n4\n5\n6\n7\n8\n9\n", "false mine\n"
	if now := w.files(); !maps.Equal(now, clean) {
		t.Errorf("%q, want %q", now, clean)
	}
	if _, err := w.apply(nil, false); errors.KindOf(err) != errors.Conflict {
		t.Errorf("nothing at all: %v", err)
	}
}

// TestApplySubmodules checks that changes of submodules are reported, and that the rest is applied.
// mission: E3
func TestApplySubmodules(t *testing.T) {
	t.Parallel()
	w := newTwin(t)
	other := newTwin(t)
	w.git(w.agent, "submodule", "--quiet", "add", other.local, "sub[1]/module")
	w.write(w.agent, map[string]string{"sub[1]/mine": "changed\n"})
	text, err := w.apply(w.patch(), false)
	if err != nil || !strings.HasPrefix(text, "changes of submodules are not applied: sub[1]/module\n2 files, ") {
		t.Errorf("%q, %v", text, err)
	}
	now := w.files()
	if names := slices.Sorted(maps.Keys(now)); !slices.Contains(names, ".gitmodules") ||
		now["sub[1]/mine"] != "false changed\n" {
		t.Errorf("%q", now)
	}
	if _, err := os.Lstat(filepath.Join(w.local, "sub[1]", "module")); err == nil {
		t.Error("there is an empty directory for the submodule")
	}
}

// TestMergeConflicts checks that --3way writes conflict markers where both sides have changed a file, merges the other
// files, and leaves the index alone.
// mission: E3
func TestMergeConflicts(t *testing.T) {
	t.Parallel()
	w := newTwin(t)
	w.write(w.agent, map[string]string{"text": "1\n2\n3\n4\nagent\n6\n7\n8\n9\n", "new/file": "n\n"})
	w.write(w.local, map[string]string{"text": "1\n2\n3\n4\nmine\n6\n7\n8\n9\n"})
	index := w.git(w.local, "ls-files", "--stage")
	patch := w.patch()
	if _, err := w.apply(patch, false); errors.KindOf(err) != errors.Conflict {
		t.Fatalf("as it is: %v", err)
	}
	_, err := Merge(t.Context(), w.local, "ses_1", "", patch)
	if errors.KindOf(err) != errors.Conflict || !strings.Contains(errors.Message(err), "with conflicts in text") ||
		!strings.Contains(errors.RemedyOf(err), "<<<<<<<") {
		t.Errorf("%v", err)
	}
	now := w.files()
	for _, part := range []string{"<<<<<<<", "mine\n", "=======", "agent\n", ">>>>>>>"} {
		if !strings.Contains(now["text"], part) {
			t.Errorf("%q is missing: %s", part, now["text"])
		}
	}
	if now["new/file"] != "false n\n" || w.git(w.local, "ls-files", "--stage") != index {
		t.Errorf("%q", now)
	}
}
