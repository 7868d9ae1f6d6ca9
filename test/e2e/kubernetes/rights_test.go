package kubernetes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/kubetest"
	"github.com/RelevanceAI/harvest/test/host"
)

// manifest is the path of a file of deploy/kubernetes.
func manifest(name string) string {
	return filepath.Join("..", "..", "..", "deploy", "kubernetes", name)
}

// namespace makes a namespace that ends with the test.
func namespace(t *testing.T, name string) string {
	t.Helper()
	kubetest.Kubectl(t, "create", "namespace", name)
	t.Cleanup(func() { kubetest.Kubectl(t, "delete", "namespace", name, "--wait=false") })
	testenv.Eventually(t, "the namespace has its service account", func() bool {
		return strings.Contains(kubetest.Kubectl(t, "get", "-n", name, "serviceaccounts", "-o", "name"), "default")
	})
	return name
}

// asServer returns a configuration with the rights in deploy/kubernetes/rights.yaml alone.
func asServer(t *testing.T) string {
	t.Helper()
	kubeconfig := kubetest.Cluster(t)
	kubetest.Kubectl(t, "apply", "-f", manifest("rights.yaml"))
	t.Cleanup(func() { kubetest.Kubectl(t, "delete", "-f", manifest("rights.yaml")) })
	admin, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	testenv.WriteFile(t, path, admin)
	token := strings.TrimSpace(kubetest.Kubectl(t, "create", "token", "harvest", "-n", "harvest"))
	for _, args := range [][]string{{"set-credentials", "server", "--token=" + token},
		{"set-context", "--current", "--user=server", "--namespace=harvest"}} {
		kubetest.Kubectl(t, append([]string{"config", "--kubeconfig", path}, args...)...)
	}
	return path
}

// newServer is a host whose server has the rights of the manifest.
func newServer(t *testing.T) *host.Host {
	t.Helper()
	kubeconfig := asServer(t)
	h := newHost(t, nil)
	h.Env.Setenv("HARVEST_KUBERNETES_KUBECONFIG", kubeconfig)
	h.Env.Setenv("HARVEST_KUBERNETES_NAMESPACE", "")
	return h
}

// allow sets the server's rights to those of the manifest without a verb, "" for all of them.
func allow(t *testing.T, rule int, verb string, verbs ...string) {
	t.Helper()
	kubetest.Kubectl(t, "apply", "-f", manifest("rights.yaml"))
	if verb == "" {
		return
	}
	left := []string{}
	for _, v := range verbs {
		if v != verb {
			left = append(left, fmt.Sprintf("%q", v))
		}
	}
	kubetest.Kubectl(t, "patch", "role", "harvest", "-n", "harvest", "--type=json", "-p", fmt.Sprintf(
		`[{"op": "replace", "path": "/rules/%d/verbs", "value": [%s]}]`, rule, strings.Join(left, ",")))
}

// mayNot waits until the API server denies the server a right.
func mayNot(t *testing.T, verb, resource string) {
	t.Helper()
	testenv.Eventually(t, "the server may not "+verb+" "+resource, func() bool {
		return !kubetest.Can(t, "system:serviceaccount:harvest:harvest", "harvest", verb, resource)
	})
}

// TestRights runs a sandbox with the rights that deploy/kubernetes/rights.yaml gives, and then takes one after the
// other away.
func TestRights(t *testing.T) {
	h := newServer(t)
	if out := h.Must("run", "--code", "print(6*7)"); out != "42" {
		t.Errorf("it printed %q", out)
	}
	pods := []string{"create", "get", "list", "watch", "patch", "delete"}
	connections := []string{"create", "get"}
	for _, c := range []struct {
		rule     int
		resource string
		verb     string
		verbs    []string
	}{
		{0, "pods", "create", pods}, {0, "pods", "patch", pods}, {1, "pods/attach", "create", connections},
		{2, "pods/portforward", "create", connections}, {0, "pods", "list", pods}, {0, "pods", "watch", pods},
	} {
		allow(t, c.rule, c.verb, c.verbs...)
		mayNot(t, c.verb, c.resource)
		if c.verb == "list" { // a server that has listed them once follows them; from here on, none starts
			h.Must("down")
		}
		_, stderr, code := h.Run("run", "--code", "print(6*7)")
		want := fmt.Sprintf("cannot %s resource %q", c.verb, c.resource)
		if code == 0 || !strings.Contains(stderr, want) || !strings.Contains(stderr, "rights.yaml") {
			t.Errorf("without %s of %s, exit code %d: %s", c.verb, c.resource, code, stderr)
		}
	}
	allow(t, 0, "")
	testenv.Eventually(t, "it runs again", func() bool {
		out, _, code := h.Run("run", "--code", "print(6*7)")
		return code == 0 && strings.TrimSpace(out) == "42"
	})
	testenv.Eventually(t, "no pods are left", func() bool { return len(podsOf(t, "harvest")) == 0 })
}

// TestNetworkPolicy checks that the policy in deploy/kubernetes/network.yaml is valid, and is one for the sandboxes.
// The network of the test's cluster does not enforce it.
func TestNetworkPolicy(t *testing.T) {
	h := newServer(t)
	kubetest.Kubectl(t, "apply", "-f", manifest("network.yaml"))
	h.Must("sandbox", "create", "--name", "one")
	get := func(args ...string) string {
		return strings.TrimSpace(kubetest.Kubectl(t, append([]string{"get", "-n", "harvest"}, args...)...))
	}
	label := get("networkpolicy", "harvest-sandboxes", "-o", "jsonpath={.spec.podSelector.matchExpressions[0].key}")
	port := get("networkpolicy", "harvest-sandboxes", "-o", "jsonpath={.spec.ingress[0].ports[0].port}")
	if got := get("pods", "-l", label, "-o", "jsonpath={.items[*].spec.containers[0].ports[0].containerPort}"); got !=
		port {
		t.Errorf("the policy is for the port %s of pods with the label %s, and the sandbox's has %q", port, label, got)
	}
}

// TestChart checks that the API server accepts what the Helm chart renders with all options. The test cluster lacks the
// definition of a ServiceMonitor.
func TestChart(t *testing.T) {
	kubetest.Cluster(t)
	kubetest.Kubectl(t, "apply", "-f", manifest("rights.yaml"))
	t.Cleanup(func() { kubetest.Kubectl(t, "delete", "-f", manifest("rights.yaml")) })
	rendered := filepath.Join("..", "..", "..", "tools", "chart", "testdata", "rendered.yaml")
	kubetest.Kubectl(t, "apply", "--dry-run=server", "-f", rendered)
}

// TestRefusals asks for pods that a cluster does not give.
func TestRefusals(t *testing.T) {
	kubetest.Cluster(t)
	for name, c := range map[string]struct {
		forbid func(namespace string)
		image  string
		policy string
		want   []string
	}{
		"quota": {func(ns string) {
			kubetest.Kubectl(t, "create", "quota", "none", "-n", ns, "--hard=pods=0")
			testenv.Eventually(t, "the quota is in effect", func() bool {
				hard := kubetest.Kubectl(t, "get", "quota", "none", "-n", ns, "-o", "jsonpath={.status.hard.pods}")
				return hard == "0"
			})
		}, kubetest.Image, "Never", []string{"exceeded quota: none", "raise the ResourceQuota of the namespace"}},
		"pod security": {func(ns string) {
			kubetest.Kubectl(t, "label", "namespace", ns, "pod-security.kubernetes.io/enforce=restricted")
		}, kubetest.Image, "Never", []string{`violates PodSecurity "restricted:latest"`,
			"pod-security.kubernetes.io/enforce=privileged"}},
		"no image": {func(string) {}, "harvest.test/missing:1", "Never", []string{"ErrImageNeverPull",
			"harvest.test/missing:1", "kubernetes.image"}},
		"no registry": {func(string) {}, "127.0.0.1:1/pod:1", "IfNotPresent", []string{"ErrImagePull",
			"127.0.0.1:1/pod:1", "connection refused", "kubernetes.image"}},
	} {
		ns := namespace(t, strings.ReplaceAll(name, " ", "-"))
		h := newHost(t, nil)
		h.Env.Setenv("HARVEST_KUBERNETES_NAMESPACE", ns)
		h.Env.Setenv("HARVEST_KUBERNETES_IMAGE", c.image)
		h.Env.Setenv("HARVEST_KUBERNETES_PULL_POLICY", c.policy)
		c.forbid(ns)
		_, stderr, code := h.Run("run", "--code", "print(6*7)")
		t.Logf("%s: exit code %d: %s", name, code, stderr)
		for _, want := range c.want {
			if code == 0 || !strings.Contains(stderr, want) {
				t.Errorf("%s: exit code %d without %q: %s", name, code, want, stderr)
			}
		}
		if left := podsOf(t, ns); len(left) > 0 {
			t.Errorf("%s: pods are left: %q", name, left)
		}
	}
}
