package devcontainer_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/devcontainer"
)

// graph is a random set of features, some local and some in a registry.
type graph struct {
	random *rand.Rand
	dir    string // of the repository
	names  []string
}

// reference returns the reference of a feature, with a version or without.
func (g *graph) reference(name, version string) string {
	if strings.HasPrefix(name, ".") {
		return name
	}
	return name + version
}

// some returns some of these features.
func (g *graph) some(all []string, most int) []string {
	all = slices.Clone(all)
	g.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:g.random.IntN(min(most, len(all))+1)]
}

// options returns random options.
func (g *graph) options() map[string]any {
	all := map[string]any{}
	for _, name := range []string{"version", "b_1", "b-2"}[:g.random.IntN(4)] {
		all[name] = fmt.Sprint(g.random.IntN(2))
	}
	return all
}

// write writes the features and the configuration.
func (g *graph) write(t *testing.T, address string, number int) {
	t.Helper()
	for i := range 3 + g.random.IntN(5) {
		id := []string{"a", "B", "a-b", "a_b", "c1", "C2", "d", "e"}[i]
		if g.random.IntN(3) > 0 {
			g.names = append(g.names, "./"+id)
		} else {
			g.names = append(g.names, fmt.Sprintf("%s/g%d/n%d/%s", address, number, g.random.IntN(2),
				strings.ToLower(id)))
		}
	}
	g.random.Shuffle(len(g.names), func(i, j int) { g.names[i], g.names[j] = g.names[j], g.names[i] })
	for i, name := range g.names {
		before := g.names[:i] // without circles, mostly
		if g.random.IntN(10) == 0 {
			before = g.names
		}
		feature := map[string]any{"id": filepath.Base(name), "version": "1.0.0", "installsAfter": g.some(before, 2)}
		if g.random.IntN(3) == 0 {
			needs := map[string]any{}
			for _, need := range g.some(before, 1) {
				needs[g.reference(need, ":1")] = g.options()
			}
			feature["dependsOn"] = needs
		}
		text, err := json.Marshal(feature)
		if err != nil {
			t.Fatal(err)
		}
		files := map[string]string{devcontainer.FeatureFile: string(text), "install.sh": "true\n"}
		if !strings.HasPrefix(name, ".") {
			push(t, name, string(text), archiveOf(t, files), "1", "latest")
			continue
		}
		for file, text := range files {
			testenv.WriteFile(t, filepath.Join(g.dir, ".devcontainer", name, file), []byte(text))
		}
	}
	features := map[string]any{}
	for _, name := range g.some(g.names, len(g.names)) {
		features[g.reference(name, []string{"", ":1", ":latest"}[g.random.IntN(3)])] = g.options()
	}
	config := map[string]any{"image": "debian:12", "features": features,
		"overrideFeatureInstallOrder": g.some(g.names, 2)}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	testenv.WriteFile(t, filepath.Join(g.dir, ".devcontainer", "devcontainer.json"), text)
}

// TestRandomFeaturesHaveTheOrderOfTheReferenceImplementation compares the order of random graphs of features. Both
// implementations must refuse the same graphs.
func TestRandomFeaturesHaveTheOrderOfTheReferenceImplementation(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	program := cli(t)
	server := httptest.NewServer(registry.New(registry.Logger(quiet)))
	t.Cleanup(server.Close)
	address := strings.Replace(strings.TrimPrefix(server.URL, "http://"), "127.0.0.1", "localhost", 1)
	seed := rand.Uint64()
	var ordered, refused int
	for i := range 60 {
		o := &oracle{program: program, dir: filepath.Join(t.TempDir(), "app"), state: t.TempDir()}
		g := &graph{random: rand.New(rand.NewPCG(seed, uint64(i))), dir: o.dir}
		g.write(t, address, i)
		o.fake(t)
		c := parse(t, string(read(t, filepath.Join(o.dir, ".devcontainer", "devcontainer.json"))))
		fetcher := &devcontainer.Fetcher{Dir: t.TempDir(), Repository: os.DirFS(o.dir), Config: file,
			Transport: http.DefaultTransport}
		features, err := devcontainer.Resolve(t.Context(), c, fetcher.Feature)
		theirs, said, failed := o.try(t)
		if (err != nil) != (failed != nil) {
			t.Errorf("seed %d, %d: %v, want %v: %s", seed, i, err, failed, said)
		}
		if err != nil || failed != nil {
			refused++
			continue
		}
		var order, want []string
		for _, f := range features {
			order = append(order, f.Reference.Text)
		}
		for _, f := range theirs.Features.FeatureSets {
			want = append(want, f.SourceInformation.UserFeatureID)
		}
		if ordered++; !slices.Equal(order, want) {
			t.Errorf("seed %d, %d: %q, want %q", seed, i, order, want)
		}
	}
	if t.Logf("%d ordered, %d refused", ordered, refused); ordered == 0 || refused == 0 {
		t.Error("the graphs are all of one kind")
	}
}
