package repo

import (
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// OverrideFile is the file in the root of a repository's tree that configures its build.
const OverrideFile = "harvest.json"

// MaxText is the size limit for files that Detect reads, in bytes. Larger files are treated as empty.
const MaxText = 1 << 20

// Plan describes the needs of a repository.
type Plan struct {
	Projects []Project `json:"projects,omitempty"`
	Override Override  `json:"override,omitzero"`
}

// Project is a directory with a package manager.
type Project struct {
	Dir     string `json:"dir"`     // within the repository, "." for its root
	Manager string `json:"manager"` // "npm", "pnpm", "yarn", "yarn-berry", "pip", "uv", "poetry", "go", "cargo", "bundler", "composer"
	Pin     string `json:"pin,omitempty"`
	Lock    string `json:"lock,omitempty"` // lock file for the installation; "" if none
	// Node is the requested version of Node.js, as written in NodeFrom; "" if none is requested.
	Node     string `json:"node,omitempty"`
	NodeFrom string `json:"node_from,omitempty"` // file with the version
	// Workspace means that packages in subdirectories are installed together with it.
	Workspace bool `json:"workspace,omitempty"`
	// Hooks are the project's own scripts that run during installation.
	Hooks string `json:"hooks,omitempty"`

	Install string `json:"install,omitempty"`
	Build   string `json:"build,omitempty"`
	Test    string `json:"test,omitempty"`
}

// Override is the content of harvest.json. nil means that a command is not specified; "" means that there is nothing
// to run.
type Override struct {
	Setup   *string `json:"setup,omitempty"`
	Install *string `json:"install,omitempty"`
	Build   *string `json:"build,omitempty"`
	Test    *string `json:"test,omitempty"`
	Root    bool    `json:"root,omitempty"`
}

// Tree contains a repository's files for Detect.
type Tree struct {
	Digests map[string]string // maps paths to git's digests
	Text    map[string][]byte // contents of files with NeedsText
}

func (t Tree) has(dir, name string) bool {
	_, ok := t.Digests[path.Join(dir, name)]
	return ok
}

func (t Tree) text(dir, name string) []byte { return t.Text[path.Join(dir, name)] }

// locks are the files that mark a directory below the root as a project.
var locks = []string{
	"package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "yarn.lock", "requirements.txt", "uv.lock",
	"poetry.lock", "go.mod", "Cargo.lock", "Gemfile.lock", "composer.lock",
}

// manifests list dependencies if there is no lock file; settings determine how they are installed.
var (
	manifests = []string{"package.json", "pyproject.toml", "setup.py", "Cargo.toml", "Gemfile",
		"composer.json", "go.work"}
	settings = []string{
		".nvmrc", ".node-version", ".npmrc", ".yarnrc", ".yarnrc.yml", "pnpm-workspace.yaml", ".python-version",
		".tool-versions", ".ruby-version", "rust-toolchain", "rust-toolchain.toml",
		"go.sum", "go.work.sum", "requirements-dev.txt", OverrideFile,
	}
)

// skipped are directories whose projects do not belong to the repository, or are not needed to work on it.
var skipped = []string{"node_modules", "vendor", "testdata", "test", "tests", "__tests__", "fixtures", "__fixtures__",
	"example", "examples", "third_party", "docs", "doc"}

const (
	maxDepth    = 3 // depth below the root to which projects are searched
	maxProjects = 20
)

// Wanted reports whether Detect needs the digest of a file.
func Wanted(name string) bool {
	base := path.Base(name)
	if !slices.Contains(locks, base) && !slices.Contains(manifests, base) && !slices.Contains(settings, base) {
		return false
	}
	dirs := strings.Split(path.Dir(name), "/")
	if dirs[0] == "." {
		return true
	}
	if len(dirs) > maxDepth {
		return false
	}
	return !slices.ContainsFunc(dirs, func(d string) bool {
		return slices.Contains(skipped, d) ||
			strings.HasPrefix(d, ".")
	})
}

// NeedsText reports whether Detect needs the content of a Wanted file.
func NeedsText(name string) bool {
	switch path.Base(name) {
	case "package.json", ".nvmrc", ".node-version", OverrideFile, "pyproject.toml", "yarn.lock", "requirements.txt":
		return true
	}
	return false
}

// Detect determines the needs of a repository. It also returns the digests of the files that determine them: while
// neither the plan nor these digests change, dependencies need not be reinstalled. It returns Invalid if harvest.json
// is malformed.
func Detect(t Tree) (Plan, map[string]string, error) {
	var plan Plan
	if t.has(".", OverrideFile) {
		if err := json.Unmarshal(t.text(".", OverrideFile), &plan.Override); err != nil {
			err := errors.Explainf(err, errors.Invalid, "the repository's %s cannot be read", OverrideFile)
			return Plan{}, nil, errors.Remedy(err, `write {"install": "…", "build": "…", "test": "…"}`)
		}
	}
	found := map[string]bool{".": true}
	for name := range t.Digests {
		if slices.Contains(locks, path.Base(name)) {
			found[path.Dir(name)] = true
		}
	}
	var roots []string // of workspaces, which install the packages below them
	for _, dir := range slices.Sorted(maps.Keys(found)) {
		for _, p := range t.projects(dir) {
			if p.isNode() && slices.ContainsFunc(roots, func(root string) bool {
				return root == "." ||
					strings.HasPrefix(dir, root+"/")
			}) {
				continue
			}
			if p.Workspace && p.isNode() {
				roots = append(roots, dir)
			}
			if len(plan.Projects) < maxProjects {
				plan.Projects = append(plan.Projects, p)
			}
		}
	}
	return plan, t.inputs(plan), nil
}

// inputs returns the files that determine the installed dependencies.
func (t Tree) inputs(plan Plan) map[string]string {
	all := map[string]string{}
	add := func(dir string, names ...string) {
		for _, name := range names {
			if p := path.Join(dir, name); t.Digests[p] != "" {
				all[p] = t.Digests[p]
			}
		}
	}
	for name := range t.Digests { // including those of packages in workspaces
		if slices.Contains(locks, path.Base(name)) {
			add(".", name)
		}
	}
	add(".", settings...)
	for _, p := range plan.Projects {
		add(p.Dir, settings...)
		if p.Lock == "" {
			add(p.Dir, manifests...)
		}
	}
	return all
}

// projects returns the projects in a directory.
func (t Tree) projects(dir string) []Project {
	var all []Project
	for _, find := range []func(string) (Project, bool){t.node, t.python, t.golang, t.rust, t.ruby, t.php} {
		if p, ok := find(dir); ok {
			p.Dir = dir
			all = append(all, p)
		}
	}
	return all
}

func (p Project) isNode() bool {
	return slices.Contains([]string{"npm", "pnpm", "yarn", "yarn-berry"}, p.Manager)
}

// packageJSON contains the fields of package.json that Detect reads. Fields of the wrong type are treated as missing.
type packageJSON struct {
	Manager string
	Volta   map[string]string
	Engines map[string]string
	Scripts map[string]string
	Runtime string // of devEngines
	// Workspaces reports whether the file defines workspaces.
	Workspaces bool
}

func parsePackage(text []byte) (p packageJSON) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(text, &fields) != nil {
		return p
	}
	texts := func(name string) map[string]string {
		var raw map[string]json.RawMessage
		out := map[string]string{}
		if json.Unmarshal(fields[name], &raw) != nil {
			return out
		}
		for k, v := range raw {
			var s string
			if json.Unmarshal(v, &s) == nil {
				out[k] = s
			}
		}
		return out
	}
	_ = json.Unmarshal(fields["packageManager"], &p.Manager) // on error, it stays empty
	p.Volta, p.Engines, p.Scripts = texts("volta"), texts("engines"), texts("scripts")
	var dev struct {
		Runtime struct{ Name, Version string }
	}
	if json.Unmarshal(fields["devEngines"], &dev) == nil && dev.Runtime.Name == "node" {
		p.Runtime = dev.Runtime.Version
	}
	p.Workspaces = len(fields["workspaces"]) > 0 && string(fields["workspaces"]) != "null"
	return p
}

// pinned matches a packageManager field: name, version, and perhaps a digest.
var pinned = pattern.New(`^(npm|pnpm|yarn)@([0-9][0-9A-Za-z.-]*)(\+.*)?$`)

func (t Tree) node(dir string) (Project, bool) {
	if !t.has(dir, "package.json") {
		return Project{}, false
	}
	pkg := parsePackage(t.text(dir, "package.json"))
	p := Project{Manager: "npm", Workspace: pkg.Workspaces || t.has(dir, "pnpm-workspace.yaml")}
	for _, lock := range []struct{ file, manager string }{
		{"pnpm-lock.yaml", "pnpm"}, {"yarn.lock", "yarn"}, {"package-lock.json", "npm"}, {"npm-shrinkwrap.json", "npm"},
	} {
		if t.has(dir, lock.file) {
			p.Manager, p.Lock = lock.manager, lock.file
			break
		}
	}
	version := ""
	if m := pinned().FindStringSubmatch(pkg.Manager); m != nil {
		if m[1] != p.Manager { // the field determines which lock file is used
			p.Lock = ""
			for file, manager := range map[string]string{"pnpm-lock.yaml": "pnpm", "yarn.lock": "yarn",
				"package-lock.json": "npm"} {
				if manager == m[1] && t.has(dir, file) {
					p.Lock = file
				}
			}
		}
		p.Manager, version = m[1], m[2]
		p.Pin = m[1] + "@" + m[2]
	} else {
		for _, name := range []string{"pnpm", "yarn", "npm"} {
			if v := pkg.Volta[name]; v != "" && name == p.Manager {
				p.Pin, version = name+"@"+v, v
			}
		}
	}
	if p.Manager == "yarn" && berry(version, t.has(dir, ".yarnrc.yml"), t.text(dir, "yarn.lock")) {
		p.Manager = "yarn-berry"
	}
	p.Node, p.NodeFrom = t.nodeVersion(dir, pkg)
	for _, name := range []string{"preinstall", "install", "postinstall", "prepare"} {
		if s := pkg.Scripts[name]; s != "" {
			p.Hooks += name + ": " + s + "\n"
		}
	}
	p.nodeCommands(pkg)
	return p, true
}

// berry reports whether Yarn is version 2 or newer, which has a different command line.
func berry(version string, settings bool, lock []byte) bool {
	if version != "" {
		return version != "1" && !strings.HasPrefix(version, "1.")
	}
	if len(lock) > 0 {
		return strings.Contains(string(lock[:min(len(lock), 4<<10)]), "__metadata:")
	}
	return settings
}

// nodeVersion returns the requested version, with the same precedence as the resolver of the agent image.
func (t Tree) nodeVersion(dir string, pkg packageJSON) (version, from string) {
	first := func(name string) string {
		line, _, _ := strings.Cut(strings.TrimSpace(string(t.text(dir, name))), "\n")
		line, _, _ = strings.Cut(line, "#")
		return strings.TrimPrefix(strings.TrimSpace(line), "v")
	}
	for _, source := range []struct{ version, from string }{
		{pkg.Volta["node"], "package.json volta"}, {first(".nvmrc"), ".nvmrc"},
		{first(".node-version"), ".node-version"},
		{pkg.Runtime, "package.json devEngines"}, {pkg.Engines["node"], "package.json engines"},
	} {
		if source.version != "" && len(source.version) <= 100 {
			return source.version, source.from
		}
	}
	return "", ""
}

// nodeCommands sets the commands that install, build and test a Node project.
func (p *Project) nodeCommands(pkg packageJSON) {
	run := "npm"
	switch p.Manager {
	case "npm":
		p.Install = "npm install --no-package-lock --no-audit --no-fund"
		if p.Lock != "" {
			p.Install = "npm ci --no-audit --no-fund"
		}
	case "pnpm":
		run, p.Install = "pnpm", "pnpm install --no-lockfile"
		if p.Lock != "" {
			p.Install = "pnpm install --frozen-lockfile"
		}
	case "yarn":
		run, p.Install = "yarn", "yarn install --no-lockfile --non-interactive"
		if p.Lock != "" {
			p.Install = "yarn install --frozen-lockfile --non-interactive"
		}
	case "yarn-berry":
		run, p.Install = "yarn", "yarn install"
		if p.Lock != "" {
			p.Install = "yarn install --immutable"
		}
	}
	if pkg.Scripts["build"] != "" {
		p.Build = run + " run build"
	} else if p.Workspace {
		switch p.Manager {
		case "npm":
			p.Build = "npm run build --workspaces --if-present"
		case "pnpm":
			p.Build = "pnpm --recursive --if-present run build"
		}
	}
	// The placeholder of npm init is not a test.
	if test := pkg.Scripts["test"]; test != "" && !strings.Contains(test, "no test specified") {
		p.Test = run + " run test"
	}
}

func (t Tree) python(dir string) (Project, bool) {
	project := string(t.text(dir, "pyproject.toml"))
	tested := strings.Contains(project, "pytest") || strings.Contains(string(t.text(dir, "requirements.txt")), "pytest")
	const venv = "python3 -m venv .venv && .venv/bin/pip install --disable-pip-version-check "
	p := Project{Build: ""}
	switch {
	case t.has(dir, "uv.lock"):
		p.Manager, p.Lock, p.Install = "uv", "uv.lock", "uv sync --frozen"
		if tested {
			p.Test = "uv run --frozen pytest -q"
		}
		return p, true
	case t.has(dir, "poetry.lock"):
		p.Manager, p.Lock, p.Install = "poetry", "poetry.lock", "poetry install --no-interaction"
		if tested {
			p.Test = "poetry run pytest -q"
		}
		return p, true
	case t.has(dir, "requirements.txt"):
		p.Manager, p.Lock, p.Install = "pip", "requirements.txt", venv+"-r requirements.txt"
		if t.has(dir, "requirements-dev.txt") {
			p.Install += " -r requirements-dev.txt"
		}
	case t.has(dir, "setup.py") || strings.Contains(project, "[project]") || strings.Contains(project, "[tool.poetry]"):
		p.Manager, p.Install = "pip", venv+"-e ."
	default:
		return Project{}, false
	}
	if tested {
		p.Test = ".venv/bin/python -m pytest -q"
	}
	return p, true
}

func (t Tree) golang(dir string) (Project, bool) {
	p := Project{Manager: "go", Lock: "go.mod", Install: "go mod download", Build: "go build -o /dev/null ./...",
		Test: "go test ./..."}
	if t.has(dir, "go.work") {
		const each = "go list -m -f '{{.Dir}}/...' | xargs go "
		p.Lock, p.Workspace, p.Build, p.Test = "", true, each+"build -o /dev/null", each+"test"
		return p, true
	}
	return p, t.has(dir, "go.mod")
}

func (t Tree) rust(dir string) (Project, bool) {
	if t.has(dir, "Cargo.lock") {
		return Project{Manager: "cargo", Lock: "Cargo.lock", Install: "cargo fetch --locked",
			Build: "cargo build --locked", Test: "cargo test --locked --no-run"}, true
	}
	return Project{Manager: "cargo", Install: "cargo fetch", Build: "cargo build", Test: "cargo test --no-run"},
		t.has(dir, "Cargo.toml")
}

func (t Tree) ruby(dir string) (Project, bool) {
	const local = "bundle config set --local path vendor/bundle && "
	if t.has(dir, "Gemfile.lock") {
		return Project{Manager: "bundler", Lock: "Gemfile.lock",
			Install: local + "bundle config set --local frozen true && bundle install"}, true
	}
	return Project{Manager: "bundler", Install: local + "bundle install"}, t.has(dir, "Gemfile")
}

func (t Tree) php(dir string) (Project, bool) {
	p := Project{Manager: "composer", Install: "composer install --no-interaction --no-progress"}
	if t.has(dir, "composer.lock") {
		p.Lock = "composer.lock"
	}
	return p, p.Lock != "" || t.has(dir, "composer.json")
}

// step is a command of a build.
type step struct {
	stage   string // "setup", "install", "build" or "test"
	dir     string // within the repository
	command string
	root    bool
	mayFail bool
}

// steps returns the steps of a build, in order. install includes the steps that are needed only once per set of
// dependencies.
func steps(r Recipe, plan Plan, install bool) []step {
	o, root := plan.Override, r.Root || plan.Override.Root
	var all []step
	add := func(stage string, asked, file *string, detected func(Project) string) {
		mayFail, command := stage == "test", asked
		if command == nil {
			command = file
		}
		if command != nil {
			if *command != "" {
				all = append(all, step{stage, ".", *command, root, mayFail})
			}
			return
		}
		for _, p := range plan.Projects {
			if c := detected(p); c != "" {
				all = append(all, step{stage, p.Dir, c, root, mayFail})
			}
		}
	}
	if install {
		add("setup", r.Setup, o.Setup, func(Project) string { return "" })
		for i := range all {
			all[i].root = true
		}
		add("install", r.Install, o.Install, func(p Project) string { return p.Install })
	}
	add("build", r.Build, o.Build, func(p Project) string { return p.Build })
	add("test", r.Test, o.Test, func(p Project) string { return p.Test })
	return all
}

// same reports whether the installed dependencies of one plan also serve the other.
func (p Plan) same(other Plan) bool {
	text := func(p Plan) string {
		p.Projects = slices.Clone(p.Projects)
		for i := range p.Projects {
			p.Projects[i].Build, p.Projects[i].Test = "", ""
		}
		p.Override.Build, p.Override.Test = nil, nil
		out, _ := json.Marshal(p) // cannot fail: strings and booleans
		return string(out)
	}
	return text(p) == text(other)
}
