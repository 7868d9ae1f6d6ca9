package kubernetes

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/kubetest"
)

// TestDoctor checks a cluster with the rights of the manifest, and then one that lacks a right and admits no pods.
func TestDoctor(t *testing.T) {
	h := newServer(t)
	out, stderr, code := h.Run("doctor")
	for _, want := range []string{"version 1.", "the namespace harvest", "create, get, list, watch, patch, delete",
		"rights to pods/attach", "rights to pods/portforward", "admits the pods"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit code %d without %q: %s%s", code, want, out, stderr)
		}
	}
	allow(t, 1, "create", "create", "get")
	kubetest.Kubectl(t, "label", "--overwrite", "namespace", "harvest",
		"pod-security.kubernetes.io/enforce=restricted") // the manifest has the other level
	mayNot(t, "create", "pods/attach")
	out, stderr, code = h.Run("doctor")
	for _, want := range []string{"may not create pods/attach", "rights.yaml", `violates PodSecurity "restricted`,
		"enforce=privileged"} {
		if code != 1 || !strings.Contains(out, want) {
			t.Errorf("exit code %d without %q: %s%s", code, want, out, stderr)
		}
	}
	h.Env.Setenv("HARVEST_KUBERNETES_KUBECONFIG", "/no/such")
	if out, stderr, code = h.Run("doctor"); code != 1 || !strings.Contains(out, "is not configured") {
		t.Errorf("exit code %d: %s%s", code, out, stderr)
	}
	h.Env.Setenv("HARVEST_KUBERNETES_KUBECONFIG", kubetest.Cluster(t))
	if left := podsOf(t, "harvest"); len(left) > 0 {
		t.Errorf("pods are left: %q", left)
	}
}
