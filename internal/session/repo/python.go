package repo

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// parseTOML returns the tables of a file; nil if it is missing, has none, or is malformed, which the package manager
// reports.
func parseTOML(text []byte) map[string]any {
	var all map[string]any
	if toml.Unmarshal(withoutMark(text), &all) != nil || len(all) == 0 {
		return nil
	}
	return all
}

// table returns the table at a path of keys; nil if there is none.
func table(all map[string]any, keys ...string) map[string]any {
	for _, key := range keys {
		all, _ = all[key].(map[string]any)
	}
	return all
}

func keysOf(all map[string]any) []string { return slices.Sorted(maps.Keys(all)) }

var (
	requirements = pattern.New(`^(?:([a-z]+)[-_.])?requirements(?:[-_.]([a-z]+))?\.txt$`)
	simpleName   = pattern.New(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
)

// isRequirements reports whether a file lists requirements for pip.
func isRequirements(name string) bool {
	base := path.Base(name)
	return requirements().MatchString(base) || path.Base(path.Dir(name)) == "requirements" && path.Ext(base) == ".txt"
}

// mainFiles are the names of requirements files that every installation needs.
var mainFiles = []string{"", "base", "common", "core", "default", "main", "requirements"}

// purpose returns the group of a requirements file: "dev" of requirements-dev.txt and requirements/dev.txt.
func purpose(name string) string {
	base := path.Base(name)
	if m := requirements().FindStringSubmatch(base); m != nil {
		return m[1] + m[2]
	}
	return strings.TrimSuffix(base, ".txt")
}

// python returns the Python project of a directory.
func (s *scan) python(dir string) (Project, bool) {
	pyproject := parseTOML(s.text(dir, "pyproject.toml"))
	files := s.requirementFiles(dir)
	var p Project
	var runs string // the prefix of a program of the project's environment
	switch {
	case s.has(dir, "uv.lock"):
		runs = "uv run --frozen "
		p = Project{Manager: "uv", Lock: "uv.lock", Install: "uv sync --frozen" + s.uv(dir, pyproject)}
	case s.has(dir, "poetry.lock"):
		runs = "poetry run "
		p = Project{Manager: "poetry", Lock: "poetry.lock",
			Install: fetched("poetry") + "poetry install --no-interaction" + s.poetry(dir, pyproject)}
	case s.has(dir, "pdm.lock"):
		runs = "pdm run "
		p = Project{Manager: "pdm", Lock: "pdm.lock",
			Install: fetched("pdm") + "pdm sync --no-self" + s.pdm(dir, pyproject)}
		if table(pyproject, "project") != nil {
			p.Install = strings.Replace(p.Install, " --no-self", "", 1)
		}
	case s.has(dir, "Pipfile"), s.has(dir, "Pipfile.lock"):
		runs = "pipenv run "
		const pipenv = "export PIPENV_VENV_IN_PROJECT=1; pipenv "
		p = Project{Manager: "pipenv", Install: fetched("pipenv") + pipenv + "install --dev --skip-lock"}
		if s.has(dir, "Pipfile.lock") {
			p.Lock, p.Install = "Pipfile.lock", fetched("pipenv")+pipenv+"sync --dev"
		}
	default:
		arguments := s.pip(dir, pyproject, files)
		if arguments == "" {
			return Project{}, false
		}
		runs = ".venv/bin/python -m "
		p = Project{Manager: "pip", Install: "python3 -m venv .venv && .venv/bin/pip install " +
			"--disable-pip-version-check" + arguments}
		if len(files) > 0 {
			p.Lock = files[0]
		}
	}
	p.Python, p.PythonFrom = s.pythonVersion(dir, pyproject)
	texts := string(s.text(dir, "pyproject.toml")) + string(s.text(dir, "setup.cfg")) + string(s.text(dir, "Pipfile"))
	for _, file := range files {
		texts += string(s.text(dir, file))
	}
	if strings.Contains(texts, "pytest") {
		p.Test = runs + "pytest -q"
	}
	return p, true
}

// fetched returns a command that installs a package manager into an environment of its own, unless the image has it.
func fetched(manager string) string {
	return fmt.Sprintf("export PATH=\"$HOME/.local/bin:$HOME/.local/share/%[1]s/bin:$PATH\"; command -v %[1]s "+
		">/dev/null || "+
		"{ python3 -m venv ~/.local/share/%[1]s && ~/.local/share/%[1]s/bin/pip install "+
		"--disable-pip-version-check %[1]s; "+
		"} && ", manager)
}

// requirementFiles returns the names of a directory's requirements files, within it: the most general first.
func (s *scan) requirementFiles(dir string) []string {
	var names []string
	for name := range s.Digests {
		if !isRequirements(name) {
			continue
		}
		in := path.Dir(name)
		if path.Base(in) == "requirements" && path.Dir(in) == dir {
			names = append(names, "requirements/"+path.Base(name))
		} else if in == dir && (path.Base(in) != "requirements" || in == ".") {
			names = append(names, path.Base(name))
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		rank := func(name string) int {
			switch {
			case name == "requirements.txt":
				return 0
			case slices.Contains(mainFiles, purpose(name)):
				return 1
			}
			return 2
		}
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return names
}

// others records groups that are not installed.
func (s *scan) others(dir string, names []string) {
	if len(names) == 0 || s.groups.asked != nil {
		return // the user has chosen
	}
	where := ""
	if dir != "." {
		where = " of " + dir
	}
	s.leave("groups", "the groups %s%s are not installed: --group NAME, or groups in %s, adds one (and replaces %s)",
		strings.Join(names, ", "), where, OverrideFile, "dev and test")
}

// pick returns the wanted ones of a project's groups, and records the others.
func (s *scan) pick(dir string, names ...string) []string {
	names = slices.DeleteFunc(names, func(name string) bool { return !simpleName().MatchString(name) })
	s.known = append(s.known, names...)
	wanted, others := s.groups.split(slices.Compact(slices.Sorted(slices.Values(names))))
	s.others(dir, others)
	return wanted
}

// options returns a flag for each name.
func options(flag string, names, all []string) string {
	text := ""
	for _, name := range names {
		if slices.Contains(all, name) {
			text += " " + flag + " " + name
		}
	}
	return text
}

func (s *scan) uv(dir string, pyproject map[string]any) string {
	extras := keysOf(table(pyproject, "project", "optional-dependencies"))
	named := keysOf(table(pyproject, "dependency-groups"))
	standard := []string{"dev"}
	if list, ok := table(pyproject, "tool", "uv")["default-groups"].([]any); ok {
		standard = nil
		for _, name := range list {
			standard = append(standard, fmt.Sprint(name))
		}
	}
	s.known = append(s.known, standard...)
	named = slices.DeleteFunc(named, func(g string) bool { return slices.Contains(standard, g) }) // uv adds them itself
	wanted := s.pick(dir, slices.Concat(named, extras)...)
	return options("--group", wanted, named) + options("--extra", wanted, extras)
}

func (s *scan) poetry(dir string, pyproject map[string]any) string {
	extras := slices.Concat(keysOf(table(pyproject, "tool", "poetry", "extras")),
		keysOf(table(pyproject, "project", "optional-dependencies")))
	var optional []string
	for _, name := range keysOf(table(pyproject, "tool", "poetry", "group")) {
		if table(pyproject, "tool", "poetry", "group", name)["optional"] == true {
			optional = append(optional, name)
		} else {
			s.known = append(s.known, name)
		}
	}
	wanted := s.pick(dir, slices.Concat(optional, extras)...)
	return options("--with", wanted, optional) + options("--extras", wanted, extras)
}

func (s *scan) pdm(dir string, pyproject map[string]any) string {
	s.known = append(s.known, keysOf(table(pyproject, "dependency-groups"))...) // pdm adds them itself
	s.known = append(s.known, keysOf(table(pyproject, "tool", "pdm", "dev-dependencies"))...)
	extras := keysOf(table(pyproject, "project", "optional-dependencies"))
	return options("--group", s.pick(dir, extras...), extras)
}

// pip returns the arguments of pip install; "" if there is nothing to install.
func (s *scan) pip(dir string, pyproject map[string]any, files []string) string {
	arguments := s.pipFiles(dir, files)
	extras := keysOf(table(pyproject, "project", "optional-dependencies"))
	extras = append(extras, keysOf(table(pyproject, "tool", "poetry", "extras"))...)
	extras = append(extras, extrasOf(string(s.text(dir, "setup.cfg")))...)
	named := table(pyproject, "dependency-groups")
	built := s.has(dir, "setup.py") || table(pyproject, "project") != nil ||
		table(pyproject, "tool", "poetry") != nil ||
		table(pyproject, "build-system") != nil && s.has(dir, "setup.cfg")
	if !built && s.has(dir, "setup.cfg") && pyproject == nil && strings.Contains(string(s.text(dir, "setup.cfg")),
		"[metadata]") {
		s.leave("requirements", "%s has no pyproject.toml or setup.py, without which pip cannot install it: add "+
			"one, or name "+
			"the command with --install", path.Join(dir, "setup.cfg"))
	}
	names := slices.Collect(maps.Keys(named))
	if built && len(files) == 0 {
		names = append(names, extras...)
	}
	wanted := s.pick(dir, names...)
	if built && len(files) == 0 {
		project := "."
		with := slices.DeleteFunc(slices.Clone(wanted), func(n string) bool { return !slices.Contains(extras, n) })
		if len(with) > 0 {
			project = "'.[" + strings.Join(with, ",") + "]'"
		}
		arguments += " -e " + project
	}
	seen := map[string]bool{}
	for _, name := range wanted {
		for _, requirement := range groupOf(named, name, seen) {
			arguments += " " + quoted(requirement)
		}
	}
	return arguments
}

// pipFiles returns the arguments for the requirements files that are wanted, and records the others.
func (s *scan) pipFiles(dir string, files []string) string {
	var arguments string
	var others []string
	main := 0
	for i, file := range files {
		group := purpose(file)
		general := slices.Contains(mainFiles, group)
		if general {
			main++
		} else {
			s.known = append(s.known, group)
		}
		last := i == len(files)-1 && arguments == "" && s.groups.asked == nil // better one than none
		if general || s.groups.wants(group) || last {
			arguments += " -r " + quoted(file)
		} else {
			others = append(others, group)
		}
	}
	s.others(dir, others)
	return arguments
}

// groupOf returns the requirements of a dependency group (PEP 735), with those of groups that it includes.
func groupOf(all map[string]any, name string, seen map[string]bool) []string {
	var out []string
	list, _ := all[name].([]any)
	if seen[name] {
		return nil
	}
	seen[name] = true
	for _, item := range list {
		switch v := item.(type) {
		case string:
			out = append(out, v)
		case map[string]any:
			if included, ok := v["include-group"].(string); ok {
				out = append(out, groupOf(all, included, seen)...)
			}
		}
	}
	return out
}

// extrasOf returns the extras of a setup.cfg.
func extrasOf(text string) []string {
	var names []string
	_, section, _ := strings.Cut(text, "[options.extras_require]")
	for line := range strings.Lines(section) {
		name, _, ok := strings.Cut(line, "=")
		if strings.HasPrefix(line, "[") {
			break
		}
		if ok && strings.TrimLeft(line, " \t#;") == line {
			names = append(names, strings.TrimSpace(name))
		}
	}
	return names
}

// quoted returns text as a word for the shell.
func quoted(text string) string {
	if simpleName().MatchString(strings.ReplaceAll(text, "/", "")) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// pythonVersion returns the requested version as PEP 440 has it, and the file with it.
func (t Tree) pythonVersion(dir string, pyproject map[string]any) (version, from string) {
	line := ""
	for l := range strings.Lines(string(withoutMark(t.text(dir, ".python-version")))) {
		if l, _, _ = strings.Cut(l, "#"); strings.TrimSpace(l) != "" {
			line = strings.TrimPrefix(strings.TrimSpace(l), "python-")
			break
		}
	}
	requires, _ := table(pyproject, "project")["requires-python"].(string)
	poetry, _ := table(pyproject, "tool", "poetry", "dependencies")["python"].(string)
	for _, source := range []struct{ version, from string }{
		{exactly(line), ".python-version"}, {exactly(t.tool(dir, ".tool-versions", "python")), ".tool-versions"},
		{exactly(t.tool(dir, "mise.toml", "python")), "mise.toml"}, {exactly(t.tool(dir, ".mise.toml", "python")),
			".mise.toml"},
		{requires, "pyproject.toml requires-python"}, {caret(poetry), "pyproject.toml poetry"},
	} {
		if source.version != "" && len(source.version) <= 100 {
			return source.version, source.from
		}
	}
	return "", ""
}

var plainVersion = pattern.New(`^[0-9]+(\.[0-9]+){0,2}$`)

// exactly returns the specifier for a version as a version file has it: that one, or any that begins with it.
func exactly(version string) string {
	switch {
	case version == "" || version == "system" || version == "latest":
		return ""
	case plainVersion().MatchString(version) && strings.Count(version, ".") < 2:
		return "==" + version + ".*"
	}
	return "==" + version
}

// caret returns the specifier for a constraint of Poetry on Python.
func caret(constraint string) string {
	if rest, ok := strings.CutPrefix(strings.TrimSpace(constraint), "^"); ok {
		return ">=" + rest + ",<4"
	}
	if plainVersion().MatchString(constraint) {
		return exactly(constraint)
	}
	return strings.TrimPrefix(constraint, "*")
}
