package repo

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

func (p Project) isNode() bool {
	return slices.Contains([]string{"npm", "pnpm", "yarn", "yarn-berry", "bun"}, p.Manager)
}

// packageJSON contains the fields of package.json that Detect reads. Fields of the wrong type are treated as missing.
type packageJSON struct {
	Manager string
	Volta   map[string]string
	Engines map[string]string
	Scripts map[string]string
	Dev     map[string]engine // of devEngines, by kind and name: "runtime node"
	// Workspaces reports whether the file defines workspaces.
	Workspaces bool
}

// engine is an element of devEngines.
type engine struct{ Name, Version string }

// withoutMark returns a text without the byte order mark that some editors write.
func withoutMark(text []byte) []byte { return bytes.TrimPrefix(text, []byte("\ufeff")) }

func parsePackage(text []byte) (p packageJSON) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(withoutMark(text), &fields) != nil {
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
	p.Dev = map[string]engine{}
	var dev map[string]json.RawMessage
	_ = json.Unmarshal(fields["devEngines"], &dev) // on error, it stays empty
	for kind, raw := range dev {
		var all []engine
		if json.Unmarshal(raw, &all) != nil { // not a list: one engine
			all = make([]engine, 1)
			if json.Unmarshal(raw, &all[0]) != nil {
				continue
			}
		}
		for _, e := range slices.Backward(all) {
			p.Dev[kind+" "+e.Name] = e
			p.Dev[kind] = e // the first one in the end
		}
	}
	p.Workspaces = len(fields["workspaces"]) > 0 && string(fields["workspaces"]) != "null"
	return p
}

// pinned matches a packageManager field: name, version or address, and perhaps a digest.
var pinned = pattern.New(`^(npm|pnpm|yarn|bun)@([0-9][0-9A-Za-z.-]*|https?://[^\s#]+)([+#].*)?$`)

// nodeLocks are the lock files of package managers for Node.js, in the order in which they are looked for.
var nodeLocks = []struct{ file, manager string }{
	{"pnpm-lock.yaml", "pnpm"}, {"yarn.lock", "yarn"}, {"package-lock.json", "npm"}, {"npm-shrinkwrap.json", "npm"},
	{"bun.lock", "bun"}, {"bun.lockb", "bun"},
}

func (t Tree) node(dir string) (Project, bool) {
	if !t.has(dir, "package.json") {
		return Project{}, false
	}
	pkg := parsePackage(t.text(dir, "package.json"))
	p := Project{Manager: "npm", Workspace: pkg.Workspaces || t.pnpmWorkspace(dir)}
	for _, lock := range nodeLocks {
		if t.has(dir, lock.file) {
			p.Manager, p.Lock = lock.manager, lock.file
			break
		}
	}
	version := t.nodePin(dir, pkg, &p)
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

// nodePin sets the package manager and its pin, with the same precedence as the resolver of the agent image. It returns
// the version, or "" if none is known.
func (t Tree) nodePin(dir string, pkg packageJSON, p *Project) string {
	dev := pkg.Dev["packageManager"]
	m := pinned().FindStringSubmatch(pkg.Manager)
	switch {
	case m != nil:
		t.managed(dir, m[1], p)
		p.Pin, p.PinFrom = m[1]+"@"+m[2], "package.json packageManager"
		if strings.Contains(m[2], "://") {
			return within().FindString(m[2])
		}
		return m[2]
	case pkg.Volta[p.Manager] != "":
		p.Pin, p.PinFrom = p.Manager+"@"+pkg.Volta[p.Manager], "package.json volta"
		return pkg.Volta[p.Manager]
	case slices.ContainsFunc(nodeLocks, func(l struct{ file, manager string }) bool { return l.manager == dev.Name }):
		t.managed(dir, dev.Name, p)
		if dev.Version != "" {
			p.Pin, p.PinFrom = dev.Name+"@"+dev.Version, "package.json devEngines"
		}
		return strings.TrimLeft(dev.Version, "^~>=v ")
	case p.Manager == "pnpm":
		limit, lock := pkg.Engines["pnpm"], lockVersion(t.text(dir, p.Lock))
		if limit != "" {
			p.Pin, p.PinFrom = "pnpm@"+limit, "package.json engines"
		}
		if line := pnpmOf[strings.Split(lock, ".")[0]]; line != "" && limit == "" {
			p.Pin, p.PinFrom = "pnpm@"+line, p.Lock+" "+lock
		}
	}
	return ""
}

// within finds a version within an address.
var within = pattern.New(`[0-9]+\.[0-9]+\.[0-9]+`)

// managed sets the package manager that package.json names, with its lock file.
func (t Tree) managed(dir, manager string, p *Project) {
	if manager == p.Manager && p.Lock != "" {
		return
	}
	p.Manager, p.Lock = manager, ""
	for _, lock := range nodeLocks {
		if lock.manager == manager && t.has(dir, lock.file) {
			p.Lock = lock.file
			return
		}
	}
}

// pnpmOf is the line of pnpm that reads a lock file of a version, as in the resolver of the agent image.
var pnpmOf = map[string]string{"5": "7", "6": "8", "9": "10"}

var (
	lockLine  = pattern.New(`(?m)^lockfileVersion: *['"]?([0-9]+(?:\.[0-9]+)?)`)
	newerLock = pattern.New(`(?m)^ *(packageManagerDependencies|configDependencies):`)
)

// lockVersion returns the version of a pnpm-lock.yaml; "" if it is not known, or only pnpm 11 and later write it.
func lockVersion(text []byte) string {
	text = text[:min(len(text), headBytes)]
	m := lockLine().FindSubmatch(text)
	if m == nil || newerLock().Match(text) {
		return ""
	}
	return string(m[1])
}

// pnpmWorkspace reports whether a pnpm-workspace.yaml lists packages: since pnpm 10, it may have settings only.
func (t Tree) pnpmWorkspace(dir string) bool {
	const name = "pnpm-workspace.yaml"
	if !t.has(dir, name) {
		return false
	}
	var file struct {
		Packages any `yaml:"packages"`
	}
	if yaml.Unmarshal(withoutMark(t.text(dir, name)), &file) != nil {
		return true // pnpm reports the error
	}
	list, ok := file.Packages.([]any)
	return ok && len(list) > 0
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
		line, _, _ := strings.Cut(strings.TrimSpace(string(withoutMark(t.text(dir, name)))), "\n")
		line, _, _ = strings.Cut(line, "#")
		return strings.TrimPrefix(strings.TrimSpace(line), "v")
	}
	for _, source := range []struct{ version, from string }{
		{pkg.Volta["node"], "package.json volta"}, {first(".nvmrc"), ".nvmrc"},
		{first(".node-version"), ".node-version"}, {t.tool(dir, ".tool-versions", "nodejs", "node"), ".tool-versions"},
		{t.tool(dir, "mise.toml", "node", "nodejs"), "mise.toml"}, {t.tool(dir, ".mise.toml", "node", "nodejs"),
			".mise.toml"},
		{pkg.Dev["runtime node"].Version, "package.json devEngines"}, {pkg.Engines["node"], "package.json engines"},
	} {
		if source.version != "" && len(source.version) <= 100 {
			return source.version, source.from
		}
	}
	return "", ""
}

// tool returns the version that a file of asdf or mise has for a tool, by any of its names.
func (t Tree) tool(dir, file string, names ...string) string {
	text := withoutMark(t.text(dir, file))
	if file == ".tool-versions" {
		for line := range strings.Lines(string(text)) {
			line, _, _ = strings.Cut(line, "#")
			if fields := strings.Fields(line); len(fields) > 1 && slices.Contains(names, fields[0]) {
				return strings.TrimPrefix(fields[1], "v")
			}
		}
		return ""
	}
	tools := table(parseTOML(text), "tools")
	for _, name := range names {
		value := tools[name]
		if list, ok := value.([]any); ok && len(list) > 0 {
			value = list[0]
		}
		if options, ok := value.(map[string]any); ok {
			value = options["version"]
		}
		if version, ok := value.(string); ok && version != "" {
			return strings.TrimPrefix(version, "v")
		}
	}
	return ""
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
	case "bun":
		run, p.Install = "bun", "bun install --no-save"
		if p.Lock != "" {
			p.Install = "bun install --frozen-lockfile"
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
		case "bun":
			p.Build = "bun run --filter '*' --if-present build"
		}
	}
	// The placeholder of npm init is not a test.
	if test := pkg.Scripts["test"]; test != "" && !strings.Contains(test, "no test specified") {
		p.Test = run + " run test"
	}
}
