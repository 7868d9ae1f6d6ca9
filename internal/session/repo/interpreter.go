package repo

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// gapPython is the Gap of a version of Python that the image does not have.
const gapPython = "python"

// newVenv is the beginning of the command that makes the environment of a project of pip.
const newVenv = "python3 -m venv .venv"

// interpreter is a Python of a sandbox.
type interpreter struct{ program, version string }

// python returns the plan with the interpreters that its projects of pip request: those of the image, or uv's. The
// other
// managers choose by themselves. A version that the image lacks is left out, with the image's own in its place.
func (a *attempt) python(ctx context.Context, plan Plan) (Plan, error) {
	plan.Projects = slices.Clone(plan.Projects)
	var all []interpreter
	for i, p := range plan.Projects {
		if p.Manager != "pip" || p.Python == "" {
			continue
		}
		if all == nil {
			out, err := a.script(ctx, a.box, command{text: pythonsScript})
			if err != nil {
				return plan, err
			}
			all = parseInterpreters(string(out))
		}
		found, ok := choose(all, p.Python)
		switch _, err := a.uv(ctx, ok, p.Python); {
		case ok:
			plan.Projects[i].Install = strings.Replace(p.Install, newVenv, found.program+" -m venv .venv", 1)
			a.build.Python = found.version
		case err == nil:
			plan.Projects[i].Install = strings.Replace(p.Install, newVenv, "uv venv --seed --python "+quoted(p.Python)+
				" .venv", 1)
		case ctx.Err() != nil:
			return plan, context.Cause(ctx)
		case len(all) > 0:
			a.build.Python = all[0].version
			a.leave(Gap{gapPython, p.PythonFrom + " requests Python " + p.Python + ", but the image has " +
				all[0].version +
				" and no uv that can fetch it: name an image that has it with --image, or install it with --setup"})
		}
	}
	return plan, nil
}

// uv installs a version of Python with the image's uv, unless have is set.
func (a *attempt) uv(ctx context.Context, have bool, version string) ([]byte, error) {
	if have {
		return nil, errors.Newf(errors.Conflict, "the image has that version")
	}
	return a.script(ctx, a.box, command{text: uvScript, params: []string{version}})
}

func parseInterpreters(out string) (all []interpreter) {
	for line := range strings.Lines(out) {
		program, version, ok := strings.Cut(strings.TrimSpace(line), " ")
		if ok && simpleName().MatchString(strings.ReplaceAll(program, "/", "")) && len(numbers(version)) > 0 {
			all = append(all, interpreter{program, version})
		}
	}
	return all
}

// choose returns the first interpreter that satisfies a specifier.
func choose(all []interpreter, specifier string) (interpreter, bool) {
	i := slices.IndexFunc(all, func(p interpreter) bool { return satisfies(p.version, specifier) })
	if i < 0 {
		return interpreter{}, false
	}
	return all[i], true
}

var (
	clause  = pattern.New(`^(===|==|!=|~=|>=|<=|>|<)\s*v?([0-9]+(?:\.[0-9]+)*)(\.\*)?$`)
	leading = pattern.New(`^[0-9]+(?:\.[0-9]+)*`)
)

// numbers returns the parts of a version's number.
func numbers(version string) (parts []int) {
	for part := range strings.SplitSeq(leading().FindString(version), ".") {
		if n, err := strconv.Atoi(part); err == nil {
			parts = append(parts, n)
		}
	}
	return parts
}

// satisfies reports whether the version of a Python, a release, satisfies a specifier of PEP 440.
func satisfies(version, specifier string) bool {
	have := numbers(version)
	for text := range strings.SplitSeq(specifier, ",") {
		m := clause().FindStringSubmatch(strings.TrimSpace(text))
		if m == nil {
			return false
		}
		want := numbers(m[2])
		order := compare(have, want)
		begins := len(have) >= len(want) && slices.Equal(have[:len(want)], want)
		ok := false
		switch m[1] {
		case "==", "===":
			ok = order == 0 || m[3] != "" && begins
		case "!=":
			ok = order != 0 && (m[3] == "" || !begins)
		case "~=":
			ok = order >= 0 && len(want) > 1 && len(have) >= len(want)-1 &&
				slices.Equal(have[:len(want)-1], want[:len(want)-1])
		case ">=":
			ok = order >= 0
		case "<=":
			ok = order <= 0
		case ">":
			ok = order > 0
		case "<":
			ok = order < 0
		}
		if !ok {
			return false
		}
	}
	return true
}

// compare compares versions, of which the shorter one ends with zeros.
func compare(a, b []int) int {
	for i := range max(len(a), len(b)) {
		var x, y int
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if x != y {
			return x - y
		}
	}
	return 0
}
