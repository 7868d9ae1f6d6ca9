package repo

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/session/repo/failure"
	"github.com/RelevanceAI/harvest/internal/session/repo/python"
)

// shape is a kind of repository.
type shape struct {
	about string
	files map[string]string
}

const (
	projectPy = "[project]\nname = \"a\"\n"
	yarnOne   = "# yarn lockfile v1\n"
)

var shapes = []shape{
	{"package-lock.json, .nvmrc", map[string]string{"package.json": "{}", "package-lock.json": "{}", ".nvmrc": "20\n"}},
	{"npm-shrinkwrap.json", map[string]string{"package.json": "{}", "npm-shrinkwrap.json": "{}"}},
	{"package.json", map[string]string{"package.json": "{}"}},
	{"package.json with a byte order mark", map[string]string{"package.json": "\ufeff" +
		`{"engines": {"node": ">=20"}}`}},
	{"pnpm-lock.yaml 9.0", map[string]string{"package.json": "{}", "pnpm-lock.yaml": "lockfileVersion: '9.0'\n"}},
	{"pnpm-lock.yaml 6.0", map[string]string{"package.json": "{}", "pnpm-lock.yaml": "lockfileVersion: '6.0'\n"}},
	{"pnpm-lock.yaml 5.4", map[string]string{"package.json": "{}", "pnpm-lock.yaml": "lockfileVersion: 5.4\n"}},
	{"pnpm with a digest", map[string]string{"package.json": `{"packageManager": "pnpm@9.1.0+sha512.ab"}`,
		"pnpm-lock.yaml": ""}},
	{"pnpm by an address", map[string]string{
		"package.json": `{"packageManager": "pnpm@https://example.org/pnpm-9.1.0.tgz"}`, "pnpm-lock.yaml": ""}},
	{"devEngines as a list", map[string]string{"package.json": `{"devEngines": {"packageManager": [{"name": "pnpm", ` +
		`"version": "9.x"}], "runtime": [{"name": "node", "version": "24"}]}}`, "pnpm-lock.yaml": ""}},
	{"engines and pnpm-lock.yaml", map[string]string{"package.json": `{"engines": {"pnpm": ">=9"}}`,
		"pnpm-lock.yaml": "lockfileVersion: '9.0'\n"}},
	{"pnpm-workspace.yaml with packages", map[string]string{"package.json": "{}",
		"pnpm-lock.yaml":      "lockfileVersion: '9.0'\n",
		"pnpm-workspace.yaml": "packages: [web]\n", "web/package.json": "{}", "web/package-lock.json": ""}},
	{"pnpm-workspace.yaml with settings only", map[string]string{"package.json": "{}",
		"pnpm-lock.yaml":      "lockfileVersion: '9.0'\n",
		"pnpm-workspace.yaml": "autoInstallPeers: true\n", "web/package.json": "{}", "web/package-lock.json": ""}},
	{"yarn.lock of Yarn 1", map[string]string{"package.json": "{}", "yarn.lock": yarnOne}},
	{"yarn.lock of Yarn 4", map[string]string{"package.json": `{"packageManager": "yarn@4.5.0"}`,
		"yarn.lock": "__metadata:\n"}},
	{"bun.lock", map[string]string{"package.json": "{}", "bun.lock": "{}"}},
	{"bun.lockb", map[string]string{"package.json": "{}", "bun.lockb": ""}},
	{".tool-versions", map[string]string{"package.json": "{}", "package-lock.json": "",
		".tool-versions": "nodejs 24.0.0\n"}},
	{"mise.toml", map[string]string{"package.json": "{}", "package-lock.json": "",
		"mise.toml": "[tools]\nnode = \"24\"\n"}},
	{"volta", map[string]string{"package.json": `{"volta": {"node": "18.20.8", "yarn": "1.22.19"}}`,
		"yarn.lock": yarnOne}},
	{"requirements.txt, requirements-dev.txt", map[string]string{"requirements.txt": "", "requirements-dev.txt": ""}},
	{"requirements/*.txt", map[string]string{"requirements/base.txt": "", "requirements/test.txt": "",
		"requirements/docs.txt": ""}},
	{"pyproject.toml with extras", map[string]string{
		"pyproject.toml": projectPy + "[project.optional-dependencies]\ntest = []\ngpu = []\n"}},
	{"pyproject.toml with dependency groups", map[string]string{
		"pyproject.toml": projectPy + "[dependency-groups]\ndev = [\"pytest>=8\"]\ndocs = []\n"}},
	{"setup.py, setup.cfg with " +
		"extras", map[string]string{"setup.py": "", "setup.cfg": "[options.extras_require]\ntest = pytest\n"}},
	{"setup.cfg", map[string]string{"setup.cfg": "[metadata]\nname = a\n"}},
	{".python-version 3.12", map[string]string{"requirements.txt": "", ".python-version": "3.12\n"}},
	{"requires-python", map[string]string{"pyproject.toml": projectPy + "requires-python = \">=3.9\"\n"}},
	{"uv.lock", map[string]string{"pyproject.toml": projectPy + "[dependency-groups]\ndev = []\ntest = []\n",
		"uv.lock": ""}},
	{"poetry.lock", map[string]string{"pyproject.toml": "[tool.poetry]\n[tool.poetry.group.docs]\noptional = true\n",
		"poetry.lock": ""}},
	{"pdm.lock", map[string]string{"pyproject.toml": projectPy, "pdm.lock": ""}},
	{"Pipfile.lock", map[string]string{"Pipfile": "", "Pipfile.lock": ""}},
	{"Pipfile", map[string]string{"Pipfile": ""}},
	{"go.mod", map[string]string{"go.mod": ""}},
	{"go.work", map[string]string{"go.work": ""}},
	{"Cargo.lock", map[string]string{"Cargo.toml": "", "Cargo.lock": ""}},
	{"Gemfile.lock", map[string]string{"Gemfile": "", "Gemfile.lock": ""}},
	{"composer.lock", map[string]string{"composer.json": "", "composer.lock": ""}},
	{".gitmodules", map[string]string{".gitmodules": "[submodule \"a\"]\n"}},
	{".gitattributes with filter=lfs", map[string]string{".gitattributes": "*.bin filter=lfs\n"}},
	{"harvest.json with submodules and lfs", map[string]string{".gitmodules": "[submodule \"a\"]\n",
		".gitattributes": "*.bin filter=lfs\n", OverrideFile: `{"submodules": true, "lfs": true, "install": "make ` +
			`deps"}`}},
	{"nothing that is known", map[string]string{"main.c": ""}},
}

// row returns the row of a shape in the table.
func (s shape) row(t *testing.T) string {
	t.Helper()
	plan, _, err := Detect(tree(s.files), Parts{})
	if err != nil {
		t.Fatalf("%s: %v", s.about, err)
	}
	var found, versions, installs, said []string
	for _, p := range plan.Projects {
		name := p.Manager
		if p.Dir != "." {
			name += " in " + p.Dir
		}
		found = append(found, name)
		for _, v := range [][2]string{{p.Pin, p.PinFrom}, {"Node.js " + p.Node, p.NodeFrom}, {"Python " + p.Python,
			p.PythonFrom}} {
			if v[1] != "" {
				versions = append(versions, fmt.Sprintf("%s (%s)", v[0], v[1]))
			}
		}
		installs = append(installs, "`"+strings.TrimPrefix(p.Install, fetched(p.Manager))+"`")
		if strings.HasPrefix(p.Install, fetched(p.Manager)) {
			said = append(said, p.Manager+" comes from PyPI")
		}
		if _, ok := python.Choose([]python.Interpreter{{Program: "python3", Version: "3.11.2"}},
			p.Python); p.Python != "" && p.Manager == "pip" &&
			!ok {
			said = append(said, "python, unless the image has uv")
		}
		program, _, _ := strings.Cut(p.Install, " ")
		if setup := failure.Setup(program); setup != "" {
			err := failure.Explain(failure.Step{Stage: "install", Dir: ".", Command: p.Install},
				commands.Result{ReturnCode: 127}, "", failure.Repository{})
			if !strings.Contains(errors.RemedyOf(err), setup) {
				t.Errorf("%s: %s", s.about, errors.RemedyOf(err))
			}
			said = append(said, "fails without "+program+", with the line for `--setup`")
		}
	}
	for _, gap := range plan.Left {
		said = append(said, gap.What)
	}
	if plan.Override.Install != nil {
		installs = []string{"`" + *plan.Override.Install + "`"}
	}
	for part, is := range map[string]bool{"the submodules": plan.Submodules, "the large files": plan.LFS} {
		if is {
			installs = append(installs, part)
		}
	}
	cells := []string{s.about}
	for _, list := range [][]string{found, versions, sorted(installs), said} {
		cells = append(cells, strings.Join(list, "; "))
	}
	return "| " + strings.Join(cells, " | ") + " |\n"
}

// sorted puts commands before parts, in a fixed order.
func sorted(list []string) []string {
	var commands, parts []string
	for _, item := range list {
		if strings.HasPrefix(item, "`") {
			commands = append(commands, item)
		} else {
			parts = append(parts, item)
		}
	}
	if len(parts) > 1 && parts[0] > parts[1] {
		parts[0], parts[1] = parts[1], parts[0]
	}
	return append(commands, parts...)
}

// TestShapes compares the table of docs/repositories.md with what Detect finds. HARVEST_TEST_UPDATE=1 writes it.
func TestShapes(t *testing.T) {
	t.Parallel()
	const file, begin, end = "../../../docs/repositories.md", "<!-- shapes -->\n", "<!-- end of shapes -->\n"
	table := "| in the repository | found | version | installed | left out, and said |\n|---|---|---|---|---|\n"
	for _, s := range shapes {
		table += s.row(t)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	old, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no %q and %q", file, begin, end)
	}
	if old == table {
		return
	}
	if os.Getenv("HARVEST_TEST_UPDATE") == "" {
		t.Fatalf("the table of %s is out of date: run this test with HARVEST_TEST_UPDATE=1", file)
	}
	if err := os.WriteFile(file, []byte(before+begin+table+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
