package filter

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// TestProgramIsWhatGVisorCompiles checks that the program equals the one that gVisor would compile, for any process and
// control socket.
func TestProgramIsWhatGVisorCompiles(t *testing.T) {
	for _, socket := range []uint32{7, 1234} {
		err := Verify(socket)
		if errors.Is(err,
			errors.Unsupported) {
			// a build with the race detector; the ordinary binary, which boots sandboxes, reports it
			verifyBinary(t)
			return
		}
		if err != nil {
			t.Errorf("control socket %d: %v; run go generate", socket, err)
		}
	}
}

// verifyBinary lets the ordinary binary verify the program in it.
func verifyBinary(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), testenv.Binary(t), "doctor")
	cmd.Env = append(testenv.CleanEnv(), "HARVEST_DATA="+testenv.DataDir(t))
	out, _ := cmd.Output() // other findings may be bad
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "system call filter") {
			if !strings.HasPrefix(line, "ok") {
				t.Errorf("doctor: %s", line)
			}
			return
		}
	}
	t.Errorf("doctor says nothing about the filter:\n%s", out)
}

func TestProgramFile(t *testing.T) {
	t.Parallel()
	var p precompiledseccomp.Program
	if err := json.Unmarshal(program, &p); err != nil {
		t.Fatal(err)
	}
	if p.Name == "" || len(p.Bytecode32) < 200 || len(p.VarOffsets["self_pid_low32bits"]) == 0 {
		t.Errorf("program %q has %d words and the variables %v", p.Name, len(p.Bytecode32), p.VarOffsets)
	}
}
