package processes

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// TestProcesses finds a shell and its child process by their arguments, and below this process.
func TestProcesses(t *testing.T) {
	t.Parallel()
	unique := "60" + strconv.Itoa(os.Getpid())
	script := "sleep " + unique + "; true"
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the child process runs", func() bool { return len(WithArgs("sleep", unique)) == 1 })
	shell, child := cmd.Process.Pid, WithArgs("sleep", unique)[0]
	if got := WithArgs("sh", "-c", script); !slices.Equal(got, []int{shell}) {
		t.Errorf("the shell %d was found as %v", shell, got)
	}
	if got := WithArgs("sleep"); slices.Contains(got, child) {
		t.Errorf("%v has a process with more arguments", got)
	}
	if got := Below(shell); !slices.Equal(got, []int{child}) {
		t.Errorf("below the shell are %v, want %d", got, child)
	}
	if got := Below(os.Getpid()); !slices.Contains(got, shell) || !slices.Contains(got, child) {
		t.Errorf("below this process are %v, without %d or %d", got, shell, child)
	}
	for _, pid := range []int{child, shell} {
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Kill()
		}
	}
	_ = cmd.Wait()
}
