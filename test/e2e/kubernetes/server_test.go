package kubernetes

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/kubetest"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/podimage"
	"github.com/RelevanceAI/harvest/internal/image/imagetest"
)

// serverImage is the image of the server in the cluster.
const serverImage = "harvest.test/server:1"

// diskManifest is a volume of the test cluster's node for the server's data. Other clusters have a storage class.
const diskManifest = `apiVersion: v1
kind: PersistentVolume
metadata: {name: harvest-data}
spec:
  capacity: {storage: 50Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  claimRef: {namespace: harvest, name: data-harvest-0}
  local: {path: DIR}
  nodeAffinity:
    required:
      nodeSelectorTerms:
        - matchExpressions: [{key: kubernetes.io/os, operator: In, values: [linux]}]
`

// deployServer applies deploy/kubernetes/server.yaml, with a directory of the node, which is this machine, as its disk.
func deployServer(t *testing.T, dir string) {
	t.Helper()
	kubetest.Cluster(t)
	var archive bytes.Buffer
	files := []podimage.File{{Name: "usr/bin/harvest", Path: testenv.Binary(t)}}
	if err := podimage.Write(&archive, serverImage, files); err != nil {
		t.Fatal(err)
	}
	if err := kubetest.Ctr(t, &archive, "images", "import", "-"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(manifest("server.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	changed := onNode(t, string(text))
	made := t.TempDir()
	testenv.WriteFile(t, filepath.Join(made, "server.yaml"), []byte(changed))
	testenv.WriteFile(t, filepath.Join(made, "disk.yaml"), []byte(strings.ReplaceAll(diskManifest, "DIR", dir)))
	kubetest.Kubectl(t, "apply", "-f", manifest("rights.yaml"))
	t.Cleanup(func() {
		kubetest.Kubectl(t, "delete", "persistentvolume", "harvest-data", "--wait=false")
		kubetest.Kubectl(t, "delete", "-f", manifest("rights.yaml"))
	})
	kubetest.Kubectl(t, "apply", "-f", filepath.Join(made, "disk.yaml"))
	kubetest.Kubectl(t, "apply", "-f", filepath.Join(made, "server.yaml"))
}

// onNode changes the manifest for the test's cluster, whose API server listens at the node's loopback address alone,
// and which has no kube-proxy: the server is in the node's network. Its images are on the node.
func onNode(t *testing.T, text string) string {
	t.Helper()
	api, err := url.Parse(kubetest.Kubectl(t, "config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"))
	if err != nil {
		t.Fatal(err)
	}
	port := testenv.FreePort(t)
	for _, change := range [][2]string{
		{"REGISTRY/server:VERSION", serverImage + "\n          imagePullPolicy: Never"},
		{"REGISTRY/pod:VERSION", kubetest.Image},
		{"serviceAccountName: harvest", "serviceAccountName: harvest\n      hostNetwork: true"},
		{"env:", fmt.Sprintf("env:\n            - {name: KUBERNETES_SERVICE_HOST, value: %q}\n"+
			"            - {name: KUBERNETES_SERVICE_PORT, value: %q}", api.Hostname(), api.Port())},
		{"0.0.0.0:7777", "127.0.0.1:" + port},
		{"containerPort: 7777", "containerPort: " + port},
		{"httpGet: {", "httpGet: {host: 127.0.0.1, "},
	} {
		if !strings.Contains(text, change[0]) {
			t.Fatalf("the manifest has no %q", change[0])
		}
		text = strings.ReplaceAll(text, change[0], change[1])
	}
	return text
}

// serverReady waits for the server.
func serverReady(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, "the server is ready", func() bool {
		return kubetest.Kubectl(t, "get", "statefulset", "harvest", "-n", "harvest", "-o",
			"jsonpath={.status.readyReplicas}") == "1"
	})
}

// serverUser is the server's user in the cluster.
const serverUser = 65532

// copyImages gives the server in the cluster the base image, which it cannot build.
func copyImages(t *testing.T, disk string) {
	t.Helper()
	data := filepath.Join(disk, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	base := imagetest.Base(t, imagetest.Library(t))
	from := filepath.Dir(filepath.Dir(imagetest.Library(t).Root(base)))
	for _, args := range [][]string{{"cp", "-a", from, filepath.Join(data, "images")},
		{"chown", "-R", strconv.Itoa(serverUser), data}} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
}

// TestServerInCluster runs the server of deploy/kubernetes/server.yaml, which connects to pods directly. While a
// sandbox runs, it is replaced.
func TestServerInCluster(t *testing.T) {
	kubetest.Cluster(t)
	disk := testenv.DataDir(t)
	copyImages(t, disk)
	deployServer(t, disk)
	serverReady(t)
	harvest := func(args ...string) string {
		t.Helper()
		return strings.TrimSpace(kubetest.Kubectl(t, append([]string{"exec", "-n", "harvest", "harvest-0", "--",
			"harvest"}, args...)...))
	}
	if out := harvest("run", "--code", "print(6*7)"); out != "42" {
		t.Errorf("it printed %q", out)
	}
	harvest("sandbox", "create", "--name", "one", "--volume", "data:/data", "--quiet")
	harvest("sandbox", "exec", "one", "--", "sh", "-c", "echo kept > /data/file")
	before := kubetest.Kubectl(t, "get", "pod", "harvest-0", "-n", "harvest", "-o", "jsonpath={.metadata.uid}")
	kubetest.Kubectl(t, "delete", "pod", "harvest-0", "-n", "harvest")
	testenv.Eventually(t, "the server has another pod", func() bool {
		now := kubetest.Kubectl(t, "get", "pod", "-n", "harvest", "-l", "app.kubernetes.io/name=harvest", "-o",
			"jsonpath={.items[*].metadata.uid}")
		return now != "" && now != before
	})
	serverReady(t)
	if out := harvest("sandbox", "exec", "one", "--", "cat", "/data/file"); out != "kept" {
		t.Errorf("after the server was replaced, the sandbox printed %q", out)
	}
	harvest("sandbox", "rm", "one")
	testenv.Eventually(t, "only warm pods are left", func() bool {
		return strings.TrimSpace(kubetest.Kubectl(t, "get", "pods", "-n", "harvest", "-l", "harvest/sandbox", "-o",
			"name")) == ""
	})
}
