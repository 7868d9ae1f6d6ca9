package repo

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/devcontainer"
)

// OverrideFile is the file in the root of a repository's tree that configures its build.
const OverrideFile = "harvest.json"

const (
	// MaxText is the size limit for files that Detect reads, in bytes. Larger files are treated as empty, except lock
	// files, of which Detect needs the first headBytes.
	MaxText   = 1 << 20
	headBytes = 64 << 10
)

// Plan describes the needs of a repository.
type Plan struct {
	Projects []Project `json:"projects,omitempty"`
	Override Override  `json:"override,omitzero"`
	// Submodules and LFS mean that the image has the submodules and the large files of the repository.
	Submodules bool `json:"submodules,omitempty"`
	LFS        bool `json:"lfs,omitempty"`
	// DevContainer is the path of the devcontainer.json that the image is made by; "" without one.
	DevContainer string `json:"devcontainer,omitempty"`
	// Left lists the parts of the repository that the image lacks.
	Left []Gap `json:"-"`
}

// Gap is a part of a repository that its image lacks.
type Gap struct {
	// What is "submodules", "lfs", "groups", "requirements", "python", "lock", "directories" or "devcontainer".
	What string `json:"what"`
	Why  string `json:"why"` // the missing part, and how to get it
}

// Parts selects parts of a repository that a build includes only on request. nil means unspecified.
type Parts struct {
	Submodules *bool `json:"submodules,omitempty"`
	LFS        *bool `json:"lfs,omitempty"`
	// Groups are the names of dependency groups, extras and requirements files of Python projects.
	Groups *[]string `json:"groups,omitempty"`
	// DevContainer is the name or path of a dev container configuration; "" means that none is used. If it is
	// unspecified, that of the whole repository is used, or the only one.
	DevContainer *string `json:"devcontainer,omitempty"`
}

// or returns the parts with those of other for unspecified ones.
func (p Parts) or(other Parts) Parts {
	return Parts{cmp.Or(p.Submodules, other.Submodules), cmp.Or(p.LFS, other.LFS), cmp.Or(p.Groups, other.Groups),
		cmp.Or(p.DevContainer, other.DevContainer)}
}

// groups decides which groups of dependencies are installed.
type groups struct{ asked *[]string }

// usual are the groups that are installed unless others are requested.
var usual = []string{"dev", "develop", "development", "test", "tests", "testing"}

func (g groups) wants(name string) bool {
	name = strings.ToLower(name)
	if g.asked == nil {
		return slices.Contains(usual, name)
	}
	return slices.ContainsFunc(*g.asked, func(asked string) bool { return strings.ToLower(asked) == name })
}

// split returns the wanted names and the others, sorted.
func (g groups) split(names []string) (wanted, others []string) {
	for _, name := range slices.Sorted(slices.Values(names)) {
		if g.wants(name) {
			wanted = append(wanted, name)
		} else {
			others = append(others, name)
		}
	}
	return wanted, others
}

// Project is a directory with a package manager.
type Project struct {
	Dir string `json:"dir"` // within the repository, "." for its root
	// Manager is "npm", "pnpm", "yarn", "yarn-berry", "bun", "pip", "uv", "poetry", "pdm", "pipenv", "go", "cargo",
	// "bundler" or "composer".
	Manager string `json:"manager"`
	// Pin is the package manager with its version, as written in PinFrom; "" if no version is requested.
	Pin     string `json:"pin,omitempty"`
	PinFrom string `json:"pin_from,omitempty"`
	Lock    string `json:"lock,omitempty"` // lock file for the installation; "" if none
	// Node is the requested version of Node.js, as written in NodeFrom; "" if none is requested.
	Node     string `json:"node,omitempty"`
	NodeFrom string `json:"node_from,omitempty"` // file with the version
	// Python is the requested version of Python, as PEP 440 has it, such as "==3.12.*"; "" if none is requested.
	Python     string `json:"python,omitempty"`
	PythonFrom string `json:"python_from,omitempty"` // file with the version
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
	Parts
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
	"package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "yarn.lock", "bun.lock", "bun.lockb",
	"requirements.txt", "uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock", "Pipfile", "go.mod", "Cargo.lock",
	"Gemfile.lock", "composer.lock",
}

// manifests list dependencies if there is no lock file; settings determine how they are installed.
var (
	manifests = []string{"package.json", "pyproject.toml", "setup.py", "setup.cfg", "Cargo.toml", "Gemfile",
		"composer.json", "go.work"}
	settings = []string{
		".nvmrc", ".node-version", ".npmrc", ".yarnrc", ".yarnrc.yml", "pnpm-workspace.yaml", ".python-version",
		".tool-versions", "mise.toml", ".mise.toml", ".bun-version", ".ruby-version", "rust-toolchain",
		"rust-toolchain.toml", "go.sum", "go.work.sum", OverrideFile,
	}
	// contents says which files a clone has only pointers to.
	contents = []string{".gitmodules", ".gitattributes"}
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
	if isDevContainer(name) {
		return true
	}
	base := path.Base(name)
	if !slices.Contains(locks, base) && !slices.Contains(manifests, base) && !slices.Contains(settings, base) &&
		!slices.Contains(contents, base) && !isRequirements(name) {
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

// isDevContainer reports whether a file may say what a dev container is made of.
func isDevContainer(name string) bool {
	return strings.HasPrefix(name, ".devcontainer/") || name == ".devcontainer.json" ||
		name == ".devcontainer-lock.json" || path.Base(name) == "Dockerfile"
}

// NeedsText reports whether Detect needs the content of a Wanted file.
func NeedsText(name string) bool {
	switch path.Base(name) {
	case "devcontainer.json", ".devcontainer.json", "package.json", ".nvmrc", ".node-version", OverrideFile,
		"pyproject.toml", "yarn.lock", "requirements.txt", "pnpm-lock.yaml", "pnpm-workspace.yaml", ".tool-versions",
		"mise.toml", ".mise.toml", ".python-version", "setup.cfg", ".gitmodules", ".gitattributes":
		return true
	}
	return isRequirements(name)
}

// Detect determines the needs of a repository. It also returns the digests of the files that determine them: while
// neither the plan nor these digests change, dependencies need not be reinstalled. asked takes precedence over the
// parts that harvest.json requests. Detect returns Invalid if that file is malformed.
func Detect(t Tree, asked Parts) (Plan, map[string]string, error) {
	var plan Plan
	if t.has(".", OverrideFile) {
		if err := json.Unmarshal(withoutMark(t.text(".", OverrideFile)), &plan.Override); err != nil {
			err := errors.Explainf(err, errors.Invalid, "the repository's %s cannot be read", OverrideFile)
			return Plan{}, nil, errors.Remedy(err, `write {"install": "…", "build": "…", "test": "…"}`)
		}
	}
	asked = asked.or(plan.Override.Parts)
	t.parts(asked, &plan)
	if err := t.devContainer(asked.DevContainer, &plan); err != nil {
		return Plan{}, nil, err
	}
	scan := scan{Tree: t, groups: groups{asked.Groups}, plan: &plan}
	found := map[string]bool{".": true}
	for name := range t.Digests {
		if slices.Contains(locks, path.Base(name)) {
			found[path.Dir(name)] = true
		} else if isRequirements(name) && path.Base(path.Dir(name)) == "requirements" {
			found[path.Dir(path.Dir(name))] = true
		}
	}
	over := 0
	var roots []string // of workspaces, which install the packages below them
	for _, dir := range slices.Sorted(maps.Keys(found)) {
		for _, p := range scan.projects(dir) {
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
			} else {
				over++
			}
		}
	}
	if over > 0 {
		scan.leave("directories", "%d more directories with dependencies are not installed: name the command that "+
			"installs "+
			"them with --install", over)
	}
	scan.unknownGroups()
	return plan, t.inputs(plan), nil
}

// scan is the search for projects in a tree.
type scan struct {
	Tree
	groups groups
	plan   *Plan
	known  []string // the groups that projects have
}

// leave records a part that the image will lack.
func (s *scan) leave(what, format string, args ...any) {
	s.plan.Left = append(s.plan.Left, Gap{what, fmt.Sprintf(format, args...)})
}

// unknownGroups reports requested groups that no project has.
func (s *scan) unknownGroups() {
	if s.groups.asked == nil {
		return
	}
	for _, name := range *s.groups.asked {
		if name != "" && !slices.ContainsFunc(s.known, func(k string) bool { return strings.EqualFold(k, name) }) {
			s.leave("groups", "no project has the group %.60q: correct --group, or groups in %s", name, OverrideFile)
		}
	}
}

// parts decides about submodules and large files.
func (t Tree) parts(asked Parts, plan *Plan) {
	on := func(b *bool) bool { return b != nil && *b }
	leave := func(what, why string) { plan.Left = append(plan.Left, Gap{what, why}) }
	if n := bytes.Count(t.text(".", ".gitmodules"), []byte("[submodule ")); n > 0 {
		if plan.Submodules = on(asked.Submodules); !plan.Submodules && asked.Submodules == nil {
			leave("submodules", fmt.Sprintf("%d submodules are not fetched: --submodules, or submodules in %s, "+
				"fetches them",
				n, OverrideFile))
		}
	}
	for name, text := range t.Text {
		if path.Base(name) == ".gitattributes" && bytes.Contains(text, []byte("filter=lfs")) {
			plan.LFS = true
		}
	}
	if plan.LFS && !on(asked.LFS) {
		plan.LFS = false
		if asked.LFS == nil {
			leave("lfs", fmt.Sprintf("large files are pointers: --lfs, or lfs in %s, fetches them", OverrideFile))
		}
	}
}

// devContainer finds the description of the dev container.
func (t Tree) devContainer(asked *string, plan *Plan) error {
	all := devcontainer.Find(slices.Sorted(maps.Keys(t.Digests)))
	if asked != nil && *asked == "" || asked == nil && len(all) == 0 {
		return nil
	}
	name := ""
	if asked != nil {
		name = *asked
	}
	found, err := devcontainer.Choose(all, name)
	if err == nil {
		plan.DevContainer = found.Path
		return nil
	}
	if asked != nil {
		return errors.Remedy(err, "correct --devcontainer, or devcontainer in %s", OverrideFile)
	}
	plan.Left = append(plan.Left, Gap{"devcontainer", errors.Message(err) +
		": --devcontainer NAME, or devcontainer in " + OverrideFile + ", chooses one"})
	return nil
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
		if slices.Contains(locks, path.Base(name)) || isRequirements(name) {
			add(".", name)
		}
	}
	add(".", settings...)
	if plan.DevContainer != "" {
		for name := range t.Digests {
			if isDevContainer(name) {
				add(".", name)
			}
		}
	}
	for _, p := range plan.Projects {
		add(p.Dir, settings...)
		if p.Lock == "" {
			add(p.Dir, manifests...)
		}
	}
	return all
}

// projects returns the projects in a directory.
func (s *scan) projects(dir string) []Project {
	var all []Project
	for _, find := range []func(string) (Project, bool){s.node, s.python, s.golang, s.rust, s.ruby, s.php} {
		if p, ok := find(dir); ok {
			p.Dir = dir
			all = append(all, p)
		}
	}
	return all
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
		p.Override.Build, p.Override.Test, p.Left = nil, nil, nil
		out, _ := json.Marshal(p) // cannot fail: strings and booleans
		return string(out)
	}
	return text(p) == text(other)
}
