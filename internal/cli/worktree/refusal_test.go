package worktree

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// TestRefusals checks that git's own refusals are shown, each with its remedy.
func TestRefusals(t *testing.T) {
	t.Setenv("GIT_CONFIG_GLOBAL", "/dev/null")
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	make := func(t *testing.T, commit bool, config ...string) string {
		dir := t.TempDir()
		run := func(args ...string) {
			t.Helper()
			cmd := exec.CommandContext(t.Context(), "git", args...)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("git %q: %v, %s", args, err, out)
			}
		}
		run("init", "--quiet")
		if commit {
			run("-c", "user.name=T", "-c", "user.email=t@example.org", "commit", "--quiet", "--allow-empty", "-m", "x")
		}
		if len(config) > 0 {
			text, err := os.ReadFile(filepath.Join(dir, ".git/config"))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, ".git/config"), append(text, strings.Join(config, "\n")...),
					0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	const extensions = "[core]\nrepositoryformatversion = 1\n[extensions]\n"
	for name, c := range map[string]struct {
		commit      bool
		config      string
		env         string
		says, tells string
		is          errors.Kind
	}{
		"no commit": {false, "", "", "not a git repository with a commit", "--repo", errors.Invalid},
		"an owner": {true, "", "GIT_TEST_ASSUME_DIFFERENT_OWNER", "dubious ownership", "safe.directory '/",
			errors.Invalid},
		"reftable": {true, extensions + "refstorage = x-new\n", "", "efstorage", "git refs migrate",
			errors.Invalid},
		"relative worktrees": {true, extensions + "relativeworktrees = true\n", "", "relativeworktrees",
			"git worktree repair", errors.Invalid},
		"an extension":    {true, extensions + "later = true\n", "", "later", "update git", errors.Invalid},
		"a version":       {true, "[core]\nrepositoryformatversion = 99\n", "", "99", "update git", errors.Invalid},
		"a configuration": {true, "[core\n", "", "bad config line", "correct the configuration", errors.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			dir := make(t, c.commit, c.config)
			if c.env != "" {
				t.Setenv(c.env, "1")
			}
			_, err := Carry(t.Context(), dir, false, &api.SessionRequest{}, func(string, ...any) {})
			if errors.KindOf(err) != c.is || !strings.Contains(errors.Message(err), c.says) ||
				!strings.Contains(errors.RemedyOf(err), c.tells) {
				t.Errorf("%v\n%s", err, errors.RemedyOf(err))
			}
			if c.commit {
				t.Chdir(dir)
				_, err = TopLevel(t.Context(), ".")
				if !strings.Contains(errors.Message(err), c.says) || !strings.Contains(errors.RemedyOf(err), c.tells) {
					t.Errorf("from the directory: %v\n%s", err, errors.RemedyOf(err))
				}
			}
		})
	}
	none := t.TempDir()
	t.Setenv("GIT_CEILING_DIRECTORIES", filepath.Dir(none))
	_, err := Carry(t.Context(), none, false, &api.SessionRequest{}, func(string, ...any) {})
	if !strings.Contains(errors.Message(err), "not a git repository with a commit") {
		t.Errorf("no repository: %v", err)
	}
	t.Setenv("PATH", none)
	_, err = Carry(t.Context(), none, false, &api.SessionRequest{}, func(string, ...any) {})
	if errors.KindOf(err) != errors.Unsupported || errors.RemedyOf(err) != "install git" {
		t.Errorf("no git: %v", err)
	}
}
