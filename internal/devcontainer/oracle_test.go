package devcontainer_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/devcontainer"
)

// cliVersion is that of the npm package @devcontainers/cli, the reference implementation.
const cliVersion = "0.89.0"

// cli returns the path of the program of the reference implementation. It downloads it if it is not there.
func cli(t *testing.T) string {
	t.Helper()
	testenv.RequireTool(t, "node", "nodejs")
	dir := testenv.Cache(t, "devcontainers-cli-"+cliVersion)
	program := filepath.Join(dir, "node_modules", "@devcontainers", "cli", "devcontainer.js")
	if _, err := os.Stat(program); err == nil {
		return program
	}
	cmd := exec.CommandContext(t.Context(), testenv.RequireTool(t, "npm", "npm"), "install", "--registry",
		testenv.NPMRegistry(t), "--prefix", dir, "--ignore-scripts", "--no-audit", "--no-fund",
		"@devcontainers/cli@"+cliVersion)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm install: %v: %s", err, out)
	}
	return program
}

// docker is a program in place of Docker's. It knows one image, and one container if its file exists.
const docker = `#!/bin/sh
case "$1 $3" in
"inspect image") exec cat "$DOCKER_FILES/image.json" ;;
"inspect container") exec cat "$DOCKER_FILES/container.json" ;;
esac
case "$1" in ps) exit 0 ;; esac
echo "docker $*: not expected" >&2
exit 1
`

// quiet is the log of registries.
var quiet = log.New(io.Discard, "", 0)

// publish serves the features of testdata/features in a registry, and returns its address. The text registry.test in
// their descriptions becomes that address.
func publish(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(quiet)))
	t.Cleanup(server.Close)
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "http://"), ":")
	address := "localhost:" + port
	dirs, err := filepath.Glob("testdata/features/*/*/*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no features: %v", err)
	}
	for _, dir := range dirs {
		text := bytes.ReplaceAll(read(t, filepath.Join(dir, devcontainer.FeatureFile)), []byte("registry.test"),
			[]byte(address))
		repository, err := filepath.Rel("testdata/features", dir)
		if err != nil {
			t.Fatal(err)
		}
		f, err := devcontainer.ParseFeature(dir, text)
		if err != nil {
			t.Fatal(err)
		}
		archive := archiveOf(t, map[string]string{
			devcontainer.FeatureFile: string(text), "install.sh": string(read(t, filepath.Join(dir, "install.sh"))),
		})
		major, rest, _ := strings.Cut(f.Version, ".")
		minor, _, _ := strings.Cut(rest, ".")
		for _, id := range append(f.LegacyIDs, f.ID) {
			at := address + "/" + path.Join(path.Dir(filepath.ToSlash(repository)), id)
			push(t, at, string(text), archive, "latest", major, major+"."+minor, f.Version)
		}
	}
	return address
}

// push publishes a feature with these tags.
func push(t *testing.T, repository, metadata string, archive []byte, tags ...string) {
	t.Helper()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		"application/vnd.devcontainers")
	img, err := mutate.Append(img, mutate.Addendum{
		Layer: static.NewLayer(archive, "application/vnd.devcontainers.layer.v1+tar"),
	})
	if err != nil {
		t.Fatal(err)
	}
	if metadata != "" {
		img = mutate.Annotations(img, map[string]string{"dev.containers.metadata": metadata}).(v1.Image)
	}
	for _, tag := range tags {
		ref, err := name.NewTag(repository + ":" + tag)
		if err == nil {
			err = remote.Write(ref, img, remote.WithContext(t.Context()))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func archiveOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, file := range slices.Sorted(maps.Keys(files)) {
		text := files[file]
		if err := w.WriteHeader(&tar.Header{Name: "./" + file, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// localEnv is the environment of the user in these tests.
var localEnv = map[string]string{"USER": "ada", "HOME": "/home/ada", "EMPTY": "", "DEPLOY_TOKEN": "t0ken"}

// oracle runs a shape in both implementations.
type oracle struct {
	program string // of the reference implementation
	dir     string // the shape's repository
	state   string // files of docker
	image   struct {
		User   string
		Env    []string
		Labels map[string]string
	}
}

// configuration is the output of the reference implementation.
type configuration struct {
	Merged   map[string]any `json:"mergedConfiguration"`
	Features struct {
		FeatureSets []struct {
			Features []struct {
				ID string `json:"id"`
			} `json:"features"`
			SourceInformation struct {
				UserFeatureID string `json:"userFeatureId"`
			} `json:"sourceInformation"`
		} `json:"featureSets"`
	} `json:"featuresConfiguration"`
}

// run returns the output of the reference implementation, which must succeed.
func (o *oracle) run(t *testing.T, args ...string) configuration {
	t.Helper()
	c, said, err := o.try(t, args...)
	if err != nil {
		t.Fatalf("the reference implementation fails: %v\n%s", err, said)
	}
	return c
}

// try returns the output of the reference implementation, and its log.
func (o *oracle) try(t *testing.T, args ...string) (c configuration, said string, err error) {
	t.Helper()
	args = append([]string{o.program, "read-configuration", "--workspace-folder", o.dir, "--docker-path",
		filepath.Join(o.state, "docker"), "--include-merged-configuration", "--include-features-configuration"},
		args...)
	cmd := exec.CommandContext(t.Context(), "node", args...)
	cmd.Env = append(testenv.CleanEnv(), "TMPDIR="+o.state, "DOCKER_FILES="+o.state)
	for name, value := range localEnv {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Env = slices.DeleteFunc(cmd.Env, func(pair string) bool {
		return strings.HasPrefix(pair, "USERPROFILE=") || strings.HasPrefix(pair, "UID=")
	})
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return c, stderr.String(), err
	}
	if err := json.Unmarshal(out, &c); err != nil {
		t.Fatal(err)
	}
	return c, stderr.String(), nil
}

// copyShape copies a repository with the registry's address in its files.
func copyShape(t *testing.T, from, to, address string) {
	t.Helper()
	err := filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		testenv.WriteFile(t, filepath.Join(to, rel), bytes.ReplaceAll(read(t, p), []byte("registry.test"),
			[]byte(address)))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// list returns the paths of the files in a directory.
func list(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestSameAsTheReferenceImplementation compares the merged configuration, the order of features and the metadata of the
// image with those of the Dev Container CLI, for repositories like those of public projects.
func TestSameAsTheReferenceImplementation(t *testing.T) {
	t.Parallel()
	program := cli(t)
	address := publish(t)
	shapes, err := filepath.Glob("testdata/shapes/*")
	if err != nil || len(shapes) < 20 {
		t.Fatalf("%d shapes: %v", len(shapes), err)
	}
	for _, shape := range shapes {
		t.Run(filepath.Base(shape), func(t *testing.T) {
			t.Parallel()
			compare(t, program, shape, address)
		})
	}
}

func compare(t *testing.T, program, shape, address string) {
	o := &oracle{program: program, dir: filepath.Join(t.TempDir(), "app"), state: t.TempDir()}
	copyShape(t, shape, o.dir, address)
	o.fake(t)
	location, err := devcontainer.Choose(devcontainer.Find(list(t, o.dir)), choices[filepath.Base(shape)])
	if err != nil {
		t.Fatal(err)
	}
	vars := devcontainer.Variables{LocalEnv: localEnv, LocalFolder: o.dir, ContainerFolder: "/workspaces/app"}
	c, features, metadata := o.ours(t, location.Path, vars)
	theirs := o.run(t, "--config", filepath.Join(o.dir, location.Path))
	var order, want []string
	for _, f := range features {
		order = append(order, f.Reference.Text)
	}
	for _, f := range theirs.Features.FeatureSets {
		want = append(want, f.SourceInformation.UserFeatureID)
	}
	if !slices.Equal(order, want) {
		t.Errorf("features are installed in the order %q, want %q", order, want)
	}
	same(t, "before the environment exists", o.merge(t, c, metadata, vars), theirs.Merged)

	// The environment has the metadata of its image, and both know its variables.
	labels := map[string]string{"harvest.session": "ses_1", "harvest.repo": "app"}
	if vars.ID, err = devcontainer.ID(labels); err != nil {
		t.Fatal(err)
	}
	vars.ContainerEnv = map[string]string{"PATH": "/usr/bin", "HOME": "/root", "LANG": "C.UTF-8"}
	o.container(t, metadata.String(), labels, vars.ContainerEnv)
	args := []string{"--config", filepath.Join(o.dir, location.Path), "--container-id", "c1"}
	for name, value := range labels {
		args = append(args, "--id-label", name+"="+value)
	}
	theirs = o.run(t, args...)
	again, err := devcontainer.ParseMetadata(metadata.String())
	if err != nil {
		t.Fatal(err)
	}
	same(t, "in the environment", o.merge(t, c, again, vars), theirs.Merged)
}

// choices are the names of configurations of shapes with several.
var choices = map[string]string{"monorepo-api": "api"}

// fake writes the program docker and the image that it knows.
func (o *oracle) fake(t *testing.T) {
	t.Helper()
	testenv.WriteFile(t, filepath.Join(o.state, "docker"), []byte(docker))
	if err := os.Chmod(filepath.Join(o.state, "docker"), 0o755); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(o.dir, "image.json")); err == nil {
		if err := json.Unmarshal(text, &o.image); err != nil {
			t.Fatal(err)
		}
	}
	o.write(t, "image.json", []any{map[string]any{"Id": "sha256:1", "Architecture": "amd64", "Os": "linux",
		"Config": o.image}})
}

func (o *oracle) write(t *testing.T, file string, content any) {
	t.Helper()
	text, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	testenv.WriteFile(t, filepath.Join(o.state, file), text)
}

// container writes the container that docker knows.
func (o *oracle) container(t *testing.T, metadata string, labels, env map[string]string) {
	t.Helper()
	all := maps.Clone(labels)
	all[devcontainer.Label] = metadata
	var pairs []string
	for name, value := range env {
		pairs = append(pairs, name+"="+value)
	}
	o.write(t, "container.json", []any{map[string]any{
		"Id": "c1", "Created": "2026-01-01T00:00:00Z", "Name": "/c1", "Mounts": []any{},
		"State":           map[string]any{"Status": "running", "StartedAt": "2026-01-01T00:00:00Z"},
		"NetworkSettings": map[string]any{"Ports": map[string]any{}},
		"Config":          map[string]any{"Image": "x", "User": o.image.User, "Env": pairs, "Labels": all},
	}})
}

// ours returns the configuration, its features and the metadata of the image that they make.
func (o *oracle) ours(t *testing.T, file string, vars devcontainer.Variables) (*devcontainer.Config,
	[]*devcontainer.Feature, devcontainer.Metadata) {
	t.Helper()
	c, err := devcontainer.Parse(file, read(t, filepath.Join(o.dir, file)))
	if err != nil {
		t.Fatal(err)
	}
	fetcher := &devcontainer.Fetcher{Dir: t.TempDir(), Repository: os.DirFS(o.dir), Config: file,
		Transport: http.DefaultTransport}
	substituted, err := c.Substitute(vars)
	if err != nil {
		t.Fatal(err)
	}
	features, err := devcontainer.Resolve(t.Context(), substituted, fetcher.Feature)
	if err != nil {
		t.Fatal(err)
	}
	metadata, err := devcontainer.ParseMetadata(o.image.Labels[devcontainer.Label])
	if err != nil {
		t.Fatal(err)
	}
	if metadata, err = metadata.With(features, c); err != nil {
		t.Fatal(err)
	}
	return c, features, metadata
}

// merge returns our merged configuration in the form of the reference implementation: the configuration, with the
// merged properties in place of its own.
func (o *oracle) merge(t *testing.T, c *devcontainer.Config, m devcontainer.Metadata,
	vars devcontainer.Variables) map[string]any {
	t.Helper()
	folder, err := c.Folder(vars)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = c.Substitute(vars); err != nil {
		t.Fatal(err)
	}
	vars.ContainerFolder = folder
	if m, err = m.Substitute(vars); err != nil {
		t.Fatal(err)
	}
	all := encode(t, c)
	for _, name := range append(slices.Clone(devcontainer.Hooks), "customizations", "shutdownAction", "mounts",
		"forwardPorts", "hostRequirements") {
		delete(all, name)
	}
	maps.Copy(all, encode(t, devcontainer.Merge(m)))
	return all
}

func encode(t *testing.T, v any) map[string]any {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// same compares merged configurations.
func same(t *testing.T, when string, ours, theirs map[string]any) {
	t.Helper()
	normalize(ours)
	normalize(theirs)
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		if !reflect.DeepEqual(ours[name], theirs[name]) {
			t.Errorf("%s, %s is\n%s\nwant\n%s", when, name, print(ours[name]), print(theirs[name]))
		}
	}
	for name := range theirs {
		if _, ok := ours[name]; !ok {
			t.Errorf("%s, %s is missing, want %s", when, name, print(theirs[name]))
		}
	}
}

func print(v any) string {
	text, err := json.MarshalIndent(v, "", "  ")
	return string(text) + fmt.Sprint(map[bool]any{true: "", false: err}[err == nil])
}

// normalize removes the differences of form that have no meaning.
func normalize(all map[string]any) {
	delete(all, "configFilePath") // of the machine
	delete(all, "$schema")
	// An integer of 0 is as none.
	if h, ok := all["hostRequirements"].(map[string]any); ok && h["cpus"] == 0.0 {
		delete(h, "cpus")
	}
	// An empty list is as none.
	for _, name := range []string{"forwardPorts", "mounts"} {
		if l, ok := all[name].([]any); ok && len(l) == 0 {
			delete(all, name)
		}
	}
	// A single string is as a list of one.
	if b, ok := all["build"].(map[string]any); ok {
		if s, ok := b["cacheFrom"].(string); ok {
			b["cacheFrom"] = []any{s}
		}
		if args, ok := b["args"].(map[string]any); ok { // which are passed as text
			for name, v := range args {
				args[name] = fmt.Sprint(v)
			}
		}
	}
	// Options are passed as text; a string alone is the option version.
	if features, ok := all["features"].(map[string]any); ok {
		for id, value := range features {
			options := map[string]any{}
			switch value := value.(type) {
			case string:
				options["version"] = value
			case map[string]any:
				for name, v := range value {
					options[name] = fmt.Sprint(v)
				}
			}
			features[id] = options
		}
	}
	// No command is as an empty list of commands.
	for _, hook := range devcontainer.Hooks {
		if all[hook+"s"] == nil {
			all[hook+"s"] = []any{}
		}
	}
}
