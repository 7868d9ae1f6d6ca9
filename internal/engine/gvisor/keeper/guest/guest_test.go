package guest

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/runsc"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
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

// TestSpecsAreEncodedWhole checks that the encoder covers every field that our specs use.
func TestSpecsAreEncodedWhole(t *testing.T) {
	t.Parallel()
	g := &Guest{Args: wire.BootArgs{Ref: "r", Dir: "/d", Init: "/i", Limits: engine.Limits{Files: 9, Disk: 1 << 20}}}
	spec := g.MainSpec([]string{"/init", "name"}, "/root.erofs",
		[]wire.Mount{{Source: "/s", Path: "/p", ReadOnly: true}})
	if err := (&Guest{}).setUsers(spec); err != nil {
		t.Fatal(err)
	}
	spec.Root.Readonly = true
	ours, err := runsc.EncodeSpec(spec)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	var got, want specs.Spec
	if err := errors.Join(json.Unmarshal(ours, &got), json.Unmarshal(theirs, &want)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("encoded as %s\nwant %s", ours, theirs)
	}
}

func TestFilesOfNames(t *testing.T) {
	t.Parallel()
	steps := nameFiles("box", "0123")
	if len(steps) != 4 || steps[0].Rename != "/etc/hosts" || !strings.Contains(steps[0].Content, "127.0.1.1\tbox\n") ||
		steps[1].Rename != "/etc/resolv.conf" || !strings.HasPrefix(steps[1].Content, "nameserver 10.0.2.3\n") ||
		steps[2].Rename != "/etc/hostname" || steps[2].Content != "box\n" ||
		steps[3].Rename != "/etc/machine-id" || steps[3].Content != "0123\n" {
		t.Errorf("%+v", steps)
	}
	if s := nameFiles("localhost", "0123")[0].Content; strings.Count(s, "\n") != 2 {
		t.Errorf("hosts %q", s)
	}
}
