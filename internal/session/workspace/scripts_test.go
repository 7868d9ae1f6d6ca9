package workspace

import (
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/session/git"
)

// scripts runs the scripts of sandboxes on plain directories.
type scripts struct {
	*testing.T
	dir string
}

func newScripts(t *testing.T) *scripts {
	t.Helper()
	t.Parallel()
	testenv.RequireTool(t, "git", "git")
	return &scripts{t, t.TempDir()}
}

// run runs a program in a directory below dir and returns its standard output and its exit code. Its input is the file
// that env names as INPUT.
func (s *scripts) run(dir string, env map[string]string, args ...string) (string, int) {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), args[0], args[1:]...)
	cmd.Dir = filepath.Join(s.dir, dir)
	cmd.Env = append(testenv.CleanEnv(), "GIT_CONFIG_GLOBAL="+filepath.Join(s.dir, "gitconfig"),
		"GIT_CONFIG_SYSTEM=/dev/null", "GIT_AUTHOR_NAME=A",
		"GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@example.org")
	if name := env["INPUT"]; name != "" {
		input, err := os.Open(name)
		if err != nil {
			s.Fatal(err)
		}
		defer input.Close()
		cmd.Stdin = pipeOf{input} // as in a sandbox
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		cmd.Env = append(cmd.Env, name+"="+env[name])
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil && cmd.ProcessState == nil {
		s.Fatal(err)
	}
	if err != nil {
		s.Logf("%.40q ended with %d: %s", args, cmd.ProcessState.ExitCode(), stderr.String())
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// pipeOf hides that a Reader is a file, so that programs read it through a pipe.
type pipeOf struct{ io.Reader }

func (s *scripts) git(dir string, args ...string) string {
	s.Helper()
	out, code := s.run(dir, nil, append([]string{"git"}, args...)...)
	if code != 0 {
		s.Fatalf("git %v", args)
	}
	return strings.TrimSuffix(out, "\n")
}

func (s *scripts) write(name, text string) {
	s.Helper()
	name = filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		s.Fatal(err)
	}
}

func (s *scripts) want(what, got, want string) {
	s.Helper()
	if got != want {
		s.Errorf("%s: %q, want %q", what, got, want)
	}
}

// project makes a repository with three commits.
func (s *scripts) project() {
	s.git("", "init", "-q", "-b", "main", "project")
	for _, name := range []string{"a", "b", "c"} {
		s.write("project/"+name, name+"\n")
		s.git("project", "add", "-A")
		s.git("project", "commit", "-q", "-m", name)
	}
}

// begin runs the script that fetches a repository into the directory "agent".
func (s *scripts) begin(script string, env map[string]string) string {
	s.Helper()
	out, code := s.tryBegin(script, env)
	if code != 0 {
		s.Fatal("the repository was not cloned")
	}
	return out
}

// tryBegin is begin for a script that may fail.
func (s *scripts) tryBegin(script string, env map[string]string) (out string, code int) {
	s.Helper()
	all := map[string]string{"DIR": filepath.Join(s.dir, "agent"),
		"ORIGIN": "", "BRANCH": "", "DEPTH": "0", "FROM": "", "SENT": "",
		"WORK": "harvest/x", "NAME": "Ada (Harvest)", "EMAIL": "ada@example.org",
		"PATCH": "", "SHALLOW": "", "BY": "Bob", "BYMAIL": "bob@example.org",
		"CONFIG": Tree{Session: "ses_x"}.config(env["BRANCH"]), "REMOTE": remoteSection(env["ORIGIN"])}
	maps.Copy(all, env)
	out, code = s.run("", all, "/bin/sh", "-euc", script)
	return strings.TrimSuffix(out, "\n"), code
}

// bundle runs the script that hands a repository back, and lists the branches of the resulting bundle.
func (s *scripts) bundle(base, start string) (heads []string, code int) {
	s.Helper()
	out, code := s.run("", nil, "/bin/sh", "-euc", bundleScript, "sh", filepath.Join(s.dir, "agent"), "harvest/x", base,
		"Title", start)
	s.write("bundle", out)
	if code == 0 {
		for line := range strings.Lines(s.git("project", "bundle", "list-heads", filepath.Join(s.dir, "bundle"))) {
			_, ref, _ := strings.Cut(strings.TrimSpace(line), " ")
			heads = append(heads, ref)
		}
	}
	return heads, code
}

// TestCloneOfShallowBundle checks that the commits of a shallow repository can be cloned from its bundle, and that the
// agent's commits go back into it: on the checked-out branch, on another branch and with a detached HEAD.
// mission: E3
func TestCloneOfShallowBundle(t *testing.T) {
	for name, branch := range map[string]string{"checked out": "main", "another": "other", "detached": ""} {
		t.Run(name, func(t *testing.T) {
			s := newScripts(t)
			s.project()
			s.git("project", "branch", "other", "HEAD~1")
			// With a depth of 2, the clone would lack no commit.
			s.git("", "clone", "-q", "--depth=1", "--no-single-branch", "file://"+s.dir+"/project", "mine")
			s.git("mine", "branch", "-q", "other", "origin/other")
			refs := []string{"HEAD"}
			if branch != "" {
				refs = append(refs, "refs/heads/"+branch)
			}
			s.git("mine", append([]string{"bundle", "create", "-q", "../in"}, refs...)...)
			want := s.git("mine", "rev-parse", refs[len(refs)-1])
			s.write("patch", "")
			out := s.begin(cloneScript, map[string]string{"SENT": "yes", "INPUT": s.dir + "/in",
				"SHALLOW": s.dir + "/mine/.git/shallow", "BRANCH": branch, "ORIGIN": "https://example.org/o/n.git"})
			s.want("begins on", out, want+" "+want)
			s.want("branch", s.git("agent", "symbolic-ref", "--short", "HEAD"), "harvest/x")
			s.want("origin", s.git("agent", "remote", "get-url", "origin"), "https://example.org/o/n.git")
			s.git("agent", "fsck", "--connectivity-only")
			s.write("agent/new", "x\n")
			heads, code := s.bundle(want, want)
			if code != 0 || !slices.Equal(heads, []string{"refs/heads/harvest/x"}) {
				t.Fatalf("%v, %d", heads, code)
			}
			s.git("mine", "fetch", "-q", "../bundle", "harvest/x:harvest/x")
			s.want("new", s.git("mine", "show", "harvest/x:new"), "x")
			if _, code := s.bundle("", ""); code != 0 {
				t.Errorf("all commits: %d", code)
			}
		})
	}
}

// TestCloneOfBundle checks that a repository made from a bundle is like one that git clone makes, for each hash, with
// and without an origin, and that bundles without the whole history, and other data, are refused.
// mission: E3
func TestCloneOfBundle(t *testing.T) {
	const origin = "https://example.org/o/n.git"
	for name, c := range map[string]struct {
		format         string
		refs           []string
		branch, origin string
	}{
		"current":        {"sha256", []string{"HEAD", "refs/heads/main"}, "main", origin},
		"without origin": {"sha1", []string{"HEAD", "refs/heads/main"}, "main", ""},
		"another":        {"sha1", []string{"HEAD", "refs/heads/o'the\"r"}, "o'the\"r", origin},
		"no branch":      {"sha1", []string{"HEAD", "refs/heads/main"}, "", origin},
		"detached":       {"sha1", []string{"HEAD"}, "", origin},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScripts(t)
			s.git("", "init", "-q", "-b", "main", "--object-format="+c.format, "project")
			s.write("project/a", "a\n")
			s.git("project", "add", "-A")
			s.git("project", "commit", "-q", "-m", "a")
			s.git("project", "branch", "o'the\"r")
			s.git("project", "commit", "-q", "-m", "b", "--allow-empty")
			s.git("project", append([]string{"bundle", "create", "-q", "../in"}, c.refs...)...)
			clone := []string{"clone", "-q", s.dir + "/in", "want"}
			if c.branch != "" {
				clone = append(clone, "--branch="+c.branch)
			}
			s.git("", clone...)
			want := "remote remove origin"
			if c.origin != "" {
				want = "remote set-url origin " + c.origin
			}
			s.git("want", strings.Fields(want)...)
			s.begin(cloneScript, map[string]string{"SENT": "yes", "INPUT": s.dir + "/in", "BRANCH": c.branch,
				"ORIGIN": c.origin})
			s.git("agent", "checkout", "-q", "--detach")
			s.git("agent", "branch", "-q", "-D", "harvest/x")
			s.git("agent", "update-ref", "-d", "refs/harvest/reported")
			for _, question := range []string{"for-each-ref --format=%(refname)%(objectname)%(symref)",
				"config --get-regexp ^(remote|branch)\\.", "rev-parse HEAD", "status --porcelain"} {
				args := append([]string{"git"}, strings.Fields(question)...)
				got, _ := s.run("agent", nil, args...)
				want, _ := s.run("want", nil, args...)
				s.want(question, got, want)
			}
		})
	}
	s := newScripts(t)
	s.project()
	s.git("project", "bundle", "create", "-q", "../in", "HEAD~1..main")
	s.write("none", "PACK is missing\n")
	for name, branch := range map[string]string{"in": "main", "none": "main"} {
		if out, code := s.tryBegin(cloneScript, map[string]string{"SENT": "yes", "INPUT": s.dir + "/" + name,
			"BRANCH": branch}); code != 128 {
			t.Errorf("%s: %d, %s", name, code, out)
		}
	}
}

// TestShallowBundleOnImage checks that an image of a shallow repository can be updated from a bundle, whether or not
// the image has the parents of the bundle's commits.
func TestShallowBundleOnImage(t *testing.T) {
	for name, depth := range map[string]string{"whole": "10", "shallow": "1"} {
		t.Run(name, func(t *testing.T) {
			s := newScripts(t)
			s.project()
			s.git("", "clone", "-q", "--depth="+depth, "file://"+s.dir+"/project", "agent")
			for _, name := range []string{"d", "e", "f"} {
				s.write("project/"+name, name+"\n")
				s.git("project", "add", "-A")
				s.git("project", "commit", "-q", "-m", name)
			}
			s.git("", "clone", "-q", "--depth=2", "file://"+s.dir+"/project", "mine")
			s.git("mine", "bundle", "create", "-q", "../in", "HEAD")
			head := s.git("mine", "rev-parse", "HEAD")
			out := s.begin(imageScript, map[string]string{"SENT": "yes", "INPUT": s.dir + "/in",
				"SHALLOW": s.dir + "/mine/.git/shallow", "ORIGIN": "https://example.org/o/n.git"})
			if _, begins, _ := strings.Cut(out, "\n"); begins != head+" "+head {
				t.Errorf("%q, want %s", out, head)
			}
		})
	}
}

// TestBundleScript checks that the bundle has the files of nested repositories and the entries of the stash, and is the
// same each time. Files of tools stay out.
// mission: E3, E8
func TestBundleScript(t *testing.T) {
	s := newScripts(t)
	s.project()
	base := s.begin(cloneScript, map[string]string{"FROM": s.dir + "/project", "BRANCH": "main"})[:40]
	if _, code := s.bundle(base, base); code != 9 {
		t.Errorf("nothing: %d", code)
	}
	s.write("agent/.playwright-mcp/page.yml", "x\n")
	if heads, code := s.bundle(base, base); code != 9 {
		t.Errorf("files of tools only: %v, %d", heads, code)
	}
	s.write("agent/a", "stashed\n")
	s.git("agent", "stash", "push", "-q")
	if heads, code := s.bundle(base, base); code != 0 ||
		!slices.Equal(heads, []string{"refs/heads/harvest/x-stash-1"}) {
		t.Errorf("a stash only: %v, %d", heads, code)
	}
	s.write("agent/b", "stashed, too\n")
	s.git("agent", "stash", "push", "-q")
	for _, dir := range []string{"nested", "unborn"} {
		s.write("agent/"+dir+"/file", dir+"\n")
		s.git("agent/"+dir, "init", "-q")
	}
	s.git("agent/nested", "add", "-A")
	s.git("agent/nested", "commit", "-q", "-m", "Nested")
	index := s.git("agent", "ls-files", "--stage")
	heads, code := s.bundle(base, base)
	if code != 0 || !slices.Equal(heads, []string{"refs/heads/harvest/x", "refs/heads/harvest/x-stash-1",
		"refs/heads/harvest/x-stash-2"}) {
		t.Fatalf("%v, %d", heads, code)
	}
	s.git("project", "fetch", "-q", "../bundle", "refs/heads/*:refs/heads/*")
	s.want("files", s.git("project", "ls-tree", "-r", "--name-only", "harvest/x"), "a\nb\nc\nnested/file\nunborn/file")
	s.want("stash", s.git("project", "show", "harvest/x-stash-2:a"), "stashed")
	s.want("index", s.git("agent", "ls-files", "--stage"), index)
	head := s.git("project", "rev-parse", "harvest/x")
	s.bundle(base, base)
	s.git("project", "fetch", "-q", "../bundle", "+refs/heads/*:refs/again/*")
	s.want("once more", s.git("project", "rev-parse", "refs/again/harvest/x"), head)
	patch, _ := s.run("", nil, "/bin/sh", "-euc", diffScript, "sh", filepath.Join(s.dir, "agent"), base)
	s.write("patch", patch)
	s.git("project", "apply", "--index", "../patch")
	s.want("applied", s.git("project", "ls-files"), "a\nb\nc\nnested/file\nunborn/file")
}

// TestLeftScript checks that the script lists for each repository the changes that are not handed back.
// mission: E8
func TestLeftScript(t *testing.T) {
	s := newScripts(t)
	s.project()
	s.git("", "clone", "-q", "project", "agent")
	s.git("", "clone", "-q", "project", "other")
	left := func() string {
		out, _ := s.run("", nil, "/bin/sh", "-euc", leftScript, "sh", git.Program, s.dir+"/gone", s.dir+"/agent",
			s.dir+"/other")
		return strings.TrimSuffix(out, "\n")
	}
	s.want("nothing", left(), "")
	s.git("other", "switch", "-q", "-c", "aside")
	s.git("other", "commit", "-q", "--allow-empty", "-m", "Aside")
	s.git("other", "switch", "-q", "main")
	s.want("left", left(), "other: branch aside: 1 commit")
}

// TestFilesBelowUnfetchedSubmodulesAreReported checks that files in the place of a submodule that was not fetched are
// reported as not handed back, with and without .gitmodules.
// mission: E8
func TestFilesBelowUnfetchedSubmodulesAreReported(t *testing.T) {
	s := newScripts(t)
	s.project()
	s.git("", "clone", "-q", "project", "agent")
	commit := s.git("agent", "rev-parse", "HEAD")
	for _, name := range []string{"sub/module", "link"} {
		s.git("agent", "update-index", "--add", "--cacheinfo", "160000,"+commit+","+name)
	}
	s.write("agent/.gitmodules", "[submodule \"m\"]\n\tpath = sub/module\n\turl = https://example.org/m\n")
	s.git("agent", "add", ".gitmodules")
	s.git("agent", "commit", "-q", "-m", "Submodules")
	if err := os.MkdirAll(filepath.Join(s.dir, "agent/sub/module/empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	left := func() string {
		out, _ := s.run("", nil, "/bin/sh", "-euc", leftScript, "sh", git.Program, s.dir+"/agent")
		return strings.TrimSuffix(out, "\n")
	}
	s.want("nothing", left(), "")
	s.write("agent/sub/module/new", "x\n")
	s.write("agent/sub/module/deep/new", "x\n")
	s.write("agent/link/.hidden", "x\n")
	s.want("left", left(), "agent: submodule link, which was not fetched: 1 file\n"+
		"agent: submodule sub/module, which was not fetched: 2 files")
}

// TestDiffScriptIgnoresSettings checks that a patch can be applied whatever the agent's settings of git are.
// mission: E3
func TestDiffScriptIgnoresSettings(t *testing.T) {
	s := newScripts(t)
	s.project()
	base := s.begin(cloneScript, map[string]string{"FROM": s.dir + "/project", "BRANCH": "main"})[:40]
	for _, setting := range []string{"diff.noprefix=true", "diff.mnemonicPrefix=true", "diff.context=0",
		"diff.submodule=log", "diff.external=false", "diff.relative=true", "color.ui=always",
		"diff.interHunkContext=9", "core.quotePath=false", "diff.renames=copies"} {
		key, value, _ := strings.Cut(setting, "=")
		s.git("agent", "config", key, value)
	}
	s.write("agent/a", "changed\n")
	s.write("agent/é", "new\n")
	s.git("agent", "mv", "b", "moved")
	patch, code := s.run("", nil, "/bin/sh", "-euc", diffScript, "sh", filepath.Join(s.dir, "agent"), base)
	if code != 0 {
		t.Fatal(patch)
	}
	s.write("patch", patch)
	s.git("project", "apply", "--index", "../patch")
	s.want("files", s.git("project", "-c", "core.quotePath=false", "ls-files"), "a\nc\nmoved\né")
	s.want("changed", s.git("project", "show", ":a"), "changed")
}

// TestCloneWithoutHead clones repositories whose HEAD names a branch that does not exist.
func TestCloneWithoutHead(t *testing.T) {
	s := newScripts(t)
	s.project()
	want := s.git("project", "rev-parse", "main")
	s.git("project", "checkout", "-q", "-B", "dev", "main")
	s.git("project", "branch", "-q", "-D", "main")
	s.git("project", "symbolic-ref", "HEAD", "refs/heads/gone")
	out := s.begin(cloneScript, map[string]string{"FROM": "file://" + s.dir + "/project", "BRANCH": "", "DEPTH": "0"})
	s.want("begins on the only branch", out, want+" "+want)
	s.git("project", "branch", "other", "dev")
	_, code := s.run("", map[string]string{"FROM": "file://" + s.dir + "/project", "BRANCH": "", "DEPTH": "0",
		"ORIGIN": "", "SHALLOW": "", "DIR": s.dir + "/second", "NAME": "A", "EMAIL": "a@example.org"},
		"/bin/sh", "-euc", cloneScript)
	if _, err := os.Stat(s.dir + "/second"); code == 0 || !os.IsNotExist(err) {
		t.Errorf("one of two branches was chosen: exit code %d, %v", code, err)
	}
}
