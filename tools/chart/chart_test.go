// Package chart tests the chart of Harvest's server, deploy/kubernetes/chart, with Helm's own engine.
package chart

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

// manifests is the directory of the chart and of the plain manifests.
const manifests = "../../deploy/kubernetes"

// release and namespace are those of the plain manifests.
const release, namespace = "harvest", "harvest"

// placeholders are the values of the plain manifests.
const placeholders = "image: {repository: REGISTRY/server, tag: VERSION}\n" +
	"podImage: {repository: REGISTRY/pod, tag: VERSION}\n"

// images are the values that the chart requires.
const images = "image: {repository: registry.example.org/server}\npodImage: {repository: registry.example.org/pod}\n"

// allOn returns values with all options of the chart.
func allOn(t *testing.T) string {
	t.Helper()
	return read(t, filepath.Join("testdata", "all.yaml"))
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// try renders the templates of the chart, by their file names, with values that precede the defaults.
func try(t *testing.T, values string) (map[string]string, error) {
	t.Helper()
	loaded, err := loader.Load(filepath.Join(manifests, "chart"))
	if err != nil {
		t.Fatal(err)
	}
	options := common.ReleaseOptions{Name: release, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(loaded, parse(t, values), options, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(loaded, all)
	if err != nil {
		return nil, err
	}
	rendered := map[string]string{}
	for name, text := range files {
		rendered[path.Base(name)] = strings.TrimSpace(text)
	}
	return rendered, nil
}

// render is try for valid values.
func render(t *testing.T, values string) map[string]string {
	t.Helper()
	rendered, err := try(t, values)
	if err != nil {
		t.Fatal(err)
	}
	return rendered
}

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	values := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &values); err != nil {
		t.Fatal(err)
	}
	return values
}

// TestPlainManifests checks that the manifests beside the chart are its templates with the default values, below heads
// in testdata. HARVEST_TEST_UPDATE=1 writes them.
func TestPlainManifests(t *testing.T) {
	t.Parallel()
	rendered := render(t, placeholders)
	for _, name := range []string{"rights.yaml", "network.yaml", "server.yaml"} {
		head := read(t, filepath.Join("testdata", "plain", name))
		compare(t, filepath.Join(manifests, name), head+rendered[name]+"\n")
		delete(rendered, name)
	}
	for name, text := range rendered {
		if name != "NOTES.txt" && text != "" {
			t.Errorf("the default values render %s, which no plain manifest has", name)
		}
	}
}

// TestRendered compares the objects of all options with a file, which test/e2e/kubernetes sends to an API server.
// HARVEST_TEST_UPDATE=1 writes it.
func TestRendered(t *testing.T) {
	t.Parallel()
	rendered := render(t, allOn(t))
	delete(rendered, "NOTES.txt")
	delete(rendered, "servicemonitor.yaml")
	var all []string
	for _, name := range slices.Sorted(maps.Keys(rendered)) {
		all = append(all, rendered[name])
	}
	compare(t, filepath.Join("testdata", "rendered.yaml"), strings.Join(all, "\n---\n")+"\n")
}

// compare checks that a file has a text, or writes it.
func compare(t *testing.T, file, want string) {
	t.Helper()
	if os.Getenv("HARVEST_TEST_UPDATE") == "1" {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, file) != want {
		t.Errorf("%s is not what the chart renders; write it with HARVEST_TEST_UPDATE=1", file)
	}
}

// TestLint checks the chart as helm lint does, with its default values and with all options.
func TestLint(t *testing.T) {
	t.Parallel()
	for name, values := range map[string]string{"default": "", "all": allOn(t)} {
		result := lint.RunAll(filepath.Join(manifests, "chart"), parse(t, values), namespace)
		for _, m := range result.Messages {
			if m.Severity != support.UnknownSev {
				t.Errorf("%s values: %s", name, m)
			}
		}
	}
}

// TestVersions checks that the versions of the chart are that of Harvest, of whose server it has the default tag.
func TestVersions(t *testing.T) {
	t.Parallel()
	about := parse(t, read(t, filepath.Join(manifests, "chart", "Chart.yaml")))
	want := strings.TrimSpace(read(t, "../../VERSION"))
	if about["version"] != want || about["appVersion"] != want {
		t.Errorf("the chart has the versions %v and %v, and Harvest has %s: change Chart.yaml", about["version"],
			about["appVersion"], want)
	}
}

// TestNotes checks the commands that Helm prints after an installation.
func TestNotes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values    string
		has, lack []string
	}{
		{images, []string{
			"kubectl label --overwrite namespace harvest pod-security.kubernetes.io/enforce=privileged",
			"kubectl exec -n harvest harvest-0 -- harvest doctor",
			"$(kubectl exec -n harvest harvest-0 -- harvest key create me --quiet)",
			"kubectl port-forward -n harvest service/harvest 7777:7777 &\n",
			"HARVEST_URL=http://127.0.0.1:7777\n",
		}, []string{"prometheus", "trustedProxies", "docs/kubernetes.md"}},
		{allOn(t), []string{
			"kubectl exec -n harvest agents-0 -- harvest doctor",
			"HARVEST_URL=https://harvest.example.org\n",
			"key=$(kubectl exec -n harvest agents-0 -- harvest key create prometheus --scope read --quiet)\n",
			"kubectl create secret generic -n harvest harvest-metrics ", "--from-literal=key=$key\n",
		}, []string{"port-forward", "trustedProxies"}},
		{images + "ingress: {enabled: true, host: h.example.org}\nrights: {create: false, serviceAccount: mine}",
			[]string{"https://h.example.org\n", "trustedProxies is empty", "The service account mine needs the rights"},
			nil},
	} {
		notes := render(t, c.values)["NOTES.txt"] + "\n"
		for _, want := range c.has {
			if !strings.Contains(notes, want) {
				t.Errorf("the notes lack %q:\n%s", want, notes)
			}
		}
		for _, lack := range c.lack {
			if strings.Contains(notes, lack) {
				t.Errorf("the notes have %q:\n%s", lack, notes)
			}
		}
	}
}

// TestRefusals checks that the schema, or a template, refuses values, and names the place.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]string{
		"podImage: {repository: registry.example.org/pod}": "--set image.repository=registry.example.org/…",
		"image: {repository: registry.example.org/server}": "--set podImage.repository=registry.example.org/…",
		images + "ingress: {enabled: true}":                "--set ingress.host=harvest.example.org",
		images + "serviceMonitor: {enabled: true}":         "serviceMonitor.tokenSecret.name: name the Secret",

		"images: {}": "additional properties 'images' not allowed",
		"image: {repository: registry.example.org/a:1}": "/image/repository",
		"image: {tag: 1.0}":                             "/image/tag",
		"image: {tag: latest and more}":                 "/image/tag",
		"podImage: {pullPolicy: Sometimes}":             "/podImage/pullPolicy",
		"fullnameOverride: Harvest":                     "/fullnameOverride",
		"labels: {team: 1}":                             "/labels/team",
		"pullSecrets: registry":                         "/pullSecrets",
		"rights: {create: 'no'}":                        "/rights/create",
		"networkPolicy: {except: [10.0.0.1]}":           "/networkPolicy/except/0",
		"networkPolicy: {extraEgress: [{from: []}]}":    "/networkPolicy/extraEgress/0",
		"storage: {size: much}":                         "/storage/size",
		"resources: {requests: [cpu]}":                  "/resources/requests",
		"service: {port: 0}":                            "/service/port",
		"service: {type: External}":                     "/service/type",
		"publicURL: https://harvest.example.org/path":   "/publicURL",
		"publicNames: [a b]":                            "/publicNames/0",
		"trustedProxies: [proxy]":                       "/trustedProxies/0",
		"ingress: {host: 'https://harvest'}":            "/ingress/host",
		"ingress: {tls: true}":                          "/ingress/tls",
		"serviceMonitor: {interval: often}":             "/serviceMonitor/interval",
		"serviceMonitor: {token: hv_1}":                 "/serviceMonitor",
		"volumes: [{name: data, emptyDir: {}}]":         "/volumes/0/name",
		"env: {HARVEST_POOL: '4'}":                      "/env",
		"env: [{name: HARVEST_POOL, value: 4}]":         "/env/0/value",
		"envFrom: [{secretRef: {}, configMapRef: {}}]":  "/envFrom/0",

		"config: {oidc: {client_secret: s}}":                          "/config/oidc/client_secret",
		"config: {oidc.client_secret: s}":                             "/config",
		"config: {modal: {token_secret: s}}":                          "/config/modal/token_secret",
		"config: {notify: {webhook: 'https://example.org/s'}}":        "/config/notify/webhook",
		"config: {notify: {secret: s}}":                               "/config/notify/secret",
		"config: {kubernetes: {image: a}}":                            "/config/kubernetes/image",
		"config: {server: {public_names: a}}":                         "/config/server/public_names",
		"config: {data: /data}":                                       "/config/data",
		"config: {server: {trusted_proxies: [10.0.0.1]}}":             "/config/server/trusted_proxies",
		"config: {registries: {mirrors: [a, b]}}":                     "/config/registries",
		"env: [{name: HARVEST_OIDC_CLIENT_SECRET, value: s}]":         "/env/0",
		"env: [{name: HARVEST_KUBERNETES_IMAGE, value: example/a}]":   "/env/0/name",
		"env: [{name: HARVEST_SERVER_PUBLIC_URL, value: 'http://a'}]": "/env/0/name",
	} {
		_, err := try(t, values)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error lacks %q: %v", values, want, err)
		}
	}
}
