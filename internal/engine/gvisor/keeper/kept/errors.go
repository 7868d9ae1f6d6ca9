package kept

import (
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// StartError explains why a sandbox did not start a command. gVisor's errors arrive as text: in the words of its
// package linuxerr, or in those of Linux if the host kernel refused. processes is the sandbox's limit.
func StartError(err error, program, dir string, processes int) error {
	text := err.Error()
	has := func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(text, t) })
	}
	switch {
	case strings.Contains(text, "working directory"):
		err = errors.Explainf(err, errors.Invalid, "there is no directory %q in the sandbox to start in", dir)
		return errors.Remedy(err, "create it first, or name another one with -w")
	case strings.Contains(text, "no such file"), strings.Contains(text, "name too long"),
		strings.Contains(text, "finding executable"), strings.Contains(text, "not a directory"):
		err = errors.Explainf(err, errors.Invalid, "there is no program %q in the sandbox", program)
		return errors.Exit(errors.Remedy(err, "check its name, or use an image that contains it"), engine.ExitNoProgram)
	case has("permission denied", "is a directory", "operation not permitted", "text file busy",
		"too many symbolic links", "too many levels of symbolic links"):
		err = errors.Remedy(errors.Explainf(err, errors.Invalid, "%q cannot be executed", program),
			"check its permissions (chmod +x)")
		return errors.Exit(err, engine.ExitNotExecutable)
	case strings.Contains(text, "exec format"):
		err = errors.Remedy(errors.Explainf(err, errors.Invalid, "%q is not a program for this machine", program),
			"a script needs a first line such as #!/bin/sh")
		return errors.Exit(err, engine.ExitNotExecutable)
	case strings.Contains(text, "argument list too long"):
		return errors.Remedy(errors.Explainf(err, errors.Invalid,
			"the arguments and the environment of %q are too long", program),
			"pass large data as a file or as standard input")
	case has("resource temporarily unavailable", "try again"): // EAGAIN
		return errors.Remedy(errors.Explainf(err, errors.Exhausted,
			"the sandbox has reached its limit of %d processes", processes),
			"end some, or create it with a higher --processes")
	case has("out of memory", "cannot allocate memory"): // ENOMEM
		return errors.Remedy(errors.Explainf(err, errors.Exhausted, "the sandbox has no memory for another command"),
			"end some, or create it with more --memory")
	case has("too many open files", "file table overflow", "no space left",
		"quota exceeded"): // EMFILE, ENFILE, ENOSPC, EDQUOT
		return errors.Remedy(errors.Explainf(err, errors.Exhausted,
			"the sandbox has no open files or disk left for another command"), "end some commands, or remove files")
	}
	return errors.Wrapf(err, "start %q", program)
}
