package devcontainer_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/devcontainer"
)

// seeds adds the files of the shapes and some others.
func seeds(f *testing.F, patterns ...string) {
	f.Helper()
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatalf("%s: no files: %v", pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
		}
	}
	f.Add([]byte(`{"mounts": ["target=/\",type=volume", {"target": ""}], "a": 1, "A": 2,
		"remoteEnv": {"A": null, "B": 1e9}}`))
	f.Add([]byte(`[{"forwardPorts": ["localhost:1", 2]}, {"hostRequirements": {"gpu": {}, "memory": "1tb"}}] // end`))
}

// isUsers checks that a file of a user cannot cause an error without a kind.
func isUsers(t *testing.T, err error) bool {
	t.Helper()
	if kind := errors.KindOf(err); err != nil && kind != errors.Invalid && kind != errors.Exhausted {
		t.Errorf("%v (%s)", err, kind)
	}
	return err == nil
}

// FuzzParse checks that decoding, substitution and merging neither panic nor lose the form of JSON.
func FuzzParse(f *testing.F) {
	seeds(f, "testdata/shapes/*/.devcontainer/*.json", "testdata/shapes/*/.devcontainer.json")
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := devcontainer.Parse("f.json", text)
		if !isUsers(t, err) {
			return
		}
		c.Notes()
		_, _ = c.Base()
		c, err = c.Substitute(devcontainer.Variables{LocalEnv: map[string]string{"HOME": "/home/ada"},
			LocalFolder:     "/a/b",
			ContainerFolder: "/c/d", ContainerEnv: map[string]string{}, ID: "x"})
		if !isUsers(t, err) {
			return
		}
		m, err := devcontainer.Metadata(nil).With(nil, c)
		if err != nil {
			t.Fatal(err)
		}
		again, err := devcontainer.ParseMetadata(m.String())
		if err != nil {
			t.Fatalf("%s: %v", m, err)
		}
		merged, err := json.Marshal(devcontainer.Merge(m))
		if err != nil {
			t.Fatal(err)
		}
		other, err := json.Marshal(devcontainer.Merge(again))
		if err != nil || string(merged) != string(other) {
			t.Errorf("%v:\n%s\n%s", err, merged, other)
		}
	})
}

// FuzzMetadata checks the label of an image.
func FuzzMetadata(f *testing.F) {
	seeds(f, "testdata/shapes/*/.devcontainer/*.json")
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := devcontainer.ParseMetadata(string(text))
		if !isUsers(t, err) {
			return
		}
		if _, err := json.Marshal(devcontainer.Merge(m)); err != nil {
			t.Error(err)
		}
	})
}

// FuzzParseFeature checks that a feature can only be one that a Dockerfile can have.
func FuzzParseFeature(f *testing.F) {
	seeds(f, "testdata/features/*/*/*/*.json")
	f.Fuzz(func(t *testing.T, text []byte) {
		feature, err := devcontainer.ParseFeature("f", text)
		if !isUsers(t, err) {
			return
		}
		feature.Env()
		feature.Dir = "0"
		_, _, err = devcontainer.Dockerfile(devcontainer.Installation{Image: "debian", ContainerUser: "root",
			RemoteUser: "root", Features: []*devcontainer.Feature{feature}})
		isUsers(t, err)
	})
}
