package kept

import (
	"testing"

	"gvisor.dev/gvisor/pkg/errors/linuxerr"

	"github.com/RelevanceAI/harvest/client/errors"
)

// mission: A9
func TestStartErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		kind    errors.Kind
		message string
	}{
		`failed to find initial working directory "/x": no such file or directory`: {errors.Invalid,
			`there is no directory "/x" in the sandbox to start in`},
		`error finding executable "prog" in PATH`: {errors.Invalid,
			`there is no program "prog" in the sandbox`},
		`loading executable: permission denied`: {errors.Invalid,
			`"prog" cannot be executed`},
		`exec format error`: {errors.Invalid,
			`"prog" is not a program for this machine`},
		`argument list too long`: {errors.Invalid,
			`the arguments and the environment of "prog" are too long`},
		`resource temporarily unavailable`: {errors.Exhausted,
			`the sandbox has reached its limit of 64 processes`},
		linuxerr.EAGAIN.Error(): {errors.Exhausted,
			`the sandbox has reached its limit of 64 processes`},
		linuxerr.ENOMEM.Error(): {errors.Exhausted,
			`the sandbox has no memory for another command`},
		`cannot allocate memory`: {errors.Exhausted,
			`the sandbox has no memory for another command`},
		linuxerr.EMFILE.Error(): {errors.Exhausted,
			`the sandbox has no open files or disk left for another command`},
		linuxerr.ENFILE.Error(): {errors.Exhausted,
			`the sandbox has no open files or disk left for another command`},
		linuxerr.ENOSPC.Error(): {errors.Exhausted,
			`the sandbox has no open files or disk left for another command`},
		linuxerr.EACCES.Error(): {errors.Invalid,
			`"prog" cannot be executed`},
		linuxerr.EPERM.Error(): {errors.Invalid,
			`"prog" cannot be executed`},
		linuxerr.ELOOP.Error(): {errors.Invalid,
			`"prog" cannot be executed`},
		linuxerr.EISDIR.Error(): {errors.Invalid,
			`"prog" cannot be executed`},
		linuxerr.ENOEXEC.Error(): {errors.Invalid,
			`"prog" is not a program for this machine`},
		linuxerr.E2BIG.Error(): {errors.Invalid,
			`the arguments and the environment of "prog" are too long`},
		linuxerr.ENOENT.Error(): {errors.Invalid,
			`there is no program "prog" in the sandbox`},
		linuxerr.ENOTDIR.Error(): {errors.Invalid,
			`there is no program "prog" in the sandbox`},
		linuxerr.ENAMETOOLONG.Error(): {errors.Invalid,
			`there is no program "prog" in the sandbox`},
	} {
		err := StartError(errors.Errorf("%s", text), "prog", "/x", 64)
		if !errors.Is(err, want.kind) || errors.Message(err) != want.message || errors.RemedyOf(err) == "" {
			t.Errorf("%s: kind %v, message %q, remedy %q", text, errors.KindOf(err), errors.Message(err),
				errors.RemedyOf(err))
		}
	}
	if err := StartError(errors.Errorf("something else"), "prog", "/", 64); !errors.Is(err, errors.Internal) {
		t.Errorf("an unknown error is %v", errors.KindOf(err))
	}
}
