package plan

import (
	"strconv"
	"time"

	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/RelevanceAI/harvest/client/errors"
)

// EpochArg is the build argument, or the global ARG, that makes layers reproducible:
// https://reproducible-builds.org/specs/source-date-epoch/.
const EpochArg = "SOURCE_DATE_EPOCH"

// maxEpoch is in the year 9999, the last one that tar headers and RFC 3339 can represent.
const maxEpoch = 253402300799

// epochOf returns SOURCE_DATE_EPOCH: the build argument, or else the value of the global ARGs. BuildKit also accepts
// the name of a context or stage, and resolves its time through a client. Its converter has none here, and ignores
// names silently, so they are refused.
func (d *document) epochOf(globals []instructions.ArgCommand, lex *shell.Lex, args map[string]string,
) (time.Time, error) {
	if text, given := args[EpochArg]; given {
		epoch, err := parseEpoch(text)
		if err != nil {
			return epoch, errors.Explainf(err, errors.Invalid, "the build argument %s", errors.Message(err))
		}
		return epoch, nil
	}
	env, line := &llb.EnvList{}, 0
	for _, global := range globals {
		for _, arg := range global.Args {
			value, given := args[arg.Key]
			if !given {
				if arg.Value == nil {
					continue
				}
				var err error
				if value, _, err = lex.ProcessWord(*arg.Value, env); err != nil {
					return time.Time{}, nil // the converter reports it
				}
			}
			env = env.AddOrReplace(arg.Key, value)
			if arg.Key == EpochArg {
				line = lineOf(global.Location())
			}
		}
	}
	text, _ := env.Get(EpochArg)
	epoch, err := parseEpoch(text)
	return epoch, d.at(line, err)
}

// parseEpoch parses SOURCE_DATE_EPOCH. The time is zero if it is not set.
func parseEpoch(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds < 0 || seconds > maxEpoch {
		err := errors.Newf(errors.Invalid, "%s: invalid time %.100q", EpochArg, text)
		return time.Time{}, errors.Remedy(err, "give seconds since 1970, such as $(git log -1 --format=%%ct); "+
			"names of contexts and stages are not supported")
	}
	return time.Unix(seconds, 0), nil
}
