package devcontainer_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/devcontainer"
)

const file = ".devcontainer/devcontainer.json"

func parse(t *testing.T, text string) *devcontainer.Config {
	t.Helper()
	c, err := devcontainer.Parse(file, []byte(text))
	if err != nil {
		t.Fatalf("%v (%s)", err, errors.Message(err))
	}
	return c
}

func TestParseErrorsNameThePlace(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                      "line 2, column 1",
		"[]":                                    "line 1, column 1: the file must be an object, not an array",
		"// only a comment":                     "line 2, column 1",
		"{\n\t\"image\": \"a\"\n\t\"name\": 1}": "line 3, column 2: invalid character",
		"{\"image\": \"a}":                      "unexpected EOF",
		"{'image': 1}":                          "line 1, column 2",
		"{\n  \"image\": 7}":                    `line 2, column 12: "image" must be a string, not 7`,
		`{"capAdd": [null]}`:                    `"capAdd[0]" must be a string, not null`,
		`{"build": {"args": {"A": {}}}}`:        `column 26: "build.args.A" must be a string, a boolean or a number`,
		`{"forwardPorts": [3000, true]}`:        `column 25: "forwardPorts[1]" must be a port or a port as "host:3000"`,
		`{"forwardPorts": [70000]}`:             `"forwardPorts[0]" must be a port, not 70000`,
		`{"forwardPorts": ["db:x"]}`:            `must be a port as "host:3000", not "db:x"`,
		`{"postCreateCommand": 1}`:              `must be a string, an array of strings or an object, not 1`,
		`{"postCreateCommand": {"a": {}}}`:      `"postCreateCommand.a" must be a string or an array of strings`,
		`{"postCreateCommand": ["a", 1]}`:       `"postCreateCommand[1]" must be a string`,
		`{"waitFor": "later"}`:                  `"waitFor" must be one of "initializeCommand", "onCreateCommand"`,
		`{"mounts": ["type=volume"]}`:           `"mounts[0]" must be a mount with a target`,
		`{"mounts": [1]}`:                       `"mounts[0]" must be a mount with a target`,
		`{"hostRequirements": {"cpus": 1.5}}`:   `"hostRequirements.cpus" must be an integer, not 1.5`,
		`{"hostRequirements": {"memory": "8GiB"}}`: `"hostRequirements.memory" must be a size such as "8gb", ` +
			`not "8GiB"`,
		`{"hostRequirements": {"gpu": "some"}}`: `"hostRequirements.gpu" must be one of "optional"`,
		`{"containerEnv": {"A B": ""}}`:         `line 1, column 19: "containerEnv.A B": invalid name`,
		`{"secrets": {"A-B": {}}}`:              `"secrets.A-B": invalid name`,
		`{"remoteEnv": {"A": []}}`:              `"remoteEnv.A" must be`,
		`{"privileged": "yes"}`:                 `"privileged" must be a boolean, not "yes"`,
		`{"customizations": []}`:                `"customizations" must be an object, not an array`,
		`{"features": {"x": []}}`:               `"features.x" must be`,
		`{"name": ` + strings.Repeat(`[`, 200):  "line 1, column 109: more than 100 objects and arrays",
	} {
		_, err := devcontainer.Parse(file, []byte(text))
		wantError(t, err, errors.Invalid, want)
		if err != nil && !strings.HasPrefix(errors.Message(err), file+": ") {
			t.Errorf("%q does not begin with the file", errors.Message(err))
		}
	}
	_, err := devcontainer.Parse(file, []byte(`{"name": "`+strings.Repeat("x", devcontainer.MaxBytes)+`"}`))
	wantError(t, err, errors.Exhausted, "more than 1048576 bytes")
}

// Braces in strings and comments do not count as nested.
func TestDepthCountsObjectsAndArrays(t *testing.T) {
	t.Parallel()
	many := strings.Repeat("[{", 200)
	parse(t, `{"name": "`+many+`\"`+many+`", // `+many+"\n/* "+many+` */ "image": "a"} // `+many)
}

func TestParse(t *testing.T) {
	t.Parallel()
	c := parse(t, `{
		"name": "n", "image": "debian:12",
		"onCreateCommand": "a && b", "updateContentCommand": ["a", "b c"], "postCreateCommand": {"x": "y", "z": ["z"]},
		"postStartCommand": "", "postAttachCommand": {"a": [], "b": ""},
		"remoteEnv": {"Z": "1", "A": null, "N": 3}, "features": {"./a": "1.2", "./b": true, "./c": {"n": 1,
			"b": false}},
		"hostRequirements": {"cpus": 2, "memory": "8gb", "gpu": true},
		"secrets": {"TOKEN": {"description": "d"}}, "appPort": "8000:80",
	}`)
	if !reflect.DeepEqual(c.OnCreateCommand.Argv(), []string{"/bin/sh", "-c", "a && b"}) ||
		!reflect.DeepEqual(c.UpdateContentCommand.Argv(), []string{"a", "b c"}) ||
		!reflect.DeepEqual(c.PostCreateCommand.Parallel["z"].Argv(), []string{"z"}) {
		t.Errorf("commands: %+v", c.Entry)
	}
	if c.OnCreateCommand.IsZero() || c.PostCreateCommand.IsZero() || !c.PostStartCommand.IsZero() ||
		!c.PostAttachCommand.IsZero() || !c.InitializeCommand.IsZero() {
		t.Error("commands without a program are not recognized")
	}
	want := devcontainer.Env{{Name: "Z", Value: "1"}, {Name: "A", Unset: true}, {Name: "N", Value: "3"}}
	if !reflect.DeepEqual(c.RemoteEnv, want) {
		t.Errorf("variables: %+v", c.RemoteEnv)
	}
	env := c.RemoteEnv.Apply(map[string]string{"A": "old", "B": "kept"})
	if !reflect.DeepEqual(env, map[string]string{"Z": "1", "N": "3", "B": "kept"}) ||
		len(devcontainer.Env(nil).Apply(nil)) > 0 {
		t.Errorf("environment: %v", env)
	}
	if !reflect.DeepEqual(c.Features, map[string]devcontainer.Values{"./a": {"version": "1.2"}, "./b": {},
		"./c": {"n": "1", "b": "false"}}) {
		t.Errorf("features: %v", c.Features)
	}
	if c.Path() != file || c.LockPath() != ".devcontainer/devcontainer-lock.json" ||
		c.Secrets["TOKEN"].Description != "d" {
		t.Errorf("%q, %q, %v", c.Path(), c.LockPath(), c.Secrets)
	}
	other, err := devcontainer.Parse(".devcontainer.json", []byte(`{}`))
	if err != nil || other.LockPath() != ".devcontainer-lock.json" {
		t.Errorf("%q, %v", other.LockPath(), err)
	}
}

func TestMounts(t *testing.T) {
	t.Parallel()
	c := parse(t, `{"mounts": [
		"source=a,target=/a,type=volume", "src=b,dst=/b", "type=tmpfs,destination=/c,tmpfs-size=1m,readonly",
		{"type": "volume", "source": "d", "target": "/d"}, "type=bind,source=/e,target=/e,ro=false",
		"type=bind,\"source=/f,g\",target=/f,readonly=true", "type=volume,source=a\"b,target=/h", "type=npipe,target=/i"
	]}`)
	want := []string{"volume a /a false true", "volume b /b false true", "tmpfs  /c true true",
		"volume d /d false true",
		"bind /e /e false false", "bind /f,g /f true false", "volume a\"b /h false true", "npipe  /i false false"}
	for i, m := range c.Mounts {
		got := fmt.Sprint(m.Type, " ", m.Source, " ", m.Target, " ", m.ReadOnly(), " ", m.Supported())
		if got != want[i] {
			t.Errorf("mount %d: %q, want %q", i, got, want[i])
		}
	}
	if c.Mounts[2].Options["tmpfs-size"] != "1m" {
		t.Errorf("options: %v", c.Mounts[2].Options)
	}
	text, err := json.Marshal(devcontainer.Mount{Type: "volume", Source: "s", Target: "/t"})
	if err != nil || string(text) != `{"source":"s","target":"/t","type":"volume"}` {
		t.Errorf("%s, %v", text, err)
	}
}

func TestPorts(t *testing.T) {
	t.Parallel()
	for port, want := range map[devcontainer.Port]string{"3000": "localhost 3000", "db:5432": "db 5432",
		"localhost:1": "localhost 1"} {
		host, number, err := port.Split()
		if got := fmt.Sprint(host, " ", number); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", port, got, err, want)
		}
	}
	for _, port := range []devcontainer.Port{"", "x", "0", "65536", "db:", "db:-1", "${X}"} {
		_, _, err := port.Split()
		wantError(t, err, errors.Invalid, "not a port")
		if text, err := json.Marshal(port); err != nil || text[0] != '"' {
			t.Errorf("%s: %s, %v", port, text, err)
		}
	}
}

func TestBytes(t *testing.T) {
	t.Parallel()
	for size, want := range map[string]int64{"": 0, "1": 1, "2kb": 2048, "3mb": 3 << 20, "8gb": 8 << 30, "1tb": 1 << 40,
		"x": 0, "1bk": 0, "9999999999tb": 0, "gb": 0, "-1kb": -1024} {
		if got := devcontainer.Bytes(size); got != want {
			t.Errorf("%q: %d, want %d", size, got, want)
		}
	}
}

func TestBase(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		want devcontainer.Base
		kind errors.Kind
		says string
	}{
		{text: `{"image": "debian"}`, want: devcontainer.Base{Image: "debian"}},
		{text: `{"image": "debian", "build": {"dockerfile": "Dockerfile", "target": "dev", "args": {"A": "1"}}}`,
			want: devcontainer.Base{Dockerfile: ".devcontainer/Dockerfile", Context: ".devcontainer", Target: "dev",
				Args: map[string]string{"A": "1"}}},
		{text: `{"build": {"dockerfile": "../docker/Dockerfile", "context": ".."}}`,
			want: devcontainer.Base{Dockerfile: "docker/Dockerfile", Context: "."}},
		{text: `{"build": {"dockerfile": "../docker/Dockerfile"}}`,
			want: devcontainer.Base{Dockerfile: "docker/Dockerfile", Context: "docker"}},
		{text: `{"dockerFile": "Dockerfile", "context": "..", "build": {"target": "t"}}`,
			want: devcontainer.Base{Dockerfile: ".devcontainer/Dockerfile", Context: ".", Target: "t"}},
		{text: `{"dockerComposeFile": "compose.yml", "service": "app"}`, kind: errors.Unsupported,
			says: "dockerComposeFile"},
		{text: `{"build": {"args": {}}, "image": null}`, want: devcontainer.Base{}},
		{text: `{"build": {"dockerfile": "../../Dockerfile"}}`, kind: errors.Invalid, says: "leaves the repository"},
		{text: `{"build": {"dockerfile": "Dockerfile", "context": "../.."}}`, kind: errors.Invalid, says: "context"},
		{text: `{"build": {"dockerfile": "/etc/Dockerfile"}}`, kind: errors.Invalid, says: "leaves the repository"},
	} {
		base, err := parse(t, c.text).Base()
		if c.kind != "" {
			wantError(t, err, c.kind, c.says)
		} else if err != nil || base.Image != c.want.Image || base.Dockerfile != c.want.Dockerfile ||
			base.Context != c.want.Context || base.Target != c.want.Target || len(base.Args) != len(c.want.Args) {
			t.Errorf("%s: %+v, %v", c.text, base, err)
		}
	}
}

// Each property that is not followed has one sentence.
func TestNotes(t *testing.T) {
	t.Parallel()
	c := parse(t, `{
		"image": "a", "image": "b", "image": "debian", "dockerComposeFile": ["a.yml"], "service": "s",
			"runServices": ["r"],
		"initializeCommand": "touch /x", "runArgs": ["--gpus", "all"], "appPort": 3000, "workspaceMount": "",
		"build": {"cacheFrom": "x", "options": ["--pull"], "typo": 1}, "remoteUsr": "u", "extensions": [],
			"settings": {},
		"overrideFeatureInstallOrder": ["./a", "ghcr.io/a/b/c", "ghcr.io/a/b/d"],
		"features": {"./a": {}, "ghcr.io/a/b/c:1": {}},
		"privileged": true, "capAdd": ["SYS_PTRACE"], "securityOpt": ["seccomp=unconfined"], "overrideCommand": false,
		"mounts": ["source=/home/x/.ssh,target=/ssh,type=bind", "type=npipe,target=/n",
			"source=v,target=/v,type=volume"],
		"shutdownAction": "none", "updateRemoteUserUID": true, "hostRequirements": {"gpu": true}
	}`)
	metadata, err := devcontainer.Metadata(nil).With(nil, c)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, n := range append(c.Notes(), devcontainer.Merge(metadata).Notes...) {
		how := "ignored"
		if n.Refused {
			how = "refused"
		}
		got[how] = append(got[how], n.Property)
		if !strings.HasPrefix(n.Text, n.Property) || strings.Contains(n.Text, ". ") || strings.HasSuffix(n.Text, ".") {
			t.Errorf("not one sentence about %s: %q", n.Property, n.Text)
		}
	}
	refused := []string{"dockerComposeFile", "initializeCommand", "privileged", "mounts", "mounts",
		"hostRequirements.gpu"}
	ignored := []string{"image", "build.typo", "remoteUsr", "extensions", "settings", "service", "runServices",
		"runArgs",
		"appPort", "workspaceMount", "build.cacheFrom", "build.options", "overrideFeatureInstallOrder", "capAdd",
		"securityOpt", "overrideCommand", "shutdownAction", "updateRemoteUserUID"}
	if !slices.Equal(got["refused"], refused) || !slices.Equal(got["ignored"], ignored) {
		t.Errorf("refused %q\nwant %q\nignored %q\nwant %q", got["refused"], refused, got["ignored"], ignored)
	}
	if n := parse(t, `{"features": {}}`).Notes(); len(n) != 1 || n[0].Property != "image" || n[0].Refused {
		t.Errorf("notes without an image: %+v", n)
	}
	plain := parse(t, `{"image": "debian", "mounts": ["source=v,target=/v"], "overrideCommand": true}`)
	if metadata, err = devcontainer.Metadata(nil).With(nil, plain); err != nil {
		t.Fatal(err)
	}
	if all := append(plain.Notes(), devcontainer.Merge(metadata).Notes...); len(all) > 0 {
		t.Errorf("notes: %+v", all)
	}
}
