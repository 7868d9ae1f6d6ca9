package processes

import (
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

// TestZombies checks that orphaned children of a first process are found.
func TestZombies(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for !slices.Contains(zombies("/proc", os.Getpid()), cmd.Process.Pid) {
		if time.Now().After(deadline) {
			t.Fatalf("%d is not found", cmd.Process.Pid)
		}
		time.Sleep(time.Millisecond)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if slices.Contains(zombies("/proc", os.Getpid()), cmd.Process.Pid) {
		t.Error("it is found although somebody has waited for it")
	}
}
