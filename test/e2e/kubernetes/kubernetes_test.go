// Package kubernetes runs the program harvest with sandboxes in the pods of a real Kubernetes cluster, which
// make test-kubernetes starts.
package kubernetes

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/kubetest"
	"github.com/RelevanceAI/harvest/test/host"
)

// newHost is a server whose sandboxes are pods. They reach the server's machine, and nothing else.
func newHost(t *testing.T, setup func(env *testscript.Env) error) *host.Host {
	t.Helper()
	kubeconfig := kubetest.Cluster(t)
	if setup == nil {
		setup = host.GVisor(t)
	}
	return host.New(t, "kubernetes", func(env *testscript.Env) error {
		env.Setenv("HARVEST_KUBERNETES_KUBECONFIG", kubeconfig)
		env.Setenv("HARVEST_KUBERNETES_NAMESPACE", "default")
		env.Setenv("HARVEST_KUBERNETES_IMAGE", kubetest.Image)
		env.Setenv("HARVEST_KUBERNETES_PULL_POLICY", "Never")
		return setup(env)
	})
}

// pods are the names of the pods that are not being deleted.
func pods(t *testing.T) []string { return podsOf(t, "default") }

// podsOf are those of a namespace.
func podsOf(t *testing.T, namespace string) []string {
	t.Helper()
	return strings.Fields(kubetest.Kubectl(t, "get", "pods", "-n", namespace, "-o",
		`go-template={{range .items}}{{if not .metadata.deletionTimestamp}}{{.metadata.name}} {{end}}{{end}}`))
}

// TestRun runs a line of Python through the API server's port-forward, and leaves nothing.
func TestRun(t *testing.T) {
	h := newHost(t, nil)
	if out := h.Must("run", "--code", "print(6*7)"); out != "42" {
		t.Errorf("it printed %q", out)
	}
	if left := pods(t); len(left) > 0 {
		t.Errorf("pods are left: %q", left)
	}
}

// TestSandbox uses what a sandbox offers: files, a port, a snapshot, a copy, and what the network refuses.
func TestSandbox(t *testing.T) {
	h := newHost(t, nil)
	h.Env.Setenv("HARVEST_KUBERNETES_REACH", "direct")
	h.Must("sandbox", "create", "--name", "one", "--env", "WHO=me")
	in := func(name, script string) string {
		t.Helper()
		return h.Must("sandbox", "exec", name, "--", "sh", "-ec", script)
	}
	if got := in("one", "echo $WHO; id -u; dmesg | head -1; echo kept > /root/file"); !strings.HasPrefix(got,
		"me\n0\n") ||
		!strings.Contains(got, "gVisor") {
		t.Errorf("it printed %q", got)
	}
	h.Must("sandbox", "snapshot", "one", "--name", "after")
	h.Must("sandbox", "fork", "one", "--name", "two")
	h.Must("sandbox", "create", "--name", "three", "--image", "after")
	for _, name := range []string{"two", "three"} {
		if got := in(name, "cat /root/file"); got != "kept" {
			t.Errorf("%s has %q", name, got)
		}
	}
	denied := `python3 -c 'import urllib.request; urllib.request.urlopen("http://denied.example/", timeout=60)'`
	if _, stderr, code := h.Run("sandbox", "exec", "one", "--", "sh", "-c", denied); code == 0 {
		t.Errorf("a denied connection succeeded: %s", stderr)
	}
}

// TestRestart kills the server while a command runs, and follows the command to its end.
func TestRestart(t *testing.T) {
	h := newHost(t, nil)
	h.Must("sandbox", "create", "--name", "one")
	process := h.Must("sandbox", "exec", "--detach", "one", "--", "sh", "-c",
		"echo before; while [ ! -e /go ]; do sleep 0.1; done; echo after")
	if err := syscall.Kill(h.Server().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := h.Must("sandbox", "exec", "one", "--", "sh", "-c", "touch /go; echo here"); got != "here" {
		t.Errorf("after the restart it printed %q", got)
	}
	if got := h.Must("sandbox", "logs", "one", process); got != "before\nafter" {
		t.Errorf("the command printed %q", got)
	}
}

// TestPort reads a page that a program in a sandbox serves.
func TestPort(t *testing.T) {
	h := newHost(t, nil)
	h.Must("sandbox", "create", "--name", "one")
	h.Must("sandbox", "exec", "--detach", "one", "--", "sh", "-c",
		"mkdir /www; echo hello > /www/index.html; cd /www; python3 -m http.server 8000")
	box := h.Sandbox("one")
	get := func() (string, error) {
		req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet,
			fmt.Sprintf("http://harvest/v1/sandboxes/%s/ports/8000/", box.ID), nil)
		if err != nil {
			return "", err
		}
		resp, err := h.OverSocket().Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return string(body), err
	}
	testenv.Eventually(t, "the page is served", func() bool {
		page, err := get()
		return err == nil && page == "hello\n"
	})
}

// TestPodDeleted deletes a pod behind the server's back.
func TestPodDeleted(t *testing.T) {
	h := newHost(t, nil)
	h.Must("sandbox", "create", "--name", "one")
	kubetest.Kubectl(t, append([]string{"delete", "pod", "--wait=false"}, pods(t)...)...)
	testenv.Eventually(t, "the sandbox has ended", func() bool { return h.Sandbox("one").Status == "terminated" })
	if got := h.Sandbox("one").Reason; !strings.Contains(got, "the pod was deleted") {
		t.Errorf("the reason is %q", got)
	}
	if _, stderr, code := h.Run("sandbox", "exec", "one", "--", "true"); code == 0 || !strings.Contains(stderr,
		"deleted") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if out := h.Must("run", "--code", "print(1)"); out != "1" {
		t.Errorf("afterwards, it printed %q", out)
	}
}

// TestVolume has a volume in one sandbox after another. The server is killed while the first one has it.
func TestVolume(t *testing.T) {
	h := newHost(t, nil)
	h.Must("volume", "create", "data")
	h.Must("sandbox", "create", "--name", "one", "--volume", "data:/data")
	h.Must("sandbox", "exec", "one", "--", "sh", "-ec", "mkdir /data/sub; echo kept > /data/sub/file")
	if err := syscall.Kill(h.Server().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := h.Run("volume", "rm", "data"); code == 0 || !strings.Contains(stderr, "in use") {
		t.Errorf("a volume in use is deleted with the code %d: %s", code, stderr)
	}
	h.Must("sandbox", "rm", "one")
	if got := h.Must("volume", "ls", "data:/sub"); !strings.Contains(got, "file") {
		t.Errorf("the volume has %q", got)
	}
	if got := h.Must("run", "--volume", "data:/mnt/data", "--", "cat", "/mnt/data/sub/file"); got != "kept" {
		t.Errorf("the next sandbox reads %q", got)
	}
	h.Must("volume", "rm", "data")
}

// TestEviction evicts a pod, as a drain of its node does. The sandbox goes on in another pod.
func TestEviction(t *testing.T) {
	h := newHost(t, nil)
	h.Must("sandbox", "create", "--name", "one", "--volume", "data:/data", "--env", "WHO=me")
	h.Must("sandbox", "exec", "one", "--", "sh", "-ec", "echo file > /root/file; echo volume > /data/file")
	before := h.Sandbox("one")
	cut := make(chan string, 1)
	go func() {
		_, stderr, code := h.Run("sandbox", "exec", "one", "--", "sh", "-c", "touch /root/runs; sleep 1000")
		cut <- fmt.Sprintf("%d %s", code, stderr)
	}()
	h.Must("sandbox", "exec", "one", "--", "sh", "-c", "while [ ! -e /root/runs ]; do sleep 0.1; done")
	evict(t, pods(t)[0])
	testenv.Eventually(t, "the sandbox is in another pod", func() bool {
		now := pods(t)
		return h.Sandbox("one").Status == "running" && len(now) == 1
	})
	got := h.Must("sandbox", "exec", "one", "--", "sh", "-ec", "echo $WHO; cat /root/file /data/file")
	if got != "me\nfile\nvolume" {
		t.Errorf("afterwards, the sandbox has %q", got)
	}
	if after := h.Sandbox("one"); after.ID != before.ID {
		t.Errorf("the sandbox %s became %s", before.ID, after.ID)
	}
	if end := <-cut; strings.HasPrefix(end, "0 ") || !strings.Contains(end, "carried over") {
		t.Errorf("the command that ran ended with %s", end)
	}
}

// TestEvictedSession evicts the pod of a session between two turns.
func TestEvictedSession(t *testing.T) {
	h := newHost(t, nil)
	project := h.Project()
	out, stderr, code := h.In(project, "agent", "--agent", "scripted", "--image", "base", "-o", "text", "say hello")
	if code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out, stderr)
	}
	before := pods(t)[0]
	evict(t, before)
	testenv.Eventually(t, "the sandbox is in another pod", func() bool {
		now := pods(t)
		return len(now) == 1 && now[0] != before && h.Sandbox(h.Box()).Status == "running"
	})
	out, stderr, code = h.In(project, "agent", "--continue", "-o", "text", "say goodbye")
	if code != 0 || !strings.Contains(out, "You said: say goodbye") {
		t.Errorf("after the eviction, exit code %d: %s%s", code, out, stderr)
	}
	diff, stderr, code := h.In(project, "diff")
	if code != 0 || !strings.Contains(diff, "+- say hello\n+- say goodbye") {
		t.Errorf("exit code %d: %s%s", code, diff, stderr)
	}
}

// evict asks Kubernetes to evict a pod (https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/).
func evict(t *testing.T, pod string) {
	t.Helper()
	body := filepath.Join(t.TempDir(), "eviction.json")
	text := fmt.Sprintf(`{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": %q}}`, pod)
	if err := os.WriteFile(body, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	kubetest.Kubectl(t, "create", "--raw", "/api/v1/namespaces/default/pods/"+pod+"/eviction", "-f", body)
}

// TestSession lets the scripted agent work in a pod, and continues it after its sandbox has ended.
func TestSession(t *testing.T) {
	h := newHost(t, nil)
	project := h.Project()
	out, stderr, code := h.In(project, "agent", "--agent", "scripted", "--image", "base", "-o", "text", "say hello")
	if code != 0 || !strings.Contains(out, "You said: say hello") {
		t.Fatalf("exit code %d: %s%s", code, out, stderr)
	}
	h.Must("sandbox", "rm", h.Box())
	out, stderr, code = h.In(project, "agent", "--continue", "-o", "text", "/run cat SCRIPTED-AGENT.md")
	if code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out, stderr)
	}
	diff, stderr, code := h.In(project, "diff")
	if code != 0 || !strings.Contains(diff, "+- say hello") {
		t.Errorf("exit code %d: %s%s", code, diff, stderr)
	}
}

// TestSecretsStay gives a warm pod an environment and a secret, and looks for them in all that Kubernetes knows.
func TestSecretsStay(t *testing.T) {
	h := newHost(t, func(env *testscript.Env) error {
		env.Setenv("HARVEST_POOL", "1")
		return host.GVisor(t)(env)
	})
	const canary = "canary-5f0c1d"
	h.Must("secret", "set", "mine", "TOKEN="+canary)
	testenv.Eventually(t, "a sandbox is from a warm pod", func() bool {
		h.Must("sandbox", "create", "--name", "one", "--secret", "mine", "--env", "OTHER="+canary)
		if !h.Sandbox("one").Warm {
			h.Must("sandbox", "rm", "one")
			return false
		}
		return true
	})
	if got := h.Must("sandbox", "exec", "one", "--", "sh", "-c", "echo $TOKEN $OTHER"); got != canary+" "+canary {
		t.Errorf("the sandbox has %q", got)
	}
	asked := [][]string{{"get", "pods,secrets,configmaps,events", "-o", "yaml"}}
	for _, pod := range pods(t) {
		asked = append(asked, []string{"logs", pod})
	}
	for _, args := range asked {
		if known := kubetest.Kubectl(t, args...); strings.Contains(known, canary) {
			t.Errorf("kubectl %q shows the secret", args)
		}
	}
}
