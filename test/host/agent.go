package host

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image/imagetest"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
)

// ModelKey is the key that the stub of the model lets in. It must be nowhere but in the server.
const ModelKey = "sk-ant-CANARY-7d1f0a52c4"

// cliDockerfile has the real programs of agents, without the rest of the agent image, which takes much longer to build.
const cliDockerfile = `FROM base
RUN useradd --create-home --uid 1000 agent && mkdir /workspace && chown agent:agent /workspace
COPY --chmod=755 claude opencode /usr/local/bin/
ENV HOME=/home/agent
USER agent
WORKDIR /workspace
`

// programs are the npm packages of these programs, and the file in each, by the program's name.
var programs = map[string][2]string{
	"claude":   {"@anthropic-ai/claude-code-linux-x64", "claude"},
	"opencode": {"opencode-linux-x64-baseline", "bin/opencode"},
}

// locked calls f while this process alone holds the lock of a directory, which it makes if there is none.
func locked(t *testing.T, dir string, f func()) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	f()
}

// cliDir returns the directory of this user's tests for the image "cli" with the pinned versions of the programs.
func cliDir(t *testing.T) (dir string, versions map[string]string) {
	t.Helper()
	return testenv.Cache(t, "cli", append(imagetest.Sources, "test/host/agent.go")...), pinned(t)
}

// pinned returns the versions of the npm packages in the agent image.
func pinned(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../../internal/image/agent/files/package.json")
	var file struct{ Dependencies map[string]string }
	if err = errors.Join(err, json.Unmarshal(text, &file)); err != nil {
		t.Fatal(err)
	}
	return file.Dependencies
}

// fetchPrograms makes the context of the image "cli" in dir. It downloads the programs that are not there.
func fetchPrograms(t *testing.T, dir string, versions map[string]string) {
	t.Helper()
	testenv.WriteFile(t, filepath.Join(dir, "context", "Dockerfile"), []byte(cliDockerfile))
	for p, pkg := range programs {
		fetchFile(t, dir, p, pkg[0]+"@"+versions[pkg[0]], filepath.Join(pkg[0], pkg[1]))
	}
}

// fetchFile makes a file or a directory of an npm package, below node_modules, a part of the context in dir. It
// downloads the package if the part is not there.
func fetchFile(t *testing.T, dir, name, pkg, path string) {
	t.Helper()
	to := filepath.Join(dir, "context", name)
	if _, err := os.Stat(to); err == nil {
		return
	}
	temp := filepath.Join(dir, "npm")
	cmd := exec.CommandContext(t.Context(), testenv.RequireTool(t, "npm", "npm"), "install", "--registry",
		testenv.NPMRegistry(t), "--prefix", temp, "--ignore-scripts", "--no-audit", "--no-fund", "--force", pkg)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm install: %v: %s", err, out)
	}
	if err := errors.Join(os.Rename(filepath.Join(temp, "node_modules", path), to), os.RemoveAll(temp)); err != nil {
		t.Fatal(err)
	}
}

// NewCLI returns a host whose agents use the image "cli", and the stub as their model: its address and key are in the
// environment of the server, as on a personal machine.
func NewCLI(t *testing.T, stub *modeltest.Stub) *Host {
	t.Helper()
	setup := GVisor(t)
	testenv.Root(t)
	cache, versions := cliDir(t)
	library := filepath.Join(cache, "images")
	locked(t, cache, func() {
		fetchPrograms(t, cache, versions)
		buildImage(t, cache, "cli", setup)
	})
	return withModel(t, setup, library, "cli", stub)
}

// NewModel is NewCLI with the agent image.
func NewModel(t *testing.T, stub *modeltest.Stub) *Host {
	t.Helper()
	setup := GVisor(t)
	testenv.Root(t)
	cache, _ := buildAgentImage(t, setup)
	return withModel(t, setup, filepath.Join(cache, "images"), "agent", stub)
}

// withModel returns a host whose agents use an image of a library, and the stub, if any. The host's own library is not
// shared, because sessions add images to it when they end.
func withModel(t *testing.T, setup func(env *testscript.Env) error, library, name string, stub *modeltest.Stub) *Host {
	t.Helper()
	h := New(t, "gvisor", func(env *testscript.Env) error {
		if err := setup(env); err != nil {
			return err
		}
		images := filepath.Join(env.Getenv("HARVEST_DATA"), "images")
		return errors.Join(os.Remove(images), os.MkdirAll(images, 0o700))
	})
	base := imagetest.Library(t)
	images := filepath.Join(h.Data, "images")
	ShareImage(t, filepath.Dir(base.Root(imagetest.Base(t, base))), images, "base")
	image, err := os.Readlink(filepath.Join(library, ".names", name))
	if err != nil {
		t.Fatal(err)
	}
	ShareImage(t, filepath.Join(library, filepath.Base(image)), images, name)
	h.Env.Setenv("HARVEST_AGENTS_IMAGE", name)
	if stub != nil {
		h.Env.Setenv("ANTHROPIC_BASE_URL", stub.URL)
		h.Env.Setenv("ANTHROPIC_API_KEY", ModelKey)
	}
	return h
}

// buildImage builds an image of the context in cache, in the library there, if it does not exist.
func buildImage(t *testing.T, cache, name string, setup func(env *testscript.Env) error) {
	t.Helper()
	library := filepath.Join(cache, "images")
	if _, err := os.Lstat(filepath.Join(library, ".names", name)); err == nil {
		return
	}
	base := imagetest.Library(t)
	ShareImage(t, filepath.Dir(base.Root(imagetest.Base(t, base))), library, "base")
	h := New(t, "gvisor", func(env *testscript.Env) error {
		err := setup(env)
		images := filepath.Join(env.Getenv("HARVEST_DATA"), "images")
		return errors.Join(err, os.Remove(images), os.Symlink(library, images))
	})
	begun := time.Now()
	h.Must("image", "build", filepath.Join(cache, "context"), "-t", name)
	h.Must("down")
	t.Logf("the image %s was built in %s", name, time.Since(begun).Round(time.Second))
}

// Project makes a repository with one commit, and returns its directory.
func (h *Host) Project() string {
	h.T.Helper()
	dir := filepath.Join(h.T.TempDir(), "project")
	err := os.MkdirAll(dir, 0o755)
	if err = errors.Join(err, os.WriteFile(filepath.Join(dir, "README.md"), []byte("# A project\n"),
		0o644)); err != nil {
		h.T.Fatal(err)
	}
	RunGit(h.T, dir, "init", "-q", "-b", "main")
	RunGit(h.T, dir, "add", "-A")
	RunGit(h.T, dir, "-c", "user.name=T", "-c", "user.email=t@example.org", "commit", "-q", "-m", "one")
	return dir
}

// In runs a command line in a directory.
func (h *Host) In(dir string, args ...string) (stdout, stderr string, code int) {
	h.T.Helper()
	var out, err strings.Builder
	cmd := h.Command(h.T.Context(), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &err
	_ = cmd.Run()
	return out.String(), err.String(), cmd.ProcessState.ExitCode()
}

// NewAgent returns a host with the agent image. All tests of this machine share the image's library, because it is
// large.
func NewAgent(t *testing.T) *Host {
	t.Helper()
	h, _ := NewBuiltAgent(t)
	return h
}

// NewBuiltAgent is NewAgent. It also returns the result of the image's build.
func NewBuiltAgent(t *testing.T) (*Host, api.Image) {
	t.Helper()
	setup := GVisor(t)
	testenv.Root(t)
	cache, built := buildAgentImage(t, setup)
	return New(t, "gvisor", func(env *testscript.Env) error { return link(env, setup, cache, "images") }), built
}

// link prepares an environment whose data directory has these directories of cache.
func link(env *testscript.Env, setup func(env *testscript.Env) error, cache string, names ...string) error {
	if err := setup(env); err != nil {
		return err
	}
	data := env.Getenv("HARVEST_DATA")
	err := os.Remove(filepath.Join(data, "images"))
	for _, name := range names {
		err = errors.Join(err, os.MkdirAll(filepath.Join(cache, name), 0o700),
			os.Symlink(filepath.Join(cache, name), filepath.Join(data, name)))
	}
	return err
}

// agentImage is the result of this process's build of the agent image.
var agentImage struct {
	sync.Mutex
	built api.Image // guarded by Mutex
}

// buildAgentImage returns the directory of this machine for the agent image, and the result of its build, which takes
// minutes the first time.
func buildAgentImage(t *testing.T, setup func(env *testscript.Env) error) (cache string, built api.Image) {
	t.Helper()
	cache = testenv.Cache(t, "agent", append(imagetest.Sources, "internal/base/mcp")...)
	agentImage.Lock()
	defer agentImage.Unlock()
	if agentImage.built.ID != "" {
		return cache, agentImage.built
	}
	testenv.NPMRegistry(t)
	library := imagetest.Library(t)
	locked(t, cache, func() { // one server at a time may use the build cache
		ShareImage(t, filepath.Dir(library.Root(imagetest.Base(t, library))), filepath.Join(cache, "images"), "base")
		builder := New(t, "gvisor", func(env *testscript.Env) error {
			return link(env, setup, cache, "images",
				"build-cache")
		})
		out := builder.Must("image", "build", "agent", "--build-arg", "NPM_CONFIG_REGISTRY", "-o", "json")
		if err := json.Unmarshal([]byte(out), &agentImage.built); err != nil {
			t.Fatal(err)
		}
		builder.Must("down")
	})
	return cache, agentImage.built
}

// ShareImage puts the image in directory from into another library, under a name. The libraries share the content. Each
// has a manifest of its own: its lock tells who uses the image.
func ShareImage(t *testing.T, from, library, name string) {
	t.Helper()
	to := filepath.Join(library, filepath.Base(from))
	if _, err := os.Stat(to); err == nil {
		return
	}
	temp := filepath.Join(library, ".share")
	err := errors.Join(os.RemoveAll(temp), os.MkdirAll(temp, 0o700),
		os.MkdirAll(filepath.Join(library, ".names"), 0o700))
	err = errors.Join(err, os.Link(filepath.Join(from, "root.erofs"), filepath.Join(temp, "root.erofs")))
	manifest, failed := os.ReadFile(filepath.Join(from, "image.json"))
	err = errors.Join(err, failed, os.WriteFile(filepath.Join(temp, "image.json"), manifest, 0o600))
	link := filepath.Join(library, ".names", name)
	if err = errors.Join(err, os.Rename(temp, to), os.RemoveAll(link),
		os.Symlink(filepath.Base(from), link)); err != nil {
		t.Fatal(err)
	}
}
