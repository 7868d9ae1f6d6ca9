package repo

import (
	"context"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/repo/python"
)

// gapPython is the Gap of a version of Python that the image does not have.
const gapPython = "python"

// newVenv is the beginning of the command that makes the environment of a project of pip.
const newVenv = "python3 -m venv .venv"

// python returns the plan with the interpreters that its projects of pip request: those of the image, or uv's. The
// other
// managers choose by themselves. A version that the image lacks is left out, with the image's own in its place.
func (a *attempt) python(ctx context.Context, plan Plan) (Plan, error) {
	plan.Projects = slices.Clone(plan.Projects)
	var all []python.Interpreter
	for i, p := range plan.Projects {
		if p.Manager != "pip" || p.Python == "" {
			continue
		}
		if all == nil {
			out, err := a.script(ctx, a.box, command{text: pythonsScript})
			if err != nil {
				return plan, err
			}
			all = python.Parse(string(out))
		}
		found, ok := python.Choose(all, p.Python)
		switch _, err := a.uv(ctx, ok, p.Python); {
		case ok:
			plan.Projects[i].Install = strings.Replace(p.Install, newVenv, quoted(found.Program)+" -m venv .venv", 1)
			a.build.Python = found.Version
		case err == nil:
			plan.Projects[i].Install = strings.Replace(p.Install, newVenv, "uv venv --seed --python "+quoted(p.Python)+
				" .venv", 1)
		case ctx.Err() != nil:
			return plan, context.Cause(ctx)
		case len(all) > 0:
			a.build.Python = all[0].Version
			a.leave(Gap{gapPython, p.PythonFrom + " requests Python " + p.Python + ", but the image has " +
				all[0].Version +
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
