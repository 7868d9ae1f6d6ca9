package kubernetes

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
)

// TestRightsAreThoseOfTheManifest compares the rights that Check asks for with those that an operator gives.
func TestRightsAreThoseOfTheManifest(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "kubernetes", "rights.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rights {
		resource := strings.TrimSuffix(resourcePods+"/"+r.subresource, "/")
		rule := fmt.Sprintf("    resources: [%s]\n    verbs: [%s]\n", resource, strings.Join(r.verbs, ", "))
		if !strings.Contains(string(text), rule) {
			t.Errorf("the manifest lacks\n%s", rule)
		}
	}
	if got := strings.Count(string(text), "verbs:"); got != len(rights) {
		t.Errorf("the manifest has %d rules, not %d", got, len(rights))
	}
}

// clusterFor answers Check as an API server that denies rights, as verb and resource, and refuses pods with a message.
func clusterFor(t *testing.T, denied []string, refused string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/version":
			_, _ = fmt.Fprint(w, `{"gitVersion": "v1.37.2"}`)
		case strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"):
			var review authorizationv1.SelfSubjectAccessReview
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
				t.Error(err)
				return
			}
			asked := review.Spec.ResourceAttributes
			review.Status.Allowed = asked.Namespace == "team" && !slices.Contains(denied, strings.TrimSuffix(asked.Verb+
				" "+asked.Resource+"/"+asked.Subresource, "/"))
			if err := json.NewEncoder(w).Encode(review); err != nil {
				t.Error(err)
			}
		case r.URL.Query().Get("dryRun") != "All":
			t.Errorf("%s %s changes the cluster", r.Method, r.URL)
		case refused != "":
			refuse(t, w, http.StatusForbidden, refused)
		default:
			_, _ = fmt.Fprint(w, `{"kind": "Pod", "apiVersion": "v1"}`)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		denied  []string
		refused string
		image   string
		reach   Reach
		want    map[string]string // parts of details and remedies of what fails
	}{
		"all is well": {image: "pod:1"},
		"rights": {denied: []string{"patch pods", "get pods/portforward"}, image: "pod:1", want: map[string]string{
			"rights to pods":             "may not patch pods; rights.yaml",
			"rights to pods/portforward": "may not get pods/portforward; namespace team"}},
		"direct": {denied: []string{"create pods/portforward"}, image: "pod:1", reach: Direct},
		"pod security": {refused: `violates PodSecurity "restricted:latest"`, image: "pod:1", want: map[string]string{
			"admission of pods": "restricted; enforce=privileged"}},
		"no image": {want: map[string]string{"admission of pods": "no image; make image"}},
	} {
		findings := Check(t.Context(), Options{Kubeconfig: kubeconfigOf(t, clusterFor(t, c.denied, c.refused)),
			Pod: Pod{Image: c.image}, Reach: c.reach})
		if first := findings[0]; !first.OK || !strings.Contains(first.Detail, "version 1.37.2") {
			t.Errorf("%s: %+v", name, first)
		}
		for _, f := range findings {
			detail, remedy, bad := strings.Cut(c.want[f.Name], "; ")
			if f.OK == bad || !strings.Contains(f.Detail, detail) || !strings.Contains(f.Remedy, remedy) ||
				bad != (f.Remedy != "") || f.Detail == "" {
				t.Errorf("%s: %+v", name, f)
			}
			delete(c.want, f.Name)
		}
		if len(c.want) > 0 {
			t.Errorf("%s: not found: %q", name, c.want)
		}
	}
}

func TestCheckWithoutACluster(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for name, kubeconfig := range map[string]string{"no file": "/no/such", "not Kubernetes": kubeconfigOf(t, other.URL),
		"nothing": kubeconfigOf(t, gone.URL)} {
		findings := Check(t.Context(), Options{Kubeconfig: kubeconfig, Pod: Pod{Image: "pod:1"}})
		if len(findings) != 1 || findings[0].OK || findings[0].Detail == "" || findings[0].Remedy == "" {
			t.Errorf("%s: %+v", name, findings)
		}
		t.Logf("%s: %+v", name, findings)
	}
}
