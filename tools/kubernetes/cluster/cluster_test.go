package cluster

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// programsVariable names the directory of the programs. Command kubernetes sets it.
const programsVariable = "HARVEST_TEST_KUBERNETES"

// absent are the directories in fixed that do not exist before the tests.
var absent = slices.DeleteFunc(slices.Clone(fixed), func(dir string) bool {
	_, err := os.Stat(dir)
	return err == nil
})

// startCluster starts a cluster.
func startCluster(t *testing.T) *Cluster {
	t.Helper()
	dir := os.Getenv(programsVariable)
	if dir == "" {
		t.Skip(programsVariable + " is not set: run make test-kubernetes")
	}
	testenv.Root(t)
	c, err := Start(t.Context(), dir, filepath.Join(t.TempDir(), "cluster"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, p := range c.components() {
				t.Logf("%s: %s", p.name, c.Output(p.name))
			}
		}
		if err := c.End(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		nothingLeft(t, c.Dir)
	})
	return c
}

// nothingLeft fails the test if there is anything of a cluster on the machine.
func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{nodeBridge, podBridge} {
		if _, err := net.InterfaceByName(name); err == nil {
			t.Errorf("the interface %s is left", name)
		}
	}
	roots, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range roots {
		if _, err := os.Stat(filepath.Join(root, group)); err == nil {
			t.Errorf("the cgroup %s is left", filepath.Join(root, group))
		}
	}
	mounts, err := mountPoints()
	if err != nil {
		t.Fatal(err)
	}
	for _, mount := range mounts {
		if strings.HasPrefix(mount, dir) {
			t.Errorf("the mount %s is left", mount)
		}
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range commands {
		if b, err := os.ReadFile(command); err == nil && bytes.Contains(b, []byte(dir+"/")) {
			t.Errorf("a process is left: %q", b)
		}
	}
	for _, dir := range append([]string{dir, "/opt/containerd"}, absent...) {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("the directory %s is left", dir)
		}
	}
	if out, err := exec.Command("iptables-save").Output(); err == nil && bytes.Contains(out, []byte("KUBE-")) {
		t.Errorf("rules of iptables are left: %s", out)
	}
}

const podManifest = `apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: %q, imagePullPolicy: Never}
`

// runPod creates a pod of the image Pause, and waits until it is ready.
func runPod(t *testing.T, c *Cluster, name string) {
	t.Helper()
	testenv.Try(t, func() error { // the controllers make the service account shortly after the cluster has started
		_, err := c.Kubectl(t.Context(), strings.NewReader(fmt.Sprintf(podManifest, name, Pause)), "apply", "-f", "-")
		return err
	})
	if _, err := c.Kubectl(t.Context(), nil, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=2m"); err != nil {
		described, _ := c.Kubectl(context.WithoutCancel(t.Context()), nil, "describe", "pod", name)
		t.Fatalf("%v\n%s", err, described)
	}
}

// sayIn runs a command in a pod, as soon as the kubelet, which may just have started, knows the pod.
func sayIn(t *testing.T, c *Cluster, pod, text string) {
	t.Helper()
	var out string
	testenv.Try(t, func() (err error) {
		out, err = c.Kubectl(t.Context(), nil, "exec", pod, "--", "/pause", "echo", text)
		return err
	})
	if out != text+"\n" {
		t.Fatalf("the command in the pod printed %q", out)
	}
}

func TestPodRunsCommands(t *testing.T) {
	c := startCluster(t)
	runPod(t, c, "first")
	sayIn(t, c, "first", "hello")
	id := containerOf(t, c, "first")

	if err := c.Kill("kubelet"); err != nil {
		t.Fatal(err)
	}
	if out, err := c.Kubectl(t.Context(), nil, "exec", "first", "--", "/pause", "echo", "x"); err == nil {
		t.Fatalf("a command ran without the kubelet: %q", out)
	}
	if err := c.Restart(t.Context(), "kubelet"); err != nil {
		t.Fatal(err)
	}
	sayIn(t, c, "first", "hello again")
	if after := containerOf(t, c, "first"); after != id {
		t.Errorf("the container was replaced: %s, then %s", id, after)
	}
	runPod(t, c, "second")
	sayIn(t, c, "second", "new")
}

// containerOf returns the ID of a pod's container.
func containerOf(t *testing.T, c *Cluster, pod string) string {
	t.Helper()
	id, err := c.Kubectl(t.Context(), nil, "get", "pod", pod, "-o",
		"jsonpath={.status.containerStatuses[0].containerID}")
	if err != nil || id == "" {
		t.Fatalf("the pod's container is %q, %v", id, err)
	}
	return id
}

// TestCleanAfterKill starts a cluster in a process that is killed.
func TestCleanAfterKill(t *testing.T) {
	const variable = "HARVEST_TEST_KUBERNETES_DIR"
	if dir := os.Getenv(variable); dir != "" { // that process
		c, err := Start(t.Context(), os.Getenv(programsVariable), dir)
		if err != nil {
			t.Fatal(err)
		}
		runPod(t, c, "left")
		fmt.Println("ready")
		select {}
	}
	if os.Getenv(programsVariable) == "" {
		t.Skip(programsVariable + " is not set: run make test-kubernetes")
	}
	testenv.Root(t)
	dir := filepath.Join(t.TempDir(), "cluster")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCleanAfterKill$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"="+dir)
	var out testenv.Output
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out.Until(t, "ready\n")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	if mounts, err := mountPoints(); err != nil || !strings.Contains(strings.Join(mounts, "\n"), dir) {
		t.Fatalf("the killed process left no mounts, so this test shows nothing: %v", err)
	}
	if err := Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, dir)
}

func TestBuildKeepsPrograms(t *testing.T) {
	module, cache := t.TempDir(), t.TempDir()
	testenv.WriteFile(t, filepath.Join(module, "go.mod"),
		[]byte("module x\n\ngo 1.26\n\nrequire k8s.io/kubernetes v1.2.3\n\nreplace k8s.io/kubernetes => ./k\n"))
	testenv.WriteFile(t, filepath.Join(module, "go.sum"), nil)
	if err := os.Mkdir(filepath.Join(module, "k"), 0o755); err != nil {
		t.Fatal(err)
	}
	testenv.WriteFile(t, filepath.Join(module, "k", "go.mod"), []byte("module k8s.io/kubernetes\n"))
	var log bytes.Buffer
	if dir, err := Build(t.Context(), module, cache, &log); err == nil {
		t.Fatalf("programs that do not exist were built into %s", dir)
	}
	dirs, err := filepath.Glob(filepath.Join(cache, "kubernetes-*"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("directories %q, %v", dirs, err)
	}
	for _, p := range programs {
		testenv.WriteFile(t, filepath.Join(dirs[0], p.name), []byte("built"))
	}
	log.Reset()
	dir, err := Build(t.Context(), module, cache, &log)
	if err != nil || dir != dirs[0] || log.Len() > 0 {
		t.Errorf("Build returned %s, %v and logged %q", dir, err, log.String())
	}
}

func TestCleanRefusesOtherDirectories(t *testing.T) {
	for _, dir := range []string{"", "/", "relative", "//"} {
		if err := clean(t.Context(), dir); err == nil {
			t.Errorf("clean(%q) returned no error", dir)
		}
	}
}

// pretend makes everything that a cluster makes outside its directory, with a shell instead of its components.
func pretend(t *testing.T) *Cluster {
	t.Helper()
	testenv.Root(t)
	dir := filepath.Join(t.TempDir(), "cluster")
	lock, err := take(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := take(t.Context(), dir); !errors.Is(err, errors.Conflict) {
		t.Errorf("a second cluster: %v", err)
	}
	c := &Cluster{Dir: dir, programs: "/usr/bin", lock: lock, processes: map[string]*process{},
		starts: make(chan func())}
	go c.serveStarts()
	if err := c.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", c.path("kubelet"), "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	testenv.WriteFile(t, c.path("kubelet/file"), []byte("x"))
	for _, dir := range absent {
		if err := os.MkdirAll(filepath.Join(dir, "below"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	below := filepath.Join(processGroup(), "pod")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	// A process that ignores SIGTERM, with a child in a cgroup below.
	script := fmt.Sprintf("trap '' TERM; sleep 1000 & echo $! > %s/cgroup.procs; echo ready; wait", below)
	if err := c.start(component{"sh", []string{"-c", script}}); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the process has started", func() bool { return c.Output("sh") == "ready\n" })
	return c
}

func TestCleanRemovesLeftovers(t *testing.T) {
	c := pretend(t)
	if err := c.lock.Close(); err != nil { // as if this process had been killed
		t.Fatal(err)
	}
	if err := Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-c.processes["sh"].exited
	nothingLeft(t, c.Dir)
	if err := Clean(t.Context()); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

func TestEndRemovesEverything(t *testing.T) {
	c := pretend(t)
	if err := c.Kill("sh"); err != nil { // its child remains
		t.Fatal(err)
	}
	if err := c.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, c.Dir)
	lock, err := take(t.Context(), c.Dir)
	if err != nil {
		t.Fatalf("the next cluster: %v", err)
	}
	if err := errors.Join(lock.Truncate(0), lock.Close()); err != nil {
		t.Fatal(err)
	}
}
