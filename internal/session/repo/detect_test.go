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
		"pnpm workspace": {map[string]string{"package.json": `{}`, "pnpm-workspace.yaml": "", "pnpm-lock.yaml": "",
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
			[]string{".: npm 22.1.0 package.json devEngines | npm install --no-package-lock --no-audit --no-fund |  | "}, "package.json"},
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
			[]string{".: pip   | python3 -m venv .venv && .venv/bin/pip install --disable-pip-version-check -e . |  | "}, "pyproject.toml"},
		"tools only": {map[string]string{"pyproject.toml": "[tool.ruff]\n"}, nil, ""},
		"uv": {map[string]string{"pyproject.toml": "[project]\npytest", "uv.lock": "",
			".python-version": "3.12"}, []string{".: uv   | uv sync --frozen |  | uv run --frozen pytest -q"},
			".python-version uv.lock"},
		"poetry": {map[string]string{"pyproject.toml": "[tool.poetry]\npytest", "poetry.lock": ""},
			[]string{".: poetry   | poetry install --no-interaction |  | poetry run pytest -q"}, "poetry.lock"},
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
		plan, locks, err := Detect(tree(c.files))
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

func TestManyProjectsAreTooMany(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for i := range 100 {
		files[fmt.Sprintf("p%d/go.mod", i)] = ""
	}
	if plan, locks, err := Detect(tree(files)); err != nil || len(plan.Projects) != maxProjects || len(locks) != 100 {
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
		plan, _, err := Detect(tree(all))
		if diff := cmp.Diff(c.want, show(steps(c.recipe, plan, c.install))); err != nil || diff != "" {
			t.Errorf("%s %+v: %v\n%s", c.file, c.recipe, err, diff)
		}
	}
	if _, _, err := Detect(tree(map[string]string{OverrideFile: `{"install": 7}`})); !errors.Is(err, errors.Invalid) ||
		errors.RemedyOf(err) == "" {
		t.Errorf("settings that cannot be read: %v", err)
	}
}

func TestPlansThatAreTheSame(t *testing.T) {
	t.Parallel()
	detect := func(files map[string]string) Plan {
		plan, _, err := Detect(tree(files))
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
		plan, _, err := Detect(tr)
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
