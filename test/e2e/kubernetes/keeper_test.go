package kubernetes

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/kubetest"
)

// keeperOf returns the process of the keeper in a pod. The node is this machine.
func keeperOf(t *testing.T, pod string) int {
	t.Helper()
	uid := strings.TrimSpace(kubetest.Kubectl(t, "get", "pod", pod, "-o", "jsonpath={.metadata.uid}"))
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || uid == "" {
		t.Fatalf("the pod %s has the UID %q: %v", pod, uid, err)
	}
	for _, dir := range all {
		group, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil || !strings.Contains(string(group), uid) {
			continue
		}
		if program, err := os.Readlink(filepath.Join(dir, "exe")); err == nil && program == "/harvest/keeper" {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatalf("the pod %s has no keeper", pod)
	return 0
}

// TestKeeperKilled kills the keeper in the pod of a session's sandbox. The sandbox ends with a reason, and the session
// continues from its snapshot.
func TestKeeperKilled(t *testing.T) {
	h := newHost(t, nil)
	project := h.Project()
	out, stderr, code := h.In(project, "agent", "--agent", "scripted", "--image", "base", "-o", "text", "say hello")
	if code != 0 || !strings.Contains(out, "You said: say hello") {
		t.Fatalf("exit code %d: %s%s", code, out, stderr)
	}
	box := h.Box()
	all := pods(t)
	if len(all) != 1 {
		t.Fatalf("the pods are %q", all)
	}
	if err := syscall.Kill(keeperOf(t, all[0]), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the sandbox has ended", func() bool {
		status := h.Sandbox(box).Status
		return status != "running" && status != "lost"
	})
	if got := h.Sandbox(box); got.Status != "failed" || got.Reason == "" {
		t.Errorf("the sandbox is %s: %q", got.Status, got.Reason)
	}
	t.Logf("the reason: %s", h.Sandbox(box).Reason)
	if got := fmt.Sprint(h.Server().PID); got == "0" {
		t.Error("the server does not answer")
	}
	out, stderr, code = h.In(project, "agent", "--continue", "-o", "text", "/run cat SCRIPTED-AGENT.md")
	if code != 0 || !strings.Contains(out, "say hello") {
		t.Errorf("exit code %d: %s%s", code, out, stderr)
	}
	testenv.Eventually(t, "its pod is gone", func() bool { return len(pods(t)) <= 1 })
}
