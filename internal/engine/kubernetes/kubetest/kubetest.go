// Package kubetest gives tests a Kubernetes cluster that make test-kubernetes has started.
package kubetest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/podimage"
)

// Image is the image of sandboxes' pods, which Cluster adds to the node.
const Image = "harvest.test/pod:1"

// containerd is the variable with the socket of the node's containerd.
const containerd = "HARVEST_TEST_CONTAINERD"

// imported makes the image once in each process.
var imported struct {
	sync.Once
	err error
}

// Cluster returns the cluster's configuration, and skips the test without a cluster. Its node has Image.
func Cluster(t testing.TB) (kubeconfig string) {
	t.Helper()
	if os.Getenv(containerd) == "" {
		t.Skip("there is no cluster: run make test-kubernetes")
	}
	files := []podimage.File{
		{Name: podimage.Dir + "/pod", Path: testenv.PodBinary(t)},
		{Name: podimage.Dir + "/keeper", Path: testenv.KeeperBinary(t)},
		{Name: podimage.Dir + "/sentry", Path: testenv.SentryBinary(t)},
		{Name: podimage.Dir + "/tools", Path: testenv.ToolsBinary(t)},
	}
	imported.Do(func() {
		var archive bytes.Buffer
		if imported.err = podimage.Write(&archive, Image, files); imported.err == nil {
			imported.err = Ctr(t, &archive, "images", "import", "-")
		}
	})
	if imported.err != nil {
		t.Fatal(imported.err)
	}
	return os.Getenv("KUBECONFIG")
}

// Cache returns a directory of the node that ends with the cluster.
func Cache() string { return filepath.Join(filepath.Dir(os.Getenv(containerd)), "images") }

// Ctr runs the client of the node's containerd.
func Ctr(t testing.TB, stdin *bytes.Buffer, args ...string) error {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program("ctr"),
		append([]string{"--address", os.Getenv(containerd), "--namespace", "k8s.io"}, args...)...)
	cmd.Stdin = stdin
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Logf("ctr: %s", out)
	}
	return err
}

// Kubectl runs kubectl with all rights, and returns its standard output.
func Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program("kubectl"), args...) // a cleanup may call it
	var failure bytes.Buffer
	cmd.Stderr = &failure
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("kubectl %q: %v: %s", args, err, &failure)
	}
	return string(out)
}

// Can reports whether the API server gives a user a right in a namespace.
func Can(t testing.TB, user, namespace, verb, resource string) bool {
	t.Helper()
	resource, subresource, _ := strings.Cut(resource, "/")
	cmd := exec.CommandContext(t.Context(), program("kubectl"), "auth", "can-i", verb, resource,
		"--subresource="+subresource, "--as="+user, "-n", namespace)
	out, err := cmd.Output()
	if answer := strings.TrimSpace(string(out)); err == nil || answer == "no" { // which has exit code 1
		return answer == "yes"
	}
	t.Errorf("kubectl %q: %v", cmd.Args, err)
	return false
}

// program is a program of the cluster.
func program(name string) string { return filepath.Join(os.Getenv("HARVEST_TEST_KUBERNETES"), name) }
