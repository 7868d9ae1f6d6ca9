package chart

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// object is an object of Kubernetes with metadata.
type object interface {
	runtime.Object
	meta.Object
}

// decode returns the objects of a manifest. A field that their kind does not have is an error.
func decode(t *testing.T, text string) []object {
	t.Helper()
	kinds := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apps.AddToScheme, core.AddToScheme, networking.AddToScheme,
		rbac.AddToScheme, monitoring.AddToScheme} {
		if err := add(kinds); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(kinds, serializer.EnableStrict).UniversalDeserializer()
	var all []object
	for doc := range strings.SplitSeq(text, "\n---\n") {
		decoded, _, err := decoder.Decode([]byte(doc), nil, nil)
		if err != nil {
			t.Fatalf("%v:\n%s", err, doc)
		}
		all = append(all, decoded.(object))
	}
	return all
}

// objects returns the objects that the chart renders.
func objects(t *testing.T, values string) []object {
	t.Helper()
	rendered := render(t, values)
	delete(rendered, "NOTES.txt")
	var all []object
	for _, name := range slices.Sorted(maps.Keys(rendered)) {
		if rendered[name] != "" {
			all = append(all, decode(t, rendered[name])...)
		}
	}
	return all
}

// the returns the one object of the type T.
func the[T object](t *testing.T, all []object) T {
	t.Helper()
	var found []T
	for _, o := range all {
		if o, ok := o.(T); ok {
			found = append(found, o)
		}
	}
	if len(found) != 1 {
		t.Fatalf("there are %d objects of the type %T", len(found), *new(T))
	}
	return found[0]
}

// kinds returns the names of the objects' types.
func kinds(all []object) []string {
	var names []string
	for _, o := range all {
		names = append(names, reflect.TypeOf(o).Elem().Name())
	}
	slices.Sort(names)
	return names
}

// TestPlainObjects checks that the plain manifests are objects of Kubernetes.
func TestPlainObjects(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"rights.yaml":  {"Namespace", "Role", "RoleBinding", "ServiceAccount"},
		"network.yaml": {"NetworkPolicy"},
		"server.yaml":  {"Service", "StatefulSet"},
	} {
		if got := kinds(decode(t, read(t, manifests+"/"+name))); !slices.Equal(got, want) {
			t.Errorf("%s has %q, not %q", name, got, want)
		}
	}
}

func TestParts(t *testing.T) {
	t.Parallel()
	for values, want := range map[string][]string{
		images: {"NetworkPolicy", "Role", "RoleBinding", "Service", "ServiceAccount", "StatefulSet"},
		images + "rights: {create: false}\nnetworkPolicy: {enabled: false}": {"Service", "StatefulSet"},
		allOn(t): {"ConfigMap", "Ingress", "NetworkPolicy", "Role", "RoleBinding", "Service", "ServiceAccount",
			"ServiceMonitor", "StatefulSet"},
	} {
		all := objects(t, values)
		if got := kinds(all); !slices.Equal(got, want) {
			t.Errorf("the objects are %q, not %q, with\n%s", got, want, values)
		}
		for _, o := range all {
			if o.GetNamespace() != namespace || o.GetLabels()["app.kubernetes.io/instance"] != release ||
				o.GetLabels()["app.kubernetes.io/name"] != "harvest" {
				t.Errorf("%T is in %q, with the labels %v", o, o.GetNamespace(), o.GetLabels())
			}
		}
	}
}

// TestReferences checks that the objects find one another, also under another name.
func TestReferences(t *testing.T) {
	t.Parallel()
	for _, values := range []string{images, allOn(t)} {
		all := objects(t, values)
		set, service := the[*apps.StatefulSet](t, all), the[*core.Service](t, all)
		pod := set.Spec.Template
		for name, selector := range map[string]map[string]string{"service": service.Spec.Selector,
			"set": set.Spec.Selector.MatchLabels} {
			if len(selector) != 2 || !contains(pod.Labels, selector) {
				t.Errorf("the %s selects %v, and the pod has %v", name, selector, pod.Labels)
			}
		}
		server := pod.Spec.Containers[0]
		if set.Spec.ServiceName != service.Name || service.Spec.Ports[0].TargetPort.StrVal != server.Ports[0].Name {
			t.Errorf("the service is %s, with %+v", service.Name, service.Spec.Ports)
		}
		account, binding := the[*core.ServiceAccount](t, all), the[*rbac.RoleBinding](t, all)
		if s := binding.Subjects[0]; s.Name != account.Name || s.Namespace != namespace ||
			pod.Spec.ServiceAccountName != account.Name || binding.RoleRef.Name != the[*rbac.Role](t, all).Name {
			t.Errorf("the binding is %+v, and the pod has %s", binding, pod.Spec.ServiceAccountName)
		}
		volumes := map[string]bool{set.Spec.VolumeClaimTemplates[0].Name: true}
		for _, v := range pod.Spec.Volumes {
			volumes[v.Name] = true
		}
		for _, m := range server.VolumeMounts {
			if !volumes[m.Name] {
				t.Errorf("there is no volume %s", m.Name)
			}
		}
		policy := the[*networking.NetworkPolicy](t, all)
		if from := policy.Spec.Ingress[0].From[0].PodSelector.MatchLabels; !contains(pod.Labels, from) {
			t.Errorf("the policy admits %v, and the server has %v", from, pod.Labels)
		}
	}
	all := objects(t, allOn(t))
	service := the[*core.Service](t, all)
	backend := the[*networking.Ingress](t, all).Spec.Rules[0].HTTP.Paths[0].Backend.Service
	if backend.Name != service.Name || backend.Port.Name != service.Spec.Ports[0].Name {
		t.Errorf("the Ingress leads to %+v", backend)
	}
	monitor := the[*monitoring.ServiceMonitor](t, all)
	if !contains(service.Labels, monitor.Spec.Selector.MatchLabels) ||
		monitor.Spec.Endpoints[0].Port != service.Spec.Ports[0].Name {
		t.Errorf("the monitor selects %+v", monitor.Spec)
	}
}

// contains reports whether a set of labels has those of a selector.
func contains(labels, selector map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return len(selector) > 0
}

// TestRights checks that the values do not change the rights, which those of internal/engine/kubernetes are.
func TestRights(t *testing.T) {
	t.Parallel()
	want := the[*rbac.Role](t, decode(t, read(t, manifests+"/rights.yaml"))).Rules
	if got := the[*rbac.Role](t, objects(t, allOn(t))).Rules; len(got) != 3 || !reflect.DeepEqual(got, want) {
		t.Errorf("with all options, the rights are %+v, not %+v", got, want)
	}
}

// env returns the variables of the server's environment that have a plain value.
func env(t *testing.T, all []object) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, e := range the[*apps.StatefulSet](t, all).Spec.Template.Spec.Containers[0].Env {
		if _, twice := found[e.Name]; twice {
			t.Errorf("%s is there twice", e.Name)
		}
		found[e.Name] = e.Value
	}
	return found
}

func TestServerOptions(t *testing.T) {
	t.Parallel()
	all := objects(t, allOn(t))
	set := the[*apps.StatefulSet](t, all)
	pod := set.Spec.Template
	server := pod.Spec.Containers[0]
	got := env(t, all)
	for name, want := range map[string]string{
		"HARVEST_KUBERNETES_IMAGE":        "registry.example.org/harvest/pod:0.1.1",
		"HARVEST_KUBERNETES_PULL_POLICY":  "IfNotPresent",
		"HARVEST_KUBERNETES_PULL_SECRETS": "registry,mirror",
		"HARVEST_SERVER_PUBLIC_NAMES": strings.Join([]string{"agents", "agents.harvest",
			"agents.harvest.svc", "harvest.example.org", "harvest.internal.example.org"}, ","),
		"HARVEST_SERVER_PUBLIC_URL":      "https://harvest.example.org",
		"HARVEST_SERVER_TRUSTED_PROXIES": "10.244.0.0/16,fd00::1",
		"HARVEST_CONFIG":                 "/etc/harvest/config.yaml",
		"HARVEST_POOL":                   "4",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, not %q", name, got[name], want)
		}
	}
	claim, needs := set.Spec.VolumeClaimTemplates[0].Spec, server.Resources
	secrets := []core.LocalObjectReference{{Name: "registry"}, {Name: "mirror"}}
	for name, ok := range map[string]bool{
		"image":       server.Image == "registry.example.org:5000/harvest/server:0.1.0",
		"pull policy": server.ImagePullPolicy == core.PullAlways,
		"secrets":     slices.Equal(pod.Spec.ImagePullSecrets, secrets),
		"env from":    server.EnvFrom[0].SecretRef.Name == "harvest-settings",
		"storage":     claim.Resources.Requests.Storage().String() == "200Gi" && *claim.StorageClassName == "fast",
		"resources":   needs.Requests.Cpu().String() == "2" && needs.Limits.Memory().String() == "4Gi",
		"nodes":       pod.Spec.NodeSelector["kubernetes.io/arch"] == "amd64" && len(pod.Spec.Tolerations) == 1,
		"affinity":    pod.Spec.Affinity.NodeAffinity != nil && pod.Spec.PriorityClassName == "high",
		"labels":      pod.Labels["team"] == "platform" && pod.Labels["example.org/tier"] == "1",
		"annotations": pod.Annotations["example.org/logs"] == "true" && len(pod.Annotations["checksum/config"]) == 64,
		"restricted":  *pod.Spec.SecurityContext.RunAsNonRoot && *server.SecurityContext.ReadOnlyRootFilesystem,
		"user":        *pod.Spec.SecurityContext.RunAsUser == 1000,
	} {
		if !ok {
			t.Errorf("%s: %+v", name, set.Spec)
		}
	}
	if pod := the[*apps.StatefulSet](t, objects(t, images)).Spec.Template; len(pod.Annotations) > 0 {
		t.Errorf("without options, the pod has the annotations %v", pod.Annotations)
	}
}

// TestTags checks that the default tag is the version of Harvest, and that a tag may have a digest.
func TestTags(t *testing.T) {
	t.Parallel()
	digest := "0.1.0@sha256:" + strings.Repeat("0a", 32)
	for tag, want := range map[string]string{"": strings.TrimSpace(read(t, "../../VERSION")), digest: digest} {
		all := objects(t, fmt.Sprintf("image: {repository: a/server, tag: %q}\npodImage: {repository: a/pod, tag: %q}",
			tag, tag))
		server := the[*apps.StatefulSet](t, all).Spec.Template.Spec.Containers[0].Image
		pod := env(t, all)["HARVEST_KUBERNETES_IMAGE"]
		if server != "a/server:"+want || pod != "a/pod:"+want {
			t.Errorf("with the tag %q, the images are %s and %s", tag, server, pod)
		}
	}
}

// TestPublicURL checks the URL for browsers, with an Ingress and without one.
func TestPublicURL(t *testing.T) {
	t.Parallel()
	const ingress = "ingress: {enabled: true, host: a.example.org}"
	for values, want := range map[string]string{
		"":                                       "",
		"publicURL: https://gateway.example.org": "https://gateway.example.org",
		ingress:                                  "https://a.example.org",
		ingress + "\npublicURL: https://b.example.org:8443":                    "https://b.example.org:8443",
		"ingress: {enabled: true, host: a.example.org, tls: {enabled: false}}": "http://a.example.org",
		"ingress: {enabled: false, host: a.example.org}":                       "",
	} {
		if got := env(t, objects(t, images+values))["HARVEST_SERVER_PUBLIC_URL"]; got != want {
			t.Errorf("the URL is %q, not %q, with %s", got, want, values)
		}
	}
	spec := the[*networking.Ingress](t, objects(t, images+ingress)).Spec
	if len(spec.TLS) != 1 || spec.TLS[0].SecretName != "" || spec.IngressClassName != nil {
		t.Errorf("with the default values, the Ingress is %+v", spec)
	}
}

// TestConfiguration checks that the server reads the options of the values as they are, and restarts when they change.
func TestConfiguration(t *testing.T) {
	t.Parallel()
	all := objects(t, allOn(t))
	set, config := the[*apps.StatefulSet](t, all), the[*core.ConfigMap](t, all)
	mounts := set.Spec.Template.Spec.Containers[0].VolumeMounts
	if !slices.ContainsFunc(mounts, func(m core.VolumeMount) bool {
		return m.MountPath == "/etc/harvest" && m.ReadOnly
	}) {
		t.Errorf("the mounts are %+v", mounts)
	}
	text := config.Data["config.yaml"]
	if want := parse(t, allOn(t))["config"]; !reflect.DeepEqual(any(parse(t, text)), want) {
		t.Errorf("the file has\n%s\nwithout being %v", text, want)
	}
	if !strings.Contains(text, "processes: 1000000\n") || !strings.Contains(text, "files: 40000000\n") {
		t.Errorf("large numbers are not integers:\n%s", text)
	}
	sum := func(values string) string {
		return the[*apps.StatefulSet](t, objects(t, values)).Spec.Template.Annotations["checksum/config"]
	}
	if one, other := sum(images+"config: {pool: 1}"), sum(images+"config: {pool: 2}"); one == other || one == "" {
		t.Errorf("the checksums are %q and %q", one, other)
	}
}

// TestNetwork checks that exceptions are in the block of their family, and further rules beside the others.
func TestNetwork(t *testing.T) {
	t.Parallel()
	standard := the[*networking.NetworkPolicy](t, objects(t, images)).Spec.Egress
	egress := the[*networking.NetworkPolicy](t, objects(t, allOn(t))).Spec.Egress
	if len(standard) != 2 || len(egress) != 3 || egress[2].To[0].IPBlock.CIDR != "10.1.0.0/16" {
		t.Fatalf("the rules are %+v", egress)
	}
	for i, added := range []string{"203.0.113.7/32", "2001:db8::7/128"} {
		want := append(slices.Clone(standard[1].To[i].IPBlock.Except), added)
		if got := egress[1].To[i].IPBlock.Except; !slices.Equal(got, want) {
			t.Errorf("the exceptions are %q, not %q", got, want)
		}
	}
}

// TestMonitor checks where Prometheus finds the key, and the labels by which it finds the monitor.
func TestMonitor(t *testing.T) {
	t.Parallel()
	monitor := the[*monitoring.ServiceMonitor](t, objects(t, allOn(t)))
	if l := monitor.Labels; l["release"] != "prometheus" || l["team"] != "observers" {
		t.Errorf("the labels are %v", l)
	}
	end := monitor.Spec.Endpoints[0]
	if end.Path != "/metrics" || end.Interval != "15s" || end.Authorization == nil ||
		end.Authorization.Type != "Bearer" || end.Authorization.Credentials.Name != "harvest-metrics" ||
		end.Authorization.Credentials.Key != "key" {
		t.Errorf("the endpoint is %+v", end)
	}
}

// TestOptionsExist checks that docs/configuration.md has the variables of the chart, and that the schema refuses each
// of them in env, where it would be a second one.
func TestOptionsExist(t *testing.T) {
	t.Parallel()
	page := read(t, configuration)
	theirs := []string{"HARVEST_POOL", "HARVEST_OIDC_CLIENT_SECRET"} // of testdata/all.yaml
	for name := range env(t, objects(t, allOn(t))) {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("docs/configuration.md lacks %s", name)
		}
		if slices.Contains(theirs, name) {
			continue
		}
		if _, err := try(t, images+"env: [{name: "+name+", value: a}]"); err == nil {
			t.Errorf("env may have %s", name)
		}
	}
}

// configuration is the page with all options of the server.
const configuration = "../../docs/configuration.md"

// TestSecretsAreRefused checks that the schema refuses each option that the server never shows.
func TestSecretsAreRefused(t *testing.T) {
	t.Parallel()
	row := regexp.MustCompile("(?m)^\\| `([a-z_]+)\\.([a-z_]+)` \\| `([A-Z_]+)` .*never shown")
	secrets := row.FindAllStringSubmatch(read(t, configuration), -1)
	if len(secrets) < 4 {
		t.Fatalf("the page has only %d secrets", len(secrets))
	}
	for _, m := range secrets {
		for _, values := range []string{"config: {" + m[1] + ": {" + m[2] + ": 'https://example.org'}}",
			"env: [{name: " + m[3] + ", value: 'https://example.org'}]"} {
			if _, err := try(t, images+values); err == nil {
				t.Errorf("the values may have a secret: %s", values)
			}
		}
	}
}

// TestEveryValueIsInTheSchema checks that values.yaml and the schema have the same keys.
func TestEveryValueIsInTheSchema(t *testing.T) {
	t.Parallel()
	schema := parse(t, read(t, manifests+"/chart/values.schema.json"))
	definitions, _ := schema["definitions"].(map[string]any)
	var walk func(place string, schema, values map[string]any)
	walk = func(place string, schema, values map[string]any) {
		if ref, ok := schema["$ref"].(string); ok {
			schema, _ = definitions[strings.TrimPrefix(ref, "#/definitions/")].(map[string]any)
		}
		properties, _ := schema["properties"].(map[string]any)
		for name, property := range properties {
			value, ok := values[name]
			if !ok && place+name != "global" && place != "resources." {
				t.Errorf("values.yaml lacks %s%s", place, name)
			}
			if below, ok := value.(map[string]any); ok {
				walk(place+name+".", property.(map[string]any), below)
			}
		}
	}
	walk("", schema, parse(t, read(t, manifests+"/chart/values.yaml")))
}
