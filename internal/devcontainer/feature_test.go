package devcontainer_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/devcontainer"
)

func TestParseReference(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("a", 64)
	for text, want := range map[string]devcontainer.Reference{
		"ghcr.io/devcontainers/features/go:1": {Registry: "ghcr.io",
			Repository: "devcontainers/features/go", Tag: "1"},
		"GHCR.io/Devcontainers/features/Go": {Registry: "ghcr.io",
			Repository: "devcontainers/features/go", Tag: "latest"},
		"localhost:5000/a/go@" + digest: {Registry: "localhost:5000", Repository: "a/go",
			Digest: digest},
		"localhost/a/go:1.2.3": {Registry: "localhost", Repository: "a/go", Tag: "1.2.3"},
		"docker-from-docker": {Registry: "ghcr.io", Repository: "devcontainers/features/docker-from-docker",
			Tag: "1"},
		"golang":     {Registry: "ghcr.io", Repository: "devcontainers/features/go", Tag: "1"},
		"./feature/": {Local: "feature"},
		"../shared":  {Local: "../shared"},
		"https://example.org/devcontainer-feature-go.tgz": {URL: "https://example.org/devcontainer-feature-go.tgz"},
	} {
		want.Text = text
		got, err := devcontainer.ParseReference(text)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for text, kind := range map[string]errors.Kind{
		"./a\nb": errors.Invalid, "./" + strings.Repeat("a", 500): errors.Invalid,
		"": errors.Unsupported, "go": errors.Unsupported, "devcontainers/features/go@v1": errors.Unsupported,
		"ghcr.io/go": errors.Invalid, "ghcr.io/a/b:c:d": errors.Invalid, "ghcr.io/a/b c": errors.Invalid,
		"/etc/feature": errors.Invalid, "http://example.org/x.tgz": errors.Invalid, "ghcr.io/": errors.Invalid,
		"https://": errors.Invalid, "https://user@example.org/x.tgz": errors.Invalid, "ghcr.io/../x/y": errors.Invalid,
	} {
		_, err := devcontainer.ParseReference(text)
		wantError(t, err, kind, "feature")
	}
}

func TestFeatureOptionsBecomeVariables(t *testing.T) {
	t.Parallel()
	f, err := devcontainer.ParseFeature("f", []byte(`{
		"id": "python", "version": "1.0.0", "unknown": 1,
		"options": {
			"version": {"type": "string", "enum": ["latest", "3.10"], "default": "latest", "description": "d"},
			"pip": {"type": "boolean", "default": true}, "optimize": {"type": "boolean", "default": true},
			"no-default": {"type": "string"}, "123.go Version": {"type": "string", "default": ""}
		}, // trailing
	}`))
	if err != nil {
		t.Fatal(err)
	}
	f.Values = devcontainer.Values{"version": "3.10", "pip": "false", "_extra": "x"}
	want := devcontainer.Env{{Name: "_GO_VERSION"}, {Name: "_EXTRA", Value: "x"}, {Name: "OPTIMIZE", Value: "true"},
		{Name: "PIP", Value: "false"}, {Name: "VERSION", Value: "3.10"}}
	if got := f.Env(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestFeaturesWithMistakes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{`: "f: line 2, column 1", `{"version": "1"}`: `invalid id ""`, `{"id": "a/b"}`: `invalid id "a/b"`,
		`{"id": "${localEnv:X}"}`: "invalid id", `{"id": "a", "options": []}`: `"options" must be an object`,
		`{"id": "a", "options": {"x": {"type": "number"}}}`: `"options.x.type" must be one of`,
		`{"id": "a", "installsAfter": "b"}`:                 `"installsAfter" must be an array of strings, not "b"`,
	} {
		_, err := devcontainer.ParseFeature("f", []byte(text))
		wantError(t, err, errors.Invalid, want)
	}
}

// source returns features from their descriptions by reference without a version. The digest is that reference.
func source(t *testing.T, all map[string]string) devcontainer.Source {
	t.Helper()
	return func(_ context.Context, r devcontainer.Reference) (*devcontainer.Feature, error) {
		id := r.Repository
		if r.Registry == "" {
			id = r.Text
		}
		text, ok := all[id]
		if !ok {
			return nil, errors.Newf(errors.NotFound, "no %s", id)
		}
		f, err := devcontainer.ParseFeature(id, []byte(text))
		if f != nil {
			f.Digest = id
		}
		return f, err
	}
}

// The order of the reference implementation is tested by comparison; these are the cases that it cannot run.
func TestResolve(t *testing.T) {
	t.Parallel()
	features := source(t, map[string]string{
		"a/x": `{"id": "x", "dependsOn": {"r.io/a/y": {}}}`, "a/y": `{"id": "y", "dependsOn": {"r.io/a/x:2": {}}}`,
		"a/self": `{"id": "self", "installsAfter": ["r.io/a/self"]}`, "a/plain": `{"id": "plain"}`,
		"a/more":   `{"id": "more", "dependsOn": {"r.io/a/plain": {"n": "1"}, "r.io/a/plain:2": {"n": "2", "m": "1"}}}`,
		"a/short":  `{"id": "short", "installsAfter": ["plain", "r.io/a/plain"]}`,
		"a/broken": `{"id": "broken", "dependsOn": {"broken": {}}}`,
		"./local":  `{"id": "local", "installsAfter": ["./zz", "https://h/z.tgz"]}`, "./zz": `{"id": "zz"}`,
		"https://h/z.tgz": `{"id": "z"}`, "https://h/a.tgz": `{"id": "a"}`,
	})
	for _, c := range []struct{ features, want, says string }{
		{features: `{"r.io/a/x": {}}`, says: "in a circle: r.io/a/x, r.io/a/y"},
		{features: `{"r.io/a/self": {}}`, says: "in a circle: r.io/a/self"},
		{features: `{"r.io/a/none": {}}`, says: "no a/none"},
		{features: `{"broken": {}}`, says: "names without a registry"},
		{features: `{"r.io/a/broken": {}}`, says: "names without a registry"},
		{features: `{}`, want: ""},
		{features: `{"r.io/a/short": {}, "r.io/a/plain": {}}`, want: "r.io/a/plain{} r.io/a/short{}"},
		{features: `{"r.io/a/plain": {"n": "3"}, "r.io/a/more": {}}`,
			want: "r.io/a/plain:2{m:1 n:2} r.io/a/plain{n:1} r.io/a/plain{n:3} r.io/a/more{}"},
		// One feature with the same options is installed once.
		{features: `{"r.io/a/plain:1": {}, "r.io/a/plain:2": {}}`, want: "r.io/a/plain:1{}"},
		{features: `{"./local": {}, "./zz": {}, "https://h/z.tgz": {}, "https://h/a.tgz": {}}`,
			want: "./zz{} https://h/a.tgz{} https://h/z.tgz{} ./local{}"},
	} {
		all, err := devcontainer.Resolve(t.Context(), parse(t, `{"features": `+c.features+`}`), features)
		if c.says != "" {
			if err == nil || !strings.Contains(errors.Message(err), c.says) {
				t.Errorf("%s: %v, want an error with %q", c.features, err, c.says)
			}
			continue
		}
		var got []string
		for _, f := range all {
			got = append(got, f.Reference.Text+strings.TrimPrefix(fmt.Sprint(map[string]string(f.Values)), "map"))
		}
		text := strings.NewReplacer("[", "{", "]", "}").Replace(strings.Join(got, " "))
		if err != nil || text != c.want {
			t.Errorf("%s: %q, %v, want %q", c.features, text, err, c.want)
		}
	}
	_, err := devcontainer.Resolve(t.Context(), parse(t, `{"overrideFeatureInstallOrder": ["go"]}`), features)
	wantError(t, err, errors.Unsupported, "names without a registry")
}

// Features that depend on ever more features are refused.
func TestResolveIsBounded(t *testing.T) {
	t.Parallel()
	n := 0
	endless := func(context.Context, devcontainer.Reference) (*devcontainer.Feature, error) {
		n++
		text := fmt.Sprintf(`{"id": "f", "dependsOn": {"r.io/a/f%d": {}}}`, n)
		f, err := devcontainer.ParseFeature("f", []byte(text))
		f.Digest = fmt.Sprint(n)
		return f, err
	}
	_, err := devcontainer.Resolve(t.Context(), parse(t, `{"features": {"r.io/a/f": {}}}`), endless)
	wantError(t, err, errors.Exhausted, "more than 200")
}
