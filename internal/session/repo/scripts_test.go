package repo

import (
	"archive/zip"
	"bytes"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/session/repo/python"
)

// machine runs the scripts of builds on this machine, with a server of git repositories.
type machine struct {
	*testing.T
	dir string
	url string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	git := testenv.RequireTool(t, "git", "git")
	m := &machine{T: t, dir: t.TempDir()}
	server := httptest.NewServer(&cgi.Handler{Path: git, Args: []string{"http-backend"}, Env: []string{
		"GIT_PROJECT_ROOT=" + filepath.Join(m.dir, "served"), "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=/dev/null"}})
	t.Cleanup(server.Close)
	m.url = server.URL
	return m
}

// run runs a program and returns its standard output.
func (m *machine) run(dir string, args ...string) string {
	m.Helper()
	cmd := exec.CommandContext(m.Context(), args[0], args[1:]...)
	cmd.Dir = filepath.Join(m.dir, dir)
	cmd.Env = append(testenv.CleanEnv(), "HOME="+m.dir, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=A",
		"GIT_COMMITTER_EMAIL=a@example.org",
		"GIT_ALLOW_PROTOCOL=http:file", "PIP_NO_INDEX=1", "PIP_FIND_LINKS="+filepath.Join(m.dir, "wheels"))
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		m.Fatalf("%.60q: %v\n%s%s", args, err, out, said.String())
	}
	return strings.TrimSpace(string(out))
}

func (m *machine) script(text string, params ...string) string {
	m.Helper()
	return m.run("", append([]string{"/bin/sh", "-euc", text, "sh"}, params...)...)
}

func (m *machine) write(name, text string) {
	m.Helper()
	name = filepath.Join(m.dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		m.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		m.Fatal(err)
	}
}

func (m *machine) commit(repository string) {
	m.Helper()
	m.run(repository, "git", "add", "--all")
	m.run(repository, "git", "commit", "--quiet", "--message", "x")
}

// TestSubmodulesAreFetched checks that a build fetches the submodules of a repository, and those of newer commits.
func TestSubmodulesAreFetched(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	m := newMachine(t)
	for _, name := range []string{"served/lib", "served/main"} {
		m.write(name+"/file", "one\n")
		m.run(name, "git", "init", "--quiet", "--initial-branch=main")
		m.commit(name)
	}
	m.run("served/main", "git", "submodule", "--quiet", "add", m.url+"/lib/.git", "lib")
	m.commit("served/main")
	at := filepath.Join(m.dir, "clone")
	m.script(cloneScript, m.url+"/main/.git", "main", at)
	m.script(partsScript, at, "false", "true")
	if text, err := os.ReadFile(at + "/lib/file"); err != nil || string(text) != "one\n" {
		t.Errorf("%q, %v", text, err)
	}
	m.write("served/lib/file", "two\n")
	m.commit("served/lib")
	m.run("served/main/lib", "git", "pull", "--quiet")
	m.commit("served/main")
	m.script(updateScript, m.url+"/main/.git", "main", at)
	m.script(partsScript, at, "false", "true")
	if text, err := os.ReadFile(at + "/lib/file"); err != nil || string(text) != "two\n" {
		t.Errorf("after a commit: %q, %v", text, err)
	}
	if out := m.run("clone", "git", "status", "--porcelain"); out != "" {
		t.Errorf("the work tree has changes: %s", out)
	}
}

// TestFilesAreRead checks that Harvest reads the beginning of large lock files, and no other large file.
func TestFilesAreRead(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.run("", "git", "init", "--quiet", "repository")
	m.write("repository/pnpm-lock.yaml", "lockfileVersion: '9.0'\n"+strings.Repeat("x", MaxText+headBytes))
	m.write("repository/package.json", strings.Repeat(" ", MaxText+1))
	m.write("repository/.nvmrc", "20\n")
	ids := m.run("repository", "git", "hash-object", "-w", "pnpm-lock.yaml", "package.json", ".nvmrc")
	id := strings.Fields(ids)
	m.write("ask", id[0]+" 65536\n"+id[1]+" 1048576\n"+id[2]+" 1048576\n")
	out := m.run("", "/bin/sh", "-euc", "exec <ask\n"+readScript, "sh", filepath.Join(m.dir, "repository"), "1048576")
	texts := parseTexts([]byte(out+"\n"), []string{"lock", "package", "version"})
	if lockVersion(texts["lock"]) != "9.0" || len(texts["lock"]) != headBytes || len(texts["package"]) != 0 ||
		string(texts["version"]) != "20\n" {
		t.Errorf("%d bytes, %d bytes, %q", len(texts["lock"]), len(texts["package"]), texts["version"])
	}
}

// wheel returns a package of Python with a program of its name, which prints its arguments.
func (m *machine) wheel(name string) {
	m.Helper()
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	info := name + "-1.0.dist-info/"
	for _, f := range [][2]string{
		{name + ".py", "import sys\ndef main(): print('" + name + "', *sys.argv[1:])\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "entry_points.txt", "[console_scripts]\n" + name + " = " + name + ":main\n"},
		{info + "RECORD", name + ".py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info +
			"entry_points.txt,,\n" +
			info + "RECORD,,\n"},
	} {
		w, err := z.Create(f[0])
		if err == nil {
			_, err = w.Write([]byte(f[1]))
		}
		if err != nil {
			m.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		m.Fatal(err)
	}
	m.write("wheels/"+name+"-1.0-py3-none-any.whl", out.String())
}

// TestPythonInstallations runs the commands of plans with a local index.
func TestPythonInstallations(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	program := testenv.RequireTool(t, "python3", "python3-venv")
	m := newMachine(t)
	m.wheel("pdm")
	m.wheel("tiny")
	install := func(files map[string]string, asked Parts) string {
		t.Helper()
		for name, text := range files {
			m.write("project/"+name, text)
		}
		plan, _, err := Detect(tree(files), asked)
		if err != nil || len(plan.Projects) != 1 {
			t.Fatalf("%+v, %v", plan, err)
		}
		return m.run("project", "/bin/sh", "-ec", plan.Projects[0].Install)
	}
	out := install(map[string]string{"pdm.lock": "", "pyproject.toml": projectPy}, Parts{})
	if !strings.HasSuffix(out, "pdm sync") {
		t.Errorf("PDM: %s", out)
	}
	install(map[string]string{"pyproject.toml": "[dependency-groups]\ndev = [\"tiny==1.0; python_version >= " +
		"'3'\"]\n"}, Parts{})
	if out := m.run("project", ".venv/bin/tiny", "x"); out != "tiny x" {
		t.Errorf("a dependency group: %s", out)
	}
	where := m.run("", program, "-c", "import os, sys; print(os.path.dirname(sys.executable))")
	all := python.Parse(m.script("PATH=" + quoted(where) + ":/bin\n" + pythonsScript))
	have := m.run("", program, "-c", "import platform; print(platform.python_version())")
	if found, ok := python.Choose(all, "=="+have); !ok || found.Program == "" {
		t.Errorf("Python %s is not among %v", have, all)
	}
}
