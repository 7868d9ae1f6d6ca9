package repo

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
)

// tree makes a Tree of files and their texts.
func tree(files map[string]string) Tree {
	t := Tree{Digests: map[string]string{}, Text: map[string][]byte{}}
	for name, text := range files {
		if !Wanted(name) {
			continue
		}
		t.Digests[name] = fmt.Sprintf("%040x", len(name)*1000+len(text))
		if NeedsText(name) {
			t.Text[name] = []byte(text)
		}
	}
	return t
}

// mission: B4
func TestDetect(t *testing.T) {
	t.Parallel()
	const scripts = `"scripts": {"build": "tsc", "test": "jest"}`
	for name, c := range map[string]struct {
		files map[string]string
		want  []string // dir: manager node | install | build | test
		locks string
	}{
		"nothing": {map[string]string{"main.c": "", "README.md": ""}, nil, ""},
		"npm": {map[string]string{"package.json": "{" + scripts + "}", "package-lock.json": "{}",
			".nvmrc": "v20.11.1\n"},
			[]string{".: npm 20.11.1 .nvmrc | npm ci --no-audit --no-fund | npm run build | npm run test"},
			".nvmrc package-lock.json"},
		"shrinkwrap": {map[string]string{"package.json": "{}", "npm-shrinkwrap.json": "{}"},
			[]string{".: npm   | npm ci --no-audit --no-fund |  | "}, "npm-shrinkwrap.json"},
		"no lock": {map[string]string{"package.json": `{"scripts": {"test": "echo \"Error: no test specified\" && ` +
			`exit 1"}}`}, []string{".: npm   | npm install --no-package-lock --no-audit --no-fund |  | "},
			"package.json"},
		"pnpm": {map[string]string{"package.json": `{"packageManager": "pnpm@9.1.0+sha512.abc", "engines": {"node": ` +
			`">=18"}, ` + scripts + `}`, "pnpm-lock.yaml": ""},
			[]string{".: pnpm >=18 package.json engines | pnpm install --frozen-lockfile | pnpm run build | pnpm run " +
				"test"}, "pnpm-lock.yaml"},
		"bun": {map[string]string{"package.json": "{" + scripts + "}", "bun.lock": ""},
			[]string{".: bun   | bun install --frozen-lockfile | bun run build | bun run test"}, "bun.lock"},
		"bun of an older version": {map[string]string{"package.json": "{}", "bun.lockb": ""},
			[]string{".: bun   | bun install --frozen-lockfile |  | "}, "bun.lockb"},
		"bun by its pin": {map[string]string{"package.json": `{"packageManager": "bun@1.2.0"}`,
			"package-lock.json": ""},
			[]string{".: bun   | bun install --no-save |  | "}, "package-lock.json package.json"},
		"asdf": {map[string]string{"package.json": "{}", ".tool-versions": "# tools\npython 3.12.1\nnodejs v24.0.0\n"},
			[]string{".: npm 24.0.0 .tool-versions | npm install --no-package-lock --no-audit --no-fund |  | "},
			".tool-versions package.json"},
		"mise": {map[string]string{"package.json": "{}", "mise.toml": "[tools]\nnode = ['24', '22']\n"},
			[]string{".: npm 24 mise.toml | npm install --no-package-lock --no-audit --no-fund |  | "},
			"mise.toml package.json"},
		"pnpm after a byte order mark": {map[string]string{"package.json": "\ufeff{" + scripts + "}",
			"pnpm-lock.yaml": "",
			".nvmrc":         "\ufeff20\n"}, []string{
			".: pnpm 20 .nvmrc | pnpm install --frozen-lockfile | pnpm run build | " +
				"pnpm run test"}, ".nvmrc pnpm-lock.yaml"},
		"pnpm settings": {map[string]string{"package.json": `{}`, "pnpm-workspace.yaml": "allowBuilds:\n  es5-ext: " +
			"true\n",
			"pnpm-lock.yaml": "", "web/package.json": "{}", "web/package-lock.json": "{}"},
			[]string{".: pnpm   | pnpm install --frozen-lockfile |  | ",
				"web: npm   | npm ci --no-audit --no-fund |  | "},
			"pnpm-lock.yaml pnpm-workspace.yaml web/package-lock.json"},
		"devEngines as a list": {map[string]string{"package.json": `{"devEngines": {"runtime": [{"name": "bun"}, ` +
			`{"name": "node", "version": "24"}], "packageManager": [{"name": "pnpm", "version": "^9"}]}}`},
			[]string{".: pnpm 24 package.json devEngines | pnpm install --no-lockfile |  | "}, "package.json"},
		"an address as pin": {map[string]string{"package.json": `{"packageManager": ` +
			`"yarn@https://example.org/3.2.1/yarn.js#sha224.ab"}`, "yarn.lock": "", "pnpm-lock.yaml": ""},
			[]string{".: yarn-berry   | yarn install --immutable |  | "}, "pnpm-lock.yaml yarn.lock"},
		"pnpm workspace": {map[string]string{"package.json": `{}`,
			"pnpm-workspace.yaml": "packages:\n  - packages/*\n", "pnpm-lock.yaml": "",
			"packages/a/package.json": "{}", "packages/a/package-lock.json": "{}", ".npmrc": ""},
			[]string{".: pnpm   | pnpm install --frozen-lockfile | pnpm --recursive --if-present run build | "},
			".npmrc packages/a/package-lock.json pnpm-lock.yaml pnpm-workspace.yaml"},
		"pnpm without lock": {map[string]string{"package.json": `{"packageManager": "pnpm@9.1.0"}`},
			[]string{".: pnpm   | pnpm install --no-lockfile |  | "}, "package.json"},
		"npm workspace": {map[string]string{"package.json": `{"workspaces": ["a"]}`, "package-lock.json": "",
			"a/package.json": "{}"},
			[]string{".: npm   | npm ci --no-audit --no-fund | npm run build --workspaces --if-present | "},
			"package-lock.json"},
		"yarn": {map[string]string{"package.json": "{" + scripts + `, "volta": {"node": "18.20.8", "yarn": "1.22.19"}}`,
			"yarn.lock": "# yarn lockfile v1"}, []string{".: yarn 18.20.8 package.json volta | yarn install " +
			"--frozen-lockfile --non-interactive | yarn run build | yarn run test"}, "yarn.lock"},
		"yarn no lock": {map[string]string{"package.json": `{"packageManager": "yarn@1.22.0"}`},
			[]string{".: yarn   | yarn install --no-lockfile --non-interactive |  | "}, "package.json"},
		"yarn workspace": {map[string]string{"package.json": `{"workspaces": {"packages": ["a"]}}`,
			"yarn.lock": "# yarn lockfile v1"},
			[]string{".: yarn   | yarn install --frozen-lockfile --non-interactive |  | "}, "yarn.lock"},
		"berry by its lock": {map[string]string{"package.json": "{}",
			"yarn.lock": "# file\n\n__metadata:\n  version: 8\n"},
			[]string{".: yarn-berry   | yarn install --immutable |  | "}, "yarn.lock"},
		"berry by its pin": {map[string]string{"package.json": `{"packageManager": "yarn@4.1.0"}`, ".yarnrc.yml": ""},
			[]string{".: yarn-berry   | yarn install |  | "}, ".yarnrc.yml package.json"},
		"berry by volta": {map[string]string{"package.json": `{"volta": {"yarn": "3.6.0"}}`, "yarn.lock": ""},
			[]string{".: yarn-berry   | yarn install --immutable |  | "}, "yarn.lock"},
		"berry by settings": {map[string]string{"package.json": `{"packageManager": "yarn@x"}`, "yarn.lock": "",
			".yarnrc.yml": ""}, []string{".: yarn-berry   | yarn install --immutable |  | "}, ".yarnrc.yml yarn.lock"},
		"the pin decides": {map[string]string{"package.json": `{"packageManager": "npm@10.0.0"}`, "yarn.lock": "",
			"package-lock.json": ""}, []string{".: npm   | npm ci --no-audit --no-fund |  | "},
			"package-lock.json yarn.lock"},
		"the pin has no lock": {map[string]string{"package.json": `{"packageManager": "pnpm@10.0.0"}`, "yarn.lock": ""},
			[]string{".: pnpm   | pnpm install --no-lockfile |  | "},
			"package.json yarn.lock"},
		"devEngines": {map[string]string{"package.json": `{"devEngines": {"runtime": {"name": "node", "version": ` +
			`"22.1.0"}}, "engines": {"node": "20"}}`},
			[]string{".: npm 22.1.0 package.json devEngines | npm install --no-package-lock --no-audit --no-fund | " +
				" | "}, "package.json"},
		".node-version": {map[string]string{"package.json": `{"engines": {"node": 20}}`,
			".node-version": "# which\n"},
			[]string{".: npm   | npm install --no-package-lock --no-audit --no-fund |  | "},
			".node-version package.json"},
		"a package that is no": {map[string]string{"package.json": `["odd"]`},
			[]string{".: npm   | npm install --no-package-lock --no-audit --no-fund |  | "}, "package.json"},
		"types that are wrong": {map[string]string{"package.json": `{"packageManager": 7, "volta": [], "scripts": ` +
			`{"build": {}}, "workspaces": null, "engines": "x"}`},
			[]string{".: npm   | npm install --no-package-lock --no-audit --no-fund |  | "}, "package.json"},
		"pip": {map[string]string{"requirements.txt": "pytest==8\n", "requirements-dev.txt": ""},
			[]string{".: pip   | python3 -m venv .venv && .venv/bin/pip install --disable-pip-version-check -r " +
				"requirements.txt -r requirements-dev.txt |  | .venv/bin/python -m pytest -q"},
			"requirements-dev.txt requirements.txt"},
		"pyproject": {map[string]string{"pyproject.toml": "[project]\nname = 'a'\n"},
			[]string{".: pip   | python3 -m venv .venv && .venv/bin/pip install --disable-pip-version-check -e . | " +
				" | "}, "pyproject.toml"},
		"tools only": {map[string]string{"pyproject.toml": "[tool.ruff]\n"}, nil, ""},
		"uv": {map[string]string{"pyproject.toml": "[project]\npytest", "uv.lock": "",
			".python-version": "3.12"}, []string{".: uv   | uv sync --frozen |  | uv run --frozen pytest -q"},
			".python-version uv.lock"},
		"poetry": {map[string]string{"pyproject.toml": "[tool.poetry]\npytest", "poetry.lock": ""},
			[]string{".: poetry   | " + fetched("poetry") + "poetry install --no-interaction |  | poetry run " +
				"pytest -q"}, "poetry.lock"},
		"go": {map[string]string{"go.mod": "", "go.sum": ""},
			[]string{".: go   | go mod download | go build -o /dev/null ./... | go test ./..."}, "go.mod go.sum"},
		"go work": {map[string]string{"go.work": "", "a/go.mod": ""},
			[]string{".: go   | go mod download | go list -m -f '{{.Dir}}/...' | xargs go build -o /dev/null | go " +
				"list -m -f '{{.Dir}}/...' | xargs go test",
				"a: go   | go mod download | go build -o /dev/null ./... | go test ./..."}, "a/go.mod go.work"},
		"cargo": {map[string]string{"Cargo.toml": "", "Cargo.lock": ""},
			[]string{".: cargo   | cargo fetch --locked | cargo build --locked | cargo test --locked --no-run"},
			"Cargo.lock"},
		"cargo no lock": {map[string]string{"Cargo.toml": ""},
			[]string{".: cargo   | cargo fetch | cargo build | cargo test --no-run"}, "Cargo.toml"},
		"bundler": {map[string]string{"Gemfile": "", "Gemfile.lock": ""},
			[]string{".: bundler   | bundle config set --local path vendor/bundle && bundle config set --local " +
				"frozen true && bundle install |  | "}, "Gemfile.lock"},
		"bundler no lock": {map[string]string{"Gemfile": ""},
			[]string{".: bundler   | bundle config set --local path vendor/bundle && bundle install |  | "}, "Gemfile"},
		"composer": {map[string]string{"composer.json": "", "composer.lock": ""},
			[]string{".: composer   | composer install --no-interaction --no-progress |  | "}, "composer.lock"},
		"composer no lock": {map[string]string{"composer.json": ""},
			[]string{".: composer   | composer install --no-interaction --no-progress |  | "}, "composer.json"},
		"several below": {map[string]string{"web/package.json": "{}", "web/yarn.lock": "", "api/requirements.txt": "",
			"tools/x/y/go.mod": "", "a/b/c/d/go.mod": "", "vendor/z/go.mod": "", "docs/package-lock.json": "",
			".ci/go.mod": "", "lib/package.json": "{}"},
			[]string{"api: pip   | python3 -m venv .venv && .venv/bin/pip install --disable-pip-version-check -r " +
				"requirements.txt |  | ",
				"tools/x/y: go   | go mod download | go build -o /dev/null ./... | go test ./...",
				"web: yarn   | yarn install --frozen-lockfile --non-interactive |  | "},
			"api/requirements.txt tools/x/y/go.mod web/yarn.lock"},
	} {
		plan, locks, err := Detect(tree(c.files), Parts{})
		var got []string
		for _, p := range plan.Projects {
			got = append(got, fmt.Sprintf("%s: %s %s %s | %s | %s | %s", p.Dir, p.Manager, p.Node, p.NodeFrom,
				p.Install, p.Build, p.Test))
		}
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
		if got := strings.Join(slices.Sorted(maps.Keys(locks)), " "); got != c.locks {
			t.Errorf("%s: the locks are %s", name, got)
		}
	}
}

// TestPins checks the version of the package manager in the plan, which the resolver of the agent image chooses
// likewise.
func TestPins(t *testing.T) {
	t.Parallel()
	const lock9 = "lockfileVersion: '9.0'\n"
	for pkg, c := range map[string]struct{ lock, want string }{
		`{}`: {lock9, "pnpm@10 pnpm-lock.yaml 9.0"}, `{"a": 1}`: {"lockfileVersion: 6.0\n",
			"pnpm@8 pnpm-lock.yaml 6.0"},
		`{"a": 2}`: {"lockfileVersion: '5.4'\n", "pnpm@7 pnpm-lock.yaml 5.4"},
		`{"a": 3}`: {"lockfileVersion: '20.1'\n", " "}, `{"a": 4}`: {"", " "},
		`{"a": 5}`: {"---\n" + lock9 + "importers:\n  .:\n    " +
			"packageManagerDependencies:\n---\n" + lock9, " "},
		`{"engines": {"pnpm": ">=9"}}`: {lock9, "pnpm@>=9 package.json engines"},
		`{"devEngines": {"packageManager": {"name": "pnpm", "version": "11.x"}}}`: {lock9,
			"pnpm@11.x package.json devEngines"},
		`{"packageManager": "pnpm@9.1.0+sha512.ab"}`: {lock9,
			"pnpm@9.1.0 package.json packageManager"},
		`{"packageManager": "pnpm@https://e.org/pnpm.tgz#sha512.ab"}`: {lock9,
			"pnpm@https://e.org/pnpm.tgz package.json packageManager"},
		`{"volta": {"pnpm": "8.1.0"}}`: {lock9, "pnpm@8.1.0 package.json volta"},
	} {
		plan, _, err := Detect(tree(map[string]string{"package.json": pkg, "pnpm-lock.yaml": c.lock}), Parts{})
		if err != nil || len(plan.Projects) != 1 {
			t.Fatalf("%s: %+v, %v", pkg, plan, err)
		}
		if p := plan.Projects[0]; p.Pin+" "+p.PinFrom != c.want || p.Lock != "pnpm-lock.yaml" {
			t.Errorf("%s with %.40q: %s %s, %s", pkg, c.lock, p.Pin, p.PinFrom, p.Lock)
		}
	}
}

// TestPythonProjects checks managers, groups and extras: those for development and tests are installed, unless others
// are
// requested, and the plan names the others.
func TestPythonProjects(t *testing.T) {
	t.Parallel()
	const pip, project = newVenv + " && .venv/bin/pip install --disable-pip-version-check", "[project]\nname = 'a'\n"
	const extras = "[project.optional-dependencies]\ntest = ['pytest']\ndocs = ['x']\n"
	const named = "[dependency-groups]\ndev = ['a>=1; python_version<\"4\"', {include-group = 'lint'}]\nlint = ['b']\n"
	names := func(names ...string) Parts { return Parts{Groups: &names} }
	for name, c := range map[string]struct {
		files   map[string]string
		asked   Parts
		install string
		left    string // what and a part of the reason
	}{
		"extras": {map[string]string{"pyproject.toml": project + extras}, Parts{}, pip + " -e '.[test]'",
			"groups: the groups docs are not"},
		"requested extras": {map[string]string{"pyproject.toml": project + extras}, names("Docs"), pip +
			" -e '.[docs]'", ""},
		"no extras": {map[string]string{"pyproject.toml": project + extras}, names(), pip + " -e .", ""},
		"unknown": {map[string]string{"pyproject.toml": project}, names("x"), pip + " -e .",
			"groups: no project has"},
		"groups": {map[string]string{"pyproject.toml": project + named}, Parts{},
			pip + ` -e . 'a>=1; python_version<"4"' b`, "groups: the groups lint are not"},
		"groups alone": {map[string]string{"pyproject.toml": named}, names("lint"), pip + " b", ""},
		"requirements and groups": {map[string]string{"pyproject.toml": named, "requirements.txt": ""}, names("lint"),
			pip + " -r requirements.txt b", ""},
		"requirements in a directory": {map[string]string{"requirements/base.txt": "", "requirements/dev.txt": "",
			"requirements/prod.txt": ""}, Parts{}, pip + " -r requirements/base.txt -r requirements/dev.txt",
			"groups: the groups prod are not"},
		"requirements for production": {map[string]string{"requirements/prod.txt": ""}, Parts{},
			pip + " -r requirements/prod.txt", ""},
		"names of requirements": {map[string]string{"requirements.txt": "", "dev-requirements.txt": "",
			"requirements_test.txt": "", "requirements-docs.txt": ""}, names("docs"),
			pip + " -r requirements.txt -r requirements-docs.txt", ""},
		"setup.cfg": {map[string]string{"setup.py": "", "setup.cfg": "[options.extras_require]\ntest =\n  " +
			"pytest\ngpu = x\n"},
			Parts{}, pip + " -e '.[test]'", "groups: the groups gpu are not"},
		"setup.cfg with a build system": {map[string]string{"pyproject.toml": "[build-system]\nrequires = []\n",
			"setup.cfg": "[metadata]\nname = a\n"}, Parts{}, pip + " -e .", ""},
		"setup.cfg alone": {map[string]string{"setup.cfg": "[metadata]\nname = a\n"}, Parts{}, "",
			"requirements: setup.cfg has no pyproject.toml"},
		"setup.cfg of tools": {map[string]string{"setup.cfg": "[flake8]\n"}, Parts{}, "", ""},
		"uv": {map[string]string{"uv.lock": "", "pyproject.toml": project + extras + named}, Parts{},
			"uv sync --frozen --extra test", "groups: the groups docs, lint are not"},
		"uv with groups": {map[string]string{"uv.lock": "", "pyproject.toml": project + extras + named},
			names("lint", "docs", "dev"), "uv sync --frozen --group lint --extra docs", ""},
		"poetry": {map[string]string{"poetry.lock": "",
			"pyproject.toml": "[tool.poetry.group.dev]\n[tool.poetry.group.docs]\n" +
				"optional = true\n[tool.poetry.extras]\ngpu = ['x']\n"}, names("docs", "gpu", "dev"),
			fetched("poetry") + "poetry install --no-interaction --with docs --extras gpu", ""},
		"pdm": {map[string]string{"pdm.lock": "", "pyproject.toml": project + extras}, Parts{},
			fetched("pdm") + "pdm sync --group test", "groups: the groups docs are not"},
		"pipenv": {map[string]string{"Pipfile": "", "Pipfile.lock": ""}, Parts{},
			fetched("pipenv") + "export PIPENV_VENV_IN_PROJECT=1; pipenv sync --dev", ""},
		"pipenv without a lock": {map[string]string{"Pipfile": ""}, Parts{},
			fetched("pipenv") + "export PIPENV_VENV_IN_PROJECT=1; pipenv install --dev --skip-lock", ""},
		"malformed": {map[string]string{"pyproject.toml": "[project", "requirements.txt": ""}, Parts{}, pip +
			" -r requirements.txt", ""},
		"no shell syntax": {map[string]string{"pyproject.toml": "[dependency-groups]\ndev = [\"a'; id\"]\n'x; id' " +
			"= []\n"}, Parts{}, pip + ` 'a'\''; id'`, ""},
	} {
		plan, _, err := Detect(tree(c.files), c.asked)
		var install, left string
		for _, p := range plan.Projects {
			install += p.Install
		}
		for _, gap := range plan.Left {
			left += gap.What + ": " + gap.Why
		}
		if err != nil || install != c.install || !strings.HasPrefix(left, c.left) || c.left == "" && left != "" {
			t.Errorf("%s: %v\n got %s\nwant %s\nleft %s", name, err, install, c.install, left)
		}
	}
}

func TestPythonVersions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"nothing":         {nil, " "},
		".python-version": {map[string]string{".python-version": "# which\n3.12\n3.11\n"}, "==3.12.* .python-version"},
		"exact":           {map[string]string{".python-version": "3.12.1\n"}, "==3.12.1 .python-version"},
		"asdf":            {map[string]string{".tool-versions": "python 3.12.1 3.11.0\n"}, "==3.12.1 .tool-versions"},
		"mise":            {map[string]string{"mise.toml": "[tools]\npython = '3.13'\n"}, "==3.13.* mise.toml"},
		"project": {map[string]string{"pyproject.toml": "[project]\nrequires-python = '>=3.10,<3.13'\n"},
			">=3.10,<3.13 pyproject.toml requires-python"},
		"poetry": {map[string]string{"pyproject.toml": "[tool.poetry.dependencies]\npython = '^3.10'\n"},
			">=3.10,<4 pyproject.toml poetry"},
	} {
		files := map[string]string{"requirements.txt": ""}
		maps.Copy(files, c.files)
		plan, _, err := Detect(tree(files), Parts{})
		if err != nil || plan.Projects[0].Python+" "+plan.Projects[0].PythonFrom != c.want {
			t.Errorf("%s: %+v, %v", name, plan.Projects, err)
		}
	}
}

// TestPartsLeftOut checks that the plan names submodules, large files and directories that a build leaves out.
func TestPartsLeftOut(t *testing.T) {
	t.Parallel()
	files := map[string]string{".gitmodules": "[submodule \"a\"]\n[submodule \"b\"]\n",
		"assets/.gitattributes": "*.bin filter=lfs\n"}
	on, off := true, false
	for name, c := range map[string]struct {
		file       string
		asked      Parts
		submodules bool
		lfs        bool
		left       string
	}{
		"nothing requested": {"", Parts{}, false, false, "submodules lfs"},
		"flags":             {"", Parts{Submodules: &on, LFS: &on}, true, true, ""},
		"harvest.json":      {`{"submodules": true, "lfs": true}`, Parts{}, true, true, ""},
		"flags first":       {`{"submodules": true, "lfs": true}`, Parts{Submodules: &off}, false, true, ""},
		"not wanted":        {`{"submodules": false, "lfs": false}`, Parts{}, false, false, ""},
	} {
		all := maps.Clone(files)
		if c.file != "" {
			all[OverrideFile] = c.file
		}
		plan, _, err := Detect(tree(all), c.asked)
		var left []string
		for _, gap := range plan.Left {
			left = append(left, gap.What)
		}
		if err != nil || plan.Submodules != c.submodules || plan.LFS != c.lfs || strings.Join(left, " ") != c.left {
			t.Errorf("%s: %+v, %v", name, plan, err)
		}
	}
	many := map[string]string{}
	for i := range maxProjects + 3 {
		many[fmt.Sprintf("p%d/go.mod", i)] = ""
	}
	if plan, _, err := Detect(tree(many), Parts{}); err != nil || len(plan.Left) != 1 ||
		plan.Left[0].What != "directories" ||
		!strings.HasPrefix(plan.Left[0].Why, "3 more") {
		t.Errorf("%+v, %v", plan.Left, err)
	}
}

func TestManyProjectsAreTooMany(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for i := range 100 {
		files[fmt.Sprintf("p%d/go.mod", i)] = ""
	}
	if plan, locks, err := Detect(tree(files), Parts{}); err != nil || len(plan.Projects) != maxProjects ||
		len(locks) != 100 {
		t.Errorf("%d projects, %d locks, %v", len(plan.Projects), len(locks), err)
	}
}

func TestOverrides(t *testing.T) {
	t.Parallel()
	text := func(s string) *string { return &s }
	files := map[string]string{"go.mod": "", "web/package.json": `{"scripts": {"build": "x"}}`,
		"web/package-lock.json": ""}
	show := func(all []step) []string {
		var out []string
		for _, s := range all {
			out = append(out, fmt.Sprintf("%s %s %q root=%t may fail=%t", s.stage, s.dir, s.command, s.root, s.mayFail))
		}
		return out
	}
	for _, c := range []struct {
		file    string
		recipe  Recipe
		install bool
		want    []string
	}{
		{"", Recipe{}, true, []string{`install . "go mod download" root=false may fail=false`,
			`install web "npm ci --no-audit --no-fund" root=false may fail=false`,
			`build . "go build -o /dev/null ./..." root=false may fail=false`,
			`build web "npm run build" root=false may fail=false`,
			`test . "go test ./..." root=false may fail=true`}},
		{"", Recipe{}, false, []string{`build . "go build -o /dev/null ./..." root=false may fail=false`,
			`build web "npm run build" root=false may fail=false`, `test . "go test ./..." root=false may fail=true`}},
		{`{"setup": "apt", "install": "make deps", "build": "", "test": "make test", "root": true}`, Recipe{}, true,
			[]string{`setup . "apt" root=true may fail=false`, `install . "make deps" root=true may fail=false`,
				`test . "make test" root=true may fail=true`}},
		{`{"setup": "apt", "install": "make deps", "test": ""}`, Recipe{Setup: text("apk"), Install: text(""),
			Build: text("b"), Root: false}, true,
			[]string{`setup . "apk" root=true may fail=false`, `build . "b" root=false may fail=false`}},
	} {
		all := maps.Clone(files)
		if c.file != "" {
			all[OverrideFile] = c.file
		}
		plan, _, err := Detect(tree(all), Parts{})
		if diff := cmp.Diff(c.want, show(steps(c.recipe, plan, c.install))); err != nil || diff != "" {
			t.Errorf("%s %+v: %v\n%s", c.file, c.recipe, err, diff)
		}
	}
	if _, _, err := Detect(tree(map[string]string{OverrideFile: `{"install": 7}`}), Parts{}); !errors.Is(err,
		errors.Invalid) ||
		errors.RemedyOf(err) == "" {
		t.Errorf("settings that cannot be read: %v", err)
	}
}

func TestPlansThatAreTheSame(t *testing.T) {
	t.Parallel()
	detect := func(files map[string]string) Plan {
		plan, _, err := Detect(tree(files), Parts{})
		if err != nil {
			t.Fatal(err)
		}
		return plan
	}
	one := detect(map[string]string{"package.json": `{"scripts": {"build": "a"}}`, "package-lock.json": ""})
	if !one.same(detect(map[string]string{"package.json": `{"scripts": {"test": "b"}, "name": "x"}`,
		"package-lock.json": "x"})) {
		t.Error("another build needs other dependencies")
	}
	for _, text := range []string{`{"engines": {"node": "20"}}`, `{"packageManager": "npm@9.0.0"}`,
		`{"scripts": {"postinstall": "x"}}`, `{"workspaces": ["a"]}`} {
		if one.same(detect(map[string]string{"package.json": text, "package-lock.json": ""})) {
			t.Errorf("%s needs the same dependencies", text)
		}
	}
	if one.Projects[0].Build == "" {
		t.Error("comparing has changed the plan")
	}
}

func FuzzDetect(f *testing.F) {
	f.Add("package.json",
		[]byte(`{"packageManager": "yarn@4.0.0", "workspaces": [], "scripts": {"build": "x"}, "devEngines": `+
			`{"runtime": {"name": "node"}}}`))
	f.Add("harvest.json", []byte(`{"install": "x"}`))
	f.Add("a/.nvmrc", []byte("lts/*\n"))
	f.Add("x/../yarn.lock", []byte("__metadata:"))
	f.Fuzz(func(t *testing.T, name string, text []byte) {
		tr := Tree{Digests: map[string]string{name: "1", "package.json": "2", "yarn.lock": "3"},
			Text: map[string][]byte{name: text}}
		plan, _, err := Detect(tr, Parts{})
		if err != nil {
			return
		}
		if len(plan.Projects) > maxProjects {
			t.Errorf("%d projects", len(plan.Projects))
		}
		encoded, err := json.Marshal(plan)
		if err != nil {
			t.Fatal(err)
		}
		var again Plan
		if err := json.Unmarshal(encoded, &again); err != nil || !again.same(plan) {
			t.Errorf("%v: %s", err, encoded)
		}
	})
}
