package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/testenv"
)

// byHand is set in a process that is the program.
const byHand = "HARVEST_TEST_BY_HAND"

func TestMain(m *testing.M) {
	if os.Getenv(byHand) != "" {
		main()
	}
	os.Exit(m.Run())
}

// Who starts the program by hand is told what to run.
func TestByHand(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(testenv.CleanEnv(), byHand+"=1")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "run harvest") {
		t.Errorf("%v: %s", err, out)
	}
}
