package devcontainer_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/devcontainer"
)

func metadata(t *testing.T, text string) devcontainer.Metadata {
	t.Helper()
	m, err := devcontainer.ParseMetadata(text)
	if err != nil {
		t.Fatalf("%v (%s)", err, errors.Message(err))
	}
	return m
}

func TestMetadataOfImages(t *testing.T) {
	t.Parallel()
	if m := metadata(t, " \n"); len(m) != 0 {
		t.Errorf("%+v", m)
	}
	if m := metadata(t, `{"remoteUser": "a"}`); m.String() != `[{"remoteUser":"a"}]` {
		t.Errorf("%s", m)
	}
	const text = `[{"id":"a","mounts":["source=x-${devcontainerId},target=/x"]},{"remoteEnv":{"B":"1","A":null}}]`
	if m := metadata(t, text); m.String() != text || m[0].ID != "a" {
		t.Errorf("%s", m)
	}
	for text, want := range map[string]string{`[`: "line 2, column 1", `7`: "must be an array of objects",
		`[1]`:                 `"[0]" must be an object`,
		`[{"remoteUser": 1}]`: `"[0].remoteUser" must be a string`} {
		_, err := devcontainer.ParseMetadata(text)
		wantError(t, err, errors.Invalid, want)
		wantError(t, err, errors.Invalid, "the label devcontainer.metadata of the image: ")
	}
}

func TestHooksKnowTheirOrigin(t *testing.T) {
	t.Parallel()
	merged := devcontainer.Merge(metadata(t, `[{"id": "ghcr.io/a/b/c:1", "postCreateCommand": "c"},
		{"postCreateCommand": ["d"], "onCreateCommand": {"e": "f"}}]`))
	want := []devcontainer.Hook{{Origin: "ghcr.io/a/b/c:1", Command: devcontainer.Command{Shell: "c"}},
		{Origin: "devcontainer.json", Command: devcontainer.Command{Args: []string{"d"}}}}
	if got := merged.Hooks("postCreateCommand"); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	for _, name := range devcontainer.Hooks {
		if n := len(merged.Hooks(name)); n != map[string]int{"postCreateCommand": 2, "onCreateCommand": 1}[name] {
			t.Errorf("%s has %d commands", name, n)
		}
	}
}

func TestUsers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ metadata, image, container, remote string }{
		{`[]`, "", "root", "root"}, {`[]`, "node", "node", "node"}, {`[{"remoteUser": "r"}]`, "node", "node", "r"},
		{`[{"containerUser": "c"}]`, "node", "c", "c"}, {`[{"containerUser": "c"}, {"remoteUser": "r"}]`, "", "c", "r"},
	} {
		container, remote := devcontainer.Merge(metadata(t, c.metadata)).Users(c.image)
		if container != c.container || remote != c.remote {
			t.Errorf("%s, %q: %s, %s", c.metadata, c.image, container, remote)
		}
	}
}

func TestGPURequirementsAreMerged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ first, second, want string }{
		{`false`, `false`, `null`}, {`true`, `false`, `{"gpu":true}`}, {`false`, `"optional"`, `{"gpu":"optional"}`},
		{`true`, `"optional"`, `{"gpu":true}`}, {`"optional"`, `"optional"`, `{"gpu":"optional"}`},
		{`{"cores": 2}`, `{"memory": "1kb"}`, `{"gpu":{"cores":2,"memory":"1024"}}`},
	} {
		text := `[{"hostRequirements": {"gpu": ` + c.first + `}}, {}, {"hostRequirements": {"gpu": ` + c.second + `}}]`
		got, err := json.Marshal(devcontainer.Merge(metadata(t, text)).HostRequirements)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v, want %s", text, got, err, c.want)
		}
	}
}

func TestParseLock(t *testing.T) {
	t.Parallel()
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	lock, err := devcontainer.ParseLock("l",
		[]byte(`{"features": {"a": {"version": "1", "resolved": "r", "integrity": "`+
			digest+`", "dependsOn": ["b"]}, "b": {}}}`))
	if err != nil || !reflect.DeepEqual(lock, devcontainer.Lock{"a": digest}) {
		t.Errorf("%v, %v", lock, err)
	}
	for _, text := range []string{`{`, `{"features": {"a": {"integrity": "md5:1"}}}`} {
		_, err := devcontainer.ParseLock("l", []byte(text))
		wantError(t, err, errors.Invalid, "l: line")
	}
}

// TestAttributesOf finds the attributes of ports by number, range and for all others.
func TestAttributesOf(t *testing.T) {
	t.Parallel()
	m := devcontainer.Merge(devcontainer.Metadata{{
		PortsAttributes: map[string]devcontainer.PortAttributes{
			"3000": {Label: "web"}, "localhost:3001": {Label: "api"}, "2000-4000": {Label: "range"}, "3000-9000": {},
			"9-": {Label: "no"}, "-9": {Label: "no"}, "node.*9229": {Label: "pattern"},
		},
		OtherPortsAttributes: &devcontainer.PortAttributes{OnAutoForward: "ignore"},
	}})
	for port, want := range map[int]devcontainer.PortAttributes{
		3000: {Label: "web"}, 3001: {Label: "api"}, 2000: {Label: "range"}, 3002: {Label: "range"},
		4000: {Label: "range"}, 5000: {}, 9: {OnAutoForward: "ignore"}, 9229: {OnAutoForward: "ignore"},
	} {
		if got := m.AttributesOf(port); got != want {
			t.Errorf("port %d: %+v, want %+v", port, got, want)
		}
	}
	if got := devcontainer.Merge(nil).AttributesOf(1); got != (devcontainer.PortAttributes{}) {
		t.Errorf("without attributes: %+v", got)
	}
}
