package kubernetes

import (
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
// continues from its last snapshot.
func TestKeeperKilled(t *testing.T) {
	h := newHost(t, nil)
	project := h.Project()
	in := func(want string, args ...string) {
		t.Helper()
		out, stderr, code := h.In(project, args...)
		if code != 0 || !strings.Contains(out, want) {
			t.Fatalf("harvest %q: exit code %d: %s%s", args, code, out, stderr)
		}
	}
	in("You said: say hello", "agent", "-o", "text", "--agent", "scripted", "--image", "base", "say hello")
	h.Must("sandbox", "rm", h.Box()) // with a snapshot
	in("", "agent", "-o", "text", "--continue", "/run cat SCRIPTED-AGENT.md")
	box, server := h.Box(), h.Server().PID
	testenv.Eventually(t, "there is one pod", func() bool { return len(pods(t)) == 1 })
	if err := syscall.Kill(keeperOf(t, pods(t)[0]), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the sandbox has ended", func() bool { return h.Sandbox(box).Status == "failed" })
	if got := h.Sandbox(box).Reason; !strings.Contains(got, "the process that kept the sandbox was killed") {
		t.Errorf("the reason is %q", got)
	}
	if got := h.Server().PID; got != server {
		t.Errorf("the server %d became %d", server, got)
	}
	in("", "agent", "-o", "text", "--continue", "/run cat SCRIPTED-AGENT.md")
	in("+- say hello", "diff")
	testenv.Eventually(t, "its pod is gone", func() bool { return len(pods(t)) == 1 })
}
