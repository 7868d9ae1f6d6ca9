package testenv

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// byHand is set in a process that runs the program under test.
const byHand = "HARVEST_TEST_BY_HAND"

// MainByHand runs the tests of a program that only harvest starts. In a process of ByHand it runs that program.
// It returns the exit status.
func MainByHand(m *testing.M, program func()) int {
	if os.Getenv(byHand) != "" {
		program()
	}
	return m.Run()
}

// ByHand checks that the program, started by hand, names the command to run instead.
func ByHand(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(CleanEnv(), byHand+"=1")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "run harvest") {
		t.Errorf("%v: %s", err, out)
	}
}
