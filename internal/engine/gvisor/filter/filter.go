// Package filter holds the precompiled seccomp program that confines gVisor's process.
//
// Unless its build embeds compiled programs, gVisor compiles its program at every start, which takes longer
// than any other step of booting (13 of 55 ms). The Go module has no compiled programs. This package adds the
// one for the options that Harvest uses. Verify proves that it equals, instruction for instruction, the program
// that gVisor would compile. For other options, and in builds with the race detector, gVisor still compiles at
// every start.
package filter

import (
	_ "embed"
	"encoding/json"
	"reflect"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform/systrap"
	boot "gvisor.dev/gvisor/runsc/boot/filter"
	"gvisor.dev/gvisor/runsc/boot/filter/config"

	"github.com/RelevanceAI/harvest/client/errors"
)

//go:generate go run gen.go
//go:embed program.json
var program []byte

// compiled is gVisor's list of compiled programs, which gVisor's own build fills.
//
//go:linkname compiled gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var compiled map[string]precompiledseccomp.Program

// Options returns the options of a sandbox: gVisor's network stack, volumes through open files of the host, no
// devices.
func Options() config.Options {
	return config.Options{Platform: (&systrap.Systrap{}).SeccompInfo(), HostFilesystem: true}
}

// Register makes gVisor use the compiled program. It must be called in gVisor's process before gVisor runs.
func Register() {
	boot.ListPrecompiled() // the first call replaces the list
	var p precompiledseccomp.Program
	if json.Unmarshal(program, &p) == nil && compiled != nil {
		compiled[p.Name] = p
	}
}

// Verify compiles the program again and compares. The registered program must equal the one that gVisor would
// use in this process with that descriptor of the control socket. Unsupported if no program is registered for
// this build.
func Verify(controlSocket uint32) error {
	Register()
	options := Options()
	options.ControllerFD = controlSocket
	registered, ok := boot.GetPrecompiled(options.ConfigKey())
	if !ok {
		return errors.Newf(errors.Unsupported,
			"gVisor compiles its system call filter at every start, because this build has none for its options")
	}
	got, err := registered.RenderInstructions(options.Vars())
	if err != nil {
		return errors.Wrapf(err, "render the program")
	}
	rules, deny := config.Rules(options)
	own := seccomp.Program{RuleSets: []seccomp.RuleSet{{Rules: deny}, {Rules: rules, Action: seccomp.Allow}},
		Options: config.SeccompOptions(options)}
	want, _, err := own.Build()
	if err != nil {
		return errors.Wrapf(err, "compile the program")
	}
	if !reflect.DeepEqual(got, want) {
		return errors.Errorf("the compiled system call filter has %d instructions that differ from the %d of gVisor's",
			len(got), len(want))
	}
	return nil
}
